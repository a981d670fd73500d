"""Distils a softmax model into its linear copy: how far each attention is from the original's, and what is trained.

`swap` makes a student of a trained model, its teacher: all weights are kept, but the new attention computes something else with
them. Attention is then matched layer by layer: every layer of the student gets the input of the same layer of the teacher, and
is trained to give the teacher's output. No layer depends on another, nor on labels. Distillation of the whole model follows.

Shapes: images (B, C, H, W); tokens as the model has them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from ..layers import Mixer
from ..models.swap_grid import record_size
from ..models.swap_mixer import COMMON_PARTS
from ..models.swap_sam import MapAttention
from ..models.swap_timm import SwinBlock


class PhaseStyle(NamedTuple):
    """How a phase is shown."""

    row: str
    """Its name in the table."""
    label: str
    """Its name in the figure."""
    colour: str


PHASES = {
    "swapped": PhaseStyle("swap only", "swapped, nothing learned", "#8a8f98"),
    "new": PhaseStyle("new matched", "new parameters matched", "#e08e2b"),
    "all": PhaseStyle("all matched", "all attention matched", "#1f5fa8"),
    "distil": PhaseStyle("distilled", "distilled end to end", "#c0392b"),
}
"""The copy before training, and the phases in their order. They train the parameters that the new attention adds, the whole
attention, the whole model."""


class AttentionPair(NamedTuple):
    """The same attention in teacher and student."""

    name: str
    """Of the attention."""
    teacher: nn.Module
    student: nn.Module
    path: str
    """Of both modules, in their models."""

    @property
    def whole_block(self) -> bool:
        """Whether the modules are the blocks around the attention."""
        return self.path != self.name


class Call(NamedTuple):
    """The arguments and the output of a call of the teacher's attention."""

    inputs: tuple[Any, ...]
    options: dict[str, Any]
    output: Tensor


def pair_attention(teacher: nn.Module, student: nn.Module, names: Sequence[str]) -> list[AttentionPair]:
    """Pair the attention modules of both models by their names, as `SwapReport.changed` has them.

    Swin and SAM cut their maps into windows outside of their attention, so there the whole block is paired.
    """
    pairs = []
    for name in names:
        parent = name.rpartition(".")[0]
        around = isinstance(student.get_submodule(parent), SwinBlock) or isinstance(student.get_submodule(name), MapAttention)
        module = parent if around else name
        pairs.append(AttentionPair(name, teacher.get_submodule(module), student.get_submodule(module), module))
    return pairs


@contextmanager
def record_calls(pairs: Sequence[AttentionPair]) -> Iterator[dict[str, Call]]:
    """Record, by name, the calls of the teacher's attention modules while it runs."""
    calls: dict[str, Call] = {}

    def record(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
            calls[name] = Call(inputs, options, output[0] if isinstance(output, tuple) else output)

        return hook

    with ExitStack() as hooks:
        for pair in pairs:
            handle = pair.teacher.register_forward_hook(record(pair.name), with_kwargs=True)
            hooks.callback(handle.remove)
        yield calls


def attention_errors(student: nn.Module, pairs: Sequence[AttentionPair], calls: Mapping[str, Call], images: Tensor) -> Tensor:
    """(layers,): how far each attention of the student is from the teacher's, for the teacher's inputs.

    The mean squared difference over the variance of the teacher's outputs: 0 for the same, 1 for an output that is always the
    mean.
    """
    record_size(student, images)
    with _without_drop_path(student):
        return torch.stack([_error(pair, calls[pair.name]) for pair in pairs])


@contextmanager
def _without_drop_path(model: nn.Module) -> Iterator[None]:
    """The teacher drops nothing, and a block that drops its attention would have nothing to learn from."""
    dropping = [module for module in model.modules() if isinstance(module, DropPath) and module.training]
    for module in dropping:
        module.eval()
    try:
        yield
    finally:
        for module in dropping:
            module.train()


def _error(pair: AttentionPair, call: Call) -> Tensor:
    options = dict(call.options)
    residual = call.inputs[0] if pair.whole_block else options.pop("residual", None)
    output = pair.student(*call.inputs, **options)
    output = output[0] if isinstance(output, tuple) else output
    target = call.output
    if pair.whole_block:
        output = output - residual
    if residual is not None:  # the attention's own output, without what the block adds it to
        target = target - residual
    return relative_error(output, target)


def relative_error(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared difference over the variance of the target by channel; (B, ..., C) -> a number."""
    target = target.float()
    variance = (target - target.flatten(0, -2).mean(0)).square().mean()
    return (output.float() - target).square().mean() / variance.clamp(min=torch.finfo(torch.float32).tiny)


def distillation_loss(teacher: nn.Module, student: nn.Module, images: Tensor) -> Tensor:
    """`output_error` of the student."""
    with torch.no_grad():
        target = model_output(teacher, images)
    return output_error(teacher, model_output(student, images), target)


def output_error(teacher: nn.Module, output: Tensor, target: Tensor, *, temperature: float = 2.0) -> Tensor:
    """Kullback-Leibler divergence of the classes, or `relative_error` of the features for a model without classes."""
    if target.ndim > 2 or not getattr(teacher, "num_classes", 1):
        return relative_error(output, target)
    log_shares, target_shares = ((logits.float() / temperature).log_softmax(-1) for logits in (output, target))
    return temperature**2 * F.kl_div(log_shares, target_shares, log_target=True, reduction="batchmean")


def model_output(model: Any, images: Tensor) -> Tensor:
    """Logits (B, classes), or the features of a model without classes (`num_classes` of 0), channels last.

    Models of transformers give logits, or the last hidden state if they have none.
    """
    if getattr(model, "num_classes", 1):
        output = model(images)
        if isinstance(output, Tensor):
            return output
        return output.logits if hasattr(output, "logits") else output.last_hidden_state
    features: Tensor = model.forward_features(images)
    return features.permute(0, 2, 3, 1) if features.ndim == 4 and getattr(model, "output_fmt", "NCHW") == "NCHW" else features


def set_trainable(teacher: nn.Module, student: nn.Module, names: Sequence[str], phase: str) -> int:
    """Set `requires_grad` of the student's parameters for a phase; returns how many numbers are trained.

    Args:
        names: of the swapped attention modules.
        phase: 'new' trains the parameters that the teacher's attention does not have, 'all' the whole attention, 'distil' the
            whole model.
    """
    student.requires_grad_(phase == "distil")
    before = {name for name, _ in teacher.named_parameters()}
    for attention in names if phase != "distil" else ():
        for prefix, module in student.get_submodule(attention).named_modules(prefix=attention):
            if not isinstance(module, Mixer):
                continue
            for name, parameter in module.named_parameters(prefix=prefix):
                part = name.removeprefix(f"{prefix}.").partition(".")[0]
                parameter.requires_grad_(phase == "all" or (part not in COMMON_PARTS and name not in before))
    return sum(parameter.numel() for parameter in student.parameters() if parameter.requires_grad)
