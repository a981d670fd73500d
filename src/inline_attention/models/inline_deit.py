"""InLine-DeiT: one stage of blocks over patches, with a class token (Touvron et al., "DeiT", ICML 2021)."""

from typing import Any

from timm.models import register_model
from torch import nn
from typing_extensions import Unpack

from .backbone import Backbone, grid_of
from .families import AttentionOptions, BlockMaker, create, fitting_patch, published_cfgs, small_cfgs
from .stage import ConvEmbed, PositionEmbedding, Stage


class InLineDeiT(Backbone):
    """Patches, a class token, position embeddings, blocks; the classifier reads the class token.

    Args:
        img_size, patch_size, in_chans, num_classes, global_pool, drop_rate, weight_init: as for every `Backbone`.
        embed_dim: channels.
        depth: blocks.
        num_heads: heads of each block.
        mlp_ratio: hidden channels of the MLPs over channels.
        attention: mixer, kernel, local and so on, see `BlockMaker`.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        drop_rate: float = 0.0,
        weight_init: str = "normal",
        *,
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 6,
        mlp_ratio: float = 4.0,
        **attention: Unpack[AttentionOptions],
    ) -> None:
        maker, grid = BlockMaker((depth,), **attention), grid_of(img_size, patch_size)
        stage = Stage(
            ConvEmbed(in_chans, embed_dim, patch_size),
            maker.stage(
                0, embed_dim, num_heads, mlp_ratio=mlp_ratio, eps=1e-6, softmax={}, inline={}, grid=grid, num_prefix_tokens=1
            ),
            PositionEmbedding(embed_dim, grid, class_token=True),
        )
        super().__init__(
            [stage],
            nn.LayerNorm(embed_dim, eps=1e-6),
            [{"num_chs": embed_dim, "reduction": patch_size, "module": f"stages.0.blocks.{i}"} for i in range(depth)],
            img_size=img_size,
            patch_size=patch_size,
            in_chans=in_chans,
            num_classes=num_classes,
            global_pool=global_pool,
            drop_rate=drop_rate,
            weight_init=weight_init,
        )


default_cfgs = published_cfgs("inline_deit", tiny=224, small=288, base=448) | small_cfgs("inline_deit")


def _create(variant: str, pretrained: bool, kwargs: dict[str, Any], **published: Any) -> InLineDeiT:
    depth = kwargs.get("depth", published.get("depth", 12))
    quarters = sorted({max(0, depth * quarter // 4 - 1) for quarter in (1, 2, 3, 4)})
    return create(InLineDeiT, variant, pretrained, kwargs, out_indices=quarters, **published)


@register_model
def inline_deit_tiny(pretrained: bool = False, **kwargs: Any) -> InLineDeiT:
    """InLine-DeiT-T at 224."""
    return _create("inline_deit_tiny", pretrained, kwargs, img_size=224, embed_dim=192, num_heads=6)


@register_model
def inline_deit_small(pretrained: bool = False, **kwargs: Any) -> InLineDeiT:
    """InLine-DeiT-S at 288: narrower than DeiT-S, on larger images."""
    return _create("inline_deit_small", pretrained, kwargs, img_size=288, embed_dim=320, num_heads=10)


@register_model
def inline_deit_base(pretrained: bool = False, **kwargs: Any) -> InLineDeiT:
    """InLine-DeiT-B at 448: narrower than DeiT-B, on larger images."""
    return _create("inline_deit_base", pretrained, kwargs, img_size=448, embed_dim=384, num_heads=12)


@register_model
def inline_deit_nano(pretrained: bool = False, **kwargs: Any) -> InLineDeiT:
    """For images from 8 x 8 up, without a GPU; the patch size follows `img_size`."""
    img_size = kwargs.get("img_size", 32)
    published = {"img_size": img_size, "patch_size": fitting_patch(img_size, most=16), "depth": 6}
    return _create("inline_deit_nano", pretrained, kwargs, **published, embed_dim=96, num_heads=4)
