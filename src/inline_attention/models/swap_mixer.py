"""Mixers for `swap`: made with the projections of the attention that they replace."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..layers import MIXERS, InLineAttention, Mixer
from ..ops.shifted_windows import Window
from .families import BlockMaker

COMMON_PARTS = ("q", "kv", "q_norm", "k_norm", "proj", "proj_drop")
"""Modules that every mixer has; a new one gets those of the attention that it replaces."""
PART_NAMES = {
    "position": "position table",
    "reduction": "spatial reduction",
    "local": "local residual",
    "lepe": "LePE",
    "kernel": "learned kernel",
    "convolution": "convolution",
}


class SwapSkipped(Exception):  # noqa: N818  no error: the attention is not replaced, and the report has the reason
    """The reason why an attention is not replaced, in a few words."""


class MixerMaker:
    """Makes mixers of the chosen kind.

    Args:
        mixer, kernel, local: as for `BlockMaker`.
        keep_windows: attend in the windows of the replaced attention, if it had some.
    """

    def __init__(self, mixer: str, *, kernel: str | None, local: bool | None, keep_windows: bool) -> None:
        self.mixer = mixer
        chosen = MIXERS[mixer]
        if chosen.own_projections:
            raise ValueError(
                f"mixer {mixer!r} has other projections than the attention that it would replace: make a new model with it"
            )
        self.chosen: dict[str, Any] = BlockMaker((), mixer=mixer, kernel=kernel, local=local).chosen
        self.keep_windows = keep_windows

    def make(
        self,
        modules: Mapping[str, nn.Module],
        like: Tensor,
        dim: int,
        num_heads: int,
        *,
        attn_drop: float,
        training: bool,
        **options: Any,
    ) -> Mixer:
        """A mixer with these modules of the replaced attention; new modules have the dtype and device of `like`."""
        arguments = {**self.chosen, **options}
        mixer = MIXERS[self.mixer](dim, num_heads, attn_drop=attn_drop, device=like.device, dtype=like.dtype, **arguments)
        mixer.train(training)
        for name, module in modules.items():
            setattr(mixer, name, module)
        return mixer

    def from_mixer(self, old: Mixer) -> Mixer:
        """A mixer in place of another mixer, with all modules that both have."""
        if old.own_projections:
            raise SwapSkipped(f"the projections of {describe(old)} are its own")
        options = self._parts_of(old)
        if self.keep_windows:
            options["windows"] = old.windows
            if self.mixer == "softmax" and getattr(old, "position", None) is not None:
                options["position_bias"] = True
        like = next(parameter for parameter in old.parameters() if parameter.is_floating_point())
        modules = {name: getattr(old, name) for name in COMMON_PARTS}
        new = self.make(modules, like, old.dim, old.num_heads, attn_drop=old.attn_drop, training=old.training, **options)
        for name, part in old.named_children():
            if type(getattr(new, name, None)) is type(part):
                setattr(new, name, part)
        if isinstance(old, InLineAttention) and isinstance(new, InLineAttention):
            new.scale, new.base = old.scale, old.base
        if _is_same(old, new):
            raise SwapSkipped(f"{describe(old)} already")
        return new

    def _parts_of(self, old: Mixer) -> dict[str, Any]:
        """Arguments for the parts that the old mixer has and the new one may have."""
        options: dict[str, Any] = {"grid_dims": old.grid_dims, "context_dim": old.context_dim}
        options["out_norm"] = old.out_norm is not None
        if old.lepe is not None:
            options.update(lepe=old.lepe.kernel_size[0], lepe_shared=old.lepe.heads > 1)
        if old.gate is not None:
            options["gate"] = old.gate.kind
        if old.rope is not None and MIXERS[self.mixer].takes_rope:
            options["rope"] = old.rope.kind
        if old.context_dim is not None:
            options["local"] = False
        return options


def stacked(*parts: tuple[nn.Linear, slice | Tensor]) -> nn.Linear:
    """One linear map made of rows of others; it requires gradients if one of them does. A bias that one lacks is zero."""
    weight = torch.cat([part.weight.detach()[chosen] for part, chosen in parts])
    linear = plain_linear(weight, learns=any(part.weight.requires_grad for part, _ in parts))
    biases = [part.bias for part, _ in parts]
    if any(bias is not None for bias in biases):
        rows = [part.weight.new_zeros(part.out_features) if part.bias is None else part.bias.detach() for part, _ in parts]
        values = torch.cat([row[chosen] for row, (_, chosen) in zip(rows, parts, strict=True)])
        linear.bias = nn.Parameter(values, any(bias is not None and bias.requires_grad for bias in biases))
    return linear.train(parts[0][0].training)


def plain_linear(weight: Tensor, bias: Tensor | None = None, *, learns: bool) -> nn.Linear:
    """A linear map of this weight, (out, in), and bias."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, learns)
    if bias is not None:
        linear.bias = nn.Parameter(bias, learns)
    return linear


def check_linear(**parts: Any) -> None:
    """Raise `SwapSkipped` unless all these modules are plain linear maps, whose weights can be read."""
    for name, part in parts.items():
        if type(part) is not nn.Linear:
            raise SwapSkipped(f"its {name} is no plain Linear but {type(part).__name__}")


def check_widths(inside: int, out: int, *, dim: int) -> None:
    """Raise `SwapSkipped` unless an attention has `dim` channels inside and in its output."""
    if inside != dim:
        raise SwapSkipped(f"its heads have {inside} channels together, the tokens {dim}")
    if out != dim:
        raise SwapSkipped(f"it gives {out} channels for {dim}")


def describe(mixer: Mixer) -> str:
    """'inline with local residual', 'softmax in windows of 7 x 7'."""
    name = next((name for name, kind in MIXERS.items() if kind is type(mixer)), type(mixer).__name__)
    return name + (" with local residual" if mixer.local is not None else "") + in_windows(*mixer.windows)


def in_windows(*windows: Window) -> str:
    """' in windows of 7 x 7', or nothing."""
    sizes = [" x ".join("all" if side is None else str(side) for side in window[:2]) for window in windows]
    shifted = "shifted " if any(window.shifted for window in windows) else ""
    return f" in {shifted}windows of {' and '.join(sizes)}" if windows else ""


def describe_change(old: str, new: Mixer, dropped: list[str], *, kept: str = "", where: str = "") -> str:
    """'softmax -> inline with local residual; dropped: position table'.

    Args:
        kept: what the mixer is given with each call, such as rotary positions.
        where: windows that the block around the mixer cuts: ' in windows of 14 x 14'.
    """
    lost = f"; dropped: {', '.join(dropped)}" if dropped else ""
    given = f"; kept: {kept}" if kept else ""
    return f"{old} -> {describe(new)}{where}{given}{lost}{'; its MLP is unchanged' if new.depthwise_mlp else ''}"


def dropped(old: Mixer, new: Mixer) -> list[str]:
    """Names of the old mixer's modules that the new one does not have."""
    lost = [PART_NAMES.get(name, name) for name, part in old.named_children() if getattr(new, name, None) is not part]
    return lost if old.rope == new.rope else [*lost, "rotary positions"]


def _is_same(old: Mixer, new: Mixer) -> bool:
    """Whether the new mixer computes the same as the old one."""
    same_parts = dict(old.named_children()) == dict(new.named_children())
    same_kernel = getattr(old, "kernel", None) is getattr(new, "kernel", None)
    return type(old) is type(new) and same_parts and same_kernel and old.windows == new.windows
