"""Which attention each block of a backbone has."""

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any, TypedDict

from timm.layers import calculate_drop_path_rates
from torch import nn

from ..layers import MIXERS, Block
from ..ops.checks import check_name


class AttentionOptions(TypedDict, total=False):
    """Keyword arguments of every family that `BlockMaker` explains."""

    mixer: str
    kernel: str | None
    local: bool | None
    inline_depths: int | Sequence[int] | None
    proj_drop_rate: float
    attn_drop_rate: float
    drop_path_rate: float


class BlockMaker:
    """Makes the blocks of a backbone, stage by stage.

    Args:
        depths: blocks of each stage.
        mixer: a name from `MIXERS`. "softmax" gives the family's softmax twin.
        kernel: the feature map of a mixer that has one; None for the mixer's own.
        local: whether the mixer has the local residual; None for the mixer's own choice, which is yes for inline only.
        inline_depths: how many blocks of each stage, from its first on, have this mixer and see the whole map; the others have
            softmax as the family has it. One number stands for every stage, None for all blocks.
        proj_drop_rate: dropout after projections.
        attn_drop_rate: dropout of attention, as each mixer understands it.
        drop_path_rate: stochastic depth, rising over the blocks from 0 to this.
    """

    def __init__(
        self,
        depths: Sequence[int],
        *,
        mixer: str = "inline",
        kernel: str | None = None,
        local: bool | None = None,
        inline_depths: int | Sequence[int] | None = None,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        check_name("mixer", mixer, MIXERS)
        if kernel is not None and "kernel" not in signature(MIXERS[mixer]).parameters:
            raise ValueError(f"mixer {mixer!r} has no kernel to choose, got kernel={kernel!r}")
        self.depths = tuple(depths)
        self.mixer = mixer
        self.inline_depths = _inline_depths(inline_depths, self.depths, mixer)
        self.chosen = {name: value for name, value in (("kernel", kernel), ("local", local)) if value is not None}
        self.drop, self.attn_drop = proj_drop_rate, attn_drop_rate
        self.drop_paths: list[Any] = calculate_drop_path_rates(drop_path_rate, sum(self.depths))

    def stage(
        self,
        number: int,
        dim: int,
        num_heads: int,
        *,
        mlp_ratio: float,
        eps: float,
        softmax: Mapping[str, Any],
        inline: Mapping[str, Any],
        shift: bool = False,
        raw_local: bool = False,
    ) -> list[Block]:
        """The blocks of one stage.

        Args:
            number: which stage.
            dim, num_heads, mlp_ratio: its channels, heads and hidden channels.
            eps: of its norms.
            softmax, inline: what the family has its softmax mixers and its linear ones do: windows, LePE and the like.
            shift: shift the windows of every second block, from the second on.
            raw_local: as for `Block`.
        """
        blocks = []
        for index in range(self.depths[number]):
            options: dict[str, Any]
            if index < self.inline_depths[number]:
                name, options = self.mixer, {**self.chosen, **inline}
            else:
                name, options = "softmax", {**(self.chosen if self.mixer == "softmax" else {}), **softmax}
            if shift and index % 2:
                options["windows"] = [window._replace(shifted=True) for window in options.get("windows", ())]
            mixer = MIXERS[name](dim, num_heads, proj_drop=self.drop, attn_drop=self.attn_drop, **options)
            drop_path = self.drop_paths[sum(self.depths[:number]) + index]
            norm = partial(nn.LayerNorm, eps=eps)
            blocks.append(
                Block(mixer, mlp_ratio=mlp_ratio, drop=self.drop, drop_path=drop_path, norm_layer=norm, raw_local=raw_local)
            )
        return blocks


def check_stages(**sides: Sequence[object]) -> None:
    """Raise unless all have a value for each stage."""
    if len({len(values) for values in sides.values()}) > 1:
        given = ", ".join(f"{name}={tuple(values)}" for name, values in sides.items())
        raise ValueError(f"each stage needs one value of each, got {given}")


def _inline_depths(given: int | Sequence[int] | None, depths: tuple[int, ...], mixer: str) -> tuple[int, ...]:
    """How many blocks of each stage have the mixer, checked."""
    if mixer == "softmax":
        if given is not None:
            raise ValueError(f"mixer 'softmax' has no linear blocks to count: leave inline_depths={given} out")
        return (0,) * len(depths)
    if given is None:
        return depths
    chosen = (given,) * len(depths) if isinstance(given, int) else tuple(given)
    if len(chosen) != len(depths) or not all(0 <= some <= depth for some, depth in zip(chosen, depths, strict=True)):
        raise ValueError(f"inline_depths must be a number from 0 to its depth for each stage of {depths}, got {given}")
    return chosen
