"""Injective Linear Attention: attention for vision transformers at a cost linear in the number of tokens."""

from .layers import MIXERS, InLineAttention
from .models.checkpoints import load_official
from .models.counting import count
from .models.optimized import optimize
from .models.parallel import parallelize
from .models.streaming import stream
from .ops.injective import InjectiveState, injective_linear_attention
from .ops.kernels import KERNELS

__all__ = [
    "KERNELS",
    "MIXERS",
    "InLineAttention",
    "InjectiveState",
    "count",
    "injective_linear_attention",
    "load_official",
    "optimize",
    "parallelize",
    "stream",
]
__version__ = "0.1.0"
