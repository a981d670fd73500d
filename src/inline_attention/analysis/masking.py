"""Masking: what a model loses when no query may look at its own neighbourhood, against as many tokens at random.

A masked key is left out of the formula, as padding is: softmax and divided attention share its weight among the rest, InLine
takes its mean without it. Every query has keys of its own then, so each is computed as a picture of its own. Local parts are
masked alike: a hidden neighbour gives nothing to the convolution.
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
from ..ops.reference import softmax_weights
from .capture import Attention, Captured, MixerAttention, SoftmaxCall, capture, evaluating, seen_by
from .neighbours import near, visible

Rule = Literal["own window", "random tokens"]
RULES: tuple[Rule, ...] = ("own window", "random tokens")
LARGEST = 2**20
"""Numbers of the keys of many queries that are held at once."""


@dataclass(frozen=True)
class Masked:
    """Accuracy of a model, in percent, over the same pictures."""

    top1: float
    """As it is."""
    pictures: int
    sizes: tuple[int, ...]
    found: dict[str, list[float]]
    """For each rule the accuracy at each size."""
    untouched: dict[int, list[str]]
    """For each size the layers that were left as they are: their maps are no larger, or their keys are on another map."""


def hidden_keys(layer: Attention, size: int, rule: Rule, generator: torch.Generator) -> Tensor:
    """(M, M), True where a query may not look: its window of size x size, or as many tokens of the grid drawn for it.

    Both among the tokens that it can see, where attention has windows of its own.
    """
    queries = torch.arange(layer.tokens)
    seen = visible(layer, queries)
    window = near(layer, queries, size) & seen
    if rule == "own window":
        return window
    chance = torch.rand(layer.tokens, layer.tokens, generator=generator).masked_fill(~seen, -1)
    chance[:, : layer.num_prefix_tokens] = -2
    order = chance.argsort(-1, descending=True).argsort(-1)  # the place of each token in the query's draw
    return order < window.sum(-1, keepdim=True)


def masked_output(layer: MixerAttention, hidden: Tensor) -> Tensor:
    """The layer's output, (B, M, C), when queries may not look where `hidden`, (M, N), is True."""
    q, k, v = layer.project()
    values = v.transpose(2, 3).flatten(1, 2)  # (B, C, N)
    mixed = []
    for these in torch.arange(layer.tokens).split(max(1, LARGEST // k.numel())):
        away = hidden[these].to(k.device)
        weights = masked_weights(layer, q[:, :, these], k, these, away)
        by_head = values.unflatten(1, (weights.shape[1], -1))  # (B, heads or channels, ., N)
        out = torch.einsum("bhqn,bhcn->bqhc", weights, by_head).flatten(2)
        local = layer.rows(these).local if layer.mixer.local_parts() else None
        if local is not None:
            out = out + torch.einsum("bcqn,bcn->bqc", local.masked_fill(away, 0), values)
        mixed.append(out)
    total = torch.cat(mixed, 1)
    for constant in (part.constant() for part in layer.mixer.local_parts()):
        if constant is not None:
            total[:, layer.num_prefix_tokens :] += constant
    projected: Tensor = layer.mixer.proj(total)
    return projected


def masked_weights(layer: MixerAttention, q: Tensor, k: Tensor, queries: Tensor, away: Tensor) -> Tensor:
    """Weights of chosen queries that may not look where `away`, (queries, N), is True: (B, heads or channels, queries, N)."""
    if layer.windowed:  # softmax: what is left is shared anew; a query whose whole window is hidden sees nothing
        rows = layer.rows(queries).mixed.masked_fill(away, 0)
        return rows / rows.sum(-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    apart = q.transpose(1, 2).flatten(0, 1).unsqueeze(2)  # (B * queries, heads, 1, d)
    keys = k.unsqueeze(1).expand(-1, len(queries), -1, -1, -1).flatten(0, 1)
    weights = layer.weigh(apart, keys, away.repeat(len(q), 1))  # (B * queries, heads or channels, 1, N)
    return weights.squeeze(2).unflatten(0, (len(q), len(queries))).transpose(1, 2)


@contextmanager
def blindfold(model: nn.Module, hide: Callable[[Attention], Tensor | None]) -> Iterator[None]:
    """Within the context, every layer of the model looks past the keys that `hide` names for it; None leaves a layer alone."""
    with ExitStack() as stack:
        seen = stack.enter_context(capture(model))

        def replace(mixer: Mixer, inputs: Any, output: Tensor) -> Tensor:
            layer = seen[-1] if len(seen) else None
            if not isinstance(layer, MixerAttention) or layer.mixer is not mixer:
                return output
            hidden = hide(layer)
            return output if hidden is None else masked_output(layer, hidden)

        for module in model.modules():
            if isinstance(module, Mixer):
                stack.callback(module.register_forward_hook(replace).remove)
        stack.enter_context(_HiddenCalls(seen, hide))
        yield


class _HiddenCalls(TorchFunctionMode):
    """Lays the mask into calls of torch's own attention. Entered after `capture`, it asks it what the call was."""

    def __init__(self, seen: Captured, hide: Callable[[Attention], Tensor | None]) -> None:
        super().__init__()
        self.seen, self.hide = seen, hide

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call as asked, look at what was recorded, and answer with the mask instead if there is one."""
        before = len(self.seen)
        out = func(*args, **(kwargs or {}))
        if func is not F.scaled_dot_product_attention or len(self.seen) == before:
            return out
        layer = self.seen[-1]
        hidden = self.hide(layer) if isinstance(layer, SoftmaxCall) else None
        if hidden is None or not isinstance(layer, SoftmaxCall):
            return out
        bias = torch.zeros(hidden.shape, dtype=out.dtype, device=out.device).masked_fill(hidden.to(out.device), float("-inf"))
        bias = bias if layer.bias is None else bias + layer.bias
        return softmax_weights(layer.q, layer.k, scale=layer.scale, bias=bias) @ layer.v


def can_mask(layer: Attention, size: int) -> bool:
    """Whether a window of that size leaves something of the layer's map, and its keys can be hidden one by one."""
    return layer.whole and max(layer.grid) > size and (not layer.windowed or layer.kind == "softmax")


@torch.no_grad()
def masking(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    sizes: Sequence[int] = (3, 5, 7),
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Masked:
    """Accuracy with windows of each size hidden, and with as many random tokens, over (pixels, labels) on the model's device.

    The tokens that are drawn depend on the seed, the layer and the size, and not on the pictures.
    """
    kinds: list[tuple[Rule, int]] = [(rule, size) for rule in RULES for size in sizes]
    right, total, untouched = [0] * (1 + len(kinds)), 0, dict[int, list[str]]()
    with evaluating(model):
        for pixels, labels in batches:
            if not total:
                untouched = _untouched(seen_by(model, pixels[:1]), sizes)
            right[0] += int((model(pixels).argmax(1) == labels).sum())
            for number, (rule, size) in enumerate(kinds, start=1):
                with blindfold(model, _hide(rule, size, seed, untouched[size])):
                    right[number] += int((model(pixels).argmax(1) == labels).sum())
            total += len(labels)
            progress(total)
    if not total:
        raise ValueError("there is no picture to evaluate on")
    shares = [100 * count / total for count in right]
    found: dict[str, list[float]] = {rule: [] for rule in RULES}
    for (rule, _), share in zip(kinds, shares[1:], strict=True):
        found[rule].append(share)
    return Masked(shares[0], total, tuple(sizes), found, untouched)


def _untouched(seen: Captured, sizes: Sequence[int]) -> dict[int, list[str]]:
    """For each size the names of the layers that cannot be masked; an error if that is all of them at the smallest."""
    unable = {size: [layer.name for layer in seen if not can_mask(layer, size)] for size in sizes}
    if len(unable[min(sizes)]) == len(seen):
        raise ValueError(f"no layer has a map larger than {min(sizes)} tokens with all its keys: there is nothing to mask")
    return {size: names + seen.left_out for size, names in unable.items()}


def _hide(rule: Rule, size: int, seed: int, untouched: Sequence[str]) -> Callable[[Attention], Tensor | None]:
    made: dict[str, Tensor] = {}

    def hide(layer: Attention) -> Tensor | None:
        if layer.name in untouched:
            return None
        if layer.name not in made:
            generator = torch.Generator().manual_seed(crc32(f"{seed} {layer.name} {size}".encode()))
            made[layer.name] = hidden_keys(layer, size, rule, generator)
        return made[layer.name]

    return hide
