"""The grid of an image's tokens, for attention inside of models that pass on tokens without their grid.

A hook on the model's patch embedding records the size of each image in a `TokenGrid`, which the attention of that model reads.
Each patch embedding has its own, so that models, or towers of a model, do not disturb each other.

Shapes: tokens (B, N, C), N = prefix tokens + H * W.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from timm.layers import to_2tuple
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from ..compat import backward_is_running
from ..layers import Mixer
from ..layers.rope import Rotation
from ..ops.checks import Grid
from .swap_mixer import SwapSkipped

PREFIX_TOKENS = ("cls_token", "class_embedding", "distillation_token", "register_tokens")
"""What transformers' embeddings call the tokens that they put before the grid: (1, tokens, C), or (C,) for one."""


class TokenGrid:
    """The grid (H, W) of the images in the current forward pass of a model.

    It is a forward pre-hook of the patch embedding. Copies, by `copy.deepcopy` or `pickle`, start without an image.

    Args:
        num_prefix_tokens: how many tokens the model puts before the grid; None if unknown, and then there must be none.
    """

    def __init__(self, num_prefix_tokens: int | None = None) -> None:
        self.num_prefix_tokens = num_prefix_tokens
        self.grid: Grid | None = None
        self.needs_gradients = False
        """Whether there may be a backward pass."""
        self.recorded: dict[tuple[int, Grid], None] = {}
        """Token counts and grids of forward passes that gradient checkpointing may run again, latest last."""
        self.recomputed: set[tuple[Mixer, int]] = set()
        """Which mixers were run again, with how many tokens."""

    def __call__(self, embedding: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Record the size of the images that the embedding is about to cut into patches."""
        images = inputs[0] if inputs else next(iter(options.values()))
        height, width = images.shape[-2:]
        if getattr(embedding, "dynamic_img_pad", False):  # as whole numbers, which an exported graph can keep
            down, across = to_2tuple(embedding.patch_size)
            ratio = getattr(embedding, "feature_ratio", (1, 1))  # of the network before the patches, in hybrid models
            self.grid = ((height // ratio[0] + down - 1) // down, (width // ratio[1] + across - 1) // across)
        elif hasattr(embedding, "dynamic_feat_size"):
            self.grid = tuple(embedding.dynamic_feat_size((height, width)))
        else:
            patch = to_2tuple(embedding.kernel_size if isinstance(embedding, nn.Conv2d) else embedding.patch_size)
            self.grid = (height // patch[0], width // patch[1])
        if torch.compiler.is_compiling():
            return
        if self.recomputed or _goes_backward():
            self.recorded.clear()
            self.recomputed.clear()
        self.needs_gradients = torch.is_grad_enabled()

    def __reduce__(self) -> tuple[type["TokenGrid"], tuple[int | None]]:
        return type(self), (self.num_prefix_tokens,)

    def locate(self, tokens: int, mixer: Mixer) -> tuple[Grid | None, int]:
        """The grid of this many tokens, and the number of prefix tokens.

        Tokens that do not fit the image have no grid, which is a ValueError if the mixer needs one.
        """
        grid = self._of_an_earlier_image(tokens, mixer) if _goes_backward() else self.grid
        if grid is not None:
            prefix = self.num_prefix_tokens or 0
            if prefix + prod(grid) == tokens:
                self._record(tokens, grid)
                return grid, prefix
        if not mixer.local_parts():
            return None, 0
        if grid is None:
            raise ValueError("no image has come through the patch embedding yet: call the whole model, not a part of it")
        before = "" if self.num_prefix_tokens is None else f" after {self.num_prefix_tokens} others"
        raise ValueError(
            f"attention got {tokens} tokens, the image has a grid {grid} of {prod(grid)}{before}: if the model drops or "
            "merges patches, swap to a mixer without local part (local=False)"
        )

    def _record(self, tokens: int, grid: Grid) -> None:
        """Record a grid for gradient checkpointing."""
        if self.needs_gradients and not torch.compiler.is_compiling() and not _goes_backward():
            self.recorded.pop((tokens, grid), None)
            self.recorded[tokens, grid] = None

    def _of_an_earlier_image(self, tokens: int, mixer: Mixer) -> Grid | None:
        """The grid that this many tokens had in a forward pass, of which gradient checkpointing runs a part again.

        It is the latest. If a mixer is run again twice, and two grids are possible, it cannot be decided.
        """
        grids = [grid for count, grid in self.recorded if count == tokens]
        if len(grids) > 1 and mixer.local_parts() and (mixer, tokens) in self.recomputed:
            raise ValueError(
                f"{tokens} tokens were on a grid {grids[-2]} and on {grids[-1]}: "
                "with gradient checkpointing, go backward after each of two such images"
            )
        self.recomputed.add((mixer, tokens))
        return grids[-1] if grids else self.grid


def _goes_backward() -> bool:
    """Whether gradient checkpointing may be running a part of the forward pass again."""
    return not torch.compiler.is_compiling() and backward_is_running()


class PatchGrids:
    """The patch embeddings of a model, each with its `TokenGrid`."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.found: dict[nn.Module, TokenGrid] = {}

    def of(self, name: str) -> TokenGrid | None:
        """The grid of the attention of this name: that of the innermost module around it that has a patch embedding."""
        while name:
            name = name.rpartition(".")[0]
            owner = self.model.get_submodule(name)
            embedding = _embedding_of(owner)
            if embedding is not None:
                known = getattr(embedding, "token_grid", None)  # of an earlier swap
                return self.found.setdefault(embedding, TokenGrid(_prefix_of(owner)) if known is None else known)
        return None

    def check_fits(self, grid: TokenGrid, example: Any, tokens: int) -> None:
        """Raise `SwapSkipped` unless this many tokens are those of the example's images, which are (B, C, H, W)."""
        values = example.values() if isinstance(example, Mapping) else [example]
        images = next((value for value in values if isinstance(value, Tensor) and value.ndim == 4), None)
        embedding = next(embedding for embedding, found in self.found.items() if found is grid)
        if images is not None:
            grid(embedding, (images,), {})
        if grid.grid is None or tokens != (grid.num_prefix_tokens or 0) + prod(grid.grid):
            raise SwapSkipped(f"its {tokens} tokens are not those of the image, which local=True needs: pass local=False")

    def hook(self) -> None:
        """Register the grids that are in use as hooks of their embeddings."""
        for embedding, grid in self.found.items():
            if getattr(embedding, "token_grid", None) is None:
                embedding.register_forward_pre_hook(grid, with_kwargs=True)
                embedding.token_grid = grid  # type: ignore[assignment]  # a plain object, found by the next swap


def mix(mixer: Mixer, x: Tensor, token_grid: TokenGrid | None, rotation: Rotation | None = None) -> Tensor:
    """Apply the mixer to tokens (B, N, C) on their grid, or without a grid if it is unknown."""
    if token_grid is None:
        return mixer(x, rotation=rotation)
    grid, prefix = token_grid.locate(x.shape[1], mixer)
    return mixer(x, grid, num_prefix_tokens=prefix, rotation=rotation)


@torch.no_grad()
def record_size(model: nn.Module, images: Tensor) -> None:
    """Record the size of images, (B, C, H, W), in a model before a part of it is called on its own."""
    for owner in model.modules():
        embedding = _embedding_of(owner)
        if embedding is not None:
            embedding(images[:1])


def _embedding_of(owner: nn.Module) -> nn.Module | None:
    """The module that cuts images into patches: `patch_embed` in timm, `embeddings.patch_embeddings` in transformers.

    In CLIP, SigLIP and DINOv3 of transformers it is a bare convolution; in torchvision's ViT too, `conv_proj`.
    """
    if isinstance(owner, VisionTransformer):
        return owner.conv_proj if isinstance(owner.conv_proj, nn.Conv2d) else None
    timm_embedding = getattr(owner, "patch_embed", None)
    if isinstance(timm_embedding, nn.Module) and hasattr(timm_embedding, "dynamic_feat_size"):
        return timm_embedding
    embeddings = getattr(owner, "embeddings", None)
    embedding = getattr(embeddings, "patch_embeddings", getattr(embeddings, "patch_embedding", None))
    if isinstance(embedding, nn.Conv2d):
        return embedding if embedding.kernel_size == embedding.stride else None
    return embedding if isinstance(embedding, nn.Module) and hasattr(embedding, "patch_size") else None


def _prefix_of(owner: Any) -> int | None:
    """How many tokens a model puts before the grid; None if it cannot be found out."""
    if hasattr(owner, "patch_embed"):
        return getattr(owner, "num_prefix_tokens", None)
    if isinstance(owner, VisionTransformer):
        return int(owner.class_token.shape[1])
    tokens = [getattr(owner.embeddings, name, None) for name in PREFIX_TOKENS]
    return sum(1 if token.ndim == 1 else token.shape[1] for token in tokens if isinstance(token, Tensor))
