"""On what something was measured."""

import platform
from importlib.metadata import version
from pathlib import Path

import torch


def machine(device: torch.device) -> dict[str, str | int]:
    """Processor, threads and versions, for the record."""
    return {
        "device": str(device),
        "processor": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "timm", "inline-attention")},
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
