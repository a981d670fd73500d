"""Where chance comes from: every draw is a function of the recipe's seed and of what it is drawn for.

No generator's state is carried along, so a run that was killed goes on with the same numbers, whatever was read ahead.
"""

import random
from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What a draw is for; part of its key."""

    WEIGHTS = 0
    ORDER = 1
    PICTURE = 2
    STEP = 3


def key(*numbers: int) -> int:
    """One number of 63 bits that depends on all of them."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def reseed(*numbers: int, device: str = "cpu") -> None:
    """Set all generators, since augmentation uses Python's, NumPy's and torch's; and that of the device that draws."""
    seed = key(*numbers)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  the global generator is the one that timm draws from
    if device == "cpu":  # `torch.manual_seed` would also note, at length, to seed a GPU that may yet appear
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
