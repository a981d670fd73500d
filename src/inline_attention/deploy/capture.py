"""One graph for every batch, height and width.

`torch.export` runs a model on symbols. Where two sizes of the example happen to be equal it takes them to be equal for good,
so the example is chosen such that nothing is: at every stage of a model its map is padded, and has several windows.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..plain.wording import first_line

EXAMPLE = (3, 513, 577)
"""Batch, height and width: odd after every halving, and no multiple of a usual window or patch."""


class InHalf(nn.Module):
    """A model in half precision that takes and gives float32.

    What a layer sums over all tokens it sums in float32, as it does outside of a file.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.half()

    def forward(self, pictures: Tensor) -> Tensor:
        """(B, C, H, W) -> what the model gives."""
        out: Tensor = self.model(pictures.half())
        return out.float()


def capture(model: nn.Module, channels: int = 3) -> ExportedProgram:
    """The model as a graph in which batch, height and width are free; the model itself is left in evaluation mode.

    The program carries guards about the layout of its example in memory, which its results do not depend on: run it as
    `program.module(check_guards=False)`.
    """
    model.eval()
    batch, height, width = EXAMPLE
    like = next(model.parameters())
    pictures = torch.zeros(batch, channels, height, width, device=like.device)
    free: dict[int, Any] = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(model, (pictures,), dynamic_shapes=(free,))
    except Exception as error:  # whatever a model's own code may raise on symbols
        raise ValueError(
            f"{type(model).__name__} cannot be exported for every batch, height and width: {first_line(error)} "
            "(of timm's ViTs, those made with dynamic_img_size=True and dynamic_img_pad=True can)"
        ) from error
