"""docs/architecture.md names every file of the package, and nothing that is not there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "inline_attention"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
NAMED = set(re.findall(r"`((?:\w+/)*\w+\.py)(?=[`:])", PAGE))
STEPS = re.findall(r"`((?:\w+/)*\w+\.py): ([\w.]+)`", PAGE)


def is_empty(file: Path) -> bool:
    """An `__init__.py` with a docstring at most."""
    return file.name == "__init__.py" and not ast.parse(file.read_text()).body[1:]


def definitions(tree: ast.Module | ast.ClassDef) -> dict[str, ast.AST]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_every_file_of_the_package_is_named():
    files = {file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py") if not is_empty(file)}
    beside = {file.relative_to(ROOT).as_posix() for file in PACKAGE.parent.glob("*.py")}
    assert sorted((files | beside) - NAMED) == []


def test_every_named_file_exists():
    assert sorted(name for name in NAMED if not (PACKAGE / name).is_file() and not (ROOT / name).is_file()) == []


def test_there_are_three_walks():
    assert len(STEPS) >= 30


@pytest.mark.parametrize(("file", "name"), STEPS, ids=lambda part: part)
def test_every_step_of_a_walk_exists(file, name):
    """A function, a class, or a method as `Class.method`."""
    outer, _, inner = name.partition(".")
    path = PACKAGE / file if (PACKAGE / file).exists() else ROOT / file
    found = definitions(ast.parse(path.read_text()))
    assert outer in found
    assert not inner or inner in definitions(found[outer])
