"""Stages of a model on an image in parts: how each block can take it, and embeddings of some rows only.

A layer needs a token alone (norms, MLPs, projections); or a token and its neighbours (embeddings, local parts), for which a
band needs a few rows of the next ones; or a sum over all tokens, which is the sum of the bands' sums; or the tokens of its
window. `stream.py` takes the parts one after the other, `parallelize.py` a band for each process.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import Block, Mixer
from ..models.backbone import Backbone, grid_of
from ..models.stage import ConvEmbed, PatchMerge, Stage
from ..ops.checks import Grid

Way = Literal["bands", "windows", "whole"]
"""How a block takes an image: in bands of rows; in slabs of windows; or all at once."""
WHOLE_MAP = 16_384
"""Tokens of the largest map that a block takes at once, if it can take no parts of it: softmax attention over the whole map."""


def check_model(model: nn.Module, purpose: str) -> Backbone:
    """The model, if it is one of this package's, as it was made; otherwise a ValueError with the first layer that is not."""
    if not isinstance(model, Backbone):
        raise ValueError(f"{purpose} needs one of this package's models, such as inline_deit_tiny, got {type(model).__name__}")
    for number, stage in enumerate(stages_of(model)):
        for index, block in enumerate(stage.blocks):
            if not isinstance(block, Block) or not isinstance(block.mixer, Mixer):
                kind = type(block.mixer if isinstance(block, Block) else block).__name__
                raise ValueError(
                    f"{purpose} needs blocks of this package; stages.{number}.blocks.{index} of this one is {kind}"
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


def all_linear(model: nn.Module, purpose: str) -> Backbone:
    """The model, if all its blocks work in bands; otherwise a ValueError with the first block or layer that does not."""
    backbone = check_model(model, purpose)
    for number, stage in enumerate(stages_of(backbone)):
        for index, block in enumerate(blocks_of(stage)):
            if not block.mixer.works_in_bands:
                raise ValueError(
                    f"{purpose} needs a model whose blocks are all linear over the whole map, such as inline_deit_tiny or "
                    "inline_pvt_tiny (Swin and CSwin: inline_depths=); "
                    f"stages.{number}.blocks.{index} of this one is {_describe(block)}"
                )
    return backbone


def ways_through(model: nn.Module, purpose: str, size: tuple[int, int] | None = None) -> list[list[Way]]:
    """How each block of each stage takes an image of this size, any if None; a ValueError with the first block that cannot."""
    backbone, ways = check_model(model, purpose), []
    for number, stage in enumerate(stages_of(backbone)):
        ways.append([_way(block) for block in blocks_of(stage)])
        size = None if size is None else grid_of(size, stage.embed.stride)
        if size is None or size[0] * size[1] <= WHOLE_MAP or "whole" not in ways[-1]:
            continue
        index = ways[-1].index("whole")
        raise ValueError(
            f"{purpose} needs blocks that take an image in parts, linear ones or ones in windows: this model's "
            f"stages.{number}.blocks.{index} is {_describe(blocks_of(stage)[index])}, here of {size[0] * size[1]:,} tokens, "
            f"and can have {WHOLE_MAP:,}: take a smaller image or another model"
        )
    return ways


def _way(block: Block) -> Way:
    if block.mixer.works_in_bands:
        return "bands"
    whole = any(window.height is None and window.width is None for window in block.mixer.windows)
    return "windows" if block.mixer.windows and not whole and block.by_token else "whole"


def _describe(block: Block) -> str:
    """'SoftmaxAttention in windows'."""
    if block.mixer.windows:
        return f"{type(block.mixer).__name__} in windows"
    reduced = " with reduced keys" if block.mixer.reduction is not None else ""
    return f"{type(block.mixer).__name__} over the whole map{reduced}"


def stages_of(model: Backbone) -> list[Stage]:
    """The stages, typed."""
    return [stage for stage in model.stages if isinstance(stage, Stage)]


def blocks_of(stage: Stage) -> list[Block]:
    """A stage's blocks, typed; `check_model` has checked that there are no others."""
    return [block for block in stage.blocks if isinstance(block, Block)]


def grids_of(model: Backbone, size: tuple[int, int]) -> list[Grid]:
    """The grid of each stage's tokens, for an image of this height and width."""
    grids: list[Grid] = []
    for stage in stages_of(model):
        size = grid_of(size, stage.embed.stride)
        grids.append(size)
    return grids


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
