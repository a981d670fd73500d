"""The gate: a map of the layer's input that its output is multiplied by, before the output projection."""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.checks import check_name

GateKind = Literal["linear", "silu"]


class Gate(nn.Module):
    """mixed * g(x), with g linear as in MALA, or the SiLU of a linear map as in NaLa and MILA; x is the layer's input.

    Shapes: mixed (B, N, width), x (B, N, C).
    """

    def __init__(
        self,
        dim: int,
        width: int,
        kind: GateKind = "linear",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_name("gate", kind, get_args(GateKind))
        self.kind = kind
        self.map = nn.Linear(dim, width, device=device, dtype=dtype)

    def forward(self, mixed: Tensor, x: Tensor) -> Tensor:
        """The mixed tokens, each channel multiplied by its gate."""
        gate: Tensor = self.map(x)
        return mixed * (F.silu(gate) if self.kind == "silu" else gate)

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        return f"kind={self.kind}"
