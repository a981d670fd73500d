"""Sums over tokens are kept in at least fp32, whatever the inputs are and whether or not autocast is on."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def wide(tensor: Tensor) -> Tensor:
    """The tensor in fp32 if it is in a half-precision format, otherwise as it is."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def autocast_is_on(device: torch.device) -> bool:
    """Whether matrix products on this device are being cast to half precision."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which matrix products keep the precision of their arguments."""
    return torch.autocast(device.type, enabled=False) if autocast_is_on(device) else nullcontext()
