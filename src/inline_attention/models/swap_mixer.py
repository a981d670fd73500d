"""A mixer that takes the place of another attention, and takes over its projections."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..layers import MIXERS, InLineAttention, Mixer
from ..ops.windows import Window
from .blocks import BlockMaker

TAKEN = ("q", "kv", "q_norm", "k_norm", "proj", "proj_drop")
"""What every mixer has, and a new one takes over as it is."""
IN_WORDS = {
    "position": "position table",
    "reduction": "spatial reduction",
    "local": "local residual",
    "lepe": "LePE",
    "kernel": "learned kernel",
    "convolution": "convolution",
}


class Hindrance(Exception):  # noqa: N818  it is no error: the attention is left, and the report says why
    """Why an attention is left as it is, in a few words."""


class MixerMaker:
    """Makes the mixers that were asked for.

    Args:
        mixer, kernel, local: as for `BlockMaker`.
        keep_windows: attend within the windows that the attention had, if it had some.
    """

    def __init__(self, mixer: str, *, kernel: str | None, local: bool | None, keep_windows: bool) -> None:
        self.mixer = mixer
        self.chosen: dict[str, Any] = BlockMaker((), mixer=mixer, kernel=kernel, local=local).chosen
        self.keep_windows = keep_windows

    def make(
        self,
        taken: Mapping[str, nn.Module],
        like: Tensor,
        dim: int,
        num_heads: int,
        *,
        attn_drop: float,
        training: bool,
        **options: Any,
    ) -> Mixer:
        """A mixer with some parts taken over; what is new has the precision of `like` and is where it is."""
        wanted = {**self.chosen, **options}
        mixer = MIXERS[self.mixer](dim, num_heads, attn_drop=attn_drop, device=like.device, dtype=like.dtype, **wanted)
        mixer.train(training)
        for name, part in taken.items():
            setattr(mixer, name, part)
        return mixer

    def from_mixer(self, old: Mixer) -> Mixer:
        """A mixer in the place of another one: whatever both have is taken over."""
        options: dict[str, Any] = {"grid_dims": old.grid_dims, "context_dim": old.context_dim, "lepe": old.lepe is not None}
        if old.context_dim is not None:
            options["local"] = False
        if self.keep_windows:
            options["windows"] = old.windows
            if self.mixer == "softmax" and getattr(old, "position", None) is not None:
                options["position_bias"] = True
        like = next(parameter for parameter in old.parameters() if parameter.is_floating_point())
        taken = {name: getattr(old, name) for name in TAKEN}
        new = self.make(taken, like, old.dim, old.num_heads, attn_drop=old.attn_drop, training=old.training, **options)
        for name, part in old.named_children():
            if type(getattr(new, name, None)) is type(part):
                setattr(new, name, part)
        if isinstance(old, InLineAttention) and isinstance(new, InLineAttention):
            new.scale = old.scale
        if _alike(old, new):
            raise Hindrance(f"{describe(old)} already")
        return new


def stacked(*parts: tuple[nn.Linear, slice]) -> nn.Linear:
    """One linear map out of some rows of others; it learns if one of them does."""
    first = parts[0][0]
    if any((linear.bias is None) != (first.bias is None) for linear, _ in parts):
        raise Hindrance("only some of its projections have a bias")
    made = nn.Linear(first.in_features, 1, bias=first.bias is not None, device="meta")
    for name in ("weight", "bias"):
        rows = [(getattr(linear, name), some) for linear, some in parts]
        if rows[0][0] is not None:
            values = torch.cat([parameter.detach()[some] for parameter, some in rows])
            setattr(made, name, nn.Parameter(values, any(parameter.requires_grad for parameter, _ in rows)))
    made.out_features = made.weight.shape[0]
    return made.train(first.training)


def check_linear(**parts: Any) -> None:
    """Raise unless all these parts of an attention are plain linear maps, whose weights can be read."""
    for name, part in parts.items():
        if type(part) is not nn.Linear:
            raise Hindrance(f"its {name} is no plain Linear but {type(part).__name__}")


def check_widths(inside: int, out: int, *, dim: int) -> None:
    """Raise unless an attention has as many channels inside, and gives out as many, as it takes in."""
    if inside != dim:
        raise Hindrance(f"its heads have {inside} channels together, the tokens {dim}")
    if out != dim:
        raise Hindrance(f"it gives {out} channels for {dim}")


def describe(mixer: Mixer) -> str:
    """'inline with local residual', 'softmax in windows of 7 x 7'."""
    name = next((name for name, kind in MIXERS.items() if kind is type(mixer)), type(mixer).__name__)
    return name + (" with local residual" if mixer.local is not None else "") + in_windows(*mixer.windows)


def in_windows(*windows: Window) -> str:
    """' in windows of 7 x 7', or nothing."""
    sizes = [" x ".join("all" if side is None else str(side) for side in window[:2]) for window in windows]
    shifted = "shifted " if any(window.shifted for window in windows) else ""
    return f" in {shifted}windows of {' and '.join(sizes)}" if windows else ""


def in_words(old: str, new: Mixer, dropped: list[str]) -> str:
    """What became what, and what is lost."""
    lost = f"; dropped: {', '.join(dropped)}" if dropped else ""
    return f"{old} -> {describe(new)}{lost}{'; its MLP stays as it is' if new.depthwise_mlp else ''}"


def dropped(old: Mixer, new: Mixer) -> list[str]:
    """Parts of a mixer that the new one has not taken over."""
    return [IN_WORDS.get(name, name) for name, part in old.named_children() if getattr(new, name, None) is not part]


def _alike(old: Mixer, new: Mixer) -> bool:
    """Whether the new mixer does what the old one did."""
    same_parts = dict(old.named_children()) == dict(new.named_children())
    same_kernel = getattr(old, "kernel", None) is getattr(new, "kernel", None)
    return type(old) is type(new) and same_parts and same_kernel and old.windows == new.windows
