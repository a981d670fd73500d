"""A softmax model taught to be a linear one, by itself: what its attention gave out, a new attention is to give out.

`swap` makes a student of a trained model, its teacher: all weights are there, but attention computes something else with them.
Attention is then matched on its own, layer by layer: every layer of the student gets what that layer of the teacher got, and
learns to answer as it did. No layer waits for another, nor for labels. What is left of the difference is for distillation.

Shapes: pictures (B, C, H, W); tokens as the model has them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from ..layers import Mixer
from ..models.swap_grid import tell_size
from ..models.swap_mixer import TAKEN
from ..models.swap_swin import SwinBlock


class Pair(NamedTuple):
    """The same place in two models."""

    name: str
    """Of the attention."""
    teacher: nn.Module
    student: nn.Module


class Call(NamedTuple):
    """What a place of the teacher was asked, and what it said."""

    inputs: tuple[Any, ...]
    options: dict[str, Any]
    output: Tensor


def pair_up(teacher: nn.Module, student: nn.Module, names: Sequence[str]) -> list[Pair]:
    """Places of attention by their names, as `SwapReport.changed` has them.

    timm's Swin cuts its map into windows outside of its attention, so that there the whole block is the place.
    """
    pairs = []
    for name in names:
        parent = name.rpartition(".")[0]
        place = parent if parent and isinstance(student.get_submodule(parent), SwinBlock) else name
        pairs.append(Pair(name, teacher.get_submodule(place), student.get_submodule(place)))
    return pairs


@contextmanager
def listening(pairs: Sequence[Pair]) -> Iterator[dict[str, Call]]:
    """Note, by name, what the teacher's places are asked and say while it looks at pictures."""
    calls: dict[str, Call] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
            calls[name] = Call(inputs, options, output[0] if isinstance(output, tuple) else output)

        return hook

    with ExitStack() as hooks:
        for pair in pairs:
            handle = pair.teacher.register_forward_hook(note(pair.name), with_kwargs=True)
            hooks.callback(handle.remove)
        yield calls


def attention_errors(student: nn.Module, pairs: Sequence[Pair], calls: Mapping[str, Call], pictures: Tensor) -> Tensor:
    """(layers,): how far each attention of the student is from the teacher's, asked what the teacher's was asked.

    The mean squared difference over the variance of the teacher's answers: 0 for the same, 1 for an answer that is always the
    mean.
    """
    tell_size(student, pictures)
    with _without_drop_path(student):
        return torch.stack([_error(pair.student, calls[pair.name]) for pair in pairs])


@contextmanager
def _without_drop_path(model: nn.Module) -> Iterator[None]:
    """The teacher drops nothing, and a Swin block that drops what its attention says has nothing to learn from."""
    dropping = [module for module in model.modules() if isinstance(module, DropPath) and module.training]
    for module in dropping:
        module.eval()
    try:
        yield
    finally:
        for module in dropping:
            module.train()


def _error(place: nn.Module, call: Call) -> Tensor:
    options = dict(call.options)
    carried = call.inputs[0] if isinstance(place, SwinBlock) else options.pop("residual", None)
    said = place(*call.inputs, **options)
    said = said[0] if isinstance(said, tuple) else said
    wanted = call.output
    if isinstance(place, SwinBlock):
        said = said - carried
    if carried is not None:  # what a block adds its attention to is none of the attention's doing
        wanted = wanted - carried
    return relative_error(said, wanted)


def relative_error(said: Tensor, wanted: Tensor) -> Tensor:
    """Mean squared difference over the variance of what is wanted, by channel; (B, ..., C) -> a number."""
    wanted = wanted.float()
    variance = (wanted - wanted.flatten(0, -2).mean(0)).square().mean()
    return (said.float() - wanted).square().mean() / variance.clamp(min=torch.finfo(torch.float32).tiny)


def distillation(teacher: nn.Module, student: nn.Module, pictures: Tensor, *, temperature: float = 2.0) -> Tensor:
    """How far the student's answer is from the teacher's: Kullback-Leibler divergence of classes, or error of features.

    A model without classes (`num_classes` of 0) is judged by what `forward_features` gives.
    """
    with torch.no_grad():
        wanted = answer(teacher, pictures)
    said = answer(student, pictures)
    if not getattr(teacher, "num_classes", 1):
        return relative_error(said, wanted)
    shares, wanted_shares = ((logits.float() / temperature).log_softmax(-1) for logits in (said, wanted))
    return temperature**2 * F.kl_div(shares, wanted_shares, log_target=True, reduction="batchmean")


def answer(model: Any, pictures: Tensor) -> Tensor:
    """What a model says: logits (B, classes), or, of one without classes, its features, channels last."""
    if getattr(model, "num_classes", 1):
        return model(pictures)
    features: Tensor = model.forward_features(pictures)
    return features.permute(0, 2, 3, 1) if features.ndim == 4 and getattr(model, "output_fmt", "NCHW") == "NCHW" else features


def learn(teacher: nn.Module, student: nn.Module, names: Sequence[str], what: str) -> int:
    """Say which parameters of the student are to change; how many numbers that is.

    Args:
        names: of the attention that was swapped.
        what: 'new', what the swapped attention has and the teacher's had not; 'all', all of it; 'distil', the whole model.
    """
    student.requires_grad_(what == "distil")
    before = {name for name, _ in teacher.named_parameters()}
    for place in names if what != "distil" else ():
        for prefix, module in student.get_submodule(place).named_modules(prefix=place):
            if not isinstance(module, Mixer):
                continue
            for name, parameter in module.named_parameters(prefix=prefix):
                part = name.removeprefix(f"{prefix}.").partition(".")[0]
                parameter.requires_grad_(what == "all" or (part not in TAKEN and name not in before))
    return sum(parameter.numel() for parameter in student.parameters() if parameter.requires_grad)
