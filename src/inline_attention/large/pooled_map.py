"""The norm and the pooling after the last block, by bands, forward and back."""

import torch
from torch import Tensor

from ..models.backbone import Backbone
from ..ops.sums import count_valid, to_fp32, zero_masked
from .parameter_gradients import ParameterGradients, leaf
from .stage_map import StageMap


class PooledMap:
    """The last map of a model, normalised and pooled: what `Backbone.forward_head` gives before its dropout.

    Args:
        model: whose norm and `global_pool` are used.
        of: the map.
        gradients: where those of the norm are added up.
    """

    def __init__(self, model: Backbone, of: StageMap, gradients: ParameterGradients) -> None:
        self.model, self.of, self.gradients = model, of, gradients
        self.kind = model.global_pool
        self.count = torch.zeros(())
        self.largest = torch.zeros(())

    def counts(self) -> tuple[int, int, int]:
        """As for `BandStep`."""
        bands = 0 if self.kind == "token" else len(self.of.limits)
        return bands, 0, bands * (2 if "max" in self.kind else 1)

    def forward(self, rows: Tensor, prefix: Tensor | None) -> Tensor:
        """(1, C)."""
        if self.kind == "token":
            assert prefix is not None
            normed: Tensor = self.model.norm(prefix)
            return normed[:, 0]
        totals, counts, largest = [], [], []
        for band in self.of.bands(rows, (0, 0)):
            tokens, mask = band.tokens(self.of.device)
            normed = to_fp32(self.model.norm(tokens))
            totals.append(zero_masked(normed, mask).sum(1))
            counts.append(count_valid(normed, mask))
            if "max" in self.kind:
                largest.append(_fill(normed, mask).amax(1))
        total, self.count = self.of.share.sum([sum(totals[1:], totals[0]), sum(counts[1:], counts[0])])
        mean, kind = total / self.count, rows.dtype
        if not largest:
            return mean.to(kind)
        self.largest = torch.stack(largest).amax(0)
        return (self.largest if self.kind == "max" else 0.5 * (mean + self.largest)).to(kind)

    def backward(self, gradient: Tensor, rows: Tensor, prefix: Tensor | None, into: Tensor) -> tuple[bool, Tensor | None]:
        """Write the gradient of the last map to `into`.

        Returns:
            Whether there is one, since a class token alone does not read the map; and the gradient of prefix tokens.
        """
        first = self.of.share.rank == 0
        if self.kind == "token":
            assert prefix is not None
            prefix = leaf(prefix)
            with torch.enable_grad():
                normed = self.model.norm(prefix)
            given = torch.zeros_like(normed)
            given[:, 0] = gradient
            return False, self.gradients.go_back(self.model.norm, [normed], [given], [prefix], counted=first)[0]
        gradient = to_fp32(gradient)
        shares = {"avg": (1.0, 0.0), "max": (0.0, 1.0), "avgmax": (0.5, 0.5)}[self.kind]
        of_mean, of_largest = shares[0] * gradient / self.count, shares[1] * gradient
        if shares[1]:
            of_largest = of_largest / self._ties(rows)  # as `amax` divides it
        for band in self.of.bands(rows, (0, 0)):
            tokens, mask = band.tokens(self.of.device)
            tokens = leaf(tokens)
            with torch.enable_grad():
                normed = self.model.norm(tokens)
            given = of_mean.unsqueeze(1).expand(normed.shape)
            if shares[1]:
                given = given + of_largest.unsqueeze(1) * (_fill(to_fp32(normed.detach()), mask) == self.largest.unsqueeze(1))
            (back,) = self.gradients.go_back(self.model.norm, [normed], [zero_masked(given, mask)], [tokens])
            self.of.rows(into, band.start, band.stop).copy_(back.unflatten(1, band.grid))
        return True, None if prefix is None else torch.zeros_like(prefix)

    def _ties(self, rows: Tensor) -> Tensor:
        """How many tokens have the largest value of each channel, (1, C)."""
        ties = torch.zeros_like(self.largest)
        for band in self.of.bands(rows, (0, 0)):
            tokens, mask = band.tokens(self.of.device)
            ties += (_fill(to_fp32(self.model.norm(tokens)), mask) == self.largest.unsqueeze(1)).sum(1)
        return ties


def _fill(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Tokens that are smaller than all others where masked."""
    return tokens if mask is None else tokens.masked_fill(~mask.unsqueeze(-1), float("-inf"))
