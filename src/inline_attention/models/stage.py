"""One stage: a smaller map, its positions, its blocks."""

from collections.abc import Collection, Sequence

from timm.models import checkpoint
from torch import Tensor, nn

from ..layers import Block
from ..ops.checks import Grid
from .embed import ConvEmbed, PatchMerge
from .positions import PositionEmbedding


class Stage(nn.Module):
    """(B, C, H, W) -> (B, C', H', W'); with a class token -> tokens (B, 1 + H' * W', C').

    Args:
        embed: makes the map, (B, H', W', C').
        blocks: what works on it.
        positions: adds position embeddings, and a class token if there is one.
    """

    embed: ConvEmbed | PatchMerge
    positions: PositionEmbedding | None

    def __init__(
        self, embed: ConvEmbed | PatchMerge, blocks: Sequence[Block], positions: PositionEmbedding | None = None
    ) -> None:
        super().__init__()
        self.embed = embed
        self.positions = positions
        self.blocks = nn.ModuleList(blocks)
        self.num_prefix_tokens = 0 if positions is None else positions.num_prefix_tokens
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        """The map, or the tokens, after all blocks."""
        tokens, grid, _ = self.collect(x)
        return tokens if self.num_prefix_tokens else tokens.unflatten(1, grid).permute(0, 3, 1, 2)

    def collect(self, x: Tensor, take: Collection[int] = (), stop: int | None = None) -> tuple[Tensor, Grid, list[Tensor]]:
        """Tokens after all blocks, or the first `stop`; their grid; and tokens after each block whose number is in `take`."""
        x = self.embed(x)
        grid = (x.shape[1], x.shape[2])
        x = x.flatten(1, 2) if self.positions is None else self.positions(x)
        taken = []
        for number, block in enumerate(self.blocks[:stop]):
            if self.grad_checkpointing:
                x = checkpoint(block, x, grid, num_prefix_tokens=self.num_prefix_tokens)
            else:
                x = block(x, grid, num_prefix_tokens=self.num_prefix_tokens)
            if number in take:
                taken.append(x)
        return x, grid, taken
