"""InLine-CSwin: linear attention over the whole map instead of stripes (Dong et al., "CSWin Transformer", CVPR 2022)."""

from collections.abc import Sequence
from typing import Any

from timm.models import register_model
from torch import nn
from typing_extensions import Unpack

from ..ops.shifted_windows import Window
from .backbone import Backbone, grid_of, pyramid_features
from .families import AttentionOptions, BlockMaker, check_stages, create, fitting_patch, published_cfgs, small_cfgs
from .stage import ConvEmbed, Stage


class InLineCSwin(Backbone):
    """The first blocks of a stage see the whole map, linearly; in the others half of the heads see columns, half see rows.

    Every attention, linear or softmax, has LePE. The local residual makes its kernels from the block's input before its norm.

    Args:
        img_size, patch_size, in_chans, num_classes, global_pool, drop_rate, weight_init: as for every `Backbone`.
        embed_dim: channels of the first stage; each stage has twice those of the one before.
        depths, num_heads: of each stage.
        mlp_ratio: hidden channels of the MLPs over channels.
        stripes: width of the softmax blocks' stripes in each stage; None for one window over the whole map.
        attention: mixer, kernel, local and so on, see `BlockMaker`.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 4,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        weight_init: str = "normal",
        *,
        embed_dim: int = 64,
        depths: Sequence[int] = (2, 4, 18, 1),
        num_heads: Sequence[int] = (2, 4, 8, 16),
        mlp_ratio: float = 4.0,
        stripes: Sequence[int | None] = (1, 2, 7, None),
        **attention: Unpack[AttentionOptions],
    ) -> None:
        check_stages(depths=depths, num_heads=num_heads, stripes=stripes)
        maker = BlockMaker(depths, **attention)
        dims = [embed_dim * 2**number for number in range(len(depths))]

        stages, channels = [], in_chans
        for number, dim in enumerate(dims):
            embed = ConvEmbed(channels, dim, 2 if number else patch_size, overlap=True, norm=nn.LayerNorm(dim))
            stripe = stripes[number]
            windows = () if stripe is None else (Window(None, stripe), Window(stripe, None))
            blocks = maker.stage(
                number, dim, num_heads[number],
                mlp_ratio=mlp_ratio, eps=1e-5, raw_local=True,
                softmax={"lepe": True, "windows": windows}, inline={"lepe": True},
                grid=grid_of(img_size, patch_size * 2**number),
            )  # fmt: skip
            stages.append(Stage(embed, blocks))
            channels = dim
        super().__init__(
            stages,
            nn.LayerNorm(dims[-1]),
            pyramid_features(dims, patch_size),
            img_size=img_size,
            patch_size=patch_size,
            in_chans=in_chans,
            num_classes=num_classes,
            global_pool=global_pool,
            drop_rate=drop_rate,
            weight_init=weight_init,
        )


default_cfgs = published_cfgs("inline_cswin", tiny=224, small=224, base=224, base_384=384) | small_cfgs("inline_cswin")


@register_model
def inline_cswin_tiny(pretrained: bool = False, **kwargs: Any) -> InLineCSwin:
    """InLine-CSwin-T: linear in its first two stages."""
    return create(InLineCSwin, "inline_cswin_tiny", pretrained, kwargs, inline_depths=(2, 4, 0, 0))


@register_model
def inline_cswin_small(pretrained: bool = False, **kwargs: Any) -> InLineCSwin:
    """InLine-CSwin-S: linear in its first two stages."""
    return create(InLineCSwin, "inline_cswin_small", pretrained, kwargs, inline_depths=(3, 6, 0, 0), depths=(3, 6, 29, 2))


_BASE: dict[str, Any] = {"embed_dim": 96, "depths": (3, 6, 29, 2), "num_heads": (4, 8, 16, 32)}


@register_model
def inline_cswin_base(pretrained: bool = False, **kwargs: Any) -> InLineCSwin:
    """InLine-CSwin-B: linear in its first two stages."""
    return create(InLineCSwin, "inline_cswin_base", pretrained, kwargs, inline_depths=(3, 6, 0, 0), **_BASE)


@register_model
def inline_cswin_base_384(pretrained: bool = False, **kwargs: Any) -> InLineCSwin:
    """InLine-CSwin-B at 384, with stripes of 12."""
    stripes = (1, 2, 12, None)
    return create(
        InLineCSwin,
        "inline_cswin_base_384",
        pretrained,
        kwargs,
        inline_depths=(3, 6, 0, 0),
        **_BASE,
        img_size=384,
        stripes=stripes,
    )


@register_model
def inline_cswin_nano(pretrained: bool = False, **kwargs: Any) -> InLineCSwin:
    """For images from 8 x 8 up, without a GPU; the patch size follows `img_size`."""
    img_size = kwargs.get("img_size", 32)
    size: dict[str, Any] = {"img_size": img_size, "patch_size": fitting_patch(img_size, most=4), "stripes": (1, 2, 2, None)}
    shape: dict[str, Any] = {"embed_dim": 20, "depths": (1, 1, 2, 1), "num_heads": (2, 4, 8, 16)}
    return create(InLineCSwin, "inline_cswin_nano", pretrained, kwargs, inline_depths=(1, 1, 0, 0), **size, **shape)
