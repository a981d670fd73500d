"""The version of the code that decides a cell's numbers: a hash of what the rooms below compute, not of how they are worded."""

import ast
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

DECIDING = ("ops", "layers", "models", "plain", "training", "evidence/held.py")
"""Rooms that a training run goes through, and how its pictures are shown."""
LOOKING = ("analysis", "bench", "evidence/run_cell.py")
"""What looks at trained models, and times them."""


@lru_cache
def code_version(rooms: tuple[str, ...] = DECIDING) -> str:
    """Changes with the code of these rooms, or files; comments, docstrings and layout do not count."""
    package = Path(__file__).parents[1]
    digest = blake2b(digest_size=8)
    for room in rooms:
        place = package / room
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            digest.update(f"{room}/{file.name}\n{_bare(file.read_text())}\n".encode())
    return digest.hexdigest()


def _bare(text: str) -> str:
    """The code without its docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
