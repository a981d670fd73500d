"""A backbone that labels every pixel: SemanticFPN, and UperNet with the decoder of segmentation-models-pytorch."""

from collections.abc import Callable

import torch.nn.functional as F
from segmentation_models_pytorch.base.initialization import initialize_decoder, initialize_head
from segmentation_models_pytorch.decoders.upernet.decoder import UPerNetDecoder
from torch import Tensor, nn

from .pyramid import Pyramid
from .semantic_fpn import SemanticFpn

SEGMENTERS = ("semantic_fpn", "upernet")
COARSEST = 32
"""Stride of the last map: decoders want sides that it divides."""


class Segmenter(nn.Module):
    """Four maps of a backbone, a decoder that merges them at stride 4, a 1x1 convolution to classes, and bilinear enlargement.

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
            self.decoder = SemanticFpn(backbone.channels, width)
            merged = width // 2
        else:
            self.decoder = UPerNetDecoder([0, 0, *backbone.channels], decoder_channels=width)
            self.auxiliary = _auxiliary(backbone.channels[2], width // 2, classes)
            merged = width
        self.head = nn.Conv2d(merged, classes, 1)
        initialize_decoder(self.decoder)
        initialize_head(self.head)

    def forward(self, pixels: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Logits (B, classes, H, W) of pictures (B, C, H, W) of any size; zeros to the right and below make up what is missing.

        In training a tuple: of the logits, and for UperNet the auxiliary head's as well, of the same shape.
        """
        if self.training and len(pixels) == 1 and self._pools_to_one():
            raise ValueError(
                "UperNet cannot be trained on a batch of one picture, it normalises over the batch: take 2 or more"
            )
        size = pixels.shape[2], pixels.shape[3]
        maps, coarse = self._coarse(pixels)
        logits = grown(coarse, size)
        if not self.training:
            return logits
        return (logits,) if self.auxiliary is None else (logits, grown(self.auxiliary(maps[2]), size))

    def coarse(self, pixels: Tensor) -> Tensor:
        """Logits at a quarter of the resolution, (B, classes, h, w); `grown` makes of them what `forward` gives."""
        return self._coarse(pixels)[1]

    def _coarse(self, pixels: Tensor) -> tuple[list[Tensor], Tensor]:
        pixels = F.pad(pixels, (0, -pixels.shape[3] % COARSEST, 0, -pixels.shape[2] % COARSEST))
        maps = self.backbone(pixels)
        # UperNet's decoder leaves out maps at strides 1 and 2, and writes into the list that it is given.
        merged = self.decoder(maps if isinstance(self.decoder, SemanticFpn) else [pixels, pixels, *maps])
        return maps, self.head(merged)

    def _pools_to_one(self) -> bool:
        """Whether a BatchNorm of this process alone sees maps of 1x1."""
        if not isinstance(self.decoder, UPerNetDecoder):
            return False
        return any(isinstance(module, nn.BatchNorm2d) and module.training for module in self.decoder.psp.modules())

    def no_weight_decay(self) -> set[str]:
        """The backbone's own choice."""
        return {f"backbone.{name}" for name in self.backbone.no_weight_decay()}

    def group_matcher(self, coarse: bool = False) -> Callable[[str], tuple[float, ...]]:
        """Parameters by depth, for layer-wise learning rates: the backbone's layers, then all else."""
        depth = self.backbone.group_matcher(coarse=coarse)

        def layer(name: str) -> tuple[float, ...]:
            return depth(name.removeprefix("backbone.")) if name.startswith("backbone.") else (float("inf"),)

        return layer


def grown(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Logits (B, n, h, w) of a picture that was padded to a multiple of 32 -> (B, n, *size), without what was padded."""
    padded = [side + -side % COARSEST for side in size]
    return F.interpolate(logits, size=padded, mode="bilinear")[..., : size[0], : size[1]]


def _check(head: str, classes: int, width: int) -> None:
    if head not in SEGMENTERS:
        raise ValueError(f"there is no segmenter {head!r}; there are {', '.join(SEGMENTERS)}")
    if classes < 1:
        raise ValueError(f"a segmenter needs at least one class, got classes={classes}")
    if width < 2:
        raise ValueError(f"{head} needs a width of at least 2, got width={width}")


def _auxiliary(channels: int, width: int, classes: int) -> nn.Sequential:
    """mmsegmentation's FCN head: logits (B, classes, H / 16, W / 16) of the third map."""
    head = nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.1),
        nn.Conv2d(width, classes, 1),
    )
    initialize_decoder(head[:-1])
    initialize_head(head[-1])
    return head
