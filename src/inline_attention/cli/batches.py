"""Pictures for a classifier, a batch at a time, and what is told of them."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TypeVar

from PIL import Image

from ..plain.decode import BadPictureError, decode

Shown = TypeVar("Shown")


def in_batches(
    opened: Iterable[tuple[str, IO[bytes]]], view: Callable[[Image.Image], Shown], channels: int, size: int, *, skip_bad: bool
) -> Iterator[tuple[list[str], list[Shown]]]:
    """Names, and what is shown of the pictures, `size` at once. A bad one ends it, or is named."""
    names: list[str] = []
    shown: list[Shown] = []
    bad = 0
    for name, file in opened:
        try:
            shown.append(view(decode(file, name, channels)))
            names.append(name)
        except BadPictureError as error:
            if not skip_bad:
                raise ValueError(f"{error} (--skip-bad goes on)") from error
            print(f"inline: {error}", file=sys.stderr)
            bad += 1
        if len(shown) == size:
            yield names, shown
            names, shown = [], []
    if shown:
        yield names, shown
    if bad:
        print(f"inline: {bad} pictures could not be read", file=sys.stderr)


def tell_classes(names: list[str], found: list[list[tuple[str, float]]], *, as_json: bool) -> None:
    """The likeliest classes of each picture, with their probabilities."""
    for name, classes in zip(names, found, strict=True):
        if as_json:
            print(json.dumps({"picture": name, "classes": [{"name": c, "probability": p} for c, p in classes]}))
            continue
        print(name)
        for label, share in classes:
            print(f"  {share:7.2%}  {label}")
