"""L2: backbones. Importing this registers them with timm: `timm.create_model("inline_swin_tiny")`."""

from .inline_cswin import InLineCSwin
from .inline_deit import InLineDeiT
from .inline_pvt import InLinePVT
from .inline_swin import InLineSwin

__all__ = ["InLineCSwin", "InLineDeiT", "InLinePVT", "InLineSwin"]
