"""Another attention for models that exist already, with their own weights: `swap`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import nn

from ..layers import Mixer
from .swap_grid import Places
from .swap_mixer import Hindrance, MixerMaker, describe, dropped, in_windows, in_words
from .swap_swin import SwinBlock, from_swin, is_swin_block, window_of
from .swap_timm import TimmAttention, from_timm, is_timms
from .swap_transformers import TransformersAttention, from_transformers, is_transformers


@dataclass
class SwapReport:
    """What became of a model's attention."""

    changed: dict[str, str] = field(default_factory=dict)
    """Name of the attention -> what it was, what it is, what of it is lost."""
    left: dict[str, str] = field(default_factory=dict)
    """Name of the attention -> why it is as it was."""

    def __str__(self) -> str:
        width = max(map(len, (*self.changed, *self.left)), default=0)
        lines = [f"{len(self.changed)} swapped, {len(self.left)} left"]
        lines += [f"{name:{width}}  {what}" for name, what in self.changed.items()]
        lines += [f"{name:{width}}  left: {why}" for name, why in self.left.items()]
        return "\n".join(lines)


NOT_ASKED = "not asked for"


class Site(NamedTuple):
    """An attention that can be swapped, or might be."""

    name: str
    parent: nn.Module
    key: str
    module: nn.Module
    """What stands at `key` in `parent` and would be replaced: the attention, or the block around it."""


def swap(
    model: nn.Module,
    mixer: str = "inline",
    *,
    kernel: str | None = None,
    local: bool | None = None,
    keep_windows: bool = False,
    only: str | None = None,
) -> SwapReport:
    r"""Give a model another attention, in place. Projections keep their weights; what the mixer has besides is new.

        model = timm.create_model("vit_small_patch16_224", pretrained=True, dynamic_img_size=True)
        print(swap(model))

    It knows this package's own mixers; timm's `Attention` (ViT, DeiT, DINOv2 and all that is built from it) and Swin; ViT,
    DeiT and DINOv2 of Hugging Face's transformers. All other attention is left. Make the optimizer afterwards.

    Args:
        model: any model that holds one of these.
        mixer: a name from `MIXERS`.
        kernel: the feature map of a mixer that has one; None for the mixer's own.
        local: whether the mixer has the local residual; None for the mixer's own choice, which is yes for inline only.
        keep_windows: let attention that has windows keep them. Without, it sees the whole map.
        only: a regular expression, which the whole name of an attention must match: r"blocks\.[0-5]\.attn".

    Returns:
        What was changed and what was left, and why: print it. If nothing can be swapped, a ValueError tells why, and the model
        is as it was.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, such as timm.create_model makes, got {model!r}")
    maker = MixerMaker(mixer, kernel=kernel, local=local, keep_windows=keep_windows)
    sites = list(_sites(model))
    asked = _asked(sites, only)
    report, places = SwapReport(), Places(model)
    made: dict[nn.Module, tuple[nn.Module, str]] = {}
    for site in sites:
        try:
            if site.name not in asked:
                raise Hindrance(NOT_ASKED)
            if site.module not in made:
                made[site.module] = _replacement(site, maker, places)
            report.changed[site.name] = made[site.module][1]
        except Hindrance as why:
            report.left[site.name] = str(why)
    report.left |= _unknown(model, {site.name for site in sites})
    if not made:
        raise ValueError(f"nothing to swap in {type(model).__name__}: {_found(report)}")
    for site in sites:
        if site.name in report.changed:
            setattr(site.parent, site.key, made[site.module][0])
    places.hook()
    return report


def _sites(model: nn.Module) -> Iterator[Site]:
    """All attention of the kinds that are known."""
    for parent_name, parent in model.named_modules():
        for key, module in parent.named_children():
            name = f"{parent_name}.{key}" if parent_name else key
            if isinstance(parent, TimmAttention | TransformersAttention):
                yield Site(parent_name, parent, key, module)
            elif is_swin_block(module):
                yield Site(f"{name}.attn", parent, key, module)
            elif isinstance(module, Mixer) or is_timms(module) or is_transformers(module):
                yield Site(name, parent, key, module)


def _asked(sites: list[Site], only: str | None) -> set[str]:
    """Names of the attention that is to be swapped."""
    names = [site.name for site in sites]
    if only is None:
        return set(names)
    try:
        asked = {name for name in names if re.fullmatch(only, name)}
    except re.error as error:
        raise ValueError(f"only={only!r} is no regular expression: {error}") from error
    if names and not asked:
        raise ValueError(f"only={only!r} matches the whole name of no attention; there are: {_few(names)}")
    return asked


def _replacement(site: Site, maker: MixerMaker, places: Places) -> tuple[nn.Module, str]:
    """What comes to stand there, and a few words about it; `Hindrance` if nothing can."""
    old = site.module
    if isinstance(old, Mixer):
        mixer = maker.from_mixer(old)
        if isinstance(site.parent, TimmAttention | TransformersAttention) and site.parent.place is None:
            _check_local(mixer)
        return mixer, in_words(describe(old), mixer, dropped(old, mixer))
    if is_swin_block(old):
        mixer = from_swin(old, maker)
        lost = [] if getattr(mixer, "position", None) is not None else ["position table"]
        return SwinBlock(old, mixer), in_words("softmax" + in_windows(window_of(old)), mixer, lost)
    mixer = from_timm(old, maker) if is_timms(old) else from_transformers(old, maker)
    place = places.of(site.name)
    if place is None:
        _check_local(mixer)
    new = TimmAttention(mixer, place) if is_timms(old) else TransformersAttention(mixer, place, old.config)
    new.training = old.training
    return new, in_words("softmax", mixer, [])


def _check_local(mixer: Mixer) -> None:
    """Raise if a mixer needs to know where the tokens lie: no one can tell it."""
    if mixer.local_parts():
        raise Hindrance("no patch embedding tells where its tokens lie, which a local part must know: try local=False")


def _unknown(model: nn.Module, known: set[str]) -> dict[str, str]:
    """What else looks like attention by the names of its classes, and why it is left. What is inside of it counts with it."""
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        if not name or not any(re.search("Attention|Attn", base.__name__) for base in type(module).__mro__):
            continue
        around = {name.rsplit(".", count)[0] for count in range(name.count(".") + 1)}
        if around & (known | left.keys()) or any(other.startswith(f"{name}.") for other in known):
            continue
        whole = f"{type(module).__module__}.{kind}"
        left[name] = f"{kind} pools tokens" if "AttentionPool" in kind else f"swap does not know {whole}"
    return left


def _found(report: SwapReport) -> str:
    """What kept everything from being swapped, in short."""
    if not report.left:
        return "it holds no attention"
    left = {name: why for name, why in report.left.items() if why != NOT_ASKED}
    name, why = next(iter(left.items()))
    more = len(left) - 1
    return f"{name} is left ({why})" + (f", and {more} more" if more else "")


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
