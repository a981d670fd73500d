"""What the authors report of their models: never measured here."""

from dataclasses import dataclass

SOURCE = "Han et al., Bridging the Divide: Reconsidering Softmax and Linear Attention, NeurIPS 2024"


@dataclass(frozen=True)
class Reported:
    """The authors' own figures."""

    top1: float | None
    """ImageNet-1K accuracy, percent; None where none is reported."""
    params: str | None = None
    """Parameters as the authors' table prints them, where their code has another number."""


REPORTED = {
    "inline_deit_tiny": Reported(74.5),
    "inline_deit_small": Reported(80.2),
    "inline_deit_base": Reported(82.3),
    "inline_pvt_tiny": Reported(78.2),
    "inline_pvt_small": Reported(82.0),
    "inline_pvt_medium": Reported(83.2),
    "inline_pvt_large": Reported(83.6, params="50.2M"),
    "inline_swin_tiny": Reported(82.4),
    "inline_swin_small": Reported(83.6),
    "inline_swin_base": Reported(84.1),
    "inline_swin_base_384": Reported(None),
    "inline_cswin_tiny": Reported(83.2, params="25M"),
    "inline_cswin_small": Reported(83.8, params="43M"),
    "inline_cswin_base": Reported(84.5, params="96M"),
    "inline_cswin_base_384": Reported(None),
}
"""All fifteen published models. The small siblings (`*_nano`) are this package's own and have no reported accuracy."""
