"""Everything that a run of a bench leaves: its records, and on what they were measured."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from .record import Record


@dataclass(frozen=True)
class Result:
    """The contents of a result's file."""

    bench: str
    """Which: "layer", "models", "resolution" or "stream"."""
    machine: dict[str, Any]
    seconds: float
    """How long the contenders of a case were timed."""
    seed: int
    complete: bool
    """Whether all cases were measured; not if someone stopped the bench."""
    records: list[Record]

    def to_json(self) -> str:
        """The file."""
        return json.dumps(asdict(self), indent=1)


def from_json(text: str) -> Result:
    """Read a file; ValueError if it is none. Files older than `complete` have all cases."""
    try:
        found = {"complete": True, **json.loads(text)}
        return Result(**found)
    except (ValueError, TypeError) as error:
        raise ValueError("it is no result of a bench") from error
