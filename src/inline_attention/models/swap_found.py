"""Attention that `swap` does not know, found by watching `scaled_dot_product_attention` while the model runs on an example.

A module is plain self-attention if its queries, keys and values are linear maps of its own input, up to a factor, and its
output is a linear map of the result. Which rows of which maps they are is read off the numbers: a column of the queries is a
multiple of a column that a map of the input gave. `swap` believes it only if softmax attention with these rows gives the
module's own output on random input, also for images twice as high where the model takes them.

Shapes: tokens x (B, N, C), or a map (B, H, W, C); q, k, v (B, heads, N, d) or (B * heads, N, d).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import Mixer
from .found_attention import same, sides_of
from .swap_mixer import MixerMaker, SwapSkipped, check_widths, stacked
from .swap_watch import Frame, in_mode, watch_training

CLOSE = 1e-4
"""How far numbers that should be equal may be apart, as a share of the largest."""


def from_found(frame: Frame, maker: MixerMaker) -> tuple[Mixer, list[str]]:
    """The mixer with the projections of a found module, and what it does in training only, which is lost.

    `SwapSkipped` unless these projections are proven to be all that it computes.
    """
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
    modules: dict[str, nn.Module] = {"q": stacked(q), "kv": stacked(k, v), "proj": last[0]}
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
    attn_drop, kept, lost = _dropout(frame, last[0])
    modules |= {"proj_drop": kept} if kept is not None else {}
    return maker.make(modules, like, tokens.shape[2], heads, attn_drop=attn_drop, training=training), lost


def _dropout(frame: Frame, last: nn.Linear) -> tuple[float, nn.Dropout | None, list[str]]:
    """The dropout of the weights, the module that drops of the output, and the names of what else acts in training."""
    training = watch_training(frame)
    if len(training.calls) != 1:
        raise SwapSkipped(f"in training mode it has {len(training.calls)} calls")
    outs = [out for linear, _, out in training.linears if linear is last]
    kept: nn.Dropout | None = None
    lost = []
    for name, (module, given, out) in training.others.items():
        if type(module) is nn.Dropout and any(_equal(given, one) for one in outs) and _equal(out, _first(training.returned)):
            kept = module
        elif not isinstance(module, nn.Identity) and getattr(module, "p", None) != 0:
            lost.append(name if module is None else f"{name} ({type(module).__name__})")
    return float(training.calls[0].get("dropout_p") or 0.0), kept, lost


def _plain_call(frame: Frame) -> dict[str, Any]:
    """The one call of attention in a module; `SwapSkipped` if there are more, a mask, or other tokens than its own."""
    if len(frame.calls) != 1:
        raise SwapSkipped(f"{len(frame.calls)} calls")
    call, x = frame.calls[0], frame.x
    if call.get("attn_mask") is not None:
        raise SwapSkipped(f"with a mask or bias of shape {tuple(call['attn_mask'].shape)}")
    if call.get("is_causal") or call.get("enable_gqa"):
        raise SwapSkipped("causal" if call.get("is_causal") else "with keys that heads share")
    if not isinstance(x, Tensor) or x.ndim not in (3, 4):
        raise SwapSkipped("its input is neither tokens (B, N, C) nor a map (B, H, W, C)")
    sides_of(frame)
    for name, value in frame.rest.items():
        if value is not None and not isinstance(value, bool | int | float | str | tuple | list):
            raise SwapSkipped(f"it is called with argument {name} besides its input ({type(value).__name__})")
    returned = frame.returned
    if not isinstance(_first(returned), Tensor) or (
        isinstance(returned, tuple) and any(more is not None for more in returned[1:])
    ):
        raise SwapSkipped("it returns more than its output")
    for name, words in (("query", "queries"), ("key", "keys"), ("value", "values")):
        shape, count = tuple(call[name].shape), x.shape[:-1].numel() // len(x)
        by_head = len(shape) == 4 and shape[0] == len(x)
        flat = len(shape) == 3 and shape[0] % len(x) == 0
        if not (by_head or flat) or shape[-2] != count or shape[:-1] != tuple(call["query"].shape[:-1]):
            raise SwapSkipped(f"its {words} are not one for each token: {shape} for an input of {tuple(x.shape)}")
    return call


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


def _prove(frame: Frame, soft: Mixer) -> None:
    """Raise `SwapSkipped` unless softmax attention with the found rows gives the module's output on random input."""
    _compare(frame, soft)
    taller = frame.taller
    if taller is None:
        return
    try:
        _plain_call(taller)
        sides = sides_of(frame)[0]
        for name, value in frame.rest.items():
            if name not in sides and not same(value, taller.rest.get(name)):
                raise SwapSkipped(f"its argument {name} is another")
        _compare(taller, soft)
    except SwapSkipped as why:
        raise SwapSkipped(f"with images twice as high: {why}") from why


@torch.no_grad()
def _compare(frame: Frame, soft: Mixer) -> None:
    """Raise `SwapSkipped` unless the outputs are equal on random tokens of the shape in this frame."""
    x = torch.randn_like(frame.x)
    inputs, options = frame.again(x)
    with in_mode(frame.module, training=False):
        theirs = _first(frame.module(*inputs, **options))
    ours = soft(x.flatten(1, -2))
    if not _equal(ours, theirs.reshape(ours.shape)):
        off = float((ours - theirs.reshape(ours.shape)).abs().max() / theirs.abs().max())
        raise SwapSkipped(f"softmax attention with its projections is off by {off:.1g} of its largest output")
