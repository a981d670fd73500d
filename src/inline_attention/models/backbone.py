"""`Backbone`: stages, a norm, a classifier, and the whole interface of a timm model. The four families differ in their stages.

Images are (B, in_chans, H, W) of any height and width.
"""

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

import torch
from timm.layers import Format, global_pool_nlc, to_2tuple, trunc_normal_
from torch import Tensor, nn

from ..layers.kernel import ReluAffine
from ..layers.softmax import PositionBias
from ..ops.checks import Grid, check_matches, check_name, check_tensor
from ..ops.masks import check_image_mask, pool_valid, reduce_mask, zero_invalid
from .adapt_weights import adapt_state_dict
from .in_parts import ImageInParts
from .stage import ConvEmbed, PositionEmbedding, Stage

SMALLEST = 8
"""Pixels: no side of an image may be shorter, nor shorter than two patches."""
POOLS = ("avg", "max", "avgmax", "token", "")
WEIGHT_INITS = ("normal", "xavier")


class Backbone(nn.Module):
    """Stages, a norm, a classifier.

    Args:
        stages: of the family.
        norm: after the last stage, over channels.
        feature_info: for each feature map, its channels, its stride and the module that it comes from.
        img_size: height and width of the position embeddings, one number for a square. Other sizes work too.
        patch_size: pixels along a side of a token of the first stage.
        in_chans: channels of the images.
        num_classes: outputs of the classifier; 0 for none.
        global_pool: how tokens become one vector: "avg", "max", "avgmax", "token" (the class token, where there is one), or ""
            to leave them.
        drop_rate: dropout before the classifier.
        weight_init: of linear maps: "normal", of standard deviation 0.02, as for the published models; "xavier", by their width
            (Glorot & Bengio, 2010), from which narrow models learn faster. The classifier is always "normal".
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        norm: nn.Module,
        feature_info: list[dict[str, Any]],
        *,
        img_size: int | tuple[int, int],
        patch_size: int,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        weight_init: str = "normal",
    ) -> None:
        super().__init__()
        self.img_size = self._checked_size(img_size, patch_size)
        if num_classes < 0:
            raise ValueError(f"num_classes must not be negative, got {num_classes}")
        self.patch_size, self.in_chans, self.num_classes = patch_size, in_chans, num_classes
        self.stages = nn.Sequential(*stages)
        self.norm = norm
        self.feature_info = feature_info
        self.num_features = self.head_hidden_size = self.embed_dim = int(feature_info[-1]["num_chs"])
        self.num_prefix_tokens = stages[-1].num_prefix_tokens
        self.global_pool = self._checked_pool(global_pool)
        self.pruned = False
        self.drop_rate = drop_rate
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        self.init_weights(weight_init)
        self.register_load_state_dict_pre_hook(adapt_state_dict)

    def _stages(self) -> list[Stage]:
        return [stage for stage in self.stages if isinstance(stage, Stage)]

    def depths(self) -> tuple[int, ...]:
        """Blocks of each stage."""
        return tuple(len(stage.blocks) for stage in self._stages())

    @staticmethod
    def _checked_size(img_size: int | tuple[int, int], patch_size: int) -> tuple[int, int]:
        height, width = to_2tuple(img_size)
        least = _least(patch_size)
        if patch_size < 1 or min(height, width) < least:
            raise ValueError(f"img_size must be at least {least} a side for patch_size={patch_size}, got {height} x {width}")
        return height, width

    def _checked_pool(self, global_pool: str) -> str:
        known = [pool for pool in POOLS if pool != "token" or self.num_prefix_tokens]
        if global_pool not in known:
            raise ValueError(f"unknown global_pool {global_pool!r}; known for this model: {', '.join(map(repr, known))}")
        return global_pool

    @torch.no_grad()
    def init_weights(self, weight_init: str = "normal") -> None:
        """Initialise linear maps by `weight_init`, biases with zero, everything else by its module's `reset_parameters`."""
        check_name("weight_init", weight_init, WEIGHT_INITS)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                _init_linear(module, xavier=weight_init == "xavier" and module is not self.head)
            elif callable(reset := getattr(module, "reset_parameters", None)):
                reset()

    # Forward passes

    def forward(self, x: Tensor | ImageInParts, mask: Tensor | None = None) -> Tensor:
        """Images (B, in_chans, H, W) -> logits (B, num_classes), or pooled features if there is no classifier.

        `mask`, (B, H, W), is True where a pixel is valid, for images with a background or without data in places. Masked pixels
        have no influence: they are zero on entry, and tokens without a valid pixel are left out of every sum, softmax and mean.
        """
        if isinstance(x, ImageInParts):
            return x.run(self)
        return self.forward_head(self.forward_features(x, mask), mask=mask)

    def forward_features(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, C, H', W') after the last stage and its norm; with a class token, tokens (B, 1 + H' * W', C).

        With a mask of the pixels, tokens without a valid one are zero.
        """
        self.check_images(x)
        if mask is None:
            return self._norm(self.stages(x))
        x = _masked(x, mask)
        for stage in self._stages():
            mask = reduce_mask(mask, stage.embed.stride)
            x = stage(x, mask)
        return self._masked_norm(x, mask)

    def _norm(self, x: Tensor) -> Tensor:
        """Over channels, of a map (B, C, H, W) or of tokens (B, N, C)."""
        normed: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if x.ndim == 4 else self.norm(x)
        return normed

    def _masked_norm(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """`_norm`, with zeros where the mask of the tokens, (B, H', W'), is False."""
        return self._norm(x) if mask is None else zero_invalid(self._norm(x), mask)

    def forward_head(self, x: Tensor, pre_logits: bool = False, mask: Tensor | None = None) -> Tensor:
        """From the output of `forward_features` to logits; with `pre_logits`, to the input of the classifier.

        A mask, of the image's pixels or of its last map's tokens, leaves tokens out of the pooling.
        """
        tokens = x.flatten(2).mT if x.ndim == 4 else x
        if mask is None or self.global_pool in ("token", ""):
            pooled = global_pool_nlc(tokens, pool_type=self.global_pool, num_prefix_tokens=self.num_prefix_tokens)
        else:
            tokens = tokens[:, self.num_prefix_tokens :]
            pooled = pool_valid(tokens, self._token_mask(mask, tokens.shape[1]), self.global_pool)
        if not self.global_pool and x.ndim == 4:
            pooled = x.permute(0, 2, 3, 1) if self.num_classes and not pre_logits else x
        pooled = self.head_drop(pooled)
        out: Tensor = pooled if pre_logits else self.head(pooled)
        return out

    def _token_mask(self, mask: Tensor, tokens: int) -> Tensor:
        """(B, tokens) of the last map, from its own mask or from that of the pixels."""
        stride = prod(stage.embed.stride for stage in self._stages())
        reduced = mask if mask[0].numel() == tokens else reduce_mask(mask, stride)
        if reduced[0].numel() != tokens:
            raise ValueError(f"mask {tuple(mask.shape)} fits neither the image nor the {tokens} tokens of its last map")
        return reduced.flatten(1)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        mask: Tensor | None = None,
    ) -> Any:
        """Final features and intermediate ones.

        Args:
            x: images.
            indices: which of `feature_info` to return: the last n, these, or all.
            return_prefix_tokens: return pairs of maps and prefix tokens, of which there may be none.
            norm: apply the last norm to those of the last stage.
            stop_early: stop after the last one that is returned.
            output_fmt: "NCHW", "NHWC" or "NLC".
            intermediates_only: leave the features after the last stage out.
            mask: (B, H, W), True where a pixel is valid, see `forward`.

        Returns:
            (output of `forward_features`, or the last features if stopped early; list of maps), or the list alone.
        """
        check_name("output_fmt", str(Format(output_fmt).value), ("NCHW", "NHWC", "NLC"))
        self.check_images(x)
        x = x if mask is None else _masked(x, mask)
        taps = self.taps(indices)
        final = (len(self.stages) - 1, self.depths()[-1] - 1)
        end = max(taps) if stop_early else final
        maps_by_tap: dict[tuple[int, int], Any] = {}
        for number, stage in enumerate(self._stages()[: end[0] + 1]):
            here = sorted({block for at, block in taps if at == number})
            mask = None if mask is None else reduce_mask(mask, stage.embed.stride)
            tokens, grid, taken = stage.collect(x, here, end[1] + 1 if number == end[0] else None, mask)
            for block, features in zip(here, taken, strict=True):
                features = self._masked_norm(features, mask) if norm and number == final[0] else features
                split = _format(features, grid, stage.num_prefix_tokens, Format(output_fmt))
                maps_by_tap[number, block] = split if return_prefix_tokens else split[0]
            x = tokens if stage.num_prefix_tokens else tokens.unflatten(1, grid).permute(0, 3, 1, 2)
        maps = [maps_by_tap[tap] for tap in taps]
        return maps if intermediates_only else (self._masked_norm(x, mask) if end == final else x, maps)

    def get_intermediate_layers(
        self,
        x: Tensor,
        n: int | Sequence[int] = 1,
        reshape: bool = False,
        return_prefix_tokens: bool = False,
        norm: bool = False,
    ) -> list[Any]:
        """The last n features, or those of these indices, as tokens; with `reshape` as maps (B, C, H, W)."""
        maps: list[Any] = self.forward_intermediates(
            x,
            n,
            return_prefix_tokens=return_prefix_tokens,
            norm=norm,
            output_fmt="NCHW" if reshape else "NLC",
            intermediates_only=True,
        )
        return maps

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the layers that these features do not need; return their indices."""
        take = self._take(indices)
        self.pruned, num_stages = True, len(self.stages)
        stage, block = max(self._taps()[index] for index in take)
        self.stages = self.stages[: stage + 1]
        last = self._stages()[stage]
        if prune_norm or stage < num_stages - 1:  # the norm is the last stage's
            self.norm = nn.Identity()
        last.blocks = last.blocks[: block + 1]
        self.num_features = self.head_hidden_size = self.embed_dim = int(self.feature_info[max(take)]["num_chs"])
        self.num_prefix_tokens = last.num_prefix_tokens
        if prune_head:
            self.reset_classifier(0, "")
        return take

    def taps(self, indices: int | Sequence[int] | None = None) -> list[tuple[int, int]]:
        """(stage, block) whose output each of these features is: the last n of `feature_info`, these, or all."""
        return [self._taps()[index] for index in self._take(indices)]

    def _taps(self) -> list[tuple[int, int]]:
        """(stage, block) whose output each of `feature_info` is."""
        taps = []
        for information in self.feature_info:
            _, stage, *rest = information["module"].split(".")
            depths = self.depths()
            if int(stage) < len(depths) and (not rest or int(rest[1]) < depths[int(stage)]):
                taps.append((int(stage), int(rest[1]) if rest else depths[int(stage)] - 1))
        return taps

    def _take(self, indices: int | Sequence[int] | None) -> list[int]:
        count = len(self._taps())
        if isinstance(indices, int):
            if not 1 <= indices <= count:
                raise ValueError(f"the model has {count} features, of which the last {indices} cannot be taken")
            return list(range(count - indices, count))
        chosen = list(range(count) if indices is None else indices)
        if not chosen or not all(-count <= index < count for index in chosen):
            raise ValueError(f"the model has {count} features, 0 to {count - 1}, got indices {chosen}")
        return [index % count for index in chosen]

    def check_images(self, x: Tensor) -> None:
        """Raise unless x is a batch of images, (B, in_chans, H, W), that are large enough."""
        check_tensor("images", x)
        if x.ndim != 4 or x.shape[1] != self.in_chans:
            raise ValueError(f"images must be (batch, {self.in_chans}, height, width), got {tuple(x.shape)}")
        self.check_size(x.shape[2], x.shape[3])
        check_matches("images", x, self)

    def check_size(self, height: int, width: int) -> None:
        """Raise if an image is too small."""
        least = _least(self.patch_size)
        if height < least or width < least:
            raise ValueError(
                f"images must be at least {least} x {least} pixels for patches of {self.patch_size}, got {height} x {width}"
            )

    # The rest of timm's interface

    def get_classifier(self) -> nn.Module:
        """The last linear map."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier; 0 classes for none."""
        if global_pool is not None:
            self.global_pool = self._checked_pool(global_pool)
        self.num_classes = num_classes
        parameter = next(self.parameters())
        head = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        _init_linear(head)
        self.head = head.to(parameter.device, parameter.dtype).train(self.training)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute blocks again in the backward pass instead of keeping their activations."""
        for stage in self._stages():
            stage.grad_checkpointing = enable

    def set_input_size(self, img_size: int | tuple[int, int] | None = None, patch_size: int | None = None) -> None:
        """Change the default size: position embeddings are resampled once instead of at each forward pass.

        Args:
            img_size: height and width, one number for a square; None to keep it.
            patch_size: another patch size, to which the first convolution is resampled; None to keep it.
        """
        self.img_size = self._checked_size(
            self.img_size if img_size is None else img_size, self.patch_size if patch_size is None else patch_size
        )
        if patch_size is not None and patch_size != self.patch_size:
            embed = self._stages()[0].embed
            if isinstance(embed, ConvEmbed):
                embed.set_stride(patch_size)
            for information in self.feature_info:
                information["reduction"] = information["reduction"] * patch_size // self.patch_size
            self.patch_size = patch_size
        stride = 1
        for stage in self._stages():
            stride *= stage.embed.stride
            if stage.positions is not None:
                stage.positions.set_grid(grid_of(self.img_size, stride))

    def no_weight_decay(self) -> set[str]:
        """Names of position embeddings, class tokens, relative position tables, and the bias of a learned kernel."""
        return {
            f"{name}.{parameter}"
            for name, module in self.named_modules()
            for parameter, _ in module.named_parameters(recurse=False)
            if isinstance(module, PositionEmbedding | PositionBias) or (isinstance(module, ReluAffine) and parameter == "bias")
        }

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Parameters by depth, for layer-wise learning rates."""
        return {
            "stem": r"^stages\.0\.(?:embed|positions)",
            "blocks": r"^stages\.(\d+)"
            if coarse
            else [
                (r"^stages\.(\d+)\.(?:embed|positions)", (0,)),
                (r"^stages\.(\d+)\.blocks\.(\d+)", None),
                (r"^norm", (99999,)),
            ],
        }


