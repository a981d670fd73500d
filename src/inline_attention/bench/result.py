"""The result of a bench: one record per case, and the machine that they were measured on.

A record has the case's fields; under each of `KINDS` that was measured the `Timing` of each candidate; under "memory" the
peak bytes of each; and under "errors" one line for each candidate that failed. Functions return NaN for what was not measured.
"""

import json
import platform
from dataclasses import asdict, dataclass
from math import nan
from pathlib import Path
from typing import Any

import torch

from ..lite.versions import versions

Record = dict[str, Any]
KINDS = ("forward", "step", "stream", "once")


@dataclass(frozen=True)
class Result:
    """The contents of a result file."""

    bench: str
    """A name of `suite.BENCHES`, such as "layer"."""
    machine: dict[str, Any]
    seconds: float
    """How long the candidates of a case were timed."""
    seed: int
    complete: bool
    """Whether all cases were measured; False if the bench was interrupted."""
    records: list[Record]

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(asdict(self), indent=1)


def from_json(text: str) -> Result:
    """Parse a result file; ValueError if it is not one. Files older than the field `complete` have all cases."""
    try:
        return Result(**{"complete": True, **json.loads(text)})
    except (ValueError, TypeError) as error:
        raise ValueError("it is no result of a bench") from error


def machine(device: torch.device) -> dict[str, str | int]:
    """Processor, threads and package versions."""
    return {
        "device": str(device),
        "processor": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **versions("torch", "timm", "inline-attention"),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def seconds(record: Record, kind: str, name: str) -> float:
    """Seconds of the best round. A layer's "inline" is the form that the layer chooses."""
    return _timing(record, kind, name, "best")


def spread(record: Record, kind: str, name: str) -> float:
    """The median round over the best one: how noisy the machine was."""
    return _timing(record, kind, name, "median") / seconds(record, kind, name)


def ratio(record: Record, kind: str, name: str, other: str) -> float:
    """How many times as long `name` takes as `other`."""
    return seconds(record, kind, name) / seconds(record, kind, other)


def peak(record: Record, name: str) -> float:
    """Peak memory in bytes."""
    size: int | None = record["memory"].get(_chosen_form(record, name))
    return float(size) if size else nan


def memory_ratio(record: Record, name: str, other: str) -> float:
    """Peak memory of `name` over that of `other`."""
    return peak(record, name) / peak(record, other)


def _timing(record: Record, kind: str, name: str, field: str) -> float:
    value: float = record.get(kind, {}).get(_chosen_form(record, name), {}).get(field, nan)
    return value


def _chosen_form(record: Record, name: str) -> str:
    form: str = record.get("chosen", {}).get(name, name)
    return form
