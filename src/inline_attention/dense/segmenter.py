"""Segmenters, which label every pixel: SemanticFPN, and UperNet with the decoder of segmentation-models-pytorch."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork

from ..compat import upernet_decoder
from ..models.in_parts import ImageInParts
from ..ops.masks import check_image_mask
from .pyramid import Pyramid

SEGMENTERS = ("semantic_fpn", "upernet")
COARSEST_STRIDE = 32
"""Stride of the last map: the decoders need image sides that are multiples of it."""
DROPOUT = 0.1
"""Share of channels that training drops before the classifier."""
MAX_GROUPS = 32
MIN_CHANNELS_PER_GROUP = 4
"""Of GroupNorm, so that a map of one pixel has something to normalise, too."""


class Segmenter(nn.Module):
    """Four maps of a backbone, a decoder that merges them at stride 4, a 1x1 convolution to classes, and bilinear upsampling.

    Args:
        backbone: gives maps at strides 4, 8, 16, 32.
        head: one of SEGMENTERS.
        classes: how many there are.
        width: channels of the decoder; SemanticFPN merges at half of them.
    """

    def __init__(self, backbone: Pyramid, head: str, classes: int, *, width: int = 256) -> None:
        super().__init__()
        _check(head, classes, width)
        self.backbone = backbone
        self.auxiliary: nn.Module | None = None
        if head == "semantic_fpn":
            self.decoder: nn.Module = SemanticFpn(backbone.channels, width)
            merged = width // 2
        else:
            self.decoder = upernet_decoder(backbone.channels, width)
            self.auxiliary = _auxiliary_head(backbone.channels[2], width // 2, classes)
            merged = width
        self.head = nn.Conv2d(merged, classes, 1)
        _init_decoder(self.decoder)
        _init_classifier(self.head)

    def forward(self, pixels: Tensor | ImageInParts, mask: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        """Images (B, C, H, W) of any size -> logits (B, classes, H, W). Sides are zero-padded to multiples of 32.

        In training a tuple: the logits, and for UperNet the auxiliary head's logits, of the same shape.

        `mask`, (B, H, W), is True where a pixel is valid, see `Backbone.forward`. Tokens without a valid pixel reach the
        decoder as zeros, and count in its normalisation; their own logits mean nothing.
        """
        if isinstance(pixels, ImageInParts):
            return pixels.run(self)
        if self.training and len(pixels) == 1 and self._normalises_single_pixels():
            raise ValueError("UperNet cannot be trained on a batch of one image, it normalises over the batch: take 2 or more")
        size = pixels.shape[2], pixels.shape[3]
        maps, coarse = self._coarse_logits(pixels, mask)
        logits = upsample_logits(coarse, size)
        if not self.training:
            return logits
        return (logits,) if self.auxiliary is None else (logits, upsample_logits(self.auxiliary(maps[2]), size))

    def coarse_logits(self, pixels: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits at a quarter of the resolution, (B, classes, h, w); `upsample_logits` turns them into those of `forward`."""
        return self._coarse_logits(pixels, mask)[1]

    def _coarse_logits(self, pixels: Tensor, mask: Tensor | None) -> tuple[list[Tensor], Tensor]:
        if mask is not None:
            check_image_mask(mask, pixels)
        height, width = pixels.shape[2:]
        pixels = F.pad(pixels, (0, -width % COARSEST_STRIDE, 0, -height % COARSEST_STRIDE))
        maps = self.backbone(pixels, None if mask is None else extend_mask(mask, *pixels.shape[2:]))
        return maps, self.decode(maps)

    def decode(self, maps: Sequence[Tensor]) -> Tensor:
        """The backbone's four maps -> logits at stride 4."""
        # UperNet's decoder ignores the maps at strides 1 and 2, and writes into its input list: hence a new one.
        merged = self.decoder(maps if isinstance(self.decoder, SemanticFpn) else [maps[0], maps[0], *maps])
        logits: Tensor = self.head(merged)
        return logits

    def _normalises_single_pixels(self) -> bool:
        """Whether a BatchNorm of this process alone gets maps of 1x1, as in UperNet's pyramid pooling."""
        pooling = getattr(self.decoder, "psp", None)
        return pooling is not None and any(isinstance(m, nn.BatchNorm2d) and m.training for m in pooling.modules())

    def no_weight_decay(self) -> set[str]:
        """Names of the backbone's parameters without weight decay."""
        return {f"backbone.{name}" for name in self.backbone.no_weight_decay()}

    def group_matcher(self, coarse: bool = False) -> Callable[[str], tuple[float, ...]]:
        """The depth of a parameter by its name, for layer-wise learning rates: the backbone's layers, then all else."""
        depth = self.backbone.group_matcher(coarse=coarse)
        return lambda name: depth(name.removeprefix("backbone.")) if name.startswith("backbone.") else (float("inf"),)


