"""A linear map for each group of channels: a 1x1 convolution with groups, on vectors."""

from math import sqrt

import torch
from torch import Tensor, nn


class GroupedLinear(nn.Module):
    """Each group of outputs sees its own group of inputs; vectors come and go group by group, (groups, B, features / groups).

    On the single vector of a picture this takes a fraction of the time of a convolution. `weight` is
    (groups, out_features / groups, in_features / groups); it starts like the convolution that it stands for.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        groups: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        size = (groups, out_features // groups, in_features // groups)
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(fan-in), as `nn.Conv1d` starts."""
        bound = 1 / sqrt(self.weight.shape[2])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """(groups, B, in_features / groups) -> (groups, B, out_features / groups)."""
        groups, outputs, _ = self.weight.shape
        return torch.baddbmm(self.bias.view(groups, 1, outputs), x, self.weight.mT)

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        groups, outputs, inputs = self.weight.shape
        return f"in_features={groups * inputs}, out_features={groups * outputs}, groups={groups}"
