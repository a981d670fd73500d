"""Accuracy of a model when keys are masked: the neighbourhood of each query, or as many random tokens.

A masked key is left out of the formula, as padding is: softmax and linear attention divide its weight among the other keys,
InLine takes the mean without it. Since every query has other keys then, each query is computed as an image of its own. Local
parts are masked too: a masked neighbour adds nothing to the convolution.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..layers import Mixer
from ..models.finite import check_outputs
from ..ops.reference import softmax_weights
from .attention import Attention, MixerAttention, SdpaAttention
from .capture import Captured, capture, capture_pass, evaluating
from .locality import neighbourhood_mask, visible_keys

Rule = Literal["own window", "random tokens"]
RULES: tuple[Rule, ...] = ("own window", "random tokens")
MAX_KEY_ELEMENTS = 2**20
"""Numbers of the repeated keys of several queries that are in memory at once."""


@dataclass(frozen=True)
class MaskedAccuracy:
    """Top-1 accuracy of a model in percent, over the same images."""

    top1: float
    """With nothing masked."""
    images: int
    sizes: tuple[int, ...]
    found: dict[str, list[float]]
    """Rule -> accuracy at each window size."""
    untouched: dict[int, list[str]]
    """Window size -> layers that were not masked: their grids are no larger than the window, their keys are reduced, or they
    have no weights."""


def keys_to_mask(layer: Attention, size: int, rule: Rule, generator: torch.Generator) -> Tensor:
    """(M, M): True where a key is masked for a query: its size x size window, or as many tokens of the grid at random.

    In attention with windows, only tokens of the query's own window are masked.
    """
    queries = torch.arange(layer.tokens)
    visible = visible_keys(layer, queries)
    window = neighbourhood_mask(layer, queries, size) & visible
    if rule == "own window":
        return window
    priority = torch.rand(layer.tokens, layer.tokens, generator=generator).masked_fill(~visible, -1)
    priority[:, : layer.num_prefix_tokens] = -2
    rank = priority.argsort(-1, descending=True).argsort(-1)  # the rank of each token among those of the query
    return rank < window.sum(-1, keepdim=True)


def masked_output(layer: MixerAttention, hidden: Tensor) -> Tensor:
    """The output of the layer, (B, M, C), with keys masked where `hidden`, (M, N), is True."""
    q, k, v = layer.project()
    values = v.transpose(2, 3).flatten(1, 2)  # (B, C, N)
    mixed = []
    for these in torch.arange(layer.tokens).split(max(1, MAX_KEY_ELEMENTS // k.numel())):
        masked = hidden[these].to(k.device)
        weights = masked_weights(layer, q[:, :, these], k, these, masked)
        by_head = values.unflatten(1, (weights.shape[1], -1))  # (B, heads or channels, ., N)
        out = torch.einsum("bhqn,bhcn->bqhc", weights, by_head).flatten(2)
        local = layer.rows(these).local if layer.mixer.local_parts() else None
        if local is not None:
            out = out + torch.einsum("bcqn,bcn->bqc", local.masked_fill(masked, 0), values)
        mixed.append(out)
    total = torch.cat(mixed, 1)
    for constant in (part.constant() for part in layer.mixer.local_parts()):
        if constant is not None:
            total[:, layer.num_prefix_tokens :] += constant
    return layer.mixer.output(total, layer.x)


def masked_weights(layer: MixerAttention, q: Tensor, k: Tensor, queries: Tensor, hidden: Tensor) -> Tensor:
    """Weights of chosen queries, (B, heads or channels, queries, N), with keys masked where `hidden`, (queries, N), is True."""
    if layer.windowed:  # softmax: the other weights are normalised again; all are zero if the whole window is masked
        rows = layer.rows(queries).mixed.masked_fill(hidden, 0)
        return rows / rows.sum(-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    each = [
        layer.weigh(q[:, :, number : number + 1], k, keys.expand(len(q), -1), place=int(query))
        for number, (query, keys) in enumerate(zip(queries, hidden, strict=True))
    ]
    return torch.cat(each, 2)


@contextmanager
def mask_keys(model: nn.Module, hide: Callable[[Attention], Tensor | None]) -> Iterator[None]:
    """Within the context, mask the keys that `hide` returns for each layer, (M, N); None leaves a layer as it is."""
    with ExitStack() as stack:
        captured = stack.enter_context(capture(model))

        def replace(mixer: Mixer, inputs: Any, output: Tensor) -> Tensor:
            layer = captured[-1] if len(captured) else None
            if not isinstance(layer, MixerAttention) or layer.mixer is not mixer:
                return output
            hidden = hide(layer)
            return output if hidden is None else masked_output(layer, hidden)

        for module in model.modules():
            if isinstance(module, Mixer):
                stack.callback(module.register_forward_hook(replace).remove)
        stack.enter_context(_MaskedSdpa(captured, hide))
        yield


class _MaskedSdpa(TorchFunctionMode):
    """Masks calls of `scaled_dot_product_attention`. It is entered after `capture`, which has recorded the call by then."""

    def __init__(self, captured: Captured, hide: Callable[[Attention], Tensor | None]) -> None:
        super().__init__()
        self.captured, self.hide = captured, hide

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Execute the call; if it was recorded and its layer has a mask, return the masked output instead."""
        before = len(self.captured)
        out = func(*args, **(kwargs or {}))
        if func is not F.scaled_dot_product_attention or len(self.captured) == before:
            return out
        layer = self.captured[-1]
        hidden = self.hide(layer) if isinstance(layer, SdpaAttention) else None
        if hidden is None or not isinstance(layer, SdpaAttention):
            return out
        bias = torch.zeros(hidden.shape, dtype=out.dtype, device=out.device).masked_fill(hidden.to(out.device), float("-inf"))
        bias = bias if layer.bias is None else bias + layer.bias
        return softmax_weights(layer.q, layer.k, scale=layer.scale, bias=bias) @ layer.v


