"""Numbers that are not finite (NaN or infinity): an error in weights and in outputs, which names the tensor or the image."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..lite.finite import check_images


def nonfinite(value: object) -> bool:
    """Whether a tensor holds NaN or infinity."""
    if not isinstance(value, Tensor) or value.is_meta or value.layout != torch.strided or not value.is_floating_point():
        return False
    value = value.float() if value.element_size() == 1 else value  # torch compares no floats of 8 bits
    return not bool(torch.isfinite(value).all())


def check_weights(state: Mapping[str, Tensor], source: str) -> None:
    """Raise a ValueError that names the first tensor with NaN or infinity. All that loads weights calls this.

    Args:
        state: weights by their names.
        source: the file, in the message.
    """
    bad = [name for name, value in state.items() if nonfinite(value)]
    if bad:
        holding = f"{bad[0]} and {len(bad) - 1} more tensors hold" if len(bad) > 1 else f"{bad[0]} holds"
        raise ValueError(
            f"{source}: {holding} numbers that are not finite (NaN or infinity): "
            "the file is damaged, or its training diverged; take other weights"
        )


def check_outputs(outputs: object, names: Sequence[str] = (), model: str = "the model") -> None:
    """Raise a FloatingPointError that names the first image whose outputs, (B, ...), hold NaN or infinity."""
    if nonfinite(outputs):
        assert isinstance(outputs, Tensor)
        finite = torch.isfinite(outputs).flatten(1).all(1).tolist()
        check_images(finite, names, model, f"its numbers overflow in {str(outputs.dtype).removeprefix('torch.')}")
