"""Small files of tile features, as CLAM and TRIDENT write them."""

from pathlib import Path

import h5py
import numpy as np


def write_h5(path: Path, features, coords, *, batch: bool = False, **attributes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=np.asarray(features)[None] if batch else features)
        file.create_dataset("coords", data=coords).attrs.update(attributes)
    return path


def grid_coords(height: int, width: int, step: int, origin: tuple[int, int] = (0, 0)) -> np.ndarray:
    """x and y of all tiles of a grid, row by row."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([columns.ravel() * step + origin[0], rows.ravel() * step + origin[1]], 1)


def write_slides(root: Path, *, slides: int = 12, channels: int = 6, seed: int = 0) -> tuple[Path, Path]:
    """A folder of features and a table: class b where the mean of channel 0 is high; grid and number of tiles differ."""
    generator = np.random.default_rng(seed)
    lines = ["slide_id,patient,label,high,wide,mean"]
    for number in range(slides):
        label, wide = number % 2, number // 2 % 2
        coords = grid_coords(3 + number % 3, 4 + 4 * wide, 256, (1000 * number, 500))
        coords = coords[generator.permutation(len(coords))[: len(coords) - number % 4]]
        features = generator.normal(size=(len(coords), channels)).astype(np.float32)
        features[:, 0] += 4 * label
        write_h5(root / "features" / f"s{number}.h5", features, coords)
        lines.append(f"s{number},p{number},{'ab'[label]},{label},{wide},{features[:, 0].mean():.4f}")
    table = root / "labels.csv"
    table.write_text("\n".join(lines) + "\n")
    return root / "features", table
