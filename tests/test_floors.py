"""An upper floor imports lower floors only, and rooms of one floor do not import each other. `compat` is open to all."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "inline_attention"
FLOORS = {
    "ops": 0,
    "lite": 0,
    "layers": 1,
    "models": 2,
    "data": 2,
    "dense": 3,
    "analysis": 3,
    "deploy": 3,
    "large": 4,
    "training": 5,
    "bench": 5,
    "explorer": 6,
    "evidence": 6,
    "cli": 7,
}
OUTSIDE = {
    "ops": {"torch", "triton"},
    "lite": {"numpy", "PIL", "onnxruntime", "openvino"},
    "layers": {"torch", "timm", "typing_extensions"},
}
"""What a floor may import from outside, besides the standard library; floors not named here may import what they like."""


def imports(file: Path, package: Path) -> set[str]:
    """Absolute names of the modules that a file imports, wherever in it."""
    here = ("inline_attention", *file.relative_to(package).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: -node.level]) if node.level else ""
            found.add(".".join(filter(None, (base, node.module or ""))))
    return found


def violations(package: Path) -> list[str]:
    import sys

    wrong = []
    for file in sorted(package.rglob("*.py")):
        room = file.relative_to(package).parts[0]
        if room.endswith(".py"):
            continue  # the front door of the package
        if room not in FLOORS:
            wrong.append(f"{room} is not a room of the house")
            continue
        for name in imports(file, package):
            top, _, rest = name.partition(".")
            target = rest.split(".")[0]
            if top != "inline_attention":
                allowed = OUTSIDE.get(room)
                if allowed is not None and top not in allowed and top not in sys.stdlib_module_names:
                    wrong.append(f"{file.name} in {room} imports {name}")
            elif target not in (room, "compat") and not (target in FLOORS and FLOORS[target] < FLOORS[room]):
                wrong.append(f"{file.name} in {room} imports {name}")
    return wrong


def test_the_house_stands():
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("ops", "from ..layers.inline import InLineAttention"),
        ("ops", "import timm"),
        ("ops", "def f():\n    from inline_attention.bench import layer"),
        ("lite", "def f():\n    import torch"),
        ("lite", "from ..ops import checks"),
        ("layers", "from inline_attention import InLineAttention"),
        ("layers", "import numpy"),
        ("bench", "from ..cli import main"),
        ("bench", "from ..training import detect"),
        ("data", "from ..models import swap"),
        ("attic", "import torch"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, room, line):
    for name in ("ops", "layers", "bench"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "good.py").write_text("import math\nfrom torch import nn\nfrom ..ops import checks\n")
    assert violations(tmp_path) == []
    (tmp_path / room).mkdir(exist_ok=True)
    (tmp_path / room / "bad.py").write_text(line)
    assert len(violations(tmp_path)) == 1
