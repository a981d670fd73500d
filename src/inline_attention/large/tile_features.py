"""Features of a slide's tiles, from any model of timm's interface: rows of tiles one after the other, without background.

Shapes: an image of H x W pixels with C channels; tiles (B, C, tile, tile); N tiles in all, D features each.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ..models.finite import check_outputs
from .whole_path import whole_path


class TileImage(Protocol):
    """An image that is read by rows, as `LargeImage`."""

    height: int
    width: int

    def read(self, start: int, stop: int) -> Tensor:
        """(stop - start, W, C), 0 to 1: these rows."""
        ...


MaskRows = Callable[[int, int], Tensor]
"""(start, stop) -> (stop - start, W) bool: which pixels of these rows are tissue."""


@dataclass(frozen=True)
class TileEncoder:
    """A model that gives a vector for each tile: what enters its classifier, or its output if it has none."""

    model: nn.Module
    size: tuple[int, int]
    """(H, W) that tiles are resized to."""
    mean: Sequence[float]
    std: Sequence[float]
    """One number for each channel."""
    device: torch.device

    @torch.inference_mode()
    def __call__(self, tiles: Tensor) -> Tensor:
        """(B, C, tile, tile), 0 to 1 -> (B, D), float32 on the CPU."""
        if tiles.shape[1] != len(self.mean):
            raise ValueError(
                f"the model takes {len(self.mean)} channels, and the image has {tiles.shape[1]}: choose --channels"
            )
        tiles = tiles.to(self.device)
        if tuple(tiles.shape[2:]) != tuple(self.size):
            tiles = F.interpolate(tiles, self.size, mode="bilinear", antialias=True, align_corners=False)
        mean, std = (torch.tensor(part, device=self.device).view(-1, 1, 1) for part in (self.mean, self.std))
        found: Any = self.model
        features = found.forward_head(found.forward_features((tiles - mean) / std), pre_logits=True)
        check_outputs(features, model=type(self.model).__name__)
        if features.ndim != 2:
            raise ValueError(
                f"{type(self.model).__name__} gives {tuple(features.shape)} for {len(tiles)} tiles, and no vectors"
            )
        return features.float().cpu()


@dataclass(frozen=True)
class FoundTiles:
    """The features of an image."""

    features: Tensor
    """(N, D)."""
    places: Tensor
    """(N, 2), int64: row and column of each tile on the grid of all tiles."""
    all_tiles: int
    """Of the image, with those that were skipped."""


def encode_tiles(
    image: TileImage,
    encoder: TileEncoder,
    tile: int,
    *,
    tissue: MaskRows | None = None,
    least_tissue: float = 0.25,
    batch: int = 32,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FoundTiles:
    """The features of all tiles with tissue. The last tiles of a row or column are filled up with white.

    Args:
        image: what is cut into tiles.
        encoder: the model.
        tile: pixels of a side.
        tissue: which pixels are tissue; None for all.
        least_tissue: share of a tile's pixels that are tissue, from which on it is taken; 0 takes all that have any.
        batch: tiles at once.
        progress: called with the rows of tiles that are done, and of all.
    """
    if tile < 1 or batch < 1 or not 0 <= least_tissue <= 1:
        raise ValueError(f"tile and batch must be positive and least_tissue from 0 to 1, got {tile}, {batch}, {least_tissue}")
    features, places = [], []
    for some, tiles in _batches(_tissue_tiles(image, tile, tissue, least_tissue, progress), batch):
        places.append(some)
        features.append(encoder(tiles))
    if not features:
        raise ValueError("it has no tile with tissue: take another --mask, or a lower --tissue")
    rows, columns = (-(-side // tile) for side in (image.height, image.width))
    return FoundTiles(torch.cat(features), torch.cat(places), rows * columns)


def _tissue_tiles(
    image: TileImage, tile: int, tissue: MaskRows | None, least: float, progress: Callable[[int, int], None]
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each row of tiles with tissue: the places (n, 2) of these, and their pixels (n, C, tile, tile)."""
    rows, columns = (-(-side // tile) for side in (image.height, image.width))
    for row in range(rows):
        start, stop = row * tile, min(image.height, (row + 1) * tile)
        taken = torch.arange(columns)
        if tissue is not None:
            shares = _to_tiles(tissue(start, stop)[None].float(), tile, 0.0).mean((1, 2, 3))
            taken = ((shares >= least) & (shares > 0)).nonzero().flatten()
        if len(taken):
            pixels = _to_tiles(image.read(start, stop).permute(2, 0, 1), tile, 1.0)
            yield torch.stack([torch.full_like(taken, row), taken], 1), pixels[taken]
        progress(row + 1, rows)


def _to_tiles(rows: Tensor, tile: int, fill: float) -> Tensor:
    """(C, up to tile, W) -> (tiles, C, tile, tile), filled up to the right and below."""
    filled = F.pad(rows, (0, -rows.shape[2] % tile, 0, tile - rows.shape[1]), value=fill)
    return filled.unflatten(2, (-1, tile)).permute(2, 0, 1, 3)


def _batches(rows: Iterator[tuple[Tensor, Tensor]], batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The same, `batch` tiles at once, whatever row they are from."""
    places, tiles = torch.empty(0, 2, dtype=torch.int64), torch.empty(0)
    for more_places, more in rows:
        places = torch.cat([places, more_places])
        tiles = torch.cat([tiles, more]) if len(tiles) else more
        while len(tiles) >= batch:
            yield places[:batch], tiles[:batch]
            places, tiles = places[batch:], tiles[batch:]
    if len(tiles):
        yield places, tiles


def write_features(
    path: Path, features: NDArray[Any], coords: NDArray[np.int64], attributes: Mapping[str, Any], about: Mapping[str, Any]
) -> None:
    """Write an `.h5` that CLAM's and TRIDENT's readers take: whole, or not at all.

    Args:
        path: of the file.
        features: (N, D).
        coords: (N, 2), x and y in pixels of the finest level.
        attributes: of the coordinates, such as `patch_size_level0`.
        about: attributes of the features, such as the encoder's name.
    """
    import h5py

    with whole_path(path) as temporary, h5py.File(temporary, "w") as file:
        stored = file.create_dataset("features", data=features, chunks=(min(len(features), 1024), features.shape[1]))
        stored.attrs.update(about)
        file.create_dataset("coords", data=coords).attrs.update(attributes)


def slide_coords(places: Tensor, tile: int, downsample: tuple[float, float]) -> NDArray[np.int64]:
    """(N, 2): x and y of the tiles at these places, in whole pixels of the finest level.

    Args:
        places: (N, 2), row and column.
        tile: side of a tile in pixels of the image that was cut.
        downsample: pixels of the finest level along one of these, down and across.
    """
    exact = places.double() * tile * torch.tensor(downsample, dtype=torch.float64)
    coords: NDArray[np.int64] = exact.round().long().flip(1).numpy()
    return coords


def tile_attributes(tile: int, downsample: float, size: tuple[int, int], pixel_size: float | None) -> dict[str, Any]:
    """Attributes of coordinates, by TRIDENT's names; `step_level0` is the exact distance of two tiles.

    Args:
        tile: side of a tile in pixels of the image that was cut.
        downsample: pixels of the finest level along one of these.
        size: (H, W) of the finest level.
        pixel_size: of a pixel that was cut, in micrometres or metres.
    """
    step = tile * downsample
    found: dict[str, Any] = {"patch_size": tile, "patch_size_level0": max(1, round(step)), "step_level0": step, "overlap": 0}
    found |= {"level0_width": size[1], "level0_height": size[0]}
    return found if pixel_size is None else {**found, "pixel_size": pixel_size}


def stored_settings(path: Path) -> Any:
    """The settings that a file of features was made with; None for a file that is not there, or of another program."""
    import h5py

    if not path.is_file():
        return None
    try:
        with h5py.File(path, "r") as file:
            return json.loads(file["features"].attrs["settings"])
    except (OSError, KeyError, ValueError, TypeError, RuntimeError):
        return None
