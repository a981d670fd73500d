"""`inline analyze`: what models look at, as pictures and numbers."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .arguments import prepare_folder, usable_device
from .progress import counter, track
from .subjects import Loaded, Shown, load_pictures, load_subjects, open_one, to_draw, whole_picture

if TYPE_CHECKING:
    import torch

    from ..analysis.capture import Captured
    from ..analysis.maps import QueryMap
    from ..analysis.masking import Masked
    from ..analysis.study import Study

    Maps = dict[str, list[QueryMap]]

LAYERS = 5
"""Layers that a figure shows of a model that has more: spread evenly, first and last among them."""


@dataclass(frozen=True)
class _Analysis:
    models: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Runs' folders, files of weights, or names of models: ours, or any vision transformer of timm's; named only: untrained."""
    pretrained: bool = False
    """Let timm fetch the weights of models that are named from its hub."""
    data: str | None = None
    """Pictures: any source of `inline train` (its held-out part), or a folder of class folders; unset: what the first run held
    out, or sample pictures."""
    root: str | None = None
    """Folder of a wds/, hfds/ or torch/ source."""
    split: str = "validation"
    """Split of a source that has named splits."""
    count: int = 32
    """Pictures to look at."""
    out: Path = Path("analysis")
    """Folder for the PNG and JSON files."""
    seed: int = 0
    """Draws pictures, and the weights of models that are not trained."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, mps."""
    json: bool = False
    """Print JSON instead of the table."""

    def _begin(self) -> tuple[list[Loaded], Shown]:
        device = usable_device(self.device)
        prepare_folder(self.out)
        loaded = load_subjects(self.models, pretrained=self.pretrained, seed=self.seed, device=device)
        shown = load_pictures(loaded, self.count, data=self.data, root=self.root, split=self.split, seed=self.seed)
        return loaded, shown

    def _seen(self, loaded: Loaded, shown: Shown, label: str) -> Iterator["Captured"]:
        from ..analysis.study import batches_of

        size = 8
        batches = batches_of(loaded.subject, shown.pictures, size)
        console = Console(stderr=True)
        total = -(-len(shown.pictures) // size)
        for number, seen in enumerate(track(batches, f"{label}: {loaded.subject.label}", total, console)):
            if number == 0:
                _tell_left_out(loaded.subject.label, seen)
            yield seen

    def _write(self, name: str, numbers: dict[str, Any], tables: Sequence[Table], files: Sequence[Path], *lines: str) -> None:
        text = json.dumps(numbers, indent=1)
        (self.out / f"{name}.json").write_text(text + "\n")
        if self.json:
            print(text)
            return
        console = Console()
        for table in tables:
            if table.title:
                console.print(table.title, highlight=False, soft_wrap=True, markup=False)
                table.title = None
            console.print(table)
        written = [self.out / f"{name}.json", *files]
        for line in (*lines, f"Written: {', '.join(map(str, written))}"):
            console.print(line, highlight=False, soft_wrap=True, markup=False)


@dataclass(frozen=True)
class AnalyzeConfusion(_Analysis):
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
        loaded, shown = self._begin()
        found = {one.subject.label: confusion_of(self._seen(one, shown, "confusion"), tolerances) for one in loaded}
        figure = draw_confusion(found, self.out / "confusion.png", self.tolerance)
        table = _table("confused pairs, %", "least by layer", "most by layer", "a picture, median")
        for label, one in found.items():
            layers = one.by_layer(self.tolerance)
            middle = sorted(one.by_picture(self.tolerance))[len(shown.pictures) // 2]
            table.add_row(
                label, *(f"{100 * share:.3g}" for share in (one.share(self.tolerance), min(layers), max(layers))), f"{middle:,}"
            )
        numbers = {label: confusion_numbers(one, self.tolerance) for label, one in found.items()}
        said = (
            f"Pairs of queries of a picture whose rows of weights differ by at most {self.tolerance:g} of their length, "
            f"while they differ by more; rows that are all nearly even count as the same. Over {_pictures(shown)}."
        )
        self._write("confusion", {"models": numbers, **_from(shown)}, [table], [figure], said)


@dataclass(frozen=True)
class AnalyzeRays(_Analysis):
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
            loaded, shown = self._begin()
            picture, _ = open_one(self.picture, shown)
            point = _point(self.point)
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
        table = _table("layer", "heads", "pairs of lengths", "same weights, mean over heads")
        for one in rays:
            mean = float(one.confused.double().mean())
            table.add_row(one.title, one.layer, str(len(one.weights)), str(one.pairs), f"{mean:.3g}")
        self._write(figure.stem, {"rays": [ray_numbers(one) for one in rays]}, [table], [figure])


@dataclass(frozen=True)
class AnalyzeMaps(_Analysis):
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

        loaded, shown = self._begin()
        picture, source = open_one(self.picture, shown)
        point = _point(self.point)
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
            _tell_left_out(label, seen)
            tables.append(_table("layer", "tokens", "strongest, even shares", "row, column", "negative, %", title=label))
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
        self._write("maps", {"models": numbers, "picture": source}, tables, files, said)

    def _chosen(self, layers: int) -> list[int]:
        if self.layers:
            wrong = [number for number in self.layers if not 1 <= number <= layers]
            if wrong:
                raise ValueError(f"--layers {wrong[0]}: the model has {layers} layers, counted from 1")
            return [number - 1 for number in self.layers]
        return _spread(layers)

    def _check_head(self, maps: Sequence[Any], label: str) -> None:
        heads = min(found.mixed.shape[1] for found in maps)
        if self.head is not None and not 1 <= self.head <= heads:
            raise ValueError(f"--head {self.head}: {label} has {heads} heads in a layer that is drawn, counted from 1")


@dataclass(frozen=True)
class AnalyzeLocality(_Analysis):
    """How much attention stays in the 3x3, 5x5 and 7x7 tokens around the query, by layer, against even weights."""

    sizes: tuple[int, ...] = (3, 5, 7)
    """Sides of the windows, odd."""

    def run(self) -> None:
        """Add up, write, tell."""
        from ..analysis.capture import in_words
        from ..analysis.plots import draw_locality
        from ..analysis.study import locality_of

        loaded, shown = self._begin()
        found = {one.subject.label: locality_of(self._seen(one, shown, "locality"), self.sizes) for one in loaded}
        figure = draw_locality(found, self.out / "locality.png")
        tables = []
        for label, layers in found.items():
            parts = ["attention", "together", "even"]
            title = f"{label}: weight around the query, %: attention / with its local part / even"
            if all(near.together == near.attention for near in layers):
                parts, title = ["attention", "even"], f"{label}: weight around the query, %: attention / even"
            tables.append(_table("layer", *(f"{size} x {size}" for size in self.sizes), title=title))
            for number, near in enumerate(layers, start=1):
                shares = zip(*(getattr(near, part) for part in parts), strict=True)
                cells = [" / ".join(f"{100 * share:.1f}" for share in cell) for cell in shares]
                tables[-1].add_row(f"{number}: {in_words(near.layer)}", *cells)
        numbers = {label: [asdict(near) for near in layers] for label, layers in found.items()}
        self._write("locality", {"models": numbers, **_from(shown)}, tables, [figure], f"Over {_pictures(shown)}.")


@dataclass(frozen=True)
class AnalyzeMasking(_Analysis):
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

        loaded, shown = self._begin()
        found = {one.subject.label: masked(one, shown, self.sizes, self.batch, self.seed) for one in loaded}
        figure = draw_masking(found, self.out / "masking.png")
        table = _table("top-1, %", "hidden", *(f"{size} x {size}" for size in self.sizes))
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
        self._write("masking", {"models": numbers, **_from(shown)}, [table], [figure], f"Over {_pictures(shown)}.", *left)


@dataclass(frozen=True)
class AnalyzeRank(_Analysis):
    """Rank and entropy of the weights, and how many are negative, by layer."""

    count: int = 8
    """Pictures to look at."""

    def run(self) -> None:
        """Decompose, write, tell."""
        from ..analysis.capture import in_words
        from ..analysis.plots import draw_spectrum
        from ..analysis.study import spectrum_of

        loaded, shown = self._begin()
        found = {one.subject.label: spectrum_of(self._seen(one, shown, "rank")) for one in loaded}
        figure = draw_spectrum(found, self.out / "rank.png")
        tables = []
        for label, layers in found.items():
            title = f"{label}: global weights, in the mean over heads and pictures"
            tables.append(_table("layer", "tokens", "rank", "effective rank", "entropy", "negative, %", title=title))
            for number, one in enumerate(layers, start=1):
                numbers = (f"{one.rank:.1f}", f"{one.effective_rank:.1f}", f"{one.entropy:.3f}", f"{100 * one.negative:.0f}")
                tables[-1].add_row(f"{number}: {in_words(one.layer)}", str(one.tokens), *numbers)
        kept = {label: [asdict(one) for one in layers] for label, layers in found.items()}
        self._write("rank", {"models": kept, **_from(shown)}, tables, [figure], f"Over {_pictures(shown)}.")


@dataclass(frozen=True)
class AnalyzeReport(_Analysis):
    """All of it for several models in one HTML file, with what the figures show in words."""

    picture: str | None = None
    """Of the maps: a file, or a sample: flower, temple, portrait; unset: the first of the pictures."""
    point: tuple[float, float] = (0.5, 0.5)
    """Of the maps' query, as shares of height and width."""
    masked: int = 1000
    """Pictures to measure accuracy on; 0 leaves masking out."""
    names: tuple[str, ...] = ()
    """What to call the models, in their order; unset: by their folders or names."""

    def run(self) -> None:
        """Look at everything, write one page, tell what was found."""
        from ..analysis.findings import about_maps, findings
        from ..analysis.report import write_report

        loaded, shown = self._begin()
        loaded = self._named(loaded)
        studies = [self._study(one, shown) for one in loaded]
        many: Shown | None = None
        without: list[str] = []
        if self.masked and shown.labels is None:
            without = ["Accuracy and masking are left out: these pictures have no classes that a model knows."]
        elif self.masked:
            many = load_pictures(loaded, self.masked, data=self.data, root=self.root, split=self.split, seed=self.seed)
            studies, without = self._with_masking(studies, loaded, many)
        found = findings(studies)
        figures, maps = self._draw(loaded, studies, shown)
        found["maps"] = about_maps(maps)
        notes = [
            f"{_pictures(shown).capitalize()}.",
            *(f"{one.subject.label}: {one.trained.name}, {one.trained.said}." for one in loaded),
        ]
        if many is not None:
            notes.append(f"Accuracy and masking: {_pictures(many)}.")
        notes += without
        page = write_report(studies, found, figures, notes, self.out / "report.html")
        table = _table("attention", "top-1, %", "confused pairs, %")
        for study in studies:
            top = "-" if study.masking is None else f"{study.masking.top1:.1f}"
            table.add_row(study.label, study.kind, top, f"{100 * study.confusion.share():.3g}")
        lines = [
            f"{one.title}: {one.says} The paper: {one.paper} {one.verdict.capitalize()}: {one.why}" for one in found.values()
        ]
        numbers = {
            "models": [study.numbers() for study in studies],
            "findings": {key: asdict(one) for key, one in found.items()},
        }
        self._write("report", {**numbers, **_from(shown)}, [table], [page, *figures.values()], *lines, *without)

    def _named(self, loaded: list[Loaded]) -> list[Loaded]:
        if not self.names:
            return loaded
        if len(self.names) != len(loaded) or len(set(self.names)) != len(self.names):
            raise ValueError(f"--names must name each of the {len(loaded)} models once, got {' '.join(self.names)}")
        return [replace(one, subject=replace(one.subject, label=name)) for one, name in zip(loaded, self.names, strict=True)]

    def _study(self, one: Loaded, shown: Shown) -> "Study":
        from ..analysis.confusion import confusion, pictures_of
        from ..analysis.locality import locality, mean_over
        from ..analysis.spectrum import mean_spectrum, spectrum
        from ..analysis.study import Study, kind_of, ray_of

        counted, near, rich = [], [], []
        kind, ray = "", None
        for number, seen in enumerate(self._seen(one, shown, "looking")):
            if number == 0:
                kind, ray = kind_of(seen), ray_of(seen, _point(self.point), title=one.subject.label)
            counted.append(confusion(seen))
            near.append(locality(seen))
            rich.append(spectrum(seen))
        parameters = sum(p.numel() for p in one.subject.model.parameters())
        return Study(
            one.subject.label, kind, one.trained.name, parameters, len(shown.pictures), pictures_of(counted), ray,
            mean_over(near), mean_spectrum(rich),
        )  # fmt: skip

    def _with_masking(self, studies: list["Study"], loaded: list[Loaded], shown: Shown) -> tuple[list["Study"], list[str]]:
        """The studies with masking, and a line for each model that cannot be masked."""
        found: list[Study] = []
        without: list[str] = []
        for study, one in zip(studies, loaded, strict=True):
            try:
                found.append(replace(study, masking=masked(one, shown, (3, 5, 7), 50, self.seed)))
            except ValueError as error:
                found.append(study)
                without.append(f"{study.label} is not masked: {error}.")
        return found, without

    def _draw(self, loaded: list[Loaded], studies: list["Study"], shown: Shown) -> tuple[dict[str, Path], "Maps"]:
        from ..analysis import plots
        from ..analysis.capture import seen_by
        from ..analysis.maps import one_grid, query_map, rollout

        point, out = _point(self.point), self.out
        picture, _ = open_one(self.picture, shown)
        maps: Maps = {}
        followed = {}
        for one in loaded:
            seen = seen_by(one.subject.model, whole_picture(one, picture))
            maps[one.subject.label] = [query_map(seen[place], seen[place].place(point)) for place in _spread(len(seen))]
            stage = one_grid(seen.layers)
            followed[one.subject.label] = rollout(stage, stage[-1].place(point))[0]
        figures = {
            "confusion": plots.draw_confusion({study.label: study.confusion for study in studies}, out / "confusion.png"),
            "maps": plots.draw_models(to_draw(picture), maps, followed, out / "maps.png"),
            "locality": plots.draw_locality({study.label: study.locality for study in studies}, out / "locality.png"),
            "spectrum": plots.draw_spectrum({study.label: study.spectrum for study in studies}, out / "rank.png"),
        }
        rays = [study.ray for study in studies if study.ray is not None]
        if rays:
            figures = {"rays": plots.draw_rays(rays, out / "rays.png"), **figures}
        results = {study.label: study.masking for study in studies if study.masking is not None}
        if results:
            figures["masking"] = plots.draw_masking(results, out / "masking.png")
        return figures, maps


def masked(one: Loaded, shown: Shown, sizes: Sequence[int], batch: int, seed: int) -> "Masked":
    """Masking over the pictures, with a bar."""
    import torch

    from ..analysis.masking import masking

    if shown.labels is None:
        raise ValueError("masking needs pictures with classes: give trained runs, or --data DIR with a model's classes")
    if one.trained.classes != shown.classes:
        raise ValueError(f"{one.subject.label} does not know the classes of {shown.source}")
    device = next(one.subject.model.parameters()).device
    labels = torch.tensor(shown.labels)

    def batches() -> Iterator[tuple["torch.Tensor", "torch.Tensor"]]:
        for start in range(0, len(shown.pictures), batch):
            pixels = torch.stack([one.subject.prepare(picture) for picture in shown.pictures[start : start + batch]])
            yield pixels.to(device), labels[start : start + batch].to(device)

    with counter(f"masking: {one.subject.label}", len(shown.pictures), Console(stderr=True)) as tell:
        return masking(one.subject.model, batches(), sizes, seed=seed, progress=tell)


def _table(*columns: str, title: str | None = None) -> Table:
    """Models down, or the layers of one model that the title names."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), title=title, title_justify="left")
    for column in columns if title else ("model", *columns):
        left = column in ("model", "layer", "attention", "hidden")
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    return table


def _tell_left_out(label: str, seen: "Captured") -> None:
    if seen.left_out:
        said = f"{len(seen.left_out)} layers attend within windows that cannot be laid on the picture, or pool: left out"
        print(f"inline: {label}: {said}", file=sys.stderr)


def _spread(layers: int) -> list[int]:
    """Some of the layers, first and last among them."""
    return sorted({round(place * (layers - 1) / (LAYERS - 1)) for place in range(LAYERS)})


def _point(point: tuple[float, float]) -> tuple[float, float]:
    if not all(0 <= share <= 1 for share in point):
        raise ValueError(f"--point is two shares of the picture, from 0 to 1, got {point[0]} {point[1]}")
    return point


def _pictures(shown: Shown) -> str:
    return f"{len(shown.pictures):,} pictures of {shown.source}"


def _from(shown: Shown) -> dict[str, Any]:
    return {"pictures": len(shown.pictures), "source": shown.source}


def _file_name(label: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in label).strip("-")
