"""What an InLine layer has to know of all tokens of a picture before it can answer one of them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch import distributed as dist

from ..ops.injective import InjectiveState, reduce_together


@dataclass(frozen=True, eq=False)
class Summary:
    """The state that queries read from, and the sum that the local residual makes its kernels from. Summaries of parts add."""

    state: InjectiveState
    input_sum: Tensor
    """(B, C), in fp32 or better."""

    @property
    def input_mean(self) -> Tensor:
        """x_bar, (B, C)."""
        return self.input_sum / self.state.count.clamp(min=1).unsqueeze(1)

    def __add__(self, other: Summary) -> Summary:
        """The summary of both sets of tokens together."""
        return Summary(self.state + other.state, self.input_sum + other.input_sum)

    def all_reduce(self, group: dist.ProcessGroup | None = None) -> Summary:
        """The sum over all processes of a group, in one small message. Gradients flow back to all of them."""
        *state, input_sum = reduce_together([*self.state.parts(), self.input_sum], group)
        return Summary(InjectiveState(*state), input_sum)

    def numel(self) -> int:
        """How many numbers a summary has, whatever the number of tokens."""
        return sum(part.numel() for part in (*self.state.parts(), self.input_sum))
