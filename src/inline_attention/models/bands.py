"""Pictures in bands of rows: what the parts of a model need to work on one band at a time.

A step of an all-InLine model sees a token alone (norms, MLPs, projections), or a token and its neighbours (embeddings, local
parts), for which a band needs a few rows of the next ones, or a sum over all tokens, which is the sum of the bands' sums.
`streaming.py` takes the bands one after the other, `parallel.py` one a process.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import Block, InLineAttention
from .backbone import Backbone
from .embed import ConvEmbed, PatchMerge
from .stage import Stage


def all_linear(model: nn.Module, purpose: str) -> Backbone:
    """The model, if a picture can go through it in bands; otherwise an error that says what is in the way."""
    if not isinstance(model, Backbone):
        raise ValueError(f"{purpose} needs one of this package's models, such as inline_deit_tiny, got {type(model).__name__}")
    for number, stage in enumerate(stages_of(model)):
        for place, block in enumerate(stage.blocks):
            kind = _hindrance(block)
            if kind is not None:
                raise ValueError(
                    f"{purpose} needs a model whose blocks are all InLine over the whole map, such as inline_deit_tiny or "
                    f"inline_pvt_tiny (Swin and CSwin: inline_depths=); stages.{number}.blocks.{place} of this one is {kind}"
                )
        if isinstance(stage.embed, ConvEmbed) and type(stage.embed.proj) is not nn.Conv2d:
            kind = type(stage.embed.proj).__name__
            raise ValueError(f"{purpose} needs embeddings that are plain convolutions; stages.{number}.embed.proj is {kind}")
    return model


def _hindrance(block: nn.Module) -> str | None:
    """What keeps a block from working on bands; None if nothing does."""
    if not isinstance(block, Block):
        return type(block).__name__
    mixer = block.mixer
    if isinstance(mixer, InLineAttention) and not mixer.windows and mixer.reduction is None:
        return None
    return type(mixer).__name__ + (" in windows" if mixer.windows else "")


def stages_of(model: Backbone) -> list[Stage]:
    """The stages, as what they are."""
    return [stage for stage in model.stages if isinstance(stage, Stage)]


def blocks_of(stage: Stage) -> list[Block]:
    """A stage's blocks, as what they are; `all_linear` has seen to it that there are no others."""
    return [block for block in stage.blocks if isinstance(block, Block)]


def rows_needed(embed: ConvEmbed | PatchMerge, start: int, stop: int) -> tuple[int, int]:
    """Which rows of its input an embedding needs to make these rows of its output; some may lie outside of the picture."""
    if isinstance(embed, PatchMerge):
        return start * embed.stride, stop * embed.stride
    above, kernel = int(embed.proj.padding[0]), embed.proj.kernel_size[0]
    return start * embed.stride - above, (stop - 1) * embed.stride - above + kernel


def embed_rows(embed: ConvEmbed | PatchMerge, window: Tensor) -> Tensor:
    """(B, C, rows needed, W) -> (B, rows, W', C'): what the embedding makes of these rows, zeros where the picture ends."""
    if isinstance(embed, PatchMerge):
        merged: Tensor = embed(window)
        return merged
    convolution = embed.proj
    window = F.pad(window, (0, -window.shape[3] % embed.stride))
    padding = (0, int(convolution.padding[1]))
    embedded: Tensor = F.conv2d(window, convolution.weight, convolution.bias, convolution.stride, padding).permute(0, 2, 3, 1)
    normed: Tensor = embed.norm(embedded)
    return normed
