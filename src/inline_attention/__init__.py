"""Injective Linear Attention: vision transformers at any resolution, at the price of their projections."""

from .layers import MIXERS, InLineAttention
from .ops.injective import InjectiveState, injective_linear_attention
from .ops.kernels import KERNELS

__all__ = ["KERNELS", "MIXERS", "InLineAttention", "InjectiveState", "injective_linear_attention"]
__version__ = "0.1.0"
