"""`swap`: replace the attention of an existing model, keeping its weights."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..layers import Mixer
from .found_attention import FoundAttention
from .swap_found import from_found
from .swap_grid import PatchGrids
from .swap_mixer import MixerMaker, SwapSkipped, describe, describe_change, dropped, in_windows
from .swap_sam import MapAttention, from_sam, is_sam
from .swap_timm import SwinBlock, TimmAttention, from_swin, from_timm, is_rotary, is_swin_block, is_timm, window_of
from .swap_torch import TorchAttention, from_torch, is_torch
from .swap_transformers import TransformersAttention, from_transformers, is_transformers
from .swap_watch import Frame, watch, watch_taller


@dataclass
class SwapReport:
    """What was swapped in a model, and what was not."""

    changed: dict[str, str] = field(default_factory=dict)
    """Name of the attention -> what it was, what it is now, which parts were dropped."""
    left: dict[str, str] = field(default_factory=dict)
    """Name of the attention -> why it was not replaced."""

    def __str__(self) -> str:
        width = max(map(len, (*self.changed, *self.left)), default=0)
        lines = [f"{len(self.changed)} swapped, {len(self.left)} left"]
        lines += [f"{name:{width}}  {what}" for name, what in self.changed.items()]
        lines += [f"{name:{width}}  left: {why}" for name, why in self.left.items()]
        return "\n".join(lines)


NOT_CHOSEN = "not chosen"
WRAPPERS = (TimmAttention, TransformersAttention, TorchAttention, FoundAttention)
"""Modules that an earlier swap has put around a mixer, each with its `token_grid`."""


class Site(NamedTuple):
    """An attention that may be swapped."""

    name: str
    parent: nn.Module
    key: str
    module: nn.Module
    """`parent.key`, the module to replace: the attention, or the block around it."""
    rotary: bool = False
    """Whether the model around it makes rotary positions and passes them to it."""
    frame: Frame | None = None
    """What it did on the example, if it is of no known kind."""
    example: Any = None


def swap(
    model: nn.Module,
    mixer: str = "inline",
    *,
    kernel: str | None = None,
    local: bool | None = None,
    keep_windows: bool = False,
    only: str | None = None,
    example: Any = None,
) -> SwapReport:
    r"""Replace the attention of a model, in place. Projections keep their weights; all other parts of the mixer are new.

        model = timm.create_model("vit_small_patch16_224", pretrained=True, dynamic_img_size=True)
        print(swap(model))

    Supported are this package's mixers; timm's `Attention` (ViT, DeiT, DINOv2, CLIP, SigLIP and all models built from it),
    its attention with rotary positions (DINOv3, EVA-02), Swin, and SAM's encoder; ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP and
    SAM's encoder of Hugging Face's transformers; with an `example`, torch's `nn.MultiheadAttention` as in torchvision's ViT,
    and any module that is proven to be plain attention. All other attention is left unchanged. Make the optimizer afterwards.

    Args:
        model: any model with attention of one of these.
        mixer: a name from `MIXERS`.
        kernel: the feature map of a mixer that has one; None for the mixer's default.
        local: whether the mixer has the local residual; None for the mixer's default, which is yes for inline only.
        keep_windows: keep the windows of attention that has some. If not, it sees the whole map.
        only: a regular expression that the whole name of an attention must match: r"blocks\.[0-5]\.attn".
        example: images (B, C, H, W), or a mapping of arguments by name, to run the model on. Modules of other kinds that call
            `scaled_dot_product_attention` are then looked at. They are swapped if their queries, keys and values are linear
            maps of their input, and softmax attention with these gives their output on random input.

    Returns:
        A report of what was swapped, and what was left and why. If nothing can be swapped, a ValueError gives the reason and
        leaves the model as it was.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, such as timm.create_model makes, got {model!r}")
    maker = MixerMaker(mixer, kernel=kernel, local=local, keep_windows=keep_windows)
    sites = list(_sites(model))
    sites += [] if example is None else _found_sites(model, example, [site.name for site in sites])
    chosen = _choose(sites, only)
    report, grids = SwapReport(), PatchGrids(model)
    replacements: dict[nn.Module, tuple[nn.Module, str]] = {}
    for site in sites:
        try:
            if site.name not in chosen:
                raise SwapSkipped(NOT_CHOSEN)
            if site.module not in replacements:
                replacements[site.module] = _replacement(site, maker, grids)
            report.changed[site.name] = replacements[site.module][1]
        except SwapSkipped as why:
            unknown = site.frame is not None and site.name in chosen
            report.left[site.name] = f"{_unknown_kind(site)}: {why}" if unknown else str(why)
    report.left |= _unknown(model, {site.name for site in sites})
    if not replacements:
        raise ValueError(f"nothing to swap in {type(model).__name__}: {_first_reason(report)}")
    for site in sites:
        if site.name in report.changed:
            new = replacements[site.module][0]
            setattr(site.parent, site.key, new)
            if isinstance(new, MapAttention):
                site.parent.window_size = new.window  # type: ignore[assignment]  # SAM's block: a plain number
    grids.hook()
    return report


