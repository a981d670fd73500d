"""Where the tokens of a picture lie, for attention deep inside models that pass tokens on and not their grid.

A `TokenGrid` is told the size of each picture by a hook on the model's patch embedding, and asked by the attention of that
model. One belongs to each patch embedding, so that models, or towers of a model, do not disturb each other.

Shapes: tokens (B, N, C), N = prefix tokens + H * W.
"""

from math import prod
from typing import Any

import torch
from timm.layers import to_2tuple
from torch import Tensor, nn

from ..layers import Mixer
from ..ops.checks import Grid


class TokenGrid:
    """The grid (H, W) of the pictures that are on their way through a model.

    It is a forward pre-hook of the patch embedding. Copies, by `copy.deepcopy` or `pickle`, begin without a picture.

    Args:
        num_prefix_tokens: how many tokens the model puts before the grid; None if no one knows, and then there must be none.
    """

    def __init__(self, num_prefix_tokens: int | None = None) -> None:
        self.num_prefix_tokens = num_prefix_tokens
        self.grid: Grid | None = None
        self.learning = False
        """Whether the pictures may be asked for gradients."""
        self.awaited: dict[tuple[int, Grid], None] = {}
        """Token counts with their grids that gradient checkpointing may come back to after other pictures, latest last."""
        self.answered: set[tuple[Mixer, int]] = set()
        """Which mixers have come back, with how many tokens."""

    def __call__(self, embedding: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Note the size of the pictures that the embedding is about to cut into patches."""
        pictures = inputs[0] if inputs else next(iter(options.values()))
        height, width = pictures.shape[-2:]
        if getattr(embedding, "dynamic_img_pad", False):  # as whole numbers, which an exported graph can keep
            down, across = to_2tuple(embedding.patch_size)
            above = getattr(embedding, "feature_ratio", (1, 1))  # of the net that a hybrid cuts the maps of
            self.grid = ((height // above[0] + down - 1) // down, (width // above[1] + across - 1) // across)
        elif hasattr(embedding, "dynamic_feat_size"):
            self.grid = tuple(embedding.dynamic_feat_size((height, width)))
        else:
            patch = to_2tuple(embedding.patch_size)
            self.grid = (height // patch[0], width // patch[1])
        if torch.compiler.is_compiling():
            return
        if self.answered or _goes_backward():
            self.awaited.clear()
            self.answered.clear()
        self.learning = torch.is_grad_enabled()

    def __reduce__(self) -> tuple[type["TokenGrid"], tuple[int | None]]:
        return type(self), (self.num_prefix_tokens,)

    def locate(self, tokens: int, mixer: Mixer) -> tuple[Grid | None, int]:
        """The grid of so many tokens, and how many of them come before it.

        Tokens that do not fit the picture have no grid, which is a ValueError if the mixer needs one.
        """
        grid = self._of_an_earlier_picture(tokens, mixer) if _goes_backward() else self.grid
        if grid is not None:
            prefix = self.num_prefix_tokens or 0
            if prefix + prod(grid) == tokens:
                self._await(tokens, grid)
                return grid, prefix
        if not mixer.local_parts():
            return None, 0
        if grid is None:
            raise ValueError("no picture has come through the patch embedding yet: call the whole model, not a part of it")
        before = "" if self.num_prefix_tokens is None else f" after {self.num_prefix_tokens} others"
        raise ValueError(
            f"attention got {tokens} tokens, the picture has a grid {grid} of {prod(grid)}{before}: if the model drops or "
            "merges patches, swap to a mixer without local part (local=False)"
        )

    def _await(self, tokens: int, grid: Grid) -> None:
        """Remember a grid for gradient checkpointing."""
        if self.learning and not torch.compiler.is_compiling() and not _goes_backward():
            self.awaited.pop((tokens, grid), None)
            self.awaited[tokens, grid] = None

    def _of_an_earlier_picture(self, tokens: int, mixer: Mixer) -> Grid | None:
        """The grid that so many tokens had in a forward pass, of which gradient checkpointing runs a part again.

        It is the latest. If a mixer comes back twice, and there are two that it may mean, there is no telling which.
        """
        found = [grid for count, grid in self.awaited if count == tokens]
        if len(found) > 1 and mixer.local_parts() and (mixer, tokens) in self.answered:
            raise ValueError(
                f"{tokens} tokens were on a grid {found[-2]} and on {found[-1]}: "
                "with gradient checkpointing, go backward after each of two such pictures"
            )
        self.answered.add((mixer, tokens))
        return found[-1] if found else self.grid


def _goes_backward() -> bool:
    """Whether a backward pass is under way, in which gradient checkpointing runs parts of the forward pass again."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class Places:
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
                hooks = [hook for hook in embedding._forward_pre_hooks.values() if isinstance(hook, TokenGrid)]
                return self.found.setdefault(embedding, hooks[0] if hooks else TokenGrid(_prefix_of(owner)))
        return None

    def hook(self) -> None:
        """Have the embeddings tell the grids that were asked for."""
        for embedding, place in self.found.items():
            if place not in embedding._forward_pre_hooks.values():
                embedding.register_forward_pre_hook(place, with_kwargs=True)


def mix(mixer: Mixer, x: Tensor, place: TokenGrid | None) -> Tensor:
    """What the mixer makes of tokens (B, N, C) that lie where `place` says; without one the mixer does without a grid."""
    if place is None:
        return mixer(x)
    grid, prefix = place.locate(x.shape[1], mixer)
    return mixer(x, grid, num_prefix_tokens=prefix)


@torch.no_grad()
def tell_size(model: nn.Module, pictures: Tensor) -> None:
    """Let a model know the size of pictures, (B, C, H, W), before a part of it is called on its own."""
    for owner in model.modules():
        embedding = _embedding_of(owner)
        if embedding is not None:
            embedding(pictures[:1])


def _embedding_of(owner: nn.Module) -> nn.Module | None:
    """What cuts pictures into patches: `patch_embed` in timm, `embeddings.patch_embeddings` in transformers."""
    timms = getattr(owner, "patch_embed", None)
    if isinstance(timms, nn.Module) and hasattr(timms, "dynamic_feat_size"):
        return timms
    theirs = getattr(getattr(owner, "embeddings", None), "patch_embeddings", None)
    return theirs if isinstance(theirs, nn.Module) and hasattr(theirs, "patch_size") else None


def _prefix_of(owner: Any) -> int | None:
    """How many tokens a model puts before the grid, if it can be told from outside."""
    if hasattr(owner, "patch_embed"):
        return getattr(owner, "num_prefix_tokens", None)
    tokens = [getattr(owner.embeddings, name, None) for name in ("cls_token", "distillation_token", "register_tokens")]
    return sum(token.shape[1] for token in tokens if isinstance(token, Tensor))