def can_mask(layer: Attention, size: int) -> bool:
    """Whether the layer's grid is larger than the window and its keys can be masked one by one."""
    return layer.has_weights and layer.whole and max(layer.grid) > size and (not layer.windowed or layer.kind == "softmax")


@torch.no_grad()
def masked_accuracy(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    sizes: Sequence[int] = (3, 5, 7),
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> MaskedAccuracy:
    """Accuracy with the neighbourhood of each query masked, and with as many random tokens, for several window sizes.

    Args:
        model: a classifier.
        batches: (pixels, labels) on the model's device.
        sizes: sides of the windows, odd.
        seed: random tokens depend on the seed, the layer and the size, not on the images.
        progress: called with the number of images done.
    """
    settings: list[tuple[Rule, int]] = [(rule, size) for rule in RULES for size in sizes]
    correct, total, untouched = [0] * (1 + len(settings)), 0, dict[int, list[str]]()
    with evaluating(model):
        for pixels, labels in batches:
            if not total:
                untouched = _untouched(capture_pass(model, pixels[:1]), sizes)
            correct[0] += _correct(model, pixels, labels)
            for number, (rule, size) in enumerate(settings, start=1):
                with mask_keys(model, _hide(rule, size, seed, untouched[size])):
                    correct[number] += _correct(model, pixels, labels)
            total += len(labels)
            progress(total)
    if not total:
        raise ValueError("there is no image to evaluate on")
    percents = [100 * count / total for count in correct]
    found: dict[str, list[float]] = {rule: [] for rule in RULES}
    for (rule, _), percent in zip(settings, percents[1:], strict=True):
        found[rule].append(percent)
    return MaskedAccuracy(percents[0], total, tuple(sizes), found, untouched)


def _correct(model: nn.Module, pixels: Tensor, labels: Tensor) -> int:
    """How many images are classified correctly."""
    logits = model(pixels)
    check_outputs(logits)
    return int((logits.argmax(1) == labels).sum())


def _untouched(captured: Captured, sizes: Sequence[int]) -> dict[int, list[str]]:
    """Size -> names of the layers that cannot be masked; ValueError if no layer can be at the smallest size."""
    unable = {size: [layer.name for layer in captured if not can_mask(layer, size)] for size in sizes}
    if len(unable[min(sizes)]) == len(captured):
        raise ValueError(f"no layer has a map larger than {min(sizes)} tokens with all its keys: there is nothing to mask")
    return {size: names + captured.left_out for size, names in unable.items()}


def _hide(rule: Rule, size: int, seed: int, untouched: Sequence[str]) -> Callable[[Attention], Tensor | None]:
    cache: dict[str, Tensor] = {}

    def hide(layer: Attention) -> Tensor | None:
        if layer.name in untouched:
            return None
        if layer.name not in cache:
            generator = torch.Generator().manual_seed(crc32(f"{seed} {layer.name} {size}".encode()))
            cache[layer.name] = keys_to_mask(layer, size, rule, generator)
        return cache[layer.name]

    return hide
