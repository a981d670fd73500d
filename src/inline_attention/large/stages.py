"""Stages of a model on bands of rows: which models can do it, and embeddings of some rows only.

A layer of an all-InLine model needs a token alone (norms, MLPs, projections), or a token and its neighbours (embeddings, local
parts), for which a band needs a few rows of the next ones, or a sum over all tokens, which is the sum of the bands' sums.
`stream.py` takes the bands one after the other, `parallelize.py` one for each process.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import Block, Mixer
from ..models.backbone import Backbone
from ..models.stage import ConvEmbed, PatchMerge, Stage


def all_linear(model: nn.Module, purpose: str) -> Backbone:
    """The model, if an image can go through it in bands; otherwise a ValueError with the first block or layer that cannot."""
    if not isinstance(model, Backbone):
        raise ValueError(f"{purpose} needs one of this package's models, such as inline_deit_tiny, got {type(model).__name__}")
    for number, stage in enumerate(stages_of(model)):
        for index, block in enumerate(stage.blocks):
            if not isinstance(block, Block) or not isinstance(block.mixer, Mixer) or not block.mixer.works_in_bands:
                raise ValueError(
                    f"{purpose} needs a model whose blocks are all InLine over the whole map, such as inline_deit_tiny or "
                    "inline_pvt_tiny (Swin and CSwin: inline_depths=); "
                    f"stages.{number}.blocks.{index} of this one is {_describe(block)}"
                )
        if isinstance(stage.embed, ConvEmbed) and type(stage.embed.proj) is not nn.Conv2d:
            kind = type(stage.embed.proj).__name__
            raise ValueError(f"{purpose} needs embeddings that are plain convolutions; stages.{number}.embed.proj is {kind}")
    first = next(model.parameters())
    for name, parameter in model.named_parameters():
        if parameter.dtype != first.dtype or parameter.is_meta:
            raise ValueError(
                f"{purpose} needs weights of one dtype and with numbers: {name} is {parameter.dtype} on {parameter.device}, "
                f"the first weights are {first.dtype}"
            )
    return model


def _describe(block: nn.Module) -> str:
    """'SoftmaxAttention in windows', or the class of a module that is no block of this package."""
    if not isinstance(block, Block):
        return type(block).__name__
    windowed = isinstance(block.mixer, Mixer) and block.mixer.windows
    return type(block.mixer).__name__ + (" in windows" if windowed else "")


def stages_of(model: Backbone) -> list[Stage]:
    """The stages, typed."""
    return [stage for stage in model.stages if isinstance(stage, Stage)]


def blocks_of(stage: Stage) -> list[Block]:
    """A stage's blocks, typed; `all_linear` has checked that there are no others."""
    return [block for block in stage.blocks if isinstance(block, Block)]


def rows_needed(embed: ConvEmbed | PatchMerge, start: int, stop: int) -> tuple[int, int]:
    """Which rows of its input an embedding needs to make these rows of its output; some may lie outside of the image."""
    if isinstance(embed, PatchMerge):
        return start * embed.stride, stop * embed.stride
    above, kernel = int(embed.proj.padding[0]), embed.proj.kernel_size[0]
    return start * embed.stride - above, (stop - 1) * embed.stride - above + kernel


def embed_rows(embed: ConvEmbed | PatchMerge, rows: Tensor) -> Tensor:
    """The embedding of some rows: (B, C, rows needed, W), zeros outside of the image, -> (B, rows, W', C')."""
    if isinstance(embed, PatchMerge):
        merged: Tensor = embed(rows)
        return merged
    convolution = embed.proj
    rows = F.pad(rows, (0, -rows.shape[3] % embed.stride))
    padding = (0, int(convolution.padding[1]))
    embedded: Tensor = F.conv2d(rows, convolution.weight, convolution.bias, convolution.stride, padding).permute(0, 2, 3, 1)
    normed: Tensor = embed.norm(embedded)
    return normed
