"""`inline analyze`: attention of models, as images and numbers; one class for each sub-command."""

from dataclasses import asdict, dataclass

from .analyze_base import Analysis, check_point, image_facts, make_table, measure_masking, name_images
from .analyze_inputs import choose_image, whole_image
from .arguments import prepare_folder


@dataclass(frozen=True)
class AnalyzeConfusion(Analysis):
    """Count how often different queries get the same attention weights, by image, layer, head and tolerance."""

    tolerance: float = 0.01
    """Two rows of weights, or two queries, are the same if they differ by less than this share of their length."""

    def run(self) -> None:
        """Count, write, print."""
        from ..analysis.confusion import DEFAULT_TOLERANCE, LEVELS, TOLERANCES, level
        from ..analysis.model_analysis import confusion_numbers, confusion_of
        from ..analysis.plots import draw_confusion

        if not 0 < self.tolerance < 1:
            raise ValueError(f"--tolerance must be between 0 and 1, got {self.tolerance}")
        tolerances = tuple(sorted({*TOLERANCES, self.tolerance}))
        models, images = self.begin()
        found = {one.subject.label: confusion_of(self.capture(one, images, "confusion"), tolerances) for one in models}
        figure = draw_confusion(found, self.out / "confusion.png", self.tolerance)
        table = make_table("confused pairs, %", "least by layer", "most by layer", "an image, median")
        for label, one in found.items():
            layers = one.by_layer(self.tolerance)
            middle = sorted(one.by_image(self.tolerance))[len(images.images) // 2]
            table.add_row(
                label, *(f"{100 * share:.3g}" for share in (one.share(self.tolerance), min(layers), max(layers))), f"{middle:,}"
            )
        numbers = {label: confusion_numbers(one, self.tolerance) for label, one in found.items()}
        summary = (
            f"Pairs of queries of an image whose rows of weights differ by at most {self.tolerance:g} of their length, "
            f"while they differ by more; rows that are all nearly even count as the same. Over {name_images(images)}."
        )
        levels = ", ".join(f"{label} {level(one.share())}" for label, one in found.items())
        judged = f"At a tolerance of {DEFAULT_TOLERANCE:g} these are: {levels}. {LEVELS}"
        self.write("confusion", {"models": numbers, **image_facts(images)}, [table], [figure], summary, judged)


@dataclass(frozen=True)
class AnalyzeRays(Analysis):
    """Draw the attention of one query made shorter and longer; without models, the paper's first figure."""

    image: str | None = None
    """A file, or a sample: flower, temple, portrait; unset: the first of the images."""
    point: tuple[float, float] = (0.5, 0.5)
    """Position of the query, as shares of height and width."""
    head: int = 1
    """Which head to draw, counted from 1."""

    def run(self) -> None:
        """Scale the query, compute its weights, draw and print."""
        from ..analysis.capture import capture_pass
        from ..analysis.model_analysis import ray_numbers, ray_of
        from ..analysis.plots import draw_plane, draw_rays
        from ..analysis.rays import plane

        if self.models:
            models, images = self.begin()
            image, _ = choose_image(self.image, images)
            point = check_point(self.point)
            every = [
                ray_of(capture_pass(one.subject.model, whole_image(one, image)), point, title=one.subject.label)
                for one in models
            ]
            rays = [one for one in every if one is not None]
            if not rays:
                raise ValueError("every layer of these models attends in windows: there is no ray to follow")
            fewest = min(len(one.weights) for one in rays)
            if not 1 <= self.head <= fewest:
                raise ValueError(f"--head {self.head}: these models have {fewest} heads in that layer, counted from 1")
            figure = draw_rays(rays, self.out / "rays.png", self.head - 1)
        else:
            prepare_folder(self.out)
            queries, keys, rays = plane()
            figure = draw_plane(queries, keys, rays, self.out / "plane.png")
        table = make_table("layer", "heads", "pairs of lengths", "same weights, mean over heads")
        for one in rays:
            mean = float(one.confused.double().mean())
            table.add_row(one.title, one.layer, str(len(one.weights)), str(one.pairs), f"{mean:.3g}")
        self.write(figure.stem, {"rays": [ray_numbers(one) for one in rays]}, [table], [figure])


@dataclass(frozen=True)
class AnalyzeLocality(Analysis):
    """Measure how much attention stays in the 3x3, 5x5 and 7x7 tokens around the query, by layer, against even weights."""

    sizes: tuple[int, ...] = (3, 5, 7)
    """Sides of the windows, odd."""

    def run(self) -> None:
        """Measure, write, print."""
        from ..analysis.attention import layer_label
        from ..analysis.model_analysis import locality_of
        from ..analysis.plots import draw_locality

        models, images = self.begin()
        found = {one.subject.label: locality_of(self.capture(one, images, "locality"), self.sizes) for one in models}
        figure = draw_locality(found, self.out / "locality.png")
        tables = []
        for label, layers in found.items():
            parts = ["attention", "together", "even"]
            title = f"{label}: weight around the query, %: attention / with its local part / even"
            if all(near.together == near.attention for near in layers):
                parts, title = ["attention", "even"], f"{label}: weight around the query, %: attention / even"
            tables.append(make_table("layer", *(f"{size} x {size}" for size in self.sizes), title=title))
            for number, near in enumerate(layers, start=1):
                shares = zip(*(getattr(near, part) for part in parts), strict=True)
                cells = [" / ".join(f"{100 * share:.1f}" for share in cell) for cell in shares]
                tables[-1].add_row(f"{number}: {layer_label(near.layer)}", *cells)
        numbers = {label: [asdict(near) for near in layers] for label, layers in found.items()}
        self.write("locality", {"models": numbers, **image_facts(images)}, tables, [figure], f"Over {name_images(images)}.")


@dataclass(frozen=True)
class AnalyzeMasking(Analysis):
    """Measure accuracy when each query's neighbourhood is masked, against as many random tokens; for trained models."""

    count: int = 1000
    """How many images to analyse."""
    sizes: tuple[int, ...] = (3, 5, 7)
    """Sides of the windows, odd."""
    batch: int = 50
    """Images at once."""

    def run(self) -> None:
        """Mask, count, print."""
        from ..analysis.attention import layer_label
        from ..analysis.plots import draw_masking

        models, images = self.begin()
        found = {one.subject.label: measure_masking(one, images, self.sizes, self.batch, self.seed) for one in models}
        figure = draw_masking(found, self.out / "masking.png")
        table = make_table("top-1, %", "hidden", *(f"{size} x {size}" for size in self.sizes))
        for label, one in found.items():
            for rule, shares in one.found.items():
                table.add_row(label, f"{one.top1:.1f}", rule, *(f"{share:.1f}" for share in shares))
        numbers = {label: asdict(one) for label, one in found.items()}
        left = [
            f"{label}: left as they are at {size} x {size}, being no larger: {', '.join(map(layer_label, names))}."
            for label, one in found.items()
            for size, names in one.untouched.items()
            if names
        ]
        self.write(
            "masking", {"models": numbers, **image_facts(images)}, [table], [figure], f"Over {name_images(images)}.", *left
        )


@dataclass(frozen=True)
class AnalyzeRank(Analysis):
    """Measure rank and entropy of the attention weights, and how many are negative, by layer."""

    count: int = 8
    """How many images to analyse."""

    def run(self) -> None:
        """Decompose, write, print."""
        from ..analysis.attention import layer_label
        from ..analysis.model_analysis import rank_stats_of
        from ..analysis.plots import draw_rank

        models, images = self.begin()
        found = {one.subject.label: rank_stats_of(self.capture(one, images, "rank")) for one in models}
        figure = draw_rank(found, self.out / "rank.png")
        tables = []
        for label, layers in found.items():
            title = f"{label}: global weights, in the mean over heads and images"
            tables.append(make_table("layer", "tokens", "rank", "effective rank", "entropy", "negative, %", title=title))
            for number, one in enumerate(layers, start=1):
                numbers = (f"{one.rank:.1f}", f"{one.effective_rank:.1f}", f"{one.entropy:.3f}", f"{100 * one.negative:.0f}")
                tables[-1].add_row(f"{number}: {layer_label(one.layer)}", str(one.tokens), *numbers)
        kept = {label: [asdict(one) for one in layers] for label, layers in found.items()}
        self.write("rank", {"models": kept, **image_facts(images)}, tables, [figure], f"Over {name_images(images)}.")
