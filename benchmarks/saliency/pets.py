"""Pictures and trimaps of Oxford-IIIT Pet, squashed to squares: the folder with `images/` and `annotations/`.

Shapes: pictures (3, S, S) float32, normalised; trimaps (1, S, S) uint8, 1 pet, 2 background, 3 border.
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
    """Names of a split's pictures: all in the order of the official list, or a drawn subset.

    Args:
        root: the folder.
        split: "trainval" (3,680 pictures) or "test" (3,669).
        count: how many; None is all of them. With one seed, a smaller subset begins a larger one.
        seed: of the draw.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}: it must be one of {', '.join(SPLITS)}")
    names = [line.split()[0] for line in (root / "annotations" / f"{split}.txt").read_text().splitlines() if line.strip()]
    if count is None:
        return names
    if not 1 <= count <= len(names):
        raise ValueError(f"count is {count}: {split} has {len(names)} pictures")
    random.Random(seed).shuffle(names)
    return names[:count]


class Pets(Dataset[tuple[Tensor, Tensor]]):
    """Pictures with their trimaps, in the order of the names.

    Args:
        root: the folder.
        names: of the pictures, from `pet_names`.
        side: S. Pictures are resampled bicubically, trimaps take the nearest pixel; aspect is not kept.
        mean, std: by channel, of pixels from 0 to 1, as the model wants them normalised.
    """

    def __init__(
        self, root: Path, names: Sequence[str], side: int, mean: tuple[float, float, float], std: tuple[float, float, float]
    ) -> None:
        self.root, self.names, self.side = root, tuple(names), side
        self._mean, self._std = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Picture (3, S, S) and trimap (1, S, S)."""
        name, size = self.names[index], (self.side, self.side)
        with Image.open(self.root / "images" / f"{name}.jpg") as file:
            picture = np.array(file.convert("RGB").resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
        with Image.open(self.root / "annotations" / "trimaps" / f"{name}.png") as file:
            trimap = np.array(file.resize(size, Image.Resampling.NEAREST), dtype=np.uint8)
        pixels = torch.from_numpy(picture).permute(2, 0, 1) / 255
        return (pixels - self._mean) / self._std, torch.from_numpy(trimap)[None]
