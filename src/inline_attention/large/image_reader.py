"""Images that are read by rows, from memory, from a memory-mapped array, or from a file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..lite.decode import HIGH_BIT_DEPTH, check_pixels, on_white, open_pillow, white_level, why, without_pillows_limit
from ..lite.limits import MAX_STREAMED_PIXELS, max_pixels
from ..models.finite import nonfinite


class RowReader(NamedTuple):
    """A normalised image that is read by rows."""

    height: int
    width: int
    read: Callable[[int, int], Tensor]
    """(start, stop) -> (1, C, stop - start, W): these rows."""
    valid: Callable[[int, int], Tensor] | None = None
    """(start, stop) -> (rows, W) bool, False where a pixel is no data; None where all are valid."""


def open_image(image: Any, *, channels: int = 3, mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)) -> RowReader:
    """Open an image for reading by rows.

    Args:
        image: a floating-point tensor (C, H, W) or (1, C, H, W) that is normalised already, like a model's input;
            or an array (H, W, C) or (H, W) of uint8, uint16, or floating-point numbers from 0 to 1: numpy's, memory-mapped or
            not, or anything that has a shape and a dtype and can be sliced, such as zarr's; or a pillow image; or the path of a
            `.npy` file, which is memory-mapped, or of an image that pillow reads, which is decoded as a whole, at four bytes a
            pixel; or a `RowReader`. Of pillow's images, 16 bits and more are scaled and transparent ones are put on white.
        channels: of the model's input.
        mean, std: for normalising all but tensors, one number for each channel or one for all.
    """
    if isinstance(image, RowReader):
        return image
    if isinstance(image, Tensor):
        return _from_tensor(image, channels)
    normalise = _normaliser(channels, mean, std)
    if isinstance(image, str | Path):
        opened = _open(Path(image))
        try:
            return open_image(opened, channels=channels, mean=mean, std=std)
        except ValueError as error:
            raise ValueError(f"cannot read the image {image}: {error}") from error
    if isinstance(image, Image.Image):
        return _from_pillow(image, channels, normalise)
    if not hasattr(image, "shape"):
        raise ValueError(f"an image is a tensor, an array, a pillow image or a path, got {type(image).__name__}")
    return _from_array(image, channels, normalise)


def image_for(model: nn.Module, image: Any) -> RowReader:
    """`open_image` with the model's channels, and the mean and standard deviation of its `pretrained_cfg`."""
    configuration: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    return open_image(
        image,
        channels=int(getattr(model, "in_chans", 3)),
        mean=configuration.get("mean", (0.0,)),
        std=configuration.get("std", (1.0,)),
    )


def _from_tensor(image: Tensor, channels: int) -> RowReader:
    if image.is_meta or image.layout is not torch.strided:
        raise ValueError(f"an image must be a dense tensor with numbers, got one of layout {image.layout} on {image.device}")
    image = image.unsqueeze(0) if image.ndim == 3 else image
    if image.ndim != 4 or image.shape[:2] != (1, channels) or not image.is_floating_point():
        raise ValueError(
            f"one image, a floating-point tensor ({channels}, H, W), is expected, got {image.dtype} {tuple(image.shape)}"
        )

    def read(start: int, stop: int) -> Tensor:
        rows = image[:, :, start:stop]
        if nonfinite(rows):
            raise ValueError(f"the image has pixels that are not finite (NaN or infinity) in rows {start} to {stop - 1}")
        return rows

    return RowReader(image.shape[2], image.shape[3], read)


def _from_array(array: Any, channels: int, normalise: Callable[[Tensor], Tensor]) -> RowReader:
    shape, kind = tuple(array.shape), np.dtype(array.dtype)
    if len(shape) not in (2, 3) or (shape[2] if len(shape) == 3 else 1) != channels:
        raise ValueError(f"an array must be (H, W, {channels}), channels last, got {shape}")
    if kind.kind != "f" and kind not in (np.uint8, np.uint16):
        raise ValueError(f"an array must be of uint8, uint16, or floating-point numbers from 0 to 1, got {kind}")
    maximum = 1.0 if kind.kind == "f" else float(np.iinfo(kind).max)

    def read(start: int, stop: int) -> Tensor:
        rows = np.asarray(array[start:stop]).reshape(stop - start, shape[1], channels)
        if kind.kind == "f" and not (rows.min() >= 0 and rows.max() <= 1):
            raise ValueError(
                f"floating-point pixels must be from 0 to 1, got {rows.min():g} to {rows.max():g} in rows {start} to {stop - 1}"
            )
        return normalise(torch.from_numpy(rows.astype(np.float32) / np.float32(maximum)).permute(2, 0, 1))

    return RowReader(shape[0], shape[1], read)


def _from_pillow(image: Image.Image, channels: int, normalise: Callable[[Tensor], Tensor]) -> RowReader:
    if channels not in (1, 3):
        raise ValueError(f"pillow's images have 1 or 3 channels here: for {channels} pass an array (H, W, {channels})")
    maximum = white_level(image) if image.mode in HIGH_BIT_DEPTH else 255.0

    def read(start: int, stop: int) -> Tensor:
        band = image.crop((0, start, image.width, stop))
        if band.mode not in HIGH_BIT_DEPTH:
            band = on_white(band).convert("RGB" if channels == 3 else "L")
        values = np.array(band, dtype=np.float32).reshape(stop - start, image.width, -1)
        check_pixels(values)
        pixels = torch.from_numpy(np.clip(values / maximum, 0, 1)).permute(2, 0, 1)
        return normalise(pixels.expand(channels, -1, -1))

    return RowReader(image.height, image.width, read)


def _open(path: Path) -> Any:
    """A memory-mapped array, or a pillow image, decoded."""
    if not path.is_file():
        raise FileNotFoundError(f"no image at {path}")
    try:
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        image = open_pillow(path, limit=max_pixels(MAX_STREAMED_PIXELS))
        try:
            with without_pillows_limit():
                image.load()
        except BaseException:
            image.close()
            raise
        return image
    except Exception as error:  # numpy and pillow raise many kinds for a broken file
        raise ValueError(f"cannot read the image {path}: {why(error)}") from error


def _normaliser(channels: int, mean: Sequence[float], std: Sequence[float]) -> Callable[[Tensor], Tensor]:
    """A function (C, rows, W), 0 to 1 -> (1, C, rows, W), normalised."""
    if len(mean) not in (1, channels) or len(std) not in (1, channels):
        raise ValueError(
            f"images of {channels} channels cannot be normalised by mean {tuple(mean)} and std {tuple(std)}: give the "
            f"model's pretrained_cfg a mean and std of {channels} numbers, or pass a normalised tensor"
        )
    centre, width = (torch.tensor(part).view(-1, 1, 1) for part in (mean, std))
    return lambda rows: ((rows - centre) / width).unsqueeze(0)
