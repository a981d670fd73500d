"""Attention that `swap` does not know, found by watching `scaled_dot_product_attention` while the model runs on an example.

A module is plain self-attention if its queries, keys and values are linear maps of its own input, up to a factor, and its
output is a linear map of the result. Which rows of which maps they are is read off the numbers: a column of the queries is a
multiple of a column that a map of the input gave. `swap` believes it only if softmax attention with these rows gives the
module's own output on random input.

Shapes: tokens x (B, N, C), or a map (B, H, W, C); q, k, v (B, heads, N, d) or (B * heads, N, d).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import Mixer
from .swap_grid import TokenGrid, mix
from .swap_mixer import MixerMaker, SwapSkipped, check_widths, stacked
from .swap_watch import Frame, evaluating

CLOSE = 1e-4
"""How far numbers that should be equal may be apart, as a share of the largest."""


class FoundAttention(nn.Module):
    """Called as the module was that it replaces.

    Args:
        mixer: the mixer.
        token_grid: the grid of its tokens; None if it is unknown. A map brings its own.
        frame: how that module was called, and what it returned.
    """

    def __init__(self, mixer: Mixer, token_grid: TokenGrid | None, frame: Frame) -> None:
        super().__init__()
        self.mixer = mixer
        self.token_grid = token_grid
        self.keyword = frame.keyword
        self.rest = frame.rest()
        self.takes_map = frame.x.ndim == 4
        self.returns = len(frame.returned) if isinstance(frame.returned, tuple) else 0

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Mix all tokens of the first argument; the others are as they were in the example."""
        x = inputs[0] if inputs else options.pop(self.keyword or "")
        given: dict[int | str, Any] = dict(enumerate(inputs[1:]))
        known: dict[int | str, Any] = dict(enumerate(self.rest[0]))
        given.update(options)
        known.update(self.rest[1])
        for name, value in given.items():
            if value is not None and not (name in known and _same(value, known[name])):
                raise ValueError(
                    f"swapped attention was found with {name}={known.get(name)} and got "
                    f"{type(value).__name__}: call the model as in the example of swap"
                )
        if self.takes_map:
            mixed = self.mixer(x.flatten(1, 2), tuple(x.shape[1:3])).unflatten(1, x.shape[1:3])
        else:
            mixed = mix(self.mixer, x, self.token_grid)
        return (mixed, *(None,) * (self.returns - 1)) if self.returns else mixed


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and (value is other or (not isinstance(value, Tensor) and bool(value == other)))


