"""How a family of backbones is built: the attention of each block, and its entry in timm's registry."""

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import signature
from math import floor, inf, log2
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

import torch
from timm.layers import calculate_drop_path_rates, to_2tuple
from timm.models import build_model_with_cfg, generate_default_cfgs, resolve_pretrained_cfg
from torch import nn

from ..layers import MIXERS, Block
from ..layers.gate import GateKind
from ..layers.mixer import MixerOptions
from ..layers.rope import Rope
from ..lite.decode import per_channel
from ..lite.limits import MAX_STREAMED_PIXELS, excess, max_pixels
from ..ops.checks import Grid, check_name, check_size, is_whole
from .adapt_weights import filter_state_dict
from .backbone import SMALLEST, Backbone
from .packaged_weights import PACKAGED, packaged_path, tags_of
from .published_weights import FILES, TAG, load_published, published_url

TIMM_ARGUMENTS = (
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "cache_dir",
    "features_only",
    "out_indices",
    "feature_cls",
    "device",
    "dtype",
)
"""Arguments of `timm.create_model` that are not the model's own."""
ORIGIN = {"paper_ids": "arXiv:2412.06590", "origin_url": "https://github.com/LeapLabTHU/InLine", "license": "none stated"}
"""What timm's configurations say of the published weights."""

WHOLE = ("embed_dim", "embed_dims", "depth", "depths", "num_heads", "patch_size", "in_chans")
RATIOS = ("mlp_ratio", "mlp_ratios")
RATES = ("drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate")

Model = TypeVar("Model", bound=Backbone)


# Blocks

_ELSEWHERE = (
    "windows",
    "reduction",
    "context_dim",
    "rope",
    "attn_drop",
    "proj_drop",
    "grid_dims",
    "grid_size",
    "device",
    "dtype",
)
"""Arguments of a mixer that the family chooses, or that are arguments of the model."""


class AttentionOptions(TypedDict, total=False):
    """Keyword arguments of every family that choose its attention; `BlockMaker` documents them."""

    mixer: str
    kernel: str | None
    local: bool | None
    rope: Rope | None
    gate: bool | GateKind
    lepe: bool | int | None
    out_norm: bool
    cpe: bool | Literal["both"]
    mixer_args: Mapping[str, Any] | None
    inline_depths: int | Sequence[int] | None
    proj_drop_rate: float
    attn_drop_rate: float
    drop_path_rate: float


class BlockMaker:
    """Makes the blocks of a backbone, stage by stage.

    Args:
        depths: blocks of each stage.
        mixer: a name from `MIXERS`. "softmax" gives the family's softmax twin, with the same depths and heads, so that only
            attention differs; docs/models.md has the arguments of the original models.
        kernel: the feature map of a mixer that has one; None for the mixer's default.
        local: whether the mixer has the local residual; None for the mixer's default, which is yes for inline only.
        rope: rotary positions in all blocks, "heads" or "all", see `RotaryPositions`; besides the family's own positions.
        gate, lepe, out_norm: parts of the mixer, see `PartChoice`; lepe=None for what the family has.
        cpe: convolutional positions in all blocks, see `Block`.
        mixer_args: other arguments of the mixer's class, such as {"divisor": "published"}.
        inline_depths: how many blocks of each stage, from its first on, have this mixer and see the whole map; the others have
            the family's softmax attention. One number stands for every stage, None for all blocks.
        proj_drop_rate: dropout after projections.
        attn_drop_rate: dropout of attention, see `Mixer`.
        drop_path_rate: stochastic depth, rising over the blocks from 0 to this.
    """

    def __init__(
        self,
        depths: Sequence[int],
        *,
        mixer: str = "inline",
        kernel: str | None = None,
        local: bool | None = None,
        rope: Rope | None = None,
        gate: bool | GateKind = False,
        lepe: bool | int | None = None,
        out_norm: bool = False,
        cpe: bool | Literal["both"] = False,
        mixer_args: Mapping[str, Any] | None = None,
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
        self.rope, self.cpe = rope, cpe
        given = {"kernel": kernel, "local": local, "lepe": lepe, "gate": gate or None, "out_norm": out_norm or None}
        self.chosen = {name: value for name, value in given.items() if value is not None}
        self.chosen.update(_mixer_args(mixer, dict(mixer_args or {}), self.chosen))
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
        grid: Grid,
        num_prefix_tokens: int = 0,
        shift: bool = False,
        raw_local: bool = False,
    ) -> list[Block]:
        """The blocks of one stage.

        Args:
            number: the index of the stage.
            dim, num_heads, mlp_ratio: its channels, heads and hidden channels.
            eps: of its norms.
            softmax, inline: options of the family's softmax mixers and of its linear ones: windows, LePE and so on.
            grid: the tokens of an image of the model's own size, for parameters that are bound to it.
            num_prefix_tokens: tokens before them.
            shift: shift the windows of every second block, from the second on.
            raw_local: as for `Block`.
        """
        blocks = []
        for index in range(self.depths[number]):
            options: dict[str, Any]
            if index < self.inline_depths[number]:
                sized = MIXERS[self.mixer].size_options(grid, num_prefix_tokens)
                name, options = self.mixer, {**sized, **inline, **self.chosen}
            else:
                name, options = "softmax", {**softmax, **(self.chosen if self.mixer == "softmax" else {})}
            if shift and index % 2:
                options["windows"] = [window._replace(shifted=True) for window in options.get("windows", ())]
            if self.rope is not None:
                options = {**options, "rope": self.rope}
            mixer = MIXERS[name](dim, num_heads, proj_drop=self.drop, attn_drop=self.attn_drop, **options)
            drop_path = self.drop_paths[sum(self.depths[:number]) + index]
            around: dict[str, Any] = {"drop": self.drop, "drop_path": drop_path, "raw_local": raw_local, "cpe": self.cpe}
            blocks.append(Block(mixer, mlp_ratio=mlp_ratio, norm_layer=partial(nn.LayerNorm, eps=eps), **around))
        return blocks


