"""Images and trimaps of Oxford-IIIT Pet, resized to squares, from the folder with `images/` and `annotations/`.

Shapes: images (3, S, S) float32, normalised; trimaps (1, S, S) uint8, 1 pet, 2 background, 3 border.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

SPLITS = ("trainval", "test")


def pet_names(root: Path, split: str, count: int | None = None, seed: int = 0) -> list[str]:
    """Names of the images of a split: all in the order of the official list, or a random subset.

    Args:
        root: the folder.
        split: "trainval" (3,680 images) or "test" (3,669).
        count: size of the subset; None for all images. With the same seed, a smaller subset is the start of a larger one.
        seed: of the random subset.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}: it must be one of {', '.join(SPLITS)}")
    names = [line.split()[0] for line in (root / "annotations" / f"{split}.txt").read_text().splitlines() if line.strip()]
    if count is None:
        return names
    if not 1 <= count <= len(names):
        raise ValueError(f"count is {count}: {split} has {len(names)} images")
    random.Random(seed).shuffle(names)
    return names[:count]


class Pets(Dataset[tuple[Tensor, Tensor]]):
    """Images with their trimaps, in the order of the names.

    Args:
        root: the folder.
        names: of the images, from `pet_names`.
        side: S. Images are resized bicubically, trimaps to the nearest pixel, without keeping the aspect ratio.
        mean, std: per channel, for pixels from 0 to 1.
    """

    def __init__(
        self, root: Path, names: Sequence[str], side: int, mean: tuple[float, float, float], std: tuple[float, float, float]
    ) -> None:
        self.root, self.names, self.side = root, tuple(names), side
        self._mean, self._std = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Image (3, S, S) and trimap (1, S, S)."""
        name, size = self.names[index], (self.side, self.side)
        with Image.open(self.root / "images" / f"{name}.jpg") as file:
            image = np.array(file.convert("RGB").resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
        with Image.open(self.root / "annotations" / "trimaps" / f"{name}.png") as file:
            trimap = np.array(file.resize(size, Image.Resampling.NEAREST), dtype=np.uint8)
        pixels = torch.from_numpy(image).permute(2, 0, 1) / 255
        return (pixels - self._mean) / self._std, torch.from_numpy(trimap)[None]
