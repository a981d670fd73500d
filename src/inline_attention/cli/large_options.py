"""How a large image is read from its file: the options that all commands share which take such files."""

from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..large.large_image import LargeImage

MASKS = ("tissue", "nodata", "none")
"""What --mask takes besides files."""


@dataclass(frozen=True)
class LargeOptions:
    """Which resolution, channels and pixels of an image file are read."""

    level: int | None = None
    """Level of the file's pyramid to read, 0 for the finest; unset: 0."""
    mpp: float | None = None
    """Pixel size to read at, in micrometres (slides) or metres (maps): a finer level is averaged; unset: as the file is."""
    channels: str | None = None
    """Channels for the model's input, by number or name: 0,1,2; unset: all but alpha."""
    value_range: str | None = None
    """Values that become black and white: 0,3000; unset: all of 8 or 16 bits, 0 to 1 of floating-point numbers."""

    mask: str | None = None
    """Pixels that count: tissue (of slides), nodata, none to take all, or an image file; unset: nodata if the file has it."""

    def open(self, path: str) -> "LargeImage":
        """Open a file as these options say."""
        from ..large.open_large_image import open_large_image

        return open_large_image(
            path,
            level=self.level,
            mpp=self.mpp,
            channels=[] if self.channels is None else _names(self.channels),
            value_range=None if self.value_range is None else _range(self.value_range),
            mask=self.mask,
        )

    def check(self) -> None:
        """Raise for a value that is wrong whatever the image: before the first one is opened."""
        if self.level is not None and self.level < 0:
            raise ValueError(f"--level must be 0, the finest, or more, got {self.level}")
        if self.mpp is not None and not (isfinite(self.mpp) and self.mpp > 0):
            raise ValueError(f"--mpp must be positive, got {self.mpp:g}")
        if self.level is not None and self.mpp is not None:
            raise ValueError(f"--level {self.level} and --mpp {self.mpp:g} both choose a resolution: give one of them")
        if self.channels is not None:
            _names(self.channels)
        if self.value_range is not None:
            _range(self.value_range)
        if self.mask is not None and self.mask not in MASKS and not Path(self.mask).exists():
            raise ValueError(f"--mask {self.mask}: there is no such file; a mask is {', '.join(MASKS)} or an image file")

    def refuse_without(self, option: str) -> None:
        """Raise if one of these is given, where they mean nothing without another option."""
        for field in fields(self):
            if (value := getattr(self, field.name)) is not None:
                name = field.name.replace("_", "-")
                raise ValueError(f"--{name} {value} is how {option} reads its files: give {option} too")


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"--channels is numbers or names with commas between, such as 0,1,2, got {text!r}")
    return names


def _range(text: str) -> tuple[float, float]:
    try:
        low, high = (float(number) for number in text.split(","))
    except ValueError:
        raise ValueError(f"--value-range is two numbers with a comma between, such as 0,3000, got {text!r}") from None
    if not (isfinite(low) and isfinite(high) and low < high):
        raise ValueError(f"--value-range is two numbers, the lower one first, got {text!r}")
    return low, high