def _mixer_args(mixer: str, given: dict[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Other arguments of the mixer's class, checked."""
    own = {*signature(MIXERS[mixer]).parameters, *MixerOptions.__annotations__} - {"dim", "num_heads", "options", *_ELSEWHERE}
    for name in given:
        if name in chosen:
            raise ValueError(f"mixer_args has {name}={given[name]!r}, and the model {name}={chosen[name]!r}: give one of them")
        check_name(f"argument of mixer {mixer!r}", name, sorted(own))
    return given


def check_stages(**sides: Sequence[object]) -> None:
    """Raise unless all have one value per stage."""
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
    if len(chosen) != len(depths) or not all(0 <= count <= depth for count, depth in zip(chosen, depths, strict=True)):
        raise ValueError(f"inline_depths must be a number from 0 to its depth for each stage of {depths}, got {given}")
    return chosen


# timm's registry


def _cfg(size: int, **more: Any) -> dict[str, Any]:
    """The fields that timm's data pipeline and weight loading read. Images are squashed to a square, then centre-cropped."""
    return {
        "num_classes": 1000,
        "input_size": (3, size, size),
        "pool_size": None,
        "crop_pct": 0.875,
        "crop_mode": "squash",
        "interpolation": "bicubic",
        "fixed_input_size": False,
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "first_conv": "stages.0.embed.proj",
        "classifier": "head",
        **more,
    }


def published_cfgs(family: str, **sizes: int) -> dict[str, Any]:
    """Configurations of published models, by name and input size."""
    configurations: dict[str, Any] = {}
    for size_name, size in sizes.items():
        name = f"{family}_{size_name}"
        weights = {"url": published_url(name), **ORIGIN} if name in FILES else {}
        configurations[f"{name}.{TAG}" if weights else name] = _cfg(size, **weights)
    if "inline_swin_base_384" in configurations:
        configurations["inline_swin_base_384"]["crop_pct"] = 1.0  # the authors evaluate it without a crop
    default_cfgs: dict[str, Any] = generate_default_cfgs(configurations)
    return default_cfgs


def small_cfgs(family: str) -> dict[str, Any]:
    """The configurations of the family's small model: without weights, and for each file of weights in the package."""
    name = f"{family}_nano"
    configurations: dict[str, Any] = {}
    for tagged in tags_of(name):
        packaged = PACKAGED[tagged]
        plain = _cfg(packaged.size, crop_pct=1.0)
        configurations[tagged] = dict(
            plain,
            input_size=(packaged.channels, packaged.size, packaged.size),
            mean=per_channel(plain["mean"], packaged.channels),  # timm normalises grey images by one number each
            std=per_channel(plain["std"], packaged.channels),
            num_classes=len(packaged.classes),
            label_names=packaged.classes,
            file=str(packaged_path(tagged)),
            license="apache-2.0",
        )
    configurations[f"{name}.*"] = _cfg(32, crop_pct=1.0)  # without a tag: the default, which has no weights
    default_cfgs: dict[str, Any] = generate_default_cfgs(configurations)
    return default_cfgs


def create(
    family: type[Model],
    variant: str,
    pretrained: bool,
    given: dict[str, Any],
    *,
    out_indices: Sequence[int] = (0, 1, 2, 3),
    inline_depths: Sequence[int] | None = None,
    **published: Any,
) -> Model:
    """Build a model with timm: the published configuration, updated by the given arguments.

    Args:
        family: the class.
        variant, pretrained: as for timm's `build_model_with_cfg`.
        given: the keyword arguments of `timm.create_model`, device and dtype included.
        out_indices: the default maps of `features_only=True`.
        inline_depths: as published; not used for the softmax twin, and cut to the given depths.
        published: the other arguments of the class.
    """
    if inline_depths is not None and given.get("mixer") != "softmax":
        depths = given.get("depths") or inline_depths
        published["inline_depths"] = tuple(map(min, zip(inline_depths, depths, strict=False)))
    tag = given.get("pretrained_cfg")
    packaged = PACKAGED.get(f"{variant}.{tag}") if isinstance(tag, str) else None
    arguments = {**published, **(packaged.model_arguments if packaged else {}), **given}
    known = {*signature(family).parameters, *AttentionOptions.__annotations__, *TIMM_ARGUMENTS}
    if unknown := [name for name in arguments if name not in known]:
        raise TypeError(
            f"{variant} has no argument {unknown[0]!r}; it has: {', '.join(sorted(known - {*TIMM_ARGUMENTS, 'attention'}))}"
        )
    _check_arguments(arguments)
    if "img_size" in arguments:  # for timm's data pipeline
        overlay = dict(arguments.pop("pretrained_cfg_overlay", None) or {})
        size = (arguments.get("in_chans", 3), *to_2tuple(arguments["img_size"]))
        arguments["pretrained_cfg_overlay"] = {"input_size": size, **overlay}
    device, dtype = arguments.pop("device", None), arguments.pop("dtype", None)
    weights = _weights_of(variant, arguments) if pretrained else None
    with torch.device(torch.get_default_device() if device is None else device):
        model: Model = build_model_with_cfg(
            family,
            variant,
            pretrained and weights is None,
            feature_cfg={"out_indices": tuple(out_indices), "feature_cls": "getter"},
            pretrained_filter_fn=filter_state_dict,
            **arguments,
        )
    if weights is not None:
        load_published(model, variant, weights, arguments.get("cache_dir"))
    return model.to(dtype=dtype)


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise for the first argument that no model can have: a negative size, no blocks, a rate above 1."""
    if "img_size" in arguments:
        height, width = check_size(arguments["img_size"], "img_size")
        if found := excess(width, height, max_pixels(MAX_STREAMED_PIXELS)):
            raise ValueError(f"img_size: {found}")
    for names, fits, expected in (
        (WHOLE, lambda value: is_whole(value) and value > 0, "positive whole numbers"),
        (("num_classes",), is_whole, "a whole number"),
        (RATIOS, lambda value: isinstance(value, int | float) and 0 < value < inf, "positive numbers"),
        (RATES, lambda value: isinstance(value, int | float) and 0 <= value <= 1, "within 0..1"),
    ):
        for name in names:
            value = arguments.get(name)
            if value is None:  # timm leaves such arguments out
                continue
            if not all(map(fits, value if isinstance(value, Sequence) and not isinstance(value, str) else [value])):
                raise ValueError(f"{name} must be {expected}, got {value!r}")


def _weights_of(variant: str, arguments: Mapping[str, Any]) -> str | Path | None:
    """The file or the address that `pretrained=True` loads; None if the weights are on a hub, which timm reads.

    In timm's own order: a state dictionary, a file, a hub, an address. timm itself cannot download the published files: it
    takes a file's name in the cache from the address.
    """
    chosen = {name: arguments.get(name) for name in ("pretrained_cfg", "pretrained_cfg_overlay")}
    cfg = resolve_pretrained_cfg(variant, **chosen)
    if cfg.state_dict or cfg.source in ("hf-hub", "local-dir"):
        return None
    if cfg.file:
        return Path(cfg.file)
    if cfg.hf_hub_id:
        return None
    if not cfg.url and (tags := tags_of(variant)):
        raise ValueError(f"{variant} has weights by their names only: {', '.join(tags)}")
    return str(cfg.url) if cfg.url else None


def fitting_patch(img_size: int | tuple[int, int], *, most: int) -> int:
    """The patch size, a power of two, that leaves 14 tokens or more on the shorter side: 1 up to 27 pixels, 2 up to 55, ..."""
    return min(most, 2 ** max(0, floor(log2(max(SMALLEST, min(check_size(img_size, "img_size"))) / 14))))
