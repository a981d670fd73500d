"""InLine-PVT: four stages on smaller and smaller maps (Wang et al., "Pyramid Vision Transformer", ICCV 2021)."""

from collections.abc import Sequence
from typing import Any

from timm.models import register_model
from torch import nn
from typing_extensions import Unpack

from .backbone import Backbone, grid_of, pyramid_features
from .families import AttentionOptions, BlockMaker, check_stages, create, fitting_patch, published_cfgs, small_cfgs
from .stage import ConvEmbed, PositionEmbedding, Stage


class InLinePVT(Backbone):
    """Each stage: patches, position embeddings, blocks. No norm at the end; the classifier reads the mean.

    Softmax blocks take keys and values from a map smaller by `sr_ratios`.

    Args:
        img_size, patch_size, in_chans, num_classes, global_pool, drop_rate, weight_init: as for every `Backbone`;
            global_pool=None is "avg", and "token" with a class token.
        embed_dims, depths, num_heads, mlp_ratios, sr_ratios: of each stage.
        class_token: put a class token into the last stage and a norm after it, as PVT with softmax was published.
        attention: mixer, kernel, local and so on, see `BlockMaker`.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 4,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        weight_init: str = "normal",
        *,
        embed_dims: Sequence[int] = (64, 128, 320, 512),
        depths: Sequence[int] = (2, 2, 2, 2),
        num_heads: Sequence[int] = (2, 4, 10, 16),
        mlp_ratios: Sequence[float] = (8, 8, 4, 4),
        sr_ratios: Sequence[int] = (8, 4, 2, 1),
        class_token: bool = False,
        **attention: Unpack[AttentionOptions],
    ) -> None:
        check_stages(depths=depths, embed_dims=embed_dims, num_heads=num_heads, mlp_ratios=mlp_ratios, sr_ratios=sr_ratios)
        maker = BlockMaker(depths, **attention)
        stages, channels, stride = [], in_chans, 1
        for number, dim in enumerate(embed_dims):
            step = 2 if number else patch_size
            stride *= step
            last = number == len(depths) - 1
            blocks = maker.stage(
                number, dim, num_heads[number],
                mlp_ratio=mlp_ratios[number], eps=1e-6, softmax={"reduction": sr_ratios[number]}, inline={},
                grid=grid_of(img_size, stride), num_prefix_tokens=int(class_token and last),
            )  # fmt: skip
            positions = PositionEmbedding(dim, grid_of(img_size, stride), class_token=class_token and last, mode="bilinear")
            stages.append(Stage(ConvEmbed(channels, dim, step, norm=nn.LayerNorm(dim)), blocks, positions))
            channels = dim
        super().__init__(
            stages,
            nn.LayerNorm(channels, eps=1e-6) if class_token else nn.Identity(),
            pyramid_features(embed_dims, patch_size),
            img_size=img_size,
            patch_size=patch_size,
            in_chans=in_chans,
            num_classes=num_classes,
            global_pool=("token" if class_token else "avg") if global_pool is None else global_pool,
            drop_rate=drop_rate,
            weight_init=weight_init,
        )


default_cfgs = published_cfgs("inline_pvt", tiny=224, small=224, medium=224, large=224) | small_cfgs("inline_pvt")


@register_model
def inline_pvt_tiny(pretrained: bool = False, **kwargs: Any) -> InLinePVT:
    """InLine-PVT-T."""
    return create(InLinePVT, "inline_pvt_tiny", pretrained, kwargs, depths=(2, 2, 2, 2))


@register_model
def inline_pvt_small(pretrained: bool = False, **kwargs: Any) -> InLinePVT:
    """InLine-PVT-S."""
    return create(InLinePVT, "inline_pvt_small", pretrained, kwargs, depths=(3, 4, 6, 3))


@register_model
def inline_pvt_medium(pretrained: bool = False, **kwargs: Any) -> InLinePVT:
    """InLine-PVT-M."""
    return create(InLinePVT, "inline_pvt_medium", pretrained, kwargs, depths=(3, 4, 18, 3))


@register_model
def inline_pvt_large(pretrained: bool = False, **kwargs: Any) -> InLinePVT:
    """InLine-PVT-L."""
    return create(InLinePVT, "inline_pvt_large", pretrained, kwargs, depths=(3, 8, 27, 3))


@register_model
def inline_pvt_nano(pretrained: bool = False, **kwargs: Any) -> InLinePVT:
    """For images from 8 x 8 up, without a GPU; the patch size follows `img_size`."""
    img_size = kwargs.get("img_size", 32)
    size: dict[str, Any] = {"img_size": img_size, "patch_size": fitting_patch(img_size, most=4)}
    shape: dict[str, Any] = {"embed_dims": (32, 64, 96, 128), "num_heads": (1, 2, 4, 4), "mlp_ratios": (4, 4, 4, 4)}
    return create(InLinePVT, "inline_pvt_nano", pretrained, kwargs, **size, **shape, depths=(1, 1, 2, 1))
