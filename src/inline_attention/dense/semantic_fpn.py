"""SemanticFPN's decoder: the semantic branch of Panoptic FPN.

segmentation-models-pytorch has one, too, but leaves out the pyramid's 3x3 convolutions, and with them a third of the cost.
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork

DROPPED = 0.1
"""Share of channels that training drops before the classifier."""
GROUPS = 32
TOGETHER = 4
"""Channels that a group of GroupNorm has at least: a map of one pixel has something to normalise, too."""


class SemanticFpn(nn.Module):
    """Four maps brought to one width, from coarse to fine; each enlarged step by step to the finest; their sum.

    Args:
        channels: of the maps at strides 4, 8, 16, 32.
        width: of the pyramid, a multiple of 8; the sum has half of it.
    """

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        if width < 1 or width % (2 * TOGETHER):
            raise ValueError(f"semantic_fpn needs a width that is a multiple of {2 * TOGETHER}, got {width}")
        self.neck = FeaturePyramidNetwork(list(channels), width)
        self.branches = nn.ModuleList(_branch(width, width // 2, doublings) for doublings in range(len(channels)))
        self.dropout = nn.Dropout2d(DROPPED)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Maps (B, channels[i], h / 2^i, w / 2^i), sides divided without rest -> (B, width / 2, h, w)."""
        levels = self.neck(OrderedDict((str(place), level) for place, level in enumerate(maps)))
        enlarged = [branch(level) for branch, level in zip(self.branches, levels.values(), strict=True)]
        merged: Tensor = self.dropout(torch.stack(enlarged).sum(0))
        return merged


def _branch(channels: int, out: int, doublings: int) -> nn.Sequential:
    """A convolution for each doubling, one where there is none."""
    steps: list[nn.Module] = []
    for place in range(max(1, doublings)):
        convolution = nn.Conv2d(channels if place == 0 else out, out, 3, padding=1, bias=False)
        steps += [convolution, nn.GroupNorm(_groups(out), out), nn.ReLU(inplace=True)]
        if doublings:
            steps.append(nn.Upsample(scale_factor=2.0, mode="bilinear"))  # by areas: nothing moves, whatever the map's size
    return nn.Sequential(*steps)


def _groups(channels: int) -> int:
    """The most up to 32 that divide the channels into groups of four or more."""
    return max(count for count in range(1, GROUPS + 1) if channels % count == 0 and channels // count >= TOGETHER)
