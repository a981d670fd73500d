"""Hashes of the code that computes a trial's numbers. Docstrings, comments and layout do not count."""

import ast
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

TRAINING_CODE = (
    "ops", "lite", "layers", "models", "data", "large", "training", "compat.py", "evidence/cached_images.py",
)  # fmt: skip
"""Folders and files of the package that a training run of a trial goes through."""
ANALYSIS_CODE = ("analysis", "bench/measure.py", "evidence/run_trial.py")
"""The code that analyses trained models and times them."""


@lru_cache
def code_hash(paths: tuple[str, ...] = TRAINING_CODE) -> str:
    """The hash of all code under these folders and files of the package."""
    package = Path(__file__).parents[1]
    digest = blake2b(digest_size=8)
    for path in paths:
        place = package / path
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            digest.update(f"{path}/{file.name}\n{_without_docstrings(file.read_text())}\n".encode())
    return digest.hexdigest()


def _without_docstrings(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_string(line)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_string(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