def from_found(frame: Frame, maker: MixerMaker) -> Mixer:
    """The mixer with the projections of a found module; `SwapSkipped` unless they are proven to be all that it computes."""
    call, x = _plain_call(frame), frame.x
    tokens = x.flatten(1, -2)
    merged = {name: _merge(call[name], len(x)) for name in ("query", "key", "value", "out")}
    check_widths(merged["query"].shape[2], merged["value"].shape[2], dim=x.shape[-1])
    maps = [(linear, out.flatten(1, -2)) for linear, given, out in frame.linears if _equal(given, x)]
    (q, q_factor), (k, k_factor), (v, v_factor) = (
        _rows(merged[name], maps, words) for name, words in (("query", "queries"), ("key", "keys"), ("value", "values"))
    )
    size = call["query"].shape[-1]
    factor = q_factor * k_factor * float(call.get("scale") or size**-0.5) * size**0.5
    last = [
        linear for linear, given, out in frame.linears if _equal(given, merged["out"]) and _equal(out, _first(frame.returned))
    ]
    if not last:
        raise SwapSkipped("its output is not one linear map of the result")
    modules = {"q": stacked(q), "kv": stacked(k, v), "proj": last[0]}
    with torch.no_grad():
        for parameter in modules["q"].parameters():
            parameter.mul_(factor)
        for parameter in modules["kv"].parameters():
            parameter[len(parameter) // 2 :].mul_(v_factor)
    heads, like, training = tokens.shape[2] // size, q[0].weight, frame.module.training
    soft = MixerMaker("softmax", kernel=None, local=False, keep_windows=False)
    _prove(frame, soft.make(modules, like, tokens.shape[2], heads, attn_drop=0.0, training=False))
    for part in modules.values():
        part.train(training)
    return maker.make(modules, like, tokens.shape[2], heads, attn_drop=0.0, training=training)


def _plain_call(frame: Frame) -> dict[str, Any]:
    """The one call of attention in a module; `SwapSkipped` if there are more, or a mask."""
    call, x = frame.calls[0], frame.x
    if len(frame.calls) > 1:
        raise SwapSkipped(f"{len(frame.calls)} calls")
    if call.get("attn_mask") is not None:
        raise SwapSkipped(f"with a mask or bias of shape {tuple(call['attn_mask'].shape)}")
    if call.get("is_causal") or call.get("enable_gqa"):
        raise SwapSkipped("causal" if call.get("is_causal") else "with keys that heads share")
    if not isinstance(x, Tensor) or x.ndim not in (3, 4):
        raise SwapSkipped("its input is neither tokens (B, N, C) nor a map (B, H, W, C)")
    positional, named = frame.rest()
    for name, value in [*enumerate(positional), *named.items()]:
        if value is not None and not isinstance(value, bool | int | float | str):
            raise SwapSkipped(f"it is called with argument {name} besides its input ({type(value).__name__})")
    returned = frame.returned
    if not isinstance(_first(returned), Tensor) or (
        isinstance(returned, tuple) and any(more is not None for more in returned[1:])
    ):
        raise SwapSkipped("it returns more than its output")
    if call["query"].shape != call["key"].shape or call["query"].numel() != x.shape[:-1].numel() * _width(call["query"], x):
        raise SwapSkipped("its queries are not one for each token")
    return call


def _width(q: Tensor, x: Tensor) -> int:
    """Channels of all heads together."""
    return q.shape[-1] * (q.shape[1] if q.ndim == 4 else q.shape[0] // len(x))


def _merge(heads: Tensor, batch: int) -> Tensor:
    """(B, heads, N, d) or (B * heads, N, d) -> (B, N, heads * d)."""
    return heads.reshape(batch, -1, *heads.shape[-2:]).transpose(1, 2).flatten(2)


def _first(returned: Any) -> Any:
    return returned[0] if isinstance(returned, tuple) and returned else returned


def _equal(a: Any, b: Any) -> bool:
    """Whether two tensors have the same numbers, in whatever shape, up to rounding."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.numel() != b.numel() or a.shape[-1] != b.shape[-1]:
        return False
    a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
    return bool((a - b).abs().max() <= CLOSE * b.abs().max())


def _rows(wanted: Tensor, maps: list[tuple[nn.Linear, Tensor]], words: str) -> tuple[tuple[nn.Linear, Tensor], float]:
    """Which rows of which linear map of the input gave these channels, (B, N, C), and what they are multiplied by."""
    columns = wanted.flatten(0, 1)
    for linear, out in maps:
        made = out.flatten(0, 1)
        if made.shape[1] < columns.shape[1]:
            continue
        alike = F.normalize(columns.T, dim=1) @ F.normalize(made, dim=0)  # (wanted channels, rows): 1 for a multiple
        rows = alike.argmax(1)
        chosen = made[:, rows]
        factor = float((chosen * columns).sum() / chosen.square().sum())
        if _equal(factor * chosen, columns):
            return (linear, rows), 1.0 if abs(factor - 1) < CLOSE else factor
    raise SwapSkipped(f"its {words} are no linear map of its input")


@torch.no_grad()
def _prove(frame: Frame, soft: Mixer) -> None:
    """Raise `SwapSkipped` unless softmax attention with the found rows gives the module's output on random input."""
    x = torch.randn_like(frame.x)
    positional, named = frame.rest()
    arguments = (positional, named | {frame.keyword: x}) if frame.keyword else ((x, *positional), named)
    with evaluating(frame.module):
        theirs = _first(frame.module(*arguments[0], **arguments[1]))
    ours = soft(x.flatten(1, -2))
    if not _equal(ours, theirs.reshape(ours.shape)):
        off = float((ours - theirs.reshape(ours.shape)).abs().max() / theirs.abs().max())
        raise SwapSkipped(f"softmax attention with its projections is off by {off:.1g} of its largest output")
