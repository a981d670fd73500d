"""Files of tile features: `.h5` as CLAM and TRIDENT write them, `.pt` with tensors. Nothing in a file is executed.

Of HDF5, plain datasets are read: links to other files, virtual datasets and external storage are refused.
"""

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..lite.decode import BadImageError, first_line
from .bag import Bag, TileFeatures, TileOptions, make_bag

SUFFIXES = (".h5", ".hdf5", ".pt")
FEATURE_NAMES = ("features", "feats", "embeddings", "feature")
COORD_NAMES = ("coords", "coordinates", "coord")
COORD_FOLDERS = ("h5_files", "coords", "patches")
"""Folders beside a folder of `.pt` files, where the coordinates of its slides may be: the first two levels of CLAM's layout."""
MOST_NUMBERS = 2**31
"""Of one file's features: 8 GB as float32."""


def read_bag(path: str | Path, options: TileOptions | None = None) -> Bag:
    """The tiles of an `.h5` or `.pt` on their grid. What is wrong with the file is a BadImageError of one line."""
    return make_bag(read_features(Path(path)), options)


def read_features(path: Path) -> TileFeatures:
    """Features and coordinates of a file, checked."""
    if path.suffix.lower() not in SUFFIXES:
        raise BadImageError(f"{path} is no file of tile features: its name must end in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise BadImageError(f"there is no file {path}")
    features, coords, attributes = (_read_pt if path.suffix.lower() == ".pt" else _read_h5)(path)
    features, coords = _without_batch(features), _without_batch(coords)
    if features.ndim != 2 or 0 in features.shape:
        raise BadImageError(f"{path}: features must be (tiles, channels), got {tuple(features.shape)}")
    if coords.shape != (len(features), 2):
        raise BadImageError(
            f"{path}: coords must be ({len(features)}, 2), x and y of each tile of its features, got {tuple(coords.shape)}"
        )
    tile, step = tile_and_step(attributes)
    return TileFeatures(str(path), _checked_features(features, path), _checked_coords(coords, path), tile, step)


def read_channels(path: Path) -> int:
    """Channels of a file's features; of an `.h5` without reading these."""
    if path.suffix.lower() == ".pt":
        return read_features(path).features.shape[1]
    with _open(path) as file:
        return int(_dataset(file, FEATURE_NAMES, path).shape[-1])


def tile_and_step(attributes: Mapping[str, Any]) -> tuple[int | None, float | None]:
    """Side of a tile and distance between two, in pixels of the finest level, where the attributes say.

    `inline features` writes `step_level0`. TRIDENT writes `patch_size_level0`, and `patch_size` and `overlap` in pixels of its
    target magnification. CLAM writes `patch_size`, `patch_level` and `downsample`, and no step.
    """
    size = _positive(attributes.get("patch_size"))
    finest = _positive(attributes.get("patch_size_level0"))
    step = _positive(attributes.get("step_level0"))
    if finest is not None and step is not None:
        return round(finest), step
    if finest is not None:
        overlap = _number(attributes.get("overlap")) or 0.0
        shared = overlap * finest / size if size else overlap
        return round(finest), finest - shared if 0 <= shared < finest else None
    if size is None:
        return None, None
    downsample = _positive(np.ravel(attributes["downsample"])[0]) if np.size(attributes.get("downsample", ())) else None
    if downsample is None and _number(attributes.get("patch_level")) not in (None, 0.0):
        return None, None
    return round(size * (downsample or 1.0)), None


def _read_h5(path: Path) -> tuple[Any, Any, dict[str, Any]]:
    with _open(path) as file:
        features, coords = _dataset(file, FEATURE_NAMES, path), _dataset(file, COORD_NAMES, path)
        return features[()], coords[()], {**file.attrs, **coords.attrs}


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """An open file; what goes wrong in reading it is a BadImageError that names it."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            yield file
    except (BadImageError, MemoryError):
        raise
    except Exception as error:  # h5py raises many kinds for a damaged file
        raise BadImageError(f"{path} cannot be read as HDF5, perhaps it is truncated: {first_line(error)}") from error


def _dataset(file: Any, names: tuple[str, ...], path: Path) -> Any:
    """The first dataset of these names, which must lie in the file itself."""
    import h5py

    name = next((name for name in names if name in file), None)
    if name is None:
        raise BadImageError(f"{path} has no {names[0]}; it has: {', '.join(map(str, list(file)[:10])) or 'nothing'}")
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise BadImageError(f"{path}: {name} is a link: refused")
    found = file[name]
    if not isinstance(found, h5py.Dataset) or found.is_virtual or found.external:
        raise BadImageError(f"{path}: {name} is no plain dataset: refused")
    if found.dtype.kind not in "fiu":
        raise BadImageError(f"{path}: {name} must be numbers, got {found.dtype}")
    if found.size is None or found.size > MOST_NUMBERS:
        raise BadImageError(f"{path}: {name} has {found.size or 0:,} numbers, more than {MOST_NUMBERS:,} or none")
    return found


def _read_pt(path: Path) -> tuple[Any, Any, Mapping[str, Any]]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadImageError(f"{path} holds more than tensors, numbers and names: refused") from error
    except Exception as error:  # torch raises many kinds for a damaged file
        raise BadImageError(f"{path} cannot be read, perhaps it is truncated: {first_line(error)}") from error
    table = found if isinstance(found, Mapping) else {}
    features = found if isinstance(found, Tensor) else _of_names(table, FEATURE_NAMES)
    if features is None:
        raise BadImageError(f"{path} has no features: it must be a tensor, or a dictionary with features and coords")
    coords = _of_names(table, COORD_NAMES)
    if coords is not None:
        return _to_numpy(features, path), _to_numpy(coords, path), table
    for beside in coordinate_files(path):
        with _open(beside) as file:
            dataset = _dataset(file, COORD_NAMES, beside)
            return _to_numpy(features, path), dataset[()], {**file.attrs, **dataset.attrs}
    raise BadImageError(
        f"{path} has no coords, and there is no {path.stem}.h5 with them beside it or in a folder {' or '.join(COORD_FOLDERS)}"
    )


def coordinate_files(path: Path) -> list[Path]:
    """Files that may have the coordinates of a `.pt` without any."""
    name = f"{path.stem}.h5"
    folders = (path.parent, *(above / name for above in path.parents[:3] for name in COORD_FOLDERS))
    return [folder / name for folder in folders if (folder / name).is_file()]


def _of_names(table: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((table[name] for name in names if name in table), None)


def _to_numpy(value: Any, path: Path) -> Any:
    if isinstance(value, Tensor) and not value.is_sparse and not value.is_complex():
        return (value.float() if value.dtype is torch.bfloat16 else value).numpy()
    raise BadImageError(f"{path}: features and coords must be tensors of numbers, got {type(value).__name__}")


def _without_batch(array: Any) -> Any:
    """(1, N, C) -> (N, C), as some encoders' files have it."""
    return array[0] if array.ndim == 3 and array.shape[0] == 1 else array


def _checked_features(features: Any, path: Path) -> Tensor:
    found = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
    if bad := (~found.isfinite().all(1)).nonzero().flatten().tolist():
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise BadImageError(f"{path}: the features of tile {bad[0]}{more} are not finite (NaN or infinity)")
    return found


def _checked_coords(coords: Any, path: Path) -> NDArray[np.int64]:
    values = np.asarray(coords)
    wrong = ~np.isfinite(values) | (np.abs(values) >= 2**40) | (values != np.floor(values))
    if wrong.any():
        index = int(wrong.any(1).argmax())
        raise BadImageError(
            f"{path}: coordinates must be whole numbers of pixels, got {values[index].tolist()} for tile {index}"
        )
    return np.ascontiguousarray(values.astype(np.int64))


def _number(value: Any) -> float | None:
    """A number of an attribute, which may be stored as an array or as text; None for anything else."""
    try:
        found = float(np.ravel(value)[0] if np.size(value) else "none")
    except (TypeError, ValueError):
        return None
    return found if np.isfinite(found) and abs(found) < 2**40 else None


def _positive(value: Any) -> float | None:
    found = _number(value)
    return found if found is not None and found >= 1 else None
