"""Blocks that attend in windows, and blocks that take a small map at once, forward and back.

In windows the heads' outputs go to a second file first, and the rest of the block follows by bands: see `windowed_block.py`.
Back it goes the other way: by bands, where the gradients of the heads' outputs replace these in the second file; then through
the windows, each of which adds to the gradients of its own tokens.
"""

import torch
from torch import Tensor

from ..layers import Block
from ..ops.masks import with_prefix
from ..ops.sums import zero_masked
from .draws import Draws
from .map_files import MapFiles
from .parameter_gradients import ParameterGradients, leaf
from .stage_map import StageMap
from .windowed_block import WindowPart, mix_part, read_part, window_parts, write_part


class WindowStep:
    """A block in windows.

    Args:
        block, number, of, draws, gradients: as for `BandStep`.
        files: for the second file.
        tokens: about how many a part has.
    """

    def __init__(
        self,
        block: Block,
        number: int,
        of: StageMap,
        draws: Draws,
        gradients: ParameterGradients,
        files: MapFiles,
        tokens: int,
    ) -> None:
        self.block, self.number, self.of, self.draws, self.gradients = block, number, of, draws, gradients
        self.files, self.parts = files, window_parts(block, of.grid, tokens)

    def counts(self) -> tuple[int, int, int]:
        """As for `BandStep`."""
        parts, bands = len(self.parts), len(self.of.limits)
        return parts + bands, parts + bands, 2 * parts + bands

    def forward(self, rows: Tensor, out: Tensor, prefix: Tensor | None) -> Tensor | None:
        """As for `BandStep`; there are no prefix tokens."""
        of, file = self.of, self.files.take((rows.numel(),), rows.dtype)
        mixed = file.tensor.view_as(rows)
        self._mix(rows, mixed)
        for band in of.bands(mixed, (0, 0)):
            x, valid = self._tokens(rows, band.start, band.stop)
            with self.draws.of(self.block, self.number, 1 + band.start):
                output = self.block.finish(x, band.tokens(of.device)[0])
            of.rows(out, band.start, band.stop).copy_(zero_masked(output, valid).unflatten(1, (-1, *of.grid[1:])))
        self.files.give_back(file)
        return None

    def backward(
        self, rows: Tensor, gradient: Tensor | None, prefix: Tensor | None, of_prefix: Tensor | None, into: Tensor
    ) -> Tensor | None:
        """As for `BandStep`."""
        assert gradient is not None
        of, file = self.of, self.files.take((rows.numel(),), rows.dtype)
        mixed = file.tensor.view_as(rows)
        self._mix(rows, mixed)
        for band in of.bands(mixed, (0, 0)):
            x, valid = self._tokens(rows, band.start, band.stop)
            inputs = leaf(x), leaf(band.tokens(of.device)[0])
            with torch.enable_grad(), self.draws.of(self.block, self.number, 1 + band.start):
                output = self.block.finish(*inputs)
            own = zero_masked(of.rows(gradient, band.start, band.stop).to(of.device).flatten(1, 2), valid)
            found = self.gradients.go_back(self.block, [output], [own], inputs)
            for target, back in zip((into, mixed), found, strict=True):
                back = zero_masked(back, valid).unflatten(1, (-1, *of.grid[1:]))
                of.rows(target, band.start, band.stop).copy_(back)
        for number, part in enumerate(self.parts):
            self._mix_back(part, number, rows, mixed, into)
            of.done(1)
        self.files.give_back(file)
        return None

    def _tokens(self, rows: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        """The tokens of a band, zero where masked; and which are valid."""
        valid = self.of.valid(start, stop)
        return zero_masked(self.of.rows(rows, start, stop).to(self.of.device).flatten(1, 2), valid), valid

    def _mix(self, rows: Tensor, mixed: Tensor) -> None:
        """Write what the heads give of all parts."""
        for number, part in enumerate(self.parts):
            tokens, valid = self._read(part, rows)
            if valid is None or valid.any():
                write_part(self.block, part, self._mix_part(part, number, tokens, valid), mixed)
            self.of.done(1)

    def _mix_back(self, part: WindowPart, number: int, rows: Tensor, mixed: Tensor, into: Tensor) -> None:
        """Through the windows of one part, from the gradient of what its heads give."""
        tokens, valid = self._read(part, rows)
        if valid is not None and not valid.any():
            return
        windowed = self.block.mixer.windowed
        assert windowed is not None
        own = part.slab.read(mixed[..., windowed.channels(self.block.mixer.dim, part.number)]).flatten(1, 2)
        own = zero_masked(own.to(self.of.device), valid)  # bands that are left out have no gradients there
        tokens = leaf(tokens)
        with torch.enable_grad():
            output = self._mix_part(part, number, tokens, valid)
        (back,) = self.gradients.go_back(self.block, [output], [own], [tokens])
        back = zero_masked(back, valid).unflatten(1, part.slab.cuts.grid).to(into.device, into.dtype)
        part.slab.write(part.slab.read(into) + back, into)

    def _read(self, part: WindowPart, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        tokens, valid = read_part(part, rows, self.of.mask)
        return tokens.to(self.of.device), None if valid is None else valid.to(self.of.device)

    def _mix_part(self, part: WindowPart, number: int, tokens: Tensor, valid: Tensor | None) -> Tensor:
        with self.draws.of(self.block, self.number, 1 + self.of.grid[0] + number):
            return mix_part(self.block, part, tokens, valid)


class WholeStep:
    """A block that takes a map at once: a small one.

    Args:
        block, number, of, draws, gradients: as for `BandStep`.
    """

    def __init__(self, block: Block, number: int, of: StageMap, draws: Draws, gradients: ParameterGradients) -> None:
        self.block, self.number, self.of, self.draws, self.gradients = block, number, of, draws, gradients

    def counts(self) -> tuple[int, int, int]:
        """As for `BandStep`."""
        bands = len(self.of.limits)
        return bands, bands, bands

    def forward(self, rows: Tensor, out: Tensor, prefix: Tensor | None) -> Tensor | None:
        """As for `BandStep`."""
        tokens, after = self._run(rows, prefix)
        count = tokens.shape[1] - out[0, :, :, 0].numel()
        out.copy_(zero_masked(after[:, count:], self._mask(0)).unflatten(1, self.of.grid))
        self.of.done(len(self.of.limits))
        return after[:, :count] if count else None

    def backward(
        self, rows: Tensor, gradient: Tensor | None, prefix: Tensor | None, of_prefix: Tensor | None, into: Tensor
    ) -> Tensor | None:
        """As for `BandStep`."""
        with torch.enable_grad():
            tokens, after = self._run(rows, prefix)
        count = 0 if prefix is None else prefix.shape[1]
        given = torch.zeros_like(after)
        if gradient is not None:
            given[:, count:] = zero_masked(gradient.flatten(1, 2).to(given), self._mask(0))
        if of_prefix is not None:
            given[:, :count] = of_prefix
        (back,) = self.gradients.go_back(self.block, [after], [given], [tokens])
        into.copy_(zero_masked(back[:, count:], self._mask(0)).unflatten(1, self.of.grid))
        self.of.done(len(self.of.limits))
        return back[:, :count] if count else None

    def _run(self, rows: Tensor, prefix: Tensor | None) -> tuple[Tensor, Tensor]:
        """The block's input, prefix tokens first, from which gradients can be computed; and its output."""
        count = 0 if prefix is None else prefix.shape[1]
        tokens = zero_masked(rows.flatten(1, 2).to(self.of.device), self._mask(0))
        tokens = leaf(tokens if prefix is None else torch.cat([prefix, tokens], 1))
        with self.draws.of(self.block, self.number, 0):
            after = self.block(tokens, self.of.grid, num_prefix_tokens=count, mask=self._mask(count))
        return tokens, after

    def _mask(self, count: int) -> Tensor | None:
        return None if self.of.mask is None else with_prefix(self.of.mask, count).to(self.of.device)
