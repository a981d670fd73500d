"""What every `inline predict` shares: images in batches, and its output: classes, or label maps and the drawings of them."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from PIL import Image

from ..lite.decode import BadImageError, decode
from ..lite.text import printable
from .main import warn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Pixels = TypeVar("Pixels")


def single_images(
    opened: Iterable[tuple[str, IO[bytes]]], channels: int, *, skip_bad: bool
) -> Iterator[tuple[str, Image.Image]]:
    """Names and images. A bad image is an error, or is named on the error output and left out."""
    bad = 0
    for name, file in opened:
        try:
            image = decode(file, name, channels)
        except BadImageError as error:
            if not skip_bad:
                raise ValueError(f"{error} (--skip-bad goes on)") from error
            warn(error)
            bad += 1
            continue
        yield name, image
    if bad:
        warn(f"{bad} images could not be read")


def in_batches(
    opened: Iterable[tuple[str, IO[bytes]]],
    transform: Callable[[Image.Image], Pixels],
    channels: int,
    size: int,
    *,
    skip_bad: bool,
) -> Iterator[tuple[list[str], list[Pixels]]]:
    """Names and transformed images, `size` at once."""
    names: list[str] = []
    batch: list[Pixels] = []
    for name, image in single_images(opened, channels, skip_bad=skip_bad):
        batch.append(transform(image))
        names.append(name)
        if len(batch) == size:
            yield names, batch
            names, batch = [], []
    if batch:
        yield names, batch


def print_classes(names: list[str], found: list[list[tuple[str, float]]], *, as_json: bool) -> None:
    """Print the likeliest classes of each image, with their probabilities."""
    for name, classes in zip(names, found, strict=True):
        if as_json:
            print(json.dumps({"image": name, "classes": [{"name": c, "probability": p} for c, p in classes]}))
            continue
        print(printable(name))
        for label, probability in classes:
            print(f"  {probability:7.2%}  {printable(label)}")


class DrawingPaths:
    """Paths of the drawings of one call, one for each image, in a folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._taken: set[str] = set()

    def unused(self, name: str) -> Path:
        """A path that no other image of this call has; never that of the image itself."""
        stem = Path(name).stem.replace(" ", "-")
        names = (stem if turn == 1 else f"{stem}-{turn}" for turn in range(1, 1_000_000))
        found = next(name for name in names if not {name, label_path(self.out / name).stem} & self._taken)
        self._taken |= {found, label_path(self.out / found).stem}
        path = self.out / f"{found}.png"
        for written in (path, label_path(path)):
            if written.resolve() == Path(name).resolve():
                raise ValueError(f"{written} would be written over the image that it is made from: choose another --out")
        return path


def label_path(path: Path) -> Path:
    """The file of class numbers beside a drawing."""
    return path.with_name(f"{path.stem}_labels.png")


def segment_facts(labels: "NDArray[np.int64]", classes: Sequence[str], path: Path) -> dict[str, Any]:
    """Write the class numbers (H, W) as a grey PNG, for other programs; its path, and the share of each class."""
    import numpy as np

    kind = np.uint8 if int(labels.max()) < 256 else np.uint16
    Image.fromarray(labels.astype(kind)).save(label_path(path))
    counts = np.bincount(labels.ravel(), minlength=len(classes)) / labels.size
    shares = [{"name": name, "share": share} for name, share in zip(classes, counts.tolist(), strict=True) if share]
    return {"labels": str(label_path(path)), "classes": sorted(shares, key=lambda entry: -entry["share"])}


def segment_lines(facts: Mapping[str, Any]) -> list[str]:
    """The result for one image: where it is drawn, and its classes."""
    lines = [printable(f"{facts['image']} -> {facts['drawn']}")]
    return lines + [f"  {entry['share']:7.2%} of the pixels  {entry['name']}" for entry in facts.get("classes", ())]
