"""Messages between processes that share an image: the all-reduce of states, rows at their borders, gradients.

Each is one autograd function that all processes of a group call in the same order, at the borders of the image too: so messages
match, forward and backward. Each has the right adjoint for a loss that is the sum of all processes' losses.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

CountBytes = Callable[[int], None]
"""Called with the size of each message, in bytes, that this process sends."""


def sum_over(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The sum over the processes of a group, all if None. Its gradient is summed over them as well."""
    summed: Tensor = _Sum.apply(tensor, group)
    return summed


def max_over(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The maximum over the processes of a group, all if None. No gradient flows through it."""
    largest = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    return largest


def reduce_together(tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> list[Tensor]:
    """Each tensor summed over the processes of a group, all of them in one message."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError("all_reduce needs a process group: call torch.distributed.init_process_group first")
    summed = sum_over(torch.cat([tensor.flatten() for tensor in tensors]), group)
    pieces = summed.split([tensor.numel() for tensor in tensors])
    return [piece.view_as(tensor) for piece, tensor in zip(pieces, tensors, strict=True)]


def exchange_rows(x: Tensor, reach: tuple[int, int], group: dist.ProcessGroup, count_bytes: CountBytes) -> Tensor:
    """Add the neighbours' rows to a process's own. Gradients of these rows go back to the process that they came from.

    Args:
        x: (B, rows, W, C): rows of a map that is split over the processes, from the top down, in the order of ranks.
        reach: how many rows above and below are needed. Every process must have as many.
        group: the processes.
        count_bytes: called for each message, forward and backward.

    Returns:
        (B, above + rows + below, W, C). Where the map ends there are no rows above, or none below.
    """
    exchanged: Tensor = _Exchange.apply(x, reach, group, count_bytes)
    return exchanged


def average_gradients(tensors: Sequence[Tensor], group: dist.ProcessGroup, count_bytes: CountBytes) -> tuple[Tensor, ...]:
    """The same tensors, with gradients that are averaged over the group, all of them in one message.

    A tensor without a gradient is left out of the message, and must have none in any of the processes.

    Args:
        tensors: of any shapes, all of which require gradients.
        group: the processes.
        count_bytes: called for the message, which is sent in the backward pass.
    """
    averaged: tuple[Tensor, ...] = _Average.apply(group, count_bytes, *tensors)
    return averaged


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        summed = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed, group=group)
        return summed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return sum_over(grad, ctx.group), None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, reach: tuple[int, int], group: dist.ProcessGroup, count_bytes: CountBytes) -> Tensor:
        above, below = reach
        rows = x.shape[1]
        before, after = trade_rows(x[:, :below], x[:, rows - above :], reach, group, count_bytes)
        ctx.reach, ctx.group, ctx.count_bytes = reach, group, count_bytes
        ctx.rows = [before.shape[1], rows, after.shape[1]]
        return torch.cat([before, x, after], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        above, below = ctx.reach
        to_previous, own, to_next = grad.split(ctx.rows, 1)
        first, last = trade_rows(to_previous, to_next, (below, above), ctx.group, ctx.count_bytes)
        total = own.clone()
        total[:, : first.shape[1]] += first
        total[:, total.shape[1] - last.shape[1] :] += last
        return total, None, None, None


def trade_rows(
    to_previous: Tensor,
    to_next: Tensor,
    counts: tuple[int, int],
    group: dist.ProcessGroup,
    count_bytes: CountBytes = lambda _: None,
) -> tuple[Tensor, Tensor]:
    """Send rows (B, n, W, C) to both neighbours and receive `counts` of them, without gradients.

    None are sent or received where there is no neighbour.
    """
    rank, operations, received = dist.get_rank(group), [], []
    for peer, rows, count in ((rank - 1, to_previous, counts[0]), (rank + 1, to_next, counts[1])):
        exists = 0 <= peer < dist.get_world_size(group)
        batch, _, *rest = rows.shape
        received.append(rows.new_empty(batch, count if exists else 0, *rest))
        if exists and rows.shape[1]:
            operations.append(dist.P2POp(dist.isend, rows.contiguous(), group=group, group_peer=peer))
            count_bytes(rows.nbytes)
        if exists and count:
            operations.append(dist.P2POp(dist.irecv, received[-1], group=group, group_peer=peer))
    for work in dist.batch_isend_irecv(operations) if operations else []:
        work.wait()
    return received[0], received[1]


class _Average(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, count_bytes: CountBytes, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.count_bytes = group, count_bytes
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        present = [grad for grad in grads if grad is not None]
        if not present:
            return (None, None, *grads)
        message = torch.cat([grad.flatten() for grad in present])
        ctx.count_bytes(message.nbytes)
        dist.all_reduce(message, group=ctx.group)
        message /= dist.get_world_size(ctx.group)
        parts = iter(message.split([grad.numel() for grad in present]))
        return (None, None, *(None if grad is None else next(parts).view_as(grad).to(grad.dtype) for grad in grads))
