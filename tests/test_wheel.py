"""The built wheel and sdist are complete, and the wheel works outside of this checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import inline_attention

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "inline_attention"
NOT_SOURCE = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist", "runs", "site")
VERSION = inline_attention.__version__


def run(*words: str | Path, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, out: Path, *kinds: str) -> None:
    """With the installed setuptools: nothing is downloaded."""
    run(sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", out, source, cwd=source)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {entry: archive.read(entry) for entry in archive.namelist()}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the sdist, built from a copy of the sources: no other build is used or left."""
    here = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, here / "source", ignore=NOT_SOURCE)
    build(here / "source", here / "dist", "--wheel", "--sdist")
    return here / "dist"


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    (found,) = built.glob("*.whl")
    return found


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    assert wheel.name == f"inline_attention-{VERSION}-py3-none-any.whl"
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {str(path.relative_to(PACKAGE.parent)) for path in files}
    assert {"inline_attention/py.typed", "inline_attention/recipes/digits.toml", "inline_attention/cli/main.py"} <= expected
    expected.add("inline_command.py")
    packed = {name for name in contents(wheel) if ".dist-info/" not in name}
    assert packed == expected


def test_the_metadata_of_the_wheel(wheel):
    about = f"inline_attention-{VERSION}.dist-info"
    held = contents(wheel)
    assert b"inline = inline_command:main" in held[f"{about}/entry_points.txt"]
    assert f"{about}/licenses/LICENSE" in held
    metadata = held[f"{about}/METADATA"].decode()
    assert f"Version: {VERSION}\n" in metadata
    assert "License-Expression: Apache-2.0\n" in metadata
    extras = {line.split()[1] for line in metadata.splitlines() if line.startswith("Provides-Extra:")}
    assert {"cli", "train", "dense", "explore", "onnx"} <= extras


def test_the_sdist_builds_the_same_wheel(built, wheel, tmp_path):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    build(tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path / "dist", "--wheel")
    assert contents(tmp_path / "dist" / wheel.name) == contents(wheel)


def test_an_installed_wheel_works_away_from_the_checkout(wheel, tmp_path):
    """In a new environment that has the packages installed here, except this one."""
    run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=tmp_path)
    python, inline = tmp_path / "env" / "bin" / "python", tmp_path / "env" / "bin" / "inline"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel, cwd=tmp_path)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    # After its own packages, and without the .pth files there, one of which leads to the checkout.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = """
import inline_attention, timm, torch
model = timm.create_model("inline_deit_nano", num_classes=3).eval()
print(inline_attention.__file__, tuple(model(torch.randn(1, 3, 32, 48)).shape), sep="\\n")
"""
    assert run(python, "-c", code, cwd=elsewhere).splitlines() == [str(site / "inline_attention" / "__init__.py"), "(1, 3)"]
    assert VERSION in run(inline, "--version", cwd=elsewhere)
    assert "usage: inline list" in run(inline, "list", "--help", cwd=elsewhere)
