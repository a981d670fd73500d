"""A grid cut into the same number of blocks on every size: tokens of a block together, and back.

Each side of L tokens is cut into m parts of ceil(L / m); what is missing at the end is padded with zeros.

Shapes: tokens (B, heads, N, d) on a grid of N tokens; blocks (B, heads, M, w, d), M and w in row-major order.
"""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import Grid
from .shifted_windows import known


def block_sides(grid: Grid, counts: tuple[int, ...]) -> tuple[int, ...]:
    """How many tokens a block has along each side."""
    return tuple((side + count - 1) // count for side, count in zip(grid, counts, strict=True))


def to_blocks(tokens: Tensor, grid: Grid, counts: tuple[int, ...]) -> Tensor:
    """(B, heads, N, d) -> (B, heads, M, w, d)."""
    if not known(*grid):  # padding and cutting would compare the symbols of an exported graph
        token, valid = token_of_block(grid, counts, tokens.device)
        return tokens[:, :, token].masked_fill(~valid.unsqueeze(-1), 0)
    sides, dims = block_sides(grid, counts), len(grid)
    missing = [count * size - side for side, count, size in zip(grid, counts, sides, strict=True)]
    padding = [zeros for number in reversed(missing) for zeros in (0, number)]
    image = F.pad(tokens.unflatten(2, grid), (0, 0, *padding))
    shape = [part for count, size in zip(counts, sides, strict=True) for part in (count, size)]
    image = image.reshape(*tokens.shape[:2], *shape, tokens.shape[-1])
    order = [0, 1, *(2 + 2 * side for side in range(dims)), *(3 + 2 * side for side in range(dims)), 2 + 2 * dims]
    return image.permute(order).reshape(*tokens.shape[:2], prod(counts), prod(sides), tokens.shape[-1])


def from_blocks(blocks: Tensor, grid: Grid, counts: tuple[int, ...]) -> Tensor:
    """(B, heads, M, w, d) -> (B, heads, N, d), without the padding."""
    if not known(*grid):
        block, place = block_of_token(grid, counts, blocks.device)
        return blocks[:, :, block, place]
    sides, dims = block_sides(grid, counts), len(grid)
    image = blocks.reshape(*blocks.shape[:2], *counts, *sides, blocks.shape[-1])
    order = [0, 1, *(2 + side + half * dims for side in range(dims) for half in (0, 1)), 2 + 2 * dims]
    padded = [count * size for count, size in zip(counts, sides, strict=True)]
    image = image.permute(order).reshape(*blocks.shape[:2], *padded, blocks.shape[-1])
    for axis, side in enumerate(grid, start=2):
        image = image.narrow(axis, 0, side)
    return image.flatten(2, 1 + dims)


def block_of_token(grid: Grid, counts: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(N,) and (N,): the number of each token's block, and its place in it."""
    block = torch.zeros(grid, dtype=torch.long, device=device)
    place = torch.zeros(grid, dtype=torch.long, device=device)
    for axis, (side, count, size) in enumerate(zip(grid, counts, block_sides(grid, counts), strict=True)):
        position = torch.arange(side, device=device).view(*(side if other == axis else 1 for other in range(len(grid))))
        block, place = block * count + position // size, place * size + position % size
    return block.flatten(), place.flatten()


def token_of_block(grid: Grid, counts: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(M, w) and (M, w): the token at each place of each block, and whether there is one."""
    sides = block_sides(grid, counts)
    block, place = (torch.arange(prod(lengths), device=device) for lengths in (counts, sides))
    token, valid, step = block.new_zeros(()), block.new_ones((), dtype=torch.bool), 1
    for side, count, size in reversed(list(zip(grid, counts, sides, strict=True))):
        length = place.new_full((), size)
        position = (block % count * size).unsqueeze(1) + place % length
        token, valid = token + position.clamp(max=side - 1) * step, valid & (position < side)
        block, place, step = block // count, place // length, step * side
    return token, valid
