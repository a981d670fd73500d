"""Chooses the blocks that keep their attention, for `inline linearize --keep`: measures, and what the choice costs."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ..compat import separate_accelerate_state
from ..data.sources import Source
from .distributed import make_accelerator
from .engine import Reporter
from .kept_blocks import Keep, choose_kept, only, parse_keep
from .kept_cost import costs
from .kept_errors import MATCH_STEPS, image_batches, match_attention, output_errors
from .linearize_config import PHASES, LinearizeConfig
from .linearize_task import Linearize, Teacher


def wanted_blocks(task: Linearize, keep: str) -> tuple[Keep, list[str]]:
    """What is to be kept, and the names of all attention, in the order in which blocks are counted.

    Raises a ValueError for what cannot be kept.
    """
    names = task.names
    if task.swap_options.get("only") is not None:
        names = task.teacher.student({**task.swap_options, "only": None})[1]
    return parse_keep(keep, names, task.names), names


@separate_accelerate_state()
def choose_blocks(
    teacher: Teacher,
    config: LinearizeConfig,
    source: Source,
    *,
    reporter: Reporter,
    stop: Callable[[], bool] = lambda: False,
    device: str = "auto",
) -> dict[str, Any]:
    """Measure how far the output is off with each block linear, and choose those that keep their attention.

    Args:
        teacher: as `check_config` leaves it: in evaluation, without gradients.
        config: with `keep`.
        source: the images, from `check_config`.
        reporter, stop, device: as for `linearize`; `StoppedError` is raised if it was stopped.

    Returns:
        The record of `choose_kept`; besides, `swap`, the options that swap all other attention, how it was measured, and
        the costs.
    """
    task = config.task(teacher, PHASES[0], 1)
    keep, names = wanted_blocks(task, config.keep or "")
    swapped = task.names
    on = make_accelerator(task.recipe.run, device).device
    original, copy = teacher.model.to(on), task.student.to(on).eval()
    batch = min(config.batch, config.keep_images)
    measured = min(config.keep_images, len(source.train)) // batch
    matching = min(MATCH_STEPS, config.phase_steps(len(source.train))[1])
    read = partial(image_batches, task, source, batch=batch, device=on, stop=stop)
    reporter.message(
        f"measuring {len(swapped)} blocks on {measured * batch:,} training images, after {matching} steps of matching"
    )
    match_attention(original, copy, swapped, read(measured, measured + matching), config.rates[1])
    errors = partial(output_errors, original, copy, swapped)
    found = choose_kept(keep, names, swapped, lambda kept: errors(kept, read(0, measured)))
    kept = [f"{row['block']} ({row['name']})" for row in found["blocks"] if row["kept"]]
    reporter.message(f"{len(kept)} of {len(swapped)} blocks keep their attention: {', '.join(kept) or 'none'}")
    found["swap"] = {**config.swap_options, "only": only(name for name in swapped if name not in found["kept"])}
    found |= {"asked": config.keep, "images": measured * batch, "match_steps": matching}
    if config.keep_cost:
        reporter.message(f"measuring the cost for an image of {config.keep_cost} x {config.keep_cost}")
        models = {"linear": copy, "kept": teacher.student(found["swap"])[0].to(on).eval(), "teacher": original}
        found["cost"] = costs(models, config.keep_cost, config.data.channels, on)
    return found