def extend_mask(mask: Tensor, height: int, width: int) -> Tensor:
    """The mask (B, H, W) of a padded image: padding is valid where the nearest pixel of the image is.

    So a mask that is True everywhere changes nothing, and padding beside a background is background.
    """
    return F.pad(mask.float(), (0, width - mask.shape[2], 0, height - mask.shape[1]), mode="replicate").bool()


def upsample_logits(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Logits (B, n, h, w) of an image that was padded to multiples of 32 -> (B, n, *size), without the padding."""
    padded = [side + -side % COARSEST_STRIDE for side in size]
    return F.interpolate(logits, size=padded, mode="bilinear")[..., : size[0], : size[1]]


class SemanticFpn(nn.Module):
    """SemanticFPN's decoder, the semantic branch of Panoptic FPN.

    Four maps brought to one width, from coarse to fine; each upsampled step by step to the finest; their sum.
    segmentation-models-pytorch has one, too, but without the pyramid's 3x3 convolutions, a third of the cost.

    Args:
        channels: of the maps at strides 4, 8, 16, 32.
        width: of the pyramid, a multiple of 8; the sum has half of it.
    """

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        if width < 1 or width % (2 * MIN_CHANNELS_PER_GROUP):
            raise ValueError(f"semantic_fpn needs a width that is a multiple of {2 * MIN_CHANNELS_PER_GROUP}, got {width}")
        self.neck = FeaturePyramidNetwork(list(channels), width)
        self.branches = nn.ModuleList(_branch(width, width // 2, doublings) for doublings in range(len(channels)))
        self.dropout = nn.Dropout2d(DROPOUT)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Maps (B, channels[i], h / 2^i, w / 2^i), divided without remainder -> (B, width / 2, h, w)."""
        levels = self.neck(OrderedDict((str(place), level) for place, level in enumerate(maps)))
        upsampled = [branch(level) for branch, level in zip(self.branches, levels.values(), strict=True)]
        merged: Tensor = self.dropout(torch.stack(upsampled).sum(0))
        return merged


def _branch(channels: int, out: int, doublings: int) -> nn.Sequential:
    """A convolution for each doubling of the resolution, one where there is none."""
    steps: list[nn.Module] = []
    for place in range(max(1, doublings)):
        convolution = nn.Conv2d(channels if place == 0 else out, out, 3, padding=1, bias=False)
        steps += [convolution, nn.GroupNorm(_groups(out), out), nn.ReLU(inplace=True)]
        if doublings:
            # Without align_corners: pixels keep their places, whatever the map's size.
            steps.append(nn.Upsample(scale_factor=2.0, mode="bilinear"))
    return nn.Sequential(*steps)


def _groups(channels: int) -> int:
    """The most groups up to 32 that divide the channels into groups of four or more."""
    counts = range(1, MAX_GROUPS + 1)
    return max(count for count in counts if channels % count == 0 and channels // count >= MIN_CHANNELS_PER_GROUP)


def _check(head: str, classes: int, width: int) -> None:
    if head not in SEGMENTERS:
        raise ValueError(f"there is no segmenter {head!r}; there are {', '.join(SEGMENTERS)}")
    if classes < 1:
        raise ValueError(f"a segmenter needs at least one class, got classes={classes}")
    if width < 2:
        raise ValueError(f"{head} needs a width of at least 2, got width={width}")


def _auxiliary_head(channels: int, width: int, classes: int) -> nn.Sequential:
    """mmsegmentation's FCN head: logits (B, classes, H / 16, W / 16) from the third map."""
    convolution, classifier = nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.Conv2d(width, classes, 1)
    _init_decoder(convolution)
    _init_classifier(classifier)
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.Dropout2d(0.1), classifier)


def _init_decoder(module: nn.Module) -> None:
    """Initialise convolutions as segmentation-models-pytorch does: for ReLU, biases zero."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_uniform_(part.weight, nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def _init_classifier(convolution: nn.Conv2d) -> None:
    assert convolution.bias is not None
    nn.init.xavier_uniform_(convolution.weight)
    nn.init.zeros_(convolution.bias)
