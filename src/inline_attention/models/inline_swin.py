"""InLine-Swin: linear attention over the whole map instead of windows (Liu et al., "Swin Transformer", ICCV 2021)."""

from collections.abc import Sequence
from typing import Any

from timm.layers import to_2tuple
from timm.models import register_model
from torch import nn
from typing_extensions import Unpack

from ..layers import SoftmaxAttention
from ..ops.shifted_windows import Window
from .backbone import Backbone, grid_of, pyramid_features
from .families import AttentionOptions, BlockMaker, check_stages, create, fitting_patch, published_cfgs, small_cfgs
from .stage import ConvEmbed, PatchMerge, Stage


class InLineSwin(Backbone):
    """The first blocks of a stage see the whole map, linearly; the others see windows, every second one shifted.

    Args:
        img_size, patch_size, in_chans, num_classes, global_pool, drop_rate, weight_init: as for every `Backbone`.
        embed_dim: channels of the first stage; each stage has twice those of the one before.
        depths, num_heads: of each stage.
        mlp_ratio: hidden channels of the MLPs over channels.
        window_size: side, or height and width, of the softmax blocks' windows.
        inline_window: let the linear blocks, too, see no more than a window of this side (the paper's ablation).
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
        embed_dim: int = 96,
        depths: Sequence[int] = (2, 2, 6, 2),
        num_heads: Sequence[int] = (3, 6, 12, 24),
        mlp_ratio: float = 4.0,
        window_size: int | tuple[int, int] = 7,
        inline_window: int | tuple[int, int] | None = None,
        **attention: Unpack[AttentionOptions],
    ) -> None:
        check_stages(depths=depths, num_heads=num_heads)
        maker = BlockMaker(depths, **attention)
        dims = [embed_dim * 2**number for number in range(len(depths))]
        if inline_window is not None and maker.mixer == "softmax":
            raise ValueError(f"mixer 'softmax' has no linear blocks: set window_size instead of inline_window={inline_window}")
        windowed = {"windows": (Window(*to_2tuple(window_size)),), "position_bias": True}
        inline = {} if inline_window is None else {"windows": (Window(*to_2tuple(inline_window)),)}
        stages = []
        for number, dim in enumerate(dims):
            embed: ConvEmbed | PatchMerge
            if number == 0:
                embed = ConvEmbed(in_chans, dim, patch_size, norm=nn.LayerNorm(dim))
            else:
                embed = PatchMerge(dim // 2, dim, norm=nn.LayerNorm(2 * dim))
            blocks = maker.stage(
                number,
                dim,
                num_heads[number],
                mlp_ratio=mlp_ratio,
                eps=1e-5,
                softmax=windowed,
                inline=inline,
                grid=grid_of(img_size, patch_size * 2**number),
                shift=True,
            )
            stages.append(Stage(embed, blocks))
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

    def set_input_size(
        self,
        img_size: int | tuple[int, int] | None = None,
        patch_size: int | None = None,
        window_size: int | tuple[int, int] | None = None,
    ) -> None:
        """As for every `Backbone`; and, if given, other windows for the softmax blocks, their tables resampled."""
        super().set_input_size(img_size, patch_size)
        if window_size is None:
            return
        height, width = to_2tuple(window_size)
        for module in self.modules():
            if isinstance(module, SoftmaxAttention) and module.position is not None:
                module.set_window(height, width, shifted=module.windows[0].shifted)


default_cfgs = published_cfgs("inline_swin", tiny=224, small=224, base=224, base_384=384) | small_cfgs("inline_swin")


@register_model
def inline_swin_tiny(pretrained: bool = False, **kwargs: Any) -> InLineSwin:
    """InLine-Swin-T: linear in its first three stages."""
    return create(InLineSwin, "inline_swin_tiny", pretrained, kwargs, inline_depths=(2, 2, 6, 0))


@register_model
def inline_swin_small(pretrained: bool = False, **kwargs: Any) -> InLineSwin:
    """InLine-Swin-S: linear in its first two stages."""
    return create(InLineSwin, "inline_swin_small", pretrained, kwargs, inline_depths=(2, 2, 0, 0), depths=(2, 2, 18, 2))


_BASE: dict[str, Any] = {"embed_dim": 128, "depths": (2, 2, 18, 2), "num_heads": (4, 8, 16, 32)}


@register_model
def inline_swin_base(pretrained: bool = False, **kwargs: Any) -> InLineSwin:
    """InLine-Swin-B: linear in its first two stages and two blocks of the third."""
    return create(InLineSwin, "inline_swin_base", pretrained, kwargs, inline_depths=(2, 2, 2, 0), **_BASE)


@register_model
def inline_swin_base_384(pretrained: bool = False, **kwargs: Any) -> InLineSwin:
    """InLine-Swin-B at 384, with windows of 12."""
    return create(
        InLineSwin,
        "inline_swin_base_384",
        pretrained,
        kwargs,
        inline_depths=(2, 2, 2, 0),
        **_BASE,
        img_size=384,
        window_size=12,
    )


@register_model
def inline_swin_nano(pretrained: bool = False, **kwargs: Any) -> InLineSwin:
    """For images from 8 x 8 up, without a GPU; the patch size follows `img_size`."""
    img_size = kwargs.get("img_size", 32)
    size: dict[str, Any] = {"img_size": img_size, "patch_size": fitting_patch(img_size, most=4), "window_size": 4}
    shape: dict[str, Any] = {"embed_dim": 20, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 4, 8)}
    return create(InLineSwin, "inline_swin_nano", pretrained, kwargs, inline_depths=(1, 1, 2, 0), **size, **shape)
