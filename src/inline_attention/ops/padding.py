"""Sides that a step does not divide, written so that a side may be a symbol.

In an exported graph the height and width of a picture are symbols (`torch.SymInt`) and stand for every number: to ask whether
one equals another would settle it for good. So what is skipped when it does nothing is skipped for known sides only.
"""

import torch.nn.functional as F
from torch import Tensor


def known(*sides: int) -> bool:
    """Whether these are numbers, and not symbols of an exported graph."""
    return all(isinstance(side, int) for side in sides)


def missing(side: int, step: int) -> int:
    """What a side lacks to be divided by the step."""
    return (side + step - 1) // step * step - side


def pad_map(x: Tensor, rows: int, columns: int) -> Tensor:
    """A map (B, H, W, C) with rows of zeros below and columns of zeros to the right."""
    if known(rows, columns) and not rows and not columns:
        return x
    return F.pad(x, (0, 0, 0, columns, 0, rows))


def pad_picture(x: Tensor, step: int) -> Tensor:
    """A picture (B, C, H, W) with zeros below and to the right, until the step divides both sides."""
    rows, columns = missing(x.shape[2], step), missing(x.shape[3], step)
    if known(rows, columns) and not rows and not columns:
        return x
    return F.pad(x, (0, columns, 0, rows))
