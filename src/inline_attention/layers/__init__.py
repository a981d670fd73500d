"""L1: modules that own parameters. `MIXERS` names every attention that a block can carry."""

from ..ops.checks import check_name
from .angular import AngularAttention
from .block import Block
from .efficient import EfficientAttention
from .enhanced import EnhancedAttention
from .focused import FocusedAttention
from .hydra import HydraAttention
from .inline import InLineAttention
from .linear import LinearAttention
from .mixer import AttentionRows, Mixer
from .softmax import SoftmaxAttention


class _Mixers(dict[str, type[Mixer]]):
    def __missing__(self, name: str) -> type[Mixer]:
        check_name("mixer", name, self)
        raise KeyError(name)


MIXERS = _Mixers(
    inline=InLineAttention,
    softmax=SoftmaxAttention,
    linear=LinearAttention,
    efficient=EfficientAttention,
    hydra=HydraAttention,
    angular=AngularAttention,
    enhanced=EnhancedAttention,
    focused=FocusedAttention,
)
"""Name -> class; an unknown name is a ValueError. Tests and models read it: a new mixer is one file and one line here."""

__all__ = [
    "MIXERS",
    "AngularAttention",
    "AttentionRows",
    "Block",
    "EfficientAttention",
    "EnhancedAttention",
    "FocusedAttention",
    "HydraAttention",
    "InLineAttention",
    "LinearAttention",
    "Mixer",
    "SoftmaxAttention",
]
