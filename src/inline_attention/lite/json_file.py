"""JSON files that users give: an object, or an error that names the file."""

import json
from pathlib import Path
from typing import Any

from .decode import first_line


def read_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file. Anything else is a ValueError that names the file; so is text that UTF-8 cannot hold."""
    try:
        table = json.loads(path.read_bytes().decode())
        json.dumps(table, ensure_ascii=False).encode()  # JSON may escape half of a surrogate pair, which cannot be written
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON, perhaps it is truncated: {first_line(error)}") from error
    if not isinstance(table, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(table).__name__}")
    return table
