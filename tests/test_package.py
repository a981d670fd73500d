"""The front door: names, version, and how little an import loads."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import inline_attention

ROOT = Path(__file__).parents[1]


def test_public_names_exist():
    assert set(inline_attention.__all__) == {
        "KERNELS",
        "MIXERS",
        "InLineAttention",
        "InjectiveState",
        "count",
        "load_official",
        "open_large_image",
        "optimize",
        "parallelize",
        "stream",
        "stream_train",
        "swap",
        "injective_linear_attention",
    }
    assert all(hasattr(inline_attention, name) for name in inline_attention.__all__)


def test_one_version():
    assert version("inline-attention") == inline_attention.__version__
    assert f"## {inline_attention.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_importing_registers_the_models_and_loads_nothing_heavy_besides_torch_and_timm():
    code = (
        "import sys, torch, timm; before = set(sys.modules); import inline_attention; "
        "print(len(timm.list_models('inline_*'))); print(*sorted(set(sys.modules) - before)); print(*sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    count, added, loaded = (line.split() for line in printed.splitlines())
    assert count == ["19"]
    assert not set(loaded) & {"tyro", "rich", "matplotlib", "gradio", "accelerate"}
    assert {name.split(".")[0] for name in added} <= {
        "inline_attention",
        "torch",
        "numpy",
        "safetensors",
        *sys.stdlib_module_names,
    }
    rooms = {name.split(".")[1] for name in added if name.startswith("inline_attention.")}
    assert rooms <= {"compat", "ops", "lite", "layers", "models", "large"}


def test_only_public_modules_of_timm_are_imported():
    """Private modules move from release to release."""
    for file in (ROOT / "src").rglob("*.py"):
        for line in file.read_text().splitlines():
            if re.match(r"\s*(from|import) timm", line):
                assert re.match(r"\s*from timm\.(layers|models|data|optim|scheduler|utils) import", line), (
                    f"{file.name}: {line}"
                )
