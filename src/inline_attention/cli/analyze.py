"""`inline analyze`: what models look at, as pictures and numbers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .analysis import Analysis, check_point, make_table, masked, name_pictures, spread, tell_left_out, whence
from .arguments import prepare_folder
from .subjects import open_one, to_draw, whole_picture


@dataclass(frozen=True)
class AnalyzeConfusion(Analysis):
    """How often different queries get the same weights: by picture, layer, head and tolerance."""

    tolerance: float = 0.01
    """How close two rows of weights are the same, and two queries too, as a share of their length."""

    def run(self) -> None:
        """Count, write, tell."""
        from ..analysis.confusion import TOLERANCES
        from ..analysis.plots import draw_confusion
        from ..analysis.study import confusion_numbers, confusion_of

        if not 0 < self.tolerance < 1:
            raise ValueError(f"--tolerance must be between 0 and 1, got {self.tolerance}")
        tolerances = tuple(sorted({*TOLERANCES, self.tolerance}))
        loaded, shown = self.begin()
        found = {one.subject.label: confusion_of(self.watch(one, shown, "confusion"), tolerances) for one in loaded}
        figure = draw_confusion(found, self.out / "confusion.png", self.tolerance)
        table = make_table("confused pairs, %", "least by layer", "most by layer", "a picture, median")
        for label, one in found.items():
            layers = one.by_layer(self.tolerance)
            middle = sorted(one.by_picture(self.tolerance))[len(shown.pictures) // 2]
            table.add_row(
                label, *(f"{100 * share:.3g}" for share in (one.share(self.tolerance), min(layers), max(layers))), f"{middle:,}"
            )
        numbers = {label: confusion_numbers(one, self.tolerance) for label, one in found.items()}
        said = (
            f"Pairs of queries of a picture whose rows of weights differ by at most {self.tolerance:g} of their length, "
            f"while they differ by more; rows that are all nearly even count as the same. Over {name_pictures(shown)}."
        )
        self.write("confusion", {"models": numbers, **whence(shown)}, [table], [figure], said)


@dataclass(frozen=True)
class AnalyzeRays(Analysis):
    """What one query looks at when it is made shorter and longer; without models, the paper's first figure in the plane."""

    picture: str | None = None
    """A file, or a sample: flower, temple, portrait; unset: the first of the pictures."""
    point: tuple[float, float] = (0.5, 0.5)
    """Of the query, as shares of height and width."""
    head: int = 1
    """Which head to draw, counted from 1."""

    def run(self) -> None:
        """Scale, weigh, tell."""
        from ..analysis.capture import seen_by
        from ..analysis.plots import draw_plane, draw_rays
        from ..analysis.rays import plane
        from ..analysis.study import ray_numbers, ray_of

        if self.models:
            loaded, shown = self.begin()
            picture, _ = open_one(self.picture, shown)
            point = check_point(self.point)
            every = [
                ray_of(seen_by(one.subject.model, whole_picture(one, picture)), point, title=one.subject.label)
                for one in loaded
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
class AnalyzeMaps(Analysis):
    """What one point of a picture looks at: every layer, global and local part, head by head, and through all layers."""

    picture: str | None = None
    """A file, or a sample: flower, temple, portrait; unset: the first of the pictures."""
    point: tuple[float, float] = (0.5, 0.5)
    """Of the query, as shares of height and width."""
    layers: tuple[int, ...] = ()
    """Which layers to draw, counted from 1; unset: five, evenly spread."""
    head: int | None = None
    """One head, counted from 1; unset: the mean."""

    def run(self) -> None:
        """Look, draw, tell."""
        from ..analysis.capture import in_words, seen_by
        from ..analysis.maps import one_grid, query_map, rollout
        from ..analysis.plots import draw_heads, draw_models, draw_parts

        loaded, shown = self.begin()
        picture, source = open_one(self.picture, shown)
        point = check_point(self.point)
        tables = []
        maps, followed, numbers, files = {}, {}, {}, []
        for one in loaded:
            label = one.subject.label
            seen = seen_by(one.subject.model, whole_picture(one, picture))
            chosen = self._chosen(len(seen))
            maps[label] = [query_map(seen[place], seen[place].place(point)) for place in chosen]
            self._check_head(maps[label], label)
            stage = one_grid(seen.layers)
            followed[label] = rollout(stage, stage[-1].place(point))[0]
            numbers[label] = {
                "point": point,
                "layers": [
                    {
                        "layer": found.layer, "query": found.query, "grid": found.grid, "global": found.mixed[0].tolist(),
                        "local": None if found.local is None else found.local[0].tolist(), "prefix": found.prefix[0].tolist(),
                    }
                    for found in maps[label]
                ],
                "rollout": {"layers": [layer.name for layer in stage], "weights": followed[label].tolist()},
            }  # fmt: skip
            tell_left_out(label, seen)
            tables.append(make_table("layer", "tokens", "strongest, even shares", "row, column", "negative, %", title=label))
            for number, found in zip(chosen, maps[label], strict=True):
                weights = found.together[0].mean(0) * found.mixed[0, 0].numel()
                place = int(weights.abs().argmax())
                where = f"{place // weights.shape[1] + 1}, {place % weights.shape[1] + 1}"
                negative = 100 * float((found.together[0] < 0).double().mean())
                size = f"{found.grid[0]} x {found.grid[1]}"
                most = f"{float(weights.flatten()[place]):.3g}"
                tables[-1].add_row(f"{number + 1}: {in_words(found.layer)}", size, most, where, f"{negative:.0f}")
            name = _file_name(label)
            pixels = to_draw(picture)
            files.append(draw_parts(pixels, maps[label], label, self.out / f"maps-{name}.png", self.head and self.head - 1))
            files.append(draw_heads(maps[label], label, self.out / f"heads-{name}.png"))
        files.insert(0, draw_models(to_draw(picture), maps, followed, self.out / "maps.png"))
        said = (
            f"The query at {point[0]:g} of the height and {point[1]:g} of the width of {source}; its strongest weight, for or "
            "against, and the share of negative weights, with the local part."
        )
        self.write("maps", {"models": numbers, "picture": source}, tables, files, said)

    def _chosen(self, layers: int) -> list[int]:
        if self.layers:
            wrong = [number for number in self.layers if not 1 <= number <= layers]
            if wrong:
                raise ValueError(f"--layers {wrong[0]}: the model has {layers} layers, counted from 1")
            return [number - 1 for number in self.layers]
        return spread(layers)

    def _check_head(self, maps: Sequence[Any], label: str) -> None:
        heads = min(found.mixed.shape[1] for found in maps)
        if self.head is not None and not 1 <= self.head <= heads:
            raise ValueError(f"--head {self.head}: {label} has {heads} heads in a layer that is drawn, counted from 1")


@dataclass(frozen=True)
class AnalyzeLocality(Analysis):
    """How much attention stays in the 3x3, 5x5 and 7x7 tokens around the query, by layer, against even weights."""

    sizes: tuple[int, ...] = (3, 5, 7)
    """Sides of the windows, odd."""

    def run(self) -> None:
        """Add up, write, tell."""
        from ..analysis.capture import in_words
        from ..analysis.plots import draw_locality
        from ..analysis.study import locality_of

        loaded, shown = self.begin()
        found = {one.subject.label: locality_of(self.watch(one, shown, "locality"), self.sizes) for one in loaded}
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
                tables[-1].add_row(f"{number}: {in_words(near.layer)}", *cells)
        numbers = {label: [asdict(near) for near in layers] for label, layers in found.items()}
        self.write("locality", {"models": numbers, **whence(shown)}, tables, [figure], f"Over {name_pictures(shown)}.")


@dataclass(frozen=True)
class AnalyzeMasking(Analysis):
    """Accuracy when no query may look at its own window, against as many random tokens; for trained models."""

    count: int = 1000
    """Pictures to look at."""
    sizes: tuple[int, ...] = (3, 5, 7)
    """Sides of the windows, odd."""
    batch: int = 50
    """Pictures at once."""

    def run(self) -> None:
        """Hide, count, tell."""
        from ..analysis.capture import in_words
        from ..analysis.plots import draw_masking

        loaded, shown = self.begin()
        found = {one.subject.label: masked(one, shown, self.sizes, self.batch, self.seed) for one in loaded}
        figure = draw_masking(found, self.out / "masking.png")
        table = make_table("top-1, %", "hidden", *(f"{size} x {size}" for size in self.sizes))
        for label, one in found.items():
            for rule, shares in one.found.items():
                table.add_row(label, f"{one.top1:.1f}", rule, *(f"{share:.1f}" for share in shares))
        numbers = {label: asdict(one) for label, one in found.items()}
        left = [
            f"{label}: left as they are at {size} x {size}, being no larger: {', '.join(map(in_words, names))}."
            for label, one in found.items()
            for size, names in one.untouched.items()
            if names
        ]
        self.write("masking", {"models": numbers, **whence(shown)}, [table], [figure], f"Over {name_pictures(shown)}.", *left)


@dataclass(frozen=True)
class AnalyzeRank(Analysis):
    """Rank and entropy of the weights, and how many are negative, by layer."""

    count: int = 8
    """Pictures to look at."""

    def run(self) -> None:
        """Decompose, write, tell."""
        from ..analysis.capture import in_words
        from ..analysis.plots import draw_spectrum
        from ..analysis.study import spectrum_of

        loaded, shown = self.begin()
        found = {one.subject.label: spectrum_of(self.watch(one, shown, "rank")) for one in loaded}
        figure = draw_spectrum(found, self.out / "rank.png")
        tables = []
        for label, layers in found.items():
            title = f"{label}: global weights, in the mean over heads and pictures"
            tables.append(make_table("layer", "tokens", "rank", "effective rank", "entropy", "negative, %", title=title))
            for number, one in enumerate(layers, start=1):
                numbers = (f"{one.rank:.1f}", f"{one.effective_rank:.1f}", f"{one.entropy:.3f}", f"{100 * one.negative:.0f}")
                tables[-1].add_row(f"{number}: {in_words(one.layer)}", str(one.tokens), *numbers)
        kept = {label: [asdict(one) for one in layers] for label, layers in found.items()}
        self.write("rank", {"models": kept, **whence(shown)}, tables, [figure], f"Over {name_pictures(shown)}.")


def _file_name(label: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in label).strip("-")
