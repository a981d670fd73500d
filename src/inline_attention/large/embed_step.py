"""The embedding of a stage, with its positions, by bands, forward and back."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.stage import Stage
from ..ops.masks import reduce_mask
from ..ops.sums import zero_masked
from .image_reader import RowReader
from .parameter_gradients import ParameterGradients, leaf
from .stage_map import StageMap
from .stages import embed_rows, rows_needed


class EmbedStep:
    """From the image, or the last map of the stage before, to the first map of a stage.

    Args:
        stage: whose embedding it is.
        source: the image, or that map.
        of: the first map of the stage.
        gradients: where those of the parameters are added up.
        before: the map of the stage before; None for the image, whose gradient nothing needs.
    """

    def __init__(
        self, stage: Stage, source: RowReader, of: StageMap, gradients: ParameterGradients, before: StageMap | None
    ) -> None:
        self.stage, self.source, self.of, self.gradients, self.before = stage, source, of, gradients, before
        self.layers = nn.ModuleList(part for part in (stage.embed, stage.positions) if part is not None)

    def counts(self) -> tuple[int, int, int]:
        """As for `BandStep`."""
        bands = len(self.of.limits)
        return bands, bands, bands

    def find_valid(self) -> None:
        """With a mask, find out which tokens are valid, and which bands hold some."""
        of, stride, source = self.of, self.stage.embed.stride, self.source
        if of.mask is None or source.valid is None:
            return
        of.live = []
        for start, stop in of.limits:
            own = source.valid(start * stride, min(stop * stride, source.height))
            of.mask[:, start:stop] = reduce_mask(own.unsqueeze(0), stride)
            if of.mask[:, start:stop].any():
                of.live.append((start, stop))
        if not of.live:
            raise ValueError("the mask has no valid pixel: there is nothing to look at")

    def forward(self, rows: Tensor | None, out: Tensor, prefix: Tensor | None) -> Tensor | None:
        """Write the embedded rows to `out`; return the prefix tokens."""
        of = self.of
        for start, stop in of.live:
            _, pixels = self._read(rows, start, stop)
            embedded = zero_masked(self._embed(pixels, start, stop).flatten(1, 2), of.valid(start, stop))
            of.rows(out, start, stop).copy_(embedded.unflatten(1, (-1, *of.grid[1:])))
            of.done(1)
        of.done(len(of.limits) - len(of.live))
        return None if self.stage.positions is None else self.stage.positions.prefix()

    def backward(
        self, rows: Tensor | None, gradient: Tensor | None, prefix: Tensor | None, of_prefix: Tensor | None, into: Tensor | None
    ) -> None:
        """Add the gradient of the map before to `into`. Arguments as for `BandStep`."""
        of = self.of
        for start, stop in of.live if gradient is not None else ():
            first, pixels = self._read(rows, start, stop)
            pixels = leaf(pixels)
            with torch.enable_grad():
                embedded = self._embed(pixels, start, stop)
            assert gradient is not None
            own = of.rows(gradient, start, stop).to(of.device)
            own = zero_masked(own.flatten(1, 2), of.valid(start, stop)).unflatten(1, (-1, *of.grid[1:]))
            wanted = [] if into is None else [pixels]
            back = self.gradients.go_back(self.layers, [embedded], [own], wanted)
            if into is not None and self.before is not None:
                self._add(back[0], first, into)
            of.done(1)
        of.done(len(of.limits) - (0 if gradient is None else len(of.live)))
        positions = self.stage.positions
        if of_prefix is not None and positions is not None:
            with torch.enable_grad():
                alone = positions.prefix()
            assert alone is not None
            self.gradients.go_back(positions, [alone], [of_prefix], [], counted=of.share.rank == 0)

    def _add(self, gradient: Tensor, first: int, into: Tensor) -> None:
        """Add the gradient of pixels, whose first row is this one, to that of the map before."""
        before = self.before
        assert before is not None
        start, stop = max(0, first), min(before.grid[0], first + gradient.shape[2])
        inside = gradient[:, :, start - first : stop - first].permute(0, 2, 3, 1)
        if before.mask is not None:
            inside = inside.masked_fill(~before.mask[:, start:stop].unsqueeze(-1).to(inside.device), 0)
        before.rows(into, start, stop).add_(inside.to(into.device, into.dtype))

    def _read(self, rows: Tensor | None, start: int, stop: int) -> tuple[int, Tensor]:
        """The pixels that some rows of the map are made from, (1, C, n, W), and the first of their rows."""
        first, last = rows_needed(self.stage.embed, start, stop)
        top, bottom = max(0, first), min(last, self.source.height)
        if rows is None or self.before is None:
            pixels = self.source.read(top, bottom)
        else:
            pixels = self.before.rows(rows, top, bottom).permute(0, 3, 1, 2)
        return first, F.pad(pixels.to(self.of.device), (0, 0, top - first, last - bottom))

    def _embed(self, pixels: Tensor, start: int, stop: int) -> Tensor:
        embedded = embed_rows(self.stage.embed, pixels)
        positions = self.stage.positions
        return embedded if positions is None else embedded + positions.rows(self.of.grid, start, stop)
