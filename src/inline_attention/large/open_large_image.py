"""`open_large_image`: an image file of any kind, at the chosen resolution, with the chosen channels and a mask."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .file_masks import StretchedMask, mask_from_file, tissue_mask
from .large_image import LargeImage
from .open_file import open_image_file
from .resolution import choose_level

NODATA = {"nodata": True, "none": False}
"""Masks that decide which pixels are taken to hold no data."""


def open_large_image(
    path: str | Path,
    *,
    level: int | None = None,
    mpp: float | None = None,
    channels: Sequence[str | int] = (),
    value_range: tuple[float, float] | None = None,
    mask: str | Path | None = None,
) -> LargeImage:
    """Open an image file of any kind. `stream` and `stream_segment` take the result.

    Args:
        path: see `open_image_file`.
        level, mpp, channels, value_range: see `LargeImage`.
        mask: which pixels count. "tissue": those of a slide that are coloured, by Otsu's threshold on the saturation of its
            thumbnail; "nodata": those that hold data by the file's nodata value, or are not transparent; "none": all;
            or the path of another image file of the same shape and any size, which is not zero where pixels count.
            None for "nodata" where the file has such a value, or is a map with transparent pixels.
    """
    file = open_image_file(path)
    try:
        with _naming(path):
            size = choose_level(file, level, mpp)[1]
            return LargeImage(
                file,
                level=level,
                mpp=mpp,
                channels=channels,
                value_range=value_range,
                nodata=None if mask is None else NODATA.get(str(mask)),
                mask=None if mask is None or str(mask) in NODATA else _mask(path, mask, size),
                name=str(path),
            )
    except BaseException:
        file.close()
        raise


def _mask(path: str | Path, mask: str | Path, size: tuple[int, int]) -> StretchedMask:
    if str(mask) != "tissue":
        if not Path(mask).exists():
            raise ValueError(f"there is no mask {mask}: it is tissue, nodata, none or an image file")
        return mask_from_file(mask, size)
    found = tissue_mask(path)
    return StretchedMask(lambda start, stop: found[start:stop], (found.shape[0], found.shape[1]), size, in_memory=True)


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """Name the image in an error."""
    try:
        yield
    except ValueError as error:
        named = str(error).startswith("cannot read the image")
        raise ValueError(str(error) if named else f"cannot read the image {path}: {error}") from error
