"""L1: modules that own parameters. `MIXERS` names every attention that a block can carry."""

from ..ops.checks import check_name
from .agent import AgentAttention
from .angular import AngularAttention
from .block import Block
from .efficient import EfficientAttention
from .enhanced import EnhancedAttention
from .focused import FocusedAttention
from .hydra import HydraAttention
from .inline import InLineAttention
from .linear import LinearAttention
from .mala import MalaAttention
from .mhla import MhlaAttention
from .mila import MilaAttention
from .mixer import AttentionRows, Mixer
from .nala import NalaAttention
from .pola import PolaAttention
from .rala import RalaAttention
from .softmax import SoftmaxAttention
from .vit3 import Vit3Attention


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
    mala=MalaAttention,
    rala=RalaAttention,
    pola=PolaAttention,
    mhla=MhlaAttention,
    agent=AgentAttention,
    mila=MilaAttention,
    nala=NalaAttention,
    vit3=Vit3Attention,
)
"""Name -> class; an unknown name is a ValueError. Tests and models read it: a new mixer is one file and one line here."""

__all__ = [
    "MIXERS",
    "AgentAttention",
    "AngularAttention",
    "AttentionRows",
    "Block",
    "EfficientAttention",
    "EnhancedAttention",
    "FocusedAttention",
    "HydraAttention",
    "InLineAttention",
    "LinearAttention",
    "MalaAttention",
    "MhlaAttention",
    "MilaAttention",
    "Mixer",
    "NalaAttention",
    "PolaAttention",
    "RalaAttention",
    "SoftmaxAttention",
    "Vit3Attention",
]