def _masked(images: Tensor, mask: Tensor) -> Tensor:
    """Images (B, C, H, W), zero where the mask is False: not even a NaN gets from there into outputs or gradients."""
    check_image_mask(mask, images)
    return images.masked_fill(~mask.unsqueeze(1), 0)


def _format(tokens: Tensor, grid: Grid, prefix: int, output_fmt: Format) -> tuple[Tensor, Tensor]:
    """Tokens of the grid as a map or as a sequence; and the tokens before them."""
    before, tokens = tokens[:, :prefix], tokens[:, prefix:]
    if output_fmt != Format.NLC:
        tokens = tokens.unflatten(1, grid)
        tokens = tokens.permute(0, 3, 1, 2) if output_fmt == Format.NCHW else tokens
    return tokens, before


def _least(patch_size: int) -> int:
    """Pixels of the shortest side that an image may have."""
    return max(SMALLEST, 2 * patch_size)


def grid_of(img_size: int | tuple[int, int], stride: int) -> tuple[int, int]:
    """How many tokens an image has, padded where the stride does not divide it."""
    height, width = to_2tuple(img_size)
    return ceil(height / stride), ceil(width / stride)


def pyramid_features(dims: Sequence[int], patch_size: int) -> list[dict[str, Any]]:
    """`feature_info` of a pyramid: a map after each stage, each half as large as the one before."""
    return [
        {"num_chs": dim, "reduction": patch_size * 2**number, "module": f"stages.{number}"} for number, dim in enumerate(dims)
    ]


def _init_linear(module: nn.Module, *, xavier: bool = False) -> None:
    if isinstance(module, nn.Linear):
        if xavier:
            nn.init.xavier_uniform_(module.weight)
        else:
            trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
