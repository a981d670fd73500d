"""What the processes that share an image tell each other in a training pass. A process alone has nothing to say."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from ..layers.summary import Summary
from ..ops.collectives import reduce_together, trade_rows


class RowShare:
    """One process, which has all rows."""

    rank, processes = 0, 1

    def around(self, rows: Tensor, reach: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The rows of the next processes above and below these, (1, n, W, C) each: none where the map ends."""
        return rows[:, :0], rows[:, :0]

    def give_back(self, above: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
        """Send gradients of the rows that `around` gave; return those of this process's first and last rows."""
        return above[:, :0], below[:, :0]

    def total(self, summary: Summary) -> Summary:
        """The sum over all processes."""
        return summary

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each of them summed over all processes."""
        return list(tensors)


class ProcessRows(RowShare):
    """One of several processes.

    Args:
        group: the processes.
        device: of the messages.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device
        self.rank, self.processes = dist.get_rank(group), dist.get_world_size(group)

    def around(self, rows: Tensor, reach: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """By messages to both neighbours."""
        above, below = reach
        if not above and not below:
            return rows[:, :0], rows[:, :0]
        return self._trade(rows[:, :below], rows[:, rows.shape[1] - above :], reach)

    def give_back(self, above: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
        """By messages to both neighbours."""
        reach = above.shape[1], below.shape[1]
        if not any(reach):
            return above, below
        return self._trade(above, below, (reach[1], reach[0]))

    def _trade(self, to_previous: Tensor, to_next: Tensor, counts: tuple[int, int]) -> tuple[Tensor, Tensor]:
        rows = (to_previous.to(self.device), to_next.to(self.device))
        before, after = trade_rows(*rows, counts, self.group)
        return before.to(to_previous.device), after.to(to_next.device)

    def total(self, summary: Summary) -> Summary:
        """By one message, or two."""
        return summary.all_reduce(self.group)

    @torch.no_grad()
    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """In one message."""
        return reduce_together(tensors, self.group)
