"""Arguments that commands share, checked before any work begins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def usable_device(name: str) -> torch.device:
    """The device of that name, after a tensor was put on it."""
    import torch

    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        found = ["cpu", *([str(torch.accelerator.current_accelerator())] if torch.accelerator.is_available() else [])]
        raise ValueError(f"unknown device {name!r}; this machine has: {', '.join(found)}") from error
    return device


def prepare_folder(path: Path) -> None:
    """Make the folder, unless it is there, and see that it can be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"cannot write to {path}: {error.strerror}") from error
