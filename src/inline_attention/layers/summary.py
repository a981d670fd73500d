"""`Summary`: what a layer has to know of all tokens before it can respond to one of them. Summaries of bands add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch import distributed as dist

from ..ops.collectives import max_over, reduce_together


@dataclass(frozen=True, eq=False)
class Summary:
    """The sums over tokens that one sweep over an image gives, in fp32 or better.

    A mixer fills `sums` with whatever it needs, such as `sum_j phi(k_j) v_j^T`. If the sums are of exponentials,
    `sum_j exp(a_j) f_j`, they are kept as `sum_j exp(a_j - maximum) f_j`, and brought to a common maximum before they add.
    """

    count: Tensor
    """N, valid tokens: (B,)."""
    input_sum: Tensor
    """(B, C): the local residual makes its kernels from the mean."""
    sums: tuple[Tensor, ...] = ()
    """The mixer's own, (B, ...) each."""
    maximum: Tensor | None = None
    """(B, ...): what was subtracted from the exponents; its sides are the first sides of each of `sums`. No gradient flows
    through it: where it is right, the result does not depend on it. Where no token is valid, it is the smallest number."""

    @property
    def input_mean(self) -> Tensor:
        """x_bar, (B, C)."""
        return self.input_sum / self.count.clamp(min=1).unsqueeze(1)

    def __add__(self, other: Summary) -> Summary:
        """The summary of both sets of tokens together."""
        if self.maximum is not None and other.maximum is not None:
            maximum = torch.maximum(self.maximum, other.maximum)
            self, other = self.on_scale(maximum), other.on_scale(maximum)
        return self.with_tensors([mine + theirs for mine, theirs in zip(self.tensors(), other.tensors(), strict=True)])

    def on_scale(self, maximum: Tensor | None) -> Summary:
        """The same sums with another maximum. On the total's scale, the tensors of the parts add up to those of the total."""
        if self.maximum is None or maximum is None:
            return self
        factor = (self.maximum - maximum).exp()
        sums = tuple(each * factor[(...,) + (None,) * (each.ndim - factor.ndim)] for each in self.sums)
        return replace(self, sums=sums, maximum=maximum)

    def tensors(self) -> tuple[Tensor, ...]:
        """All sums, count first; of summaries on one scale they add."""
        return self.count, self.input_sum, *self.sums

    def with_tensors(self, tensors: Sequence[Tensor]) -> Summary:
        """A summary of the same kind with other `tensors()`."""
        count, input_sum, *sums = tensors
        return replace(self, count=count, input_sum=input_sum, sums=tuple(sums))

    def all_reduce(self, group: dist.ProcessGroup | None = None) -> Summary:
        """The sum over all processes of a group, in one small message, or two with a maximum. Gradients flow to all of them."""
        scaled = self if self.maximum is None else self.on_scale(max_over(self.maximum, group))
        return scaled.with_tensors(reduce_together(scaled.tensors(), group))

    def numel(self) -> int:
        """How many numbers a summary has, whatever the number of tokens."""
        return sum(tensor.numel() for tensor in self.tensors()) + (0 if self.maximum is None else self.maximum.numel())


Summaries = tuple[Summary, ...]
"""One for each sweep, of the whole image, in the order of the sweeps."""
