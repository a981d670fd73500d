"""One image forward through a model and back, in parts, with the inputs of the steps in files.

A step is the embedding of a stage or a block. The forward pass keeps the inputs of the steps that learn, or some of them; the
backward pass goes over the steps from the last one, and computes again what was not kept (`reversal.py`). Summaries and prefix
tokens, whose size does not depend on the image, are always kept.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ..layers.bands import split_rows
from ..models.backbone import Backbone
from .band_step import BandStep
from .draws import Draws
from .embed_step import EmbedStep
from .image_reader import RowReader
from .map_files import MapFiles, StoredMap
from .parameter_gradients import ParameterGradients
from .progress import ProgressCounter
from .reversal import go_back, kept_inputs
from .row_share import RowShare
from .stage_map import StageMap
from .stages import blocks_of, grids_of, stages_of, ways_through
from .window_step import WholeStep, WindowStep

Step = EmbedStep | BandStep | WindowStep | WholeStep


class TrainingPass:
    """The steps of a model for one image.

    Args:
        model: one that `ways_through` takes.
        source: the image, in the precision and on the device of the model.
        gradients: where those of the model's parameters are added up.
        tokens: how many to hold in memory at once.
        folder: for the files, see `MapFiles`.
        keep: how many inputs of steps to keep in files; all if None.
        progress: called with (done, total).
        share: the processes that share the image, and the first and last row of each stage that this one has.
        taps: steps whose outputs are read after the forward pass.
    """

    def __init__(
        self,
        model: Backbone,
        source: RowReader,
        gradients: ParameterGradients,
        *,
        tokens: int,
        folder: str | Path | None,
        keep: int | None,
        progress: Callable[[int, int], None] | None,
        share: RowShare | None = None,
        own: Sequence[tuple[int, int]] | None = None,
        taps: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.model, self.gradients = model, gradients
        self.files, self.counter = MapFiles(folder), ProgressCounter(progress, 0)
        self.dtype = next(model.parameters()).dtype
        self.steps: list[Step] = []
        self.ends: dict[tuple[int, int], int] = {}
        """By (stage, block): the number of the step."""
        self._make_steps(source, tokens, RowShare() if share is None else share, own)
        learning = [number for number, step in enumerate(self.steps) if torch.is_grad_enabled() and _learns(step)]
        self.first = min(learning, default=len(self.steps))
        """The first step that learns: the backward pass ends there."""
        self.tapped = {self.ends[tap] + 1 for tap in taps}
        """Steps whose inputs are read: one more than those whose outputs are. Of the last, the output of the model."""
        steps = len(self.steps) - self.first
        self.places = max(0, steps - 1) if keep is None else min(keep, max(0, steps - 1))
        self.inputs: dict[int, StoredMap] = {}
        """Of the steps, those that are kept; that after the last step is its output."""
        self.prefixes: dict[int, Tensor | None] = {0: None}
        self._count()

    def _make_steps(self, source: RowReader, tokens: int, share: RowShare, own: Sequence[tuple[int, int]] | None) -> None:
        model, size = self.model, (source.height, source.width)
        stages, grids = stages_of(model), grids_of(model, size)
        device = next(model.parameters()).device
        blocks = [block for stage in stages for block in blocks_of(stage)]
        draws = Draws(blocks, torch.empty((), dtype=self.dtype, device=device))
        before: StageMap | None = None
        self.masks: list[StoredMap] = []
        count = 0
        for number, (stage, grid, ways) in enumerate(zip(stages, grids, ways_through(model, "training", size), strict=True)):
            first, last = (0, grid[0]) if own is None else own[number]
            limits = [(first + start, first + stop) for start, stop in split_rows((last - first, *grid[1:]), tokens)]
            of = StageMap(grid, limits, device, share, self._done)
            if source.valid is not None:
                self.masks.append(self.files.take((1, *grid), torch.bool))
                of.mask = self.masks[-1].tensor
            self.steps.append(EmbedStep(stage, source, of, self.gradients, before))
            for index, (block, way) in enumerate(zip(blocks_of(stage), ways, strict=True)):
                arguments = (block, count, of, draws, self.gradients)
                if way == "windows":
                    self.steps.append(WindowStep(*arguments, self.files, tokens))
                else:
                    self.steps.append((BandStep if way == "bands" else WholeStep)(*arguments))
                self.ends[number, index] = len(self.steps) - 1
                count += 1
            before = of
            source = source._replace(valid=_valid_of(of), height=grid[0], width=grid[1])

    def forward(self) -> Tensor:
        """Go through all steps; return the rows of the last map, (1, n, W, C)."""
        for step in self.steps:
            if isinstance(step, EmbedStep):
                step.find_valid()
        kept = {self.first, *kept_inputs(self.first, len(self.steps), self.places), *self.tapped}
        self._advance(0, len(self.steps), kept)
        return self.inputs[len(self.steps)].tensor

    @property
    def last(self) -> StageMap:
        """Where the last map lies."""
        return self.steps[-1].of

    def prefix(self) -> Tensor | None:
        """The prefix tokens after the last step."""
        return self.prefixes[len(self.steps)]

    def take_gradient(self) -> StoredMap:
        """A file for the gradient of the last map."""
        return self._take(len(self.steps) - 1)

    def backward(
        self,
        gradient: StoredMap,
        of_prefix: Tensor | None,
        *,
        known: bool = True,
        tapped: Mapping[int, StoredMap] | None = None,
    ) -> None:
        """Go back over all steps that learn.

        Args:
            gradient: of the last map, from `take_gradient`.
            of_prefix: of the prefix tokens.
            known: whether the last map has a gradient that is not zero.
            tapped: more gradients, of the inputs of these steps.
        """
        end, more = len(self.steps), dict(tapped or {})
        self._drop(end)
        state: dict[str, StoredMap] = {"gradient": gradient}
        known_here, prefix_here = known, of_prefix

        def backward(number: int) -> None:
            nonlocal known_here, prefix_here
            step, here = self.steps[number], state["gradient"]
            rows = self.inputs[number].tensor if number else None
            if number + 1 in more:
                _add_rows(step.of, more.pop(number + 1).tensor, here.tensor, known=known_here)
                known_here = True
            given = here.tensor if known_here else None
            if given is None and prefix_here is None:  # nothing after it is read
                self.counter.add(step.counts()[2])
                return
            if isinstance(step, EmbedStep):
                back = self._take(number - 1) if number > self.first else None
                if back is not None:
                    _zero(self.steps[number - 1].of, back.tensor)
                step.backward(rows, given, None, prefix_here, None if back is None else back.tensor)
                self.files.give_back(here)
                if back is not None:
                    state["gradient"] = back
                known_here, prefix_here = known_here or back is not None, None
            else:
                assert rows is not None
                prefix_here = step.backward(rows, given, self.prefixes[number], prefix_here, here.tensor)
                known_here = True
            self.files.release()

        if self.first < end:
            go_back(
                self.first,
                end,
                self.places,
                set(self.inputs) - {self.first},
                advance=lambda start, stop: self._advance(start, stop, {stop}),
                drop=self._drop,
                backward=backward,
            )
        for number in list(self.inputs):
            self._drop(number)

    def _advance(self, start: int, stop: int, kept: set[int]) -> None:
        """Go from the input of one step to that of another, and keep those that are wanted."""
        for number in range(start, stop):
            step, source = self.steps[number], self.inputs.get(number)
            out = self._take(number)
            rows = None if source is None else source.tensor
            if isinstance(step, EmbedStep):
                prefix = step.forward(rows, out.tensor, None)
            else:
                assert rows is not None
                prefix = step.forward(rows, out.tensor, self.prefixes[number])
            self.prefixes[number + 1], self.inputs[number + 1] = prefix, out
            self.files.release()
            if number != start and number not in kept:
                self._drop(number)

    def _take(self, number: int) -> StoredMap:
        """A file for the output of a step."""
        of = self.steps[number].of
        first, last = of.own
        return self.files.take((1, last - first, *of.grid[1:], _channels(self.steps, number)), self.dtype)

    def _drop(self, number: int) -> None:
        stored = self.inputs.pop(number, None)
        if stored is not None:
            self.files.give_back(stored)

    def _done(self, count: int) -> None:
        self.counter.add(count)
        self.files.release()

    def _count(self) -> None:
        """Count the bands of all passes."""
        again = dict.fromkeys(range(len(self.steps)), 0)

        def advance(start: int, stop: int) -> None:
            for number in range(start, stop):
                again[number] += 1

        first, end = self.first, len(self.steps)
        if first < end:
            kept = {*kept_inputs(first, end, self.places), *self.tapped}
            go_back(first, end, self.places, kept, advance=advance, drop=lambda _: None, backward=lambda _: None)
        for number, step in enumerate(self.steps):
            once, repeated, back = step.counts()
            self.counter.total += once + again[number] * repeated + (back if number >= first else 0)


def _learns(step: Step) -> bool:
    module: nn.Module = step.layers if isinstance(step, EmbedStep) else step.block
    return any(parameter.requires_grad for parameter in module.parameters())


def _channels(steps: Sequence[Step], number: int) -> int:
    """Channels of a step's output."""
    step = steps[number]
    if isinstance(step, EmbedStep):
        return blocks_of(step.stage)[0].mixer.dim
    return step.block.mixer.dim


def _valid_of(of: StageMap) -> Callable[[int, int], Tensor] | None:
    mask = of.mask
    return None if mask is None else lambda start, stop: mask[0, start:stop]


def _zero(of: StageMap, rows: Tensor) -> None:
    for start, stop in of.limits:
        of.rows(rows, start, stop).zero_()
        of.done(0)


def _add_rows(of: StageMap, more: Tensor, into: Tensor, *, known: bool) -> None:
    """Add a gradient to another, or put it in its place."""
    for start, stop in of.limits:
        own, target = of.rows(more, start, stop), of.rows(into, start, stop)
        target.copy_(target + own if known else own)
        of.done(0)
