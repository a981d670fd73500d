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
        "optimize",
        "parallelize",
        "stream",
        "swap",
        "injective_linear_attention",
    }
    assert all(hasattr(inline_attention, name) for name in inline_attention.__all__)


def test_one_version():
    assert version("inline-attention") == inline_attention.__version__
    assert f"## {inline_attention.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_importing_loads_nothing_of_the_command():
    code = "import sys, inline_attention; print(*sorted(m.split('.')[0] for m in sys.modules))"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    assert not loaded & {"tyro", "rich", "matplotlib", "gradio", "accelerate"}
    ours = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, inline_attention; print(*(m for m in sys.modules if m.startswith('inline_attention')))",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "inline_attention.bench" not in ours
    assert "inline_attention.cli" not in ours


def test_no_word_of_a_private_import_of_timm():
    """Only what timm.layers exports: private modules move from release to release."""
    for file in (ROOT / "src").rglob("*.py"):
        for line in file.read_text().splitlines():
            if re.match(r"\s*(from|import) timm", line):
                assert re.match(r"\s*from timm\.(layers|models|data|optim|scheduler|utils) import", line), (
                    f"{file.name}: {line}"
                )
