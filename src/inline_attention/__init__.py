"""Injective Linear Attention: attention for vision transformers at a cost linear in the number of tokens."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

_MISSING = [name for name in ("torch", "timm") if find_spec(name) is None]

if TYPE_CHECKING or not _MISSING:
    from .compat import configure_torch
    from .large.gradients import stream_train
    from .large.open_large_image import open_large_image
    from .large.parallelize import parallelize
    from .large.stream import stream
    from .layers import MIXERS, InLineAttention
    from .models.counting import count
    from .models.load_official import load_official
    from .models.optimized import optimize
    from .models.swap import swap
    from .ops.injective import InjectiveState, injective_linear_attention
    from .ops.kernels import KERNELS

    configure_torch()
else:

    def __getattr__(name: str) -> object:
        """Without torch only `lite` works, for exported models: the other names raise an error with what they need."""
        if name in __all__:
            raise ModuleNotFoundError(
                f"inline_attention.{name} needs {' and '.join(_MISSING)}: pip install inline-attention", name=_MISSING[0]
            )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "KERNELS",
    "MIXERS",
    "InLineAttention",
    "InjectiveState",
    "count",
    "injective_linear_attention",
    "load_official",
    "open_large_image",
    "optimize",
    "parallelize",
    "stream",
    "stream_train",
    "swap",
]
__version__ = "0.2.0"
