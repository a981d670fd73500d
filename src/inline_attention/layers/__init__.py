"""L1: modules that own parameters. `MIXERS` names every attention that a block can carry."""

from .angular import AngularAttention
from .efficient import EfficientAttention
from .enhanced import EnhancedAttention
from .focused import FocusedAttention
from .hydra import HydraAttention
from .inline import InLineAttention
from .linear import LinearAttention
from .mixer import AttentionRows, Mixer
from .softmax import SoftmaxAttention

MIXERS: dict[str, type[Mixer]] = {
    "inline": InLineAttention,
    "softmax": SoftmaxAttention,
    "linear": LinearAttention,
    "efficient": EfficientAttention,
    "hydra": HydraAttention,
    "angular": AngularAttention,
    "enhanced": EnhancedAttention,
    "focused": FocusedAttention,
}
"""Name -> class. Tests and models read it: a new mixer is one file and one line here."""

__all__ = ["MIXERS", "AttentionRows", "InLineAttention", "Mixer"]
