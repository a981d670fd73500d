"""Images that are read by rows and normalised for a model: tensors, arrays, pillow's images, and files of every kind."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from ..models.finite import nonfinite
from .image_file import COLOURS, listed_channels
from .large_image import LargeImage
from .numpy_file import ArrayFile
from .open_large_image import open_large_image
from .pillow_file import PillowFile

LUMA = (0.299, 0.587, 0.114)
"""How much red, green and blue add to grey: ITU-R BT.601, as in pillow."""


class RowReader(NamedTuple):
    """A normalised image that is read by rows."""

    height: int
    width: int
    read: Callable[[int, int], Tensor]
    """(start, stop) -> (1, C, stop - start, W): these rows."""
    valid: Callable[[int, int], Tensor] | None = None
    """(start, stop) -> (rows, W) bool, False where a pixel is no data; None where all are valid."""


class MaskedRows(NamedTuple):
    """A normalised image that is read by rows, of which some pixels do not count."""

    height: int
    width: int
    read: Callable[[int, int, Tensor | None], Tensor]
    """(start, stop, valid) -> (1, C, stop - start, W): these rows, and anything finite where they are not valid."""
    valid: Callable[[int, int], Tensor] | None
    """As of a `RowReader`."""


def open_image(image: Any, *, channels: int = 3, mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)) -> RowReader:
    """Open an image for reading by rows.

    Args:
        image: a floating-point tensor (C, H, W) or (1, C, H, W) that is normalised already, like a model's input;
            or an array (H, W, C) or (H, W) of uint8, uint16, or floating-point numbers from 0 to 1: numpy's, memory-mapped or
            not, or anything that has a shape and a dtype and can be sliced, such as zarr's; or a pillow image; or the path of a
            file, see `open_image_file`; or such a file at a chosen resolution, see `open_large_image`; or a `RowReader`.
        channels: of the model's input. A colour image becomes grey for a model of one channel, and a grey one is repeated for
            one of three.
        mean, std: for normalising all but tensors, one number for each channel or one for all.
    """
    if isinstance(image, RowReader):
        return image
    rows = open_masked(image, channels=channels, mean=mean, std=std)
    return RowReader(rows.height, rows.width, lambda start, stop: rows.read(start, stop, None), rows.valid)


def open_masked(image: Any, *, channels: int, mean: Sequence[float], std: Sequence[float]) -> MaskedRows:
    """`open_image`, for rows that are read together with a mask: what is masked may hold anything."""
    if isinstance(image, RowReader):
        return MaskedRows(image.height, image.width, _zeroed(image.read), image.valid)
    if isinstance(image, Tensor):
        return _from_tensor(image, channels)
    normalise = _normaliser(channels, mean, std)
    if isinstance(image, str | Path):
        image = open_large_image(image)
    if isinstance(image, LargeImage):
        return _from_pixels(image, channels, normalise)
    if isinstance(image, Image.Image):
        return _from_pixels(LargeImage(PillowFile(image)), channels, normalise)
    if not hasattr(image, "shape"):
        raise ValueError(f"an image is a tensor, an array, a pillow image or a path, got {type(image).__name__}")
    return _from_pixels(LargeImage(ArrayFile(image)), channels, normalise)


def image_for(model: nn.Module, image: Any) -> RowReader:
    """`open_image` with the model's channels, and the mean and standard deviation of its `pretrained_cfg`."""
    return open_image(image, **input_of(model))


def input_of(model: nn.Module) -> dict[str, Any]:
    """What a model's input is: its channels, mean and standard deviation, as arguments."""
    configuration: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    return {
        "channels": int(getattr(model, "in_chans", 3)),
        "mean": configuration.get("mean", (0.0,)),
        "std": configuration.get("std", (1.0,)),
    }


def _zeroed(read: Callable[[int, int], Tensor]) -> Callable[[int, int, Tensor | None], Tensor]:
    """Rows with zeros where they are not valid, which are checked then."""

    def masked(start: int, stop: int, valid: Tensor | None) -> Tensor:
        rows = read(start, stop)
        rows = rows if valid is None else rows.masked_fill(~valid.to(rows.device), 0)
        if nonfinite(rows):
            raise ValueError(f"the image has pixels that are not finite (NaN or infinity) in rows {start} to {stop - 1}")
        return rows

    return masked


def _from_tensor(image: Tensor, channels: int) -> MaskedRows:
    if image.is_meta or image.layout is not torch.strided:
        raise ValueError(f"an image must be a dense tensor with numbers, got one of layout {image.layout} on {image.device}")
    image = image.unsqueeze(0) if image.ndim == 3 else image
    if image.ndim != 4 or image.shape[:2] != (1, channels) or not image.is_floating_point():
        raise ValueError(
            f"one image, a floating-point tensor ({channels}, H, W), is expected, got {image.dtype} {tuple(image.shape)}"
        )
    return MaskedRows(image.shape[2], image.shape[3], _zeroed(lambda start, stop: image[:, :, start:stop]), None)


def _from_pixels(image: LargeImage, channels: int, normalise: Callable[[Tensor], Tensor]) -> MaskedRows:
    have = len(image.names)
    grey = channels == 1 and image.names == COLOURS
    if have != channels and not grey and not (have == 1 and channels == 3):
        raise ValueError(
            f"the image has {have} channels, {listed_channels(image.names)}, but the model's input has {channels}: choose "
            f"channels, as by --channels {','.join(_advised(image.names, channels))}"
        )

    def read(start: int, stop: int, valid: Tensor | None) -> Tensor:
        pixels = image.read(start, stop, valid)
        if grey:
            pixels = (pixels * pixels.new_tensor(LUMA)).sum(2, keepdim=True)
        return normalise(pixels.permute(2, 0, 1).expand(channels, -1, -1))

    return MaskedRows(image.height, image.width, read, image.has_data if image.may_lack_data else None)


def _advised(names: Sequence[str], channels: int) -> Sequence[str]:
    """Channels that may be meant: the colours, in whatever order the file has them; else the first ones."""
    coloured = channels == len(COLOURS) and set(COLOURS) <= {name.lower() for name in names}
    return COLOURS if coloured else [str(number) for number in range(channels)]


def _normaliser(channels: int, mean: Sequence[float], std: Sequence[float]) -> Callable[[Tensor], Tensor]:
    """A function (C, rows, W), 0 to 1 -> (1, C, rows, W), normalised."""
    if len(mean) not in (1, channels) or len(std) not in (1, channels):
        raise ValueError(
            f"images of {channels} channels cannot be normalised by mean {tuple(mean)} and std {tuple(std)}: give the "
            f"model's pretrained_cfg a mean and std of {channels} numbers, or pass a normalised tensor"
        )
    centre, width = (torch.tensor(part).view(-1, 1, 1) for part in (mean, std))
    return lambda rows: ((rows - centre) / width).unsqueeze(0)
