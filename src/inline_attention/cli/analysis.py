"""What the sub-commands of `inline analyze` share."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .arguments import prepare_folder, usable_device
from .progress import counter, track
from .subjects import Loaded, Shown, load_pictures, load_subjects

if TYPE_CHECKING:
    import torch

    from ..analysis.capture import Captured
    from ..analysis.masking import Masked

LAYERS = 5
"""Layers that a figure shows of a model that has more: spread evenly, first and last among them."""


@dataclass(frozen=True)
class Analysis:
    """What every sub-command of `inline analyze` is told, and how each begins and ends."""

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

    def begin(self) -> tuple[list[Loaded], Shown]:
        """The models, and the pictures that all of them are shown."""
        device = usable_device(self.device)
        prepare_folder(self.out)
        loaded = load_subjects(self.models, pretrained=self.pretrained, seed=self.seed, device=device)
        shown = load_pictures(loaded, self.count, data=self.data, root=self.root, split=self.split, seed=self.seed)
        return loaded, shown

    def watch(self, loaded: Loaded, shown: Shown, label: str) -> Iterator["Captured"]:
        """What a model does with the pictures, a few at a time, with a bar."""
        from ..analysis.study import batches_of

        size = 8
        batches = batches_of(loaded.subject, shown.pictures, size)
        console = Console(stderr=True)
        total = -(-len(shown.pictures) // size)
        for number, seen in enumerate(track(batches, f"{label}: {loaded.subject.label}", total, console)):
            if number == 0:
                tell_left_out(loaded.subject.label, seen)
            yield seen

    def write(self, name: str, numbers: dict[str, Any], tables: Sequence[Table], files: Sequence[Path], *lines: str) -> None:
        """JSON into a file, then tables, sentences and the names of all files; or JSON alone."""
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


def make_table(*columns: str, title: str | None = None) -> Table:
    """Models down, or the layers of one model that the title names."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), title=title, title_justify="left")
    for column in columns if title else ("model", *columns):
        left = column in ("model", "layer", "attention", "hidden")
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    return table


def tell_left_out(label: str, seen: "Captured") -> None:
    """Say it if layers could not be looked at."""
    if seen.left_out:
        said = f"{len(seen.left_out)} layers attend within windows that cannot be laid on the picture, or pool: left out"
        print(f"inline: {label}: {said}", file=sys.stderr)


def spread(layers: int) -> list[int]:
    """Some of the layers, first and last among them."""
    return sorted({round(place * (layers - 1) / (LAYERS - 1)) for place in range(LAYERS)})


def check_point(point: tuple[float, float]) -> tuple[float, float]:
    """The point, if it is on the picture."""
    if not all(0 <= share <= 1 for share in point):
        raise ValueError(f"--point is two shares of the picture, from 0 to 1, got {point[0]} {point[1]}")
    return point


def name_pictures(shown: Shown) -> str:
    """How many, of what."""
    return f"{len(shown.pictures):,} pictures of {shown.source}"


def whence(shown: Shown) -> dict[str, Any]:
    """The same for JSON."""
    return {"pictures": len(shown.pictures), "source": shown.source}