def _sites(model: nn.Module) -> Iterator[Site]:
    """All attention of the supported kinds."""
    rotary = tuple(name for name, module in model.named_modules() if _makes_positions(module))
    for parent_name, parent in model.named_modules():
        for key, module in parent.named_children():
            name = f"{parent_name}.{key}" if parent_name else key
            if isinstance(parent, MapAttention):
                continue
            if isinstance(parent, WRAPPERS):
                yield Site(parent_name, parent, key, module)
            elif is_swin_block(module):
                yield Site(f"{name}.attn", parent, key, module)
            elif isinstance(module, Mixer) or is_timm(module) or is_transformers(module) or is_sam(module):
                around = name.startswith(tuple(f"{owner}." if owner else "" for owner in rotary))
                yield Site(name, parent, key, module, around and not isinstance(module, Mixer) and not is_sam(module))


def _found_sites(model: nn.Module, example: Any, known: list[str]) -> list[Site]:
    """Modules of other kinds that call `scaled_dot_product_attention` on the example."""
    inside = tuple(f"{name}." for name in known)
    found = []
    for frame in watch(model, example):
        if frame.name and frame.name not in known and not frame.name.startswith(inside):
            parent, _, key = frame.name.rpartition(".")
            found.append(Site(frame.name, model.get_submodule(parent), key, frame.module, frame=frame, example=example))
    if found:
        watch_taller(model, example, [site.frame for site in found if site.frame is not None])
    return found


def _unknown_kind(site: Site) -> str:
    """'swap does not know pkg.Class; it calls scaled_dot_product_attention with 6 heads of 64'."""
    assert site.frame is not None
    if is_torch(site.module):
        return _whole_name(site.module)
    return f"swap does not know {_whole_name(site.module)}; {site.frame.describe()}"


def _whole_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__name__}"


def _makes_positions(model: nn.Module) -> bool:
    """Whether a model makes rotary positions for the attention in it: `rope` in timm, `rope_embeddings` in transformers."""
    return any(isinstance(getattr(model, name, None), nn.Module) for name in ("rope", "rope_embeddings"))


def _choose(sites: list[Site], only: str | None) -> set[str]:
    """Names of the attention to swap."""
    names = [site.name for site in sites]
    if only is None:
        return set(names)
    try:
        chosen = {name for name in names if re.fullmatch(only, name)}
    except re.error as error:
        raise ValueError(f"only={only!r} is no regular expression: {error}") from error
    if names and not chosen:
        raise ValueError(f"only={only!r} matches the whole name of no attention; there are: {_few(names)}")
    return chosen


def _replacement(site: Site, maker: MixerMaker, grids: PatchGrids) -> tuple[nn.Module, str]:
    """The new module, and a short description of the change; `SwapSkipped` if there is none."""
    old: Any = site.module
    if isinstance(old, Mixer):
        mixer = maker.from_mixer(old)
        if (
            isinstance(site.parent, WRAPPERS)
            and site.parent.token_grid is None
            and not getattr(site.parent, "takes_map", False)
        ):
            _check_local(mixer)
        return mixer, describe_change(describe(old), mixer, dropped(old, mixer))
    if is_swin_block(old):
        mixer = from_swin(old, maker)
        lost = [] if getattr(mixer, "position", None) is not None else ["position table"]
        return SwinBlock(old, mixer), describe_change("softmax" + in_windows(window_of(old)), mixer, lost)
    if is_sam(old):
        return from_sam(old, site.parent, maker)
    if site.frame is None or is_torch(old):
        new, change = _known(site, maker, grids)
    else:
        new, change = _found(site, site.frame, maker, grids)
    new.training = old.training
    return new, change


