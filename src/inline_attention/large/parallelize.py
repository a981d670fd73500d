"""`parallelize`: one image over several processes. Each has some rows of it; all get the logits and gradients of the whole.

In an all-InLine model a process needs two things from the others in each block: the sum of all summaries, whose size does not
depend on the image, and the rows next to its own for the local part, whose size depends on the image's width only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from typing import Literal

import torch
from timm.models import checkpoint
from torch import Tensor, nn
from torch import distributed as dist
from torch.func import functional_call

from ..layers import Block, Mixer
from ..layers.bands import Band, Place, respond_in_bands
from ..layers.summary import Summaries
from ..models.backbone import Backbone, grid_of
from ..models.stage import ConvEmbed, Stage
from ..ops.checks import Grid
from ..ops.collectives import average_gradients, exchange_rows, reduce_together
from ..ops.sums import to_fp32
from .stages import all_linear, blocks_of, stages_of

Kind = Literal["summaries", "halo", "pooling", "gradients"]


@dataclass
class Traffic:
    """Bytes that this process has sent, forward and backward, since the last `reset`.

    A message counts with its own size, once for each process that it is sent to (halo), and once if it is summed over the group
    (all others), however the library sends it.
    """

    summaries: int = 0
    """The summaries of each block, and their gradients."""
    halo: int = 0
    """Rows at the borders, and their gradients."""
    pooling: int = 0
    """The sum of the last features, where the classifier reads their mean, and its gradient."""
    gradients: int = 0
    """Gradients of the parameters, and of the image if it requires any."""

    def reset(self) -> None:
        """Start from zero."""
        self.summaries = self.halo = self.pooling = self.gradients = 0

    def add(self, kind: Kind, size: int) -> None:
        """Count a message of this many bytes."""
        setattr(self, kind, getattr(self, kind) + size)


def parallelize(model: nn.Module, group: dist.ProcessGroup | None = None) -> "SequenceParallel":
    """Let the processes of a group share every image, each taking some of its rows.

        dist.init_process_group("gloo")
        parallel = parallelize(timm.create_model("inline_deit_tiny"))
        loss(parallel(images), labels).backward()                       # the same in every process

    Args:
        model: `inline_deit_*`, `inline_pvt_*`, or another of this package's with no softmax blocks and no overlapping patches.
            All processes get the weights of the group's first.
        group: the processes; all if None.

    Each process is given whole images, of which it takes its rows: the processes share the work and the activations.
    """
    backbone = all_linear(model, "parallelize")
    for name, module in backbone.named_modules():
        if isinstance(module, ConvEmbed) and module.overlap:
            raise ValueError(f"parallelize needs patches that do not overlap, such as inline_pvt_tiny has; {name} overlaps")
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError("parallelize needs a process group: call torch.distributed.init_process_group first")
    group = dist.group.WORLD if group is None else group
    if group is None or dist.get_rank(group) < 0:
        raise ValueError(f"process {dist.get_rank()} is not in the group that shares the image")
    for tensor in (*backbone.parameters(), *backbone.buffers()):
        dist.broadcast(tensor.detach(), group=group, group_src=0)
    return SequenceParallel(backbone, group)


class SequenceParallel(nn.Module):
    """A model whose images are split over the processes of a group; see `parallelize`.

    Give all processes the same images in the same order, and call `backward` in all or in none. As with DDP, each of them then
    has the gradients of the mean of their losses: those of one process alone, if the loss depends on the logits only and so is
    the same everywhere. Backward passes add up as usual. Processes that train with drop path must have the same seed: they then
    drop the same as one process with that seed. Parameters are the model's own, for optimizers and checkpoints.

    Args:
        model: an all-InLine model without overlapping patches.
        group: the processes.
    """

    def __init__(self, model: Backbone, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.model = model
        self.group = group
        self.rank, self.processes = dist.get_rank(group), dist.get_world_size(group)
        self.traffic = Traffic()

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, in_chans, H, W) -> logits (B, num_classes), the same in every process: `model(x)`."""
        if self.model.global_pool not in ("avg", "token"):
            raise ValueError(f"parallelize needs global_pool='avg' or 'token', got {self.model.global_pool!r}")
        return self._run(self._logits, x)

    def forward_features(self, x: Tensor) -> Tensor:
        """The rows of `model.forward_features(x)` that are this process's, see `rows`.

        (B, C, own rows, W') after the last stage and its norm; with a class token, tokens (B, 1 + own rows * W', C), the class
        token being the same in every process.
        """
        return self._run(self._features, x)

    def rows(self, height: int) -> tuple[int, int]:
        """(start, stop): the rows of the last map that this process has, for an image of this height."""
        start, stop = self._split(height)[-1][self.rank]
        return start, stop

    def own_rows(self, height: int) -> list[tuple[int, int]]:
        """(start, stop) of each stage's map: the rows of this process, for an image of this height.

        Raises a ValueError where `forward` would.
        """
        self._check_dropout()
        shares = self._split(height)[1:]
        for stage, rows in zip(stages_of(self.model), shares, strict=True):
            _check_shares(blocks_of(stage), rows)
        return [rows[self.rank] for rows in shares]

    def _split(self, height: int) -> list[list[tuple[int, int]]]:
        """Rows of the image, then of each stage's map, that each process has: the last map is split as evenly as possible."""
        strides = [stage.embed.stride for stage in stages_of(self.model)]
        heights = [height]
        for stride in strides:
            heights.append(grid_of((heights[-1], 1), stride)[0])
        last = heights[-1]
        if last < self.processes:
            raise ValueError(
                f"{self.processes} processes cannot share the {last} rows that {height} pixels have in the last map"
            )
        cuts = [-(-rank * last // self.processes) for rank in range(self.processes + 1)]
        return [
            list(pairwise(min(cut * prod(strides[level:]), rows) for cut in cuts))  # the last process has the padding
            for level, rows in enumerate(heights)
        ]

    def _run(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The function of x, with gradients that are averaged over the processes before x and the parameters get them."""
        self.model.check_images(x)
        self._check_dropout()
        named = [("x", x), *((f"model.{name}", parameter) for name, parameter in self.model.named_parameters())]
        learned = {name: tensor for name, tensor in named if tensor.requires_grad}
        if not learned or not torch.is_grad_enabled():
            return function(x)
        tensors = average_gradients(list(learned.values()), self.group, partial(self.traffic.add, "gradients"))
        averaged = dict(zip(learned, tensors, strict=True))
        x = averaged.pop("x", x)
        result: Tensor = functional_call(_Function(self.model, function), averaged, (x,))
        return result

    def _check_dropout(self) -> None:
        """Raise if there is dropout that would differ from that of one process alone."""
        for name, module in self.model.named_modules():
            rate = module.p if isinstance(module, nn.Dropout) else module.attn_drop if isinstance(module, Mixer) else 0.0
            if module.training and rate:
                raise ValueError(f"parallelize cannot train with dropout, other than drop path: {name} drops {rate:g}")

    def _logits(self, x: Tensor) -> Tensor:
        """The logits, from all processes' features."""
        tokens, grid = self._tokens(x)
        if self.model.global_pool == "token":
            pooled = tokens[:, 0]
        else:
            (total,) = reduce_together([to_fp32(tokens[:, self.model.num_prefix_tokens :]).sum(1)], self.group)
            self._count_sum("pooling", total.nbytes, total)
            height = self._split(x.shape[2])[-1][-1][1]
            pooled = (total / (height * grid[1])).to(tokens.dtype)
        logits: Tensor = self.model.head(self.model.head_drop(pooled))
        return logits

    def _features(self, x: Tensor) -> Tensor:
        """The features of this process's rows."""
        tokens, grid = self._tokens(x)
        return tokens if self.model.num_prefix_tokens else _as_map(tokens, grid)

    def _tokens(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Prefix tokens and this process's own, (B, prefix + own rows * W', C), after the last norm; and (own rows, W')."""
        split = self._split(x.shape[2])
        start, stop = split[0][self.rank]
        x = x[:, :, start:stop]
        tokens, grid = x, Grid()
        for stage, shares in zip(stages_of(self.model), split[1:], strict=True):
            tokens, grid = self._stage(stage, x, shares)
            x = _as_map(tokens[:, stage.num_prefix_tokens :], grid)
        return self.model.norm(tokens), grid

    def _stage(self, stage: Stage, x: Tensor, shares: list[tuple[int, int]]) -> tuple[Tensor, Grid]:
        """Tokens after a stage, and the grid of this process's own, from its rows of the map before."""
        blocks = blocks_of(stage)
        _check_shares(blocks, shares)
        rows: Tensor = stage.embed(x)
        grid = (rows.shape[1], rows.shape[2])
        prefix = None
        if stage.positions is not None:
            rows = rows + stage.positions.rows((shares[-1][1], grid[1]), *shares[self.rank])
            prefix = stage.positions.prefix()
        tokens = rows.flatten(1, 2)
        tokens = tokens if prefix is None else torch.cat([prefix.expand(rows.shape[0], -1, -1), tokens], 1)
        where = (grid, stage.num_prefix_tokens, Place(shares[self.rank][0], shares[-1][1]))
        for block in blocks:
            if stage.grad_checkpointing:
                tokens = checkpoint(self._block, block, tokens, *where, use_reentrant=False)
            else:
                tokens = self._block(block, tokens, *where)
        return tokens, grid

    def _block(self, block: Block, tokens: Tensor, grid: Grid, prefix: int, place: Place) -> Tensor:
        """A block's response to prefix tokens, which all processes have, and to this process's own, which lie at `place`."""
        alone, rows = tokens[:, :prefix], tokens[:, prefix:].unflatten(1, grid)
        summaries: Summaries = ()
        for _ in range(block.sweeps):
            band = self._own_band(rows, place, block.summary_reach())
            own = block.summarize(band.tokens(tokens.device)[0], band.grid, place=band.place, before=summaries)
            if prefix:  # counted once; nothing times them, so that every process has gradients of the same parameters
                theirs, share = block.summarize(alone, before=summaries), float(self.rank == 0)
                own = own + theirs.with_tensors([share * tensor for tensor in theirs.tensors()])
            summary = own.all_reduce(self.group)
            self._count_sum("summaries", own.numel() * own.input_sum.element_size(), summary.input_sum)
            summaries = (*summaries, summary)
        responses = respond_in_bands(block, [self._own_band(rows, place, block.reach())], summaries, tokens.device)
        if not prefix:
            return next(responses)[1]
        devices = [] if tokens.is_cpu else [tokens.device]
        with torch.random.fork_rng(devices, block.training, device_type=tokens.device.type):  # drop path: one draw for both
            first = block.respond(alone, summaries)
        return torch.cat([first, next(responses)[1]], 1)

    def _own_band(self, rows: Tensor, place: Place, reach: tuple[int, int]) -> Band:
        """The rows of this process, (B, H, W, C), with those around them, which other processes have."""
        above, below = reach
        halo = (above if self.rank > 0 else 0, below if self.rank < self.processes - 1 else 0)
        around = exchange_rows(rows, reach, self.group, partial(self.traffic.add, "halo")) if above or below else rows
        assert place.height is not None
        return Band(place.first_row, place.first_row + rows.shape[1], around, halo, place.height)

    def _count_sum(self, kind: Kind, size: int, result: Tensor) -> None:
        """Count a sum over the group, and the sum of its gradients in the backward pass."""
        self.traffic.add(kind, size)
        if result.requires_grad:
            result.register_hook(lambda _: self.traffic.add(kind, size))


def _check_shares(blocks: list[Block], shares: list[tuple[int, int]]) -> None:
    """Raise if a process has fewer rows than the next one needs of it."""
    furthest, fewest = max((max(block.reach()) for block in blocks), default=0), min(stop - start for start, stop in shares)
    if furthest > fewest:
        raise ValueError(f"blocks need {furthest} rows of the next process, and one has {fewest}: take fewer processes")


class _Function(nn.Module):
    """A function that uses a model, as a module: `functional_call` takes modules only."""

    def __init__(self, model: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _as_map(tokens: Tensor, grid: Grid) -> Tensor:
    """(B, H * W, C) -> (B, C, H, W)."""
    return tokens.unflatten(1, grid).permute(0, 3, 1, 2)
