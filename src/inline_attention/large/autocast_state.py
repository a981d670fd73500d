"""Autocast as it was in the forward pass, for the parts of it that the backward pass computes again."""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch


class AutocastState(NamedTuple):
    """Whether products on a device are cast, and to what."""

    device: str
    dtype: torch.dtype | None
    """None if they are not cast."""

    @classmethod
    def now(cls, device: torch.device) -> "AutocastState":
        """As it is now."""
        on = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
        return cls(device.type, torch.get_autocast_dtype(device.type) if on else None)

    def again(self) -> AbstractContextManager[object]:
        """A context in which it is so again. Casts are not kept, as weights would stay in memory with their graphs."""
        if not torch.amp.is_autocast_available(self.device):
            return nullcontext()
        return torch.autocast(self.device, dtype=self.dtype, enabled=self.dtype is not None, cache_enabled=False)
