"""A block in bands, forward and back: two passes over the bands give its gradients in the memory of one band.

    forward     summary = sum over bands of summarize(band);    output of a band = respond(band with its neighbours, summary)
    backward    from the gradient of each band's output, through respond: to parameters, to the band and its neighbours, and to
                the summary, added up over bands; then from the summary's gradient, through summarize: to parameters and bands

The second pass of the backward is done once for each of the block's sweeps, from the last one: a summary that the next sweep
read has a gradient from there, too. Prefix tokens are like a band without a grid.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..layers import Block
from ..layers.bands import Band, summarize_in_bands
from ..layers.summary import Summaries, Summary
from ..ops.sums import zero_masked
from .draws import Draws
from .parameter_gradients import ParameterGradients, leaf
from .stage_map import GradientRows, StageMap

PREFIX = 0
"""The number of the prefix tokens among the parts of an image; a band has that of its first row, plus one."""


class BandStep:
    """A block that works in bands.

    Args:
        block: whose number in the model is `number`.
        number: of the block.
        of: the map.
        draws: of the image.
        gradients: where those of the parameters are added up.
    """

    def __init__(self, block: Block, number: int, of: StageMap, draws: Draws, gradients: ParameterGradients) -> None:
        self.block, self.number, self.of, self.draws, self.gradients = block, number, of, draws, gradients
        self.summaries: Summaries | None = None
        """Of the whole image, once they are known."""

    def counts(self) -> tuple[int, int, int]:
        """How many bands are done by the first forward pass, by another one, and by the backward pass."""
        bands, sweeps = len(self.of.limits), self.block.sweeps
        return (1 + sweeps) * bands, bands, (1 + sweeps) * bands

    def forward(self, rows: Tensor, out: Tensor, prefix: Tensor | None) -> Tensor | None:
        """Write the block's output to `out`; return that for prefix tokens."""
        of, block = self.of, self.block
        if self.summaries is None:
            counted = prefix if of.share.rank == 0 else None
            self.summaries = summarize_in_bands(
                block, lambda reach: of.bands(rows, reach), of.device, prefix=counted, complete=of.share.total
            )
        for band in of.bands(rows, block.reach()):
            tokens, mask = band.tokens(of.device)
            response = zero_masked(self._respond(tokens, self.summaries, band, mask), of.valid(band.start, band.stop))
            of.rows(out, band.start, band.stop).copy_(response.unflatten(1, (-1, *of.grid[1:])))
        return None if prefix is None else self._respond(prefix, self.summaries, None, None)

    def backward(
        self, rows: Tensor, gradient: Tensor | None, prefix: Tensor | None, of_prefix: Tensor | None, into: Tensor
    ) -> Tensor | None:
        """Write the gradient of the block's input to `into`; return that of prefix tokens.

        Args:
            rows, prefix: the block's input.
            gradient: of its output, which may be `into`; None for zero.
            of_prefix: the gradient of its output for prefix tokens; None for zero.
            into: where the gradient of the map goes.
        """
        assert self.summaries is not None
        of, first = self.of, self.of.share.rank == 0
        known = tuple(map(_leaf_summary, self.summaries))
        totals = [[torch.zeros_like(each) for each in _learned(summary)] for summary in known]
        replaced = GradientRows(of, into, self.block.reach())
        if gradient is None:
            _fill_zero(of, into)
        else:
            for band in of.bands(rows, self.block.reach()):
                tokens, mask = _leaf_tokens(band, of)
                own = of.rows(gradient, band.start, band.stop).to(of.device).flatten(1, 2)
                own = zero_masked(own, of.valid(band.start, band.stop))
                with torch.enable_grad():
                    response = self._respond(tokens, known, band, mask)
                replaced.replace(band, self._back([response], [own], tokens, known, totals).unflatten(1, band.grid))
            replaced.finish()
        if prefix is not None and of_prefix is not None:
            alone = leaf(prefix)
            with torch.enable_grad():
                response = self._respond(alone, known, None, None)
            of_prefix = self._back([response], [of_prefix], alone, known, totals, counted=first)
        elif prefix is not None:
            of_prefix = torch.zeros_like(prefix)
        self._back_through_sums(rows, prefix, known, totals, into, of_prefix)
        return of_prefix

    def _back_through_sums(
        self,
        rows: Tensor,
        prefix: Tensor | None,
        known: Summaries,
        totals: list[list[Tensor]],
        into: Tensor,
        of_prefix: Tensor | None,
    ) -> None:
        """From the gradients of the summaries, `totals`, add to those of the map and of prefix tokens."""
        of, block = self.of, self.block
        for sweep in reversed(range(block.sweeps)):
            summary, before = known[sweep], known[:sweep]
            total = of.share.sum(totals[sweep])
            added = GradientRows(of, into, block.summary_reach())
            for band in of.bands(rows, block.summary_reach()):
                tokens, mask = _leaf_tokens(band, of)
                with torch.enable_grad():
                    part = block.summarize(tokens, band.grid, place=band.place, mask=mask, before=before)
                    sums = _learned(part.on_scale(summary.maximum))
                added.add(band, self._back(sums, total, tokens, before, totals).unflatten(1, band.grid))
            added.finish()
            if prefix is not None and of_prefix is not None:
                alone = leaf(prefix)
                with torch.enable_grad():
                    sums = _learned(block.summarize(alone, before=before).on_scale(summary.maximum))
                of_prefix += self._back(sums, total, alone, before, totals, counted=of.share.rank == 0)

    def _respond(self, tokens: Tensor, summaries: Summaries, band: Band | None, mask: Tensor | None) -> Tensor:
        """The block's response to a band, or to prefix tokens."""
        with self.draws.of(self.block, self.number, PREFIX if band is None else 1 + band.start):
            if band is None:
                return self.block.respond(tokens, summaries)
            return self.block.respond(tokens, summaries, band.grid, place=band.place, mask=mask)

    def _back(
        self,
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        tokens: Tensor,
        known: Summaries,
        totals: list[list[Tensor]],
        *,
        counted: bool = True,
    ) -> Tensor:
        """The gradient of the tokens. Those of the summaries are added to `totals`, if they are counted here."""
        inputs = [tokens, *(each for summary in known for each in _learned(summary))]
        own, *others = self.gradients.go_back(self.block, outputs, gradients, inputs, counted=counted)
        if counted:
            parts = iter(others)
            for number, summary in enumerate(known):
                totals[number] = [total + next(parts) for total, _ in zip(totals[number], _learned(summary), strict=True)]
        return own


def _learned(summary: Summary) -> list[Tensor]:
    """The sums that have gradients: all but the count."""
    return list(summary.tensors()[1:])


def _leaf_summary(summary: Summary) -> Summary:
    return replace(summary, input_sum=leaf(summary.input_sum), sums=tuple(map(leaf, summary.sums)))


def _leaf_tokens(band: Band, of: StageMap) -> tuple[Tensor, Tensor | None]:
    tokens, mask = band.tokens(of.device)
    return leaf(tokens), mask


def _fill_zero(of: StageMap, rows: Tensor) -> None:
    """Zeros in all bands."""
    for start, stop in of.live:
        of.rows(rows, start, stop).zero_()
        of.done(1)
    of.done(len(of.limits) - len(of.live))