def _known(site: Site, maker: MixerMaker, grids: PatchGrids) -> tuple[nn.Module, str]:
    """Attention of tokens, of a known kind."""
    old: Any = site.module
    if site.frame is not None:
        mixer = from_torch(old, site.frame, maker)
    else:
        mixer = from_timm(old, maker) if is_timm(old) else from_transformers(old, maker)
    grid = grids.of(site.name)
    if grid is None:
        _check_local(mixer)
    elif site.frame is not None and mixer.local_parts():
        grids.check_fits(grid, site.example, site.frame.x.shape[1])
    new: nn.Module
    if site.frame is not None:
        new = TorchAttention(mixer, grid)
    elif is_rotary(old):
        new = TimmAttention(mixer, grid, prefix=old.num_prefix_tokens, rotate_half=old.rotate_half)
    else:
        new = TimmAttention(mixer, grid) if is_timm(old) else TransformersAttention(mixer, grid, old.config)
    return new, describe_change("softmax", mixer, [], kept="rotary positions" if site.rotary else "")


def _found(site: Site, frame: Frame, maker: MixerMaker, grids: PatchGrids) -> tuple[nn.Module, str]:
    """Attention of another kind, proven to be plain."""
    mixer, lost = from_found(frame, maker)
    comes_with_call = FoundAttention(mixer, None, frame).takes_map
    grid = None if comes_with_call else grids.of(site.name)
    if not comes_with_call and mixer.local_parts():
        if grid is None:
            _check_local(mixer)
        else:
            grids.check_fits(grid, site.example, frame.x.shape[1])
    parts = _parts_of_images(frame.x, site.example)
    change = describe_change(f"softmax ({_whole_name(site.module)}, found on the example){parts}", mixer, lost, where=parts)
    return FoundAttention(mixer, grid, frame), change


def _parts_of_images(x: Tensor, example: Any) -> str:
    """' in parts of 49 tokens' if the module is called with several parts of an image at once, such as windows."""
    values = example.values() if isinstance(example, Mapping) else [example]
    batch = next((len(value) for value in values if isinstance(value, Tensor) and value.ndim), len(x))
    return f" in parts of {x.shape[1:-1].numel()} tokens" if len(x) > batch else ""


def _check_local(mixer: Mixer) -> None:
    """Raise `SwapSkipped` if a mixer needs a grid, for an attention whose grid is unknown."""
    if mixer.local_parts():
        raise SwapSkipped("the grid of its tokens is unknown, and local=True needs it: pass local=False")


def _unknown(model: nn.Module, known: set[str]) -> dict[str, str]:
    """Other attention, by the names of its classes, and why it is left. Modules inside of it count with it."""
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        if not name or not any(re.search("Attention|Attn", base.__name__) for base in type(module).__mro__):
            continue
        around = {name.rsplit(".", count)[0] for count in range(name.count(".") + 1)}
        if around & (known | left.keys()) or any(other.startswith(f"{name}.") for other in known):
            continue
        if is_torch(module):
            left[name] = f"{_whole_name(module)} may be called with masks or other keys: pass example= to see how it is"
        else:
            left[name] = f"{kind} pools tokens" if "AttentionPool" in kind else f"swap does not know {_whole_name(module)}"
    return left


def _first_reason(report: SwapReport) -> str:
    """A short reason why nothing was swapped."""
    if not report.left:
        return "none of its modules is attention that swap knows, and none was seen to call scaled_dot_product_attention"
    left = {name: why for name, why in report.left.items() if why != NOT_CHOSEN}
    name, why = next(iter(left.items()))
    more = len(left) - 1
    return f"{name} is left ({why})" + (f", and {more} more" if more else "")


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
