"""Enhanced linear attention (Cai et al., "EfficientViT: Multi-Scale Linear Attention", ICCV 2023)."""

from typing_extensions import Unpack

from .linear import LinearAttention
from .mixer import MixerOptions


class EnhancedAttention(LinearAttention):
    """ReLU linear attention whose block has a 3x3 depthwise convolution in the MLP's hidden layer (`DepthwiseMlp`).

    Args:
        dim, num_heads: channels, and heads that divide them.
        local: add the paper's local residual too.
        options: as for every `Mixer`.
    """

    depthwise_mlp = True

    def __init__(self, dim: int, num_heads: int = 8, *, local: bool = False, **options: Unpack[MixerOptions]) -> None:
        super().__init__(dim, num_heads, kernel="relu", local=local, **options)
