"""Blocks that attend in windows, on a map in a file: Swin's windows, shifted ones, CSwin's stripes, with any mixer.

A window needs its own tokens only, so a block goes over the map in slabs of whole windows, and writes what the heads give to a
second file. When all windows are done, the rest of the block, which needs each token alone, follows by bands of rows. In a
shifted block the windows of the last slab have the map's first rows too; where windows are as high as the map (stripes), a slab
is some columns.

Shapes: maps (1, H, W, C), their masks (1, H, W), True where valid.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..layers import Block
from ..ops.checks import Grid
from ..ops.shifted_windows import Slab, cut, slabs
from ..ops.sums import zero_masked


class WindowPart(NamedTuple):
    """A slab of one of a block's windows: some tokens, for the heads that attend in that window."""

    number: int
    """Of the window."""
    slab: Slab


def window_parts(block: Block, grid: Grid, tokens: int) -> list[WindowPart]:
    """All parts of a block on a map, of about that many tokens each, a row of windows or one window at least."""
    numbered = enumerate(block.mixer.windows)
    return [WindowPart(number, slab) for number, window in numbered for slab in slabs(cut(grid, window), tokens)]


def read_part(part: WindowPart, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The tokens of a part, (1, n, C), zero in the padding; and which are valid, (1, n), or None if all are."""
    height, width = part.slab.map.grid
    if mask is None and any(part.slab.map.padding):
        mask = torch.ones(1, 1, 1, dtype=torch.bool).expand(1, height, width)
    valid = None if mask is None else part.slab.read(mask).flatten(1)
    return part.slab.read(tokens).flatten(1, 2), valid


def mix_part(block: Block, part: WindowPart, x: Tensor, valid: Tensor | None) -> Tensor:
    """The outputs of a part's heads before the output projection: (1, n, C / windows) from the block's input, (1, n, C)."""
    windowed = block.mixer.windowed
    assert windowed is not None
    x = zero_masked(x, valid)
    normed = zero_masked(block.norm1(x), valid)
    return windowed.mix_slab(block.mixer, normed, part.number, part.slab, x if block.raw_local else normed, valid)


def write_part(block: Block, part: WindowPart, mixed: Tensor, scratch: Tensor) -> None:
    """Write the outputs of a part's heads to their channels and tokens of the second file, (1, H, W, C)."""
    windowed = block.mixer.windowed
    assert windowed is not None
    channels = windowed.channels(block.mixer.dim, part.number)
    part.slab.write(mixed.unflatten(1, part.slab.cuts.grid).to(scratch.device), scratch[..., channels])
