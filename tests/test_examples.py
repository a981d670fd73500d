"""Every example runs, warns of nothing, leaves no files, and prints what it is there to show."""

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.py"))
LONGEST = 60

PRINTED = {
    "attention_layer.py": r"volume +\(4, 7, 7\) +\(2, 196, 64\) -> \(2, 196, 64\)\npadding has no influence: True\n",
    "classify.py": r"epoch 3: loss 0\.\d+, (8[5-9]|9\d)\.\d % of 360 validation digits\n$",
    "compare_mixers.py": r"tokens +256 +1,024 +4,096 .*\nsoftmax .* ms .*\ninline .* ms .*\n.* [\d.]+ times as fast\.\n",
    "export.py": r"pets\.onnx pets\.onnx\.json\n4 comparisons; within 1e-04: True\n(.*as the model: True\n){2}$",
    "features.py": r"\(101, 67\) -> \[\(51, 34\), .* -> \(1, 5, 101, 67\)\n(.*\n)+.*gradients reach every parameter: True\n",
    "hub_folder.py": r"README\.md .*\nconfig\.json .*\nmodel\..*\n.*\n.* bit for bit: True\n.*\n(by .* pelican .* True\n)?$",
    "large_image.py": r"24,577 tokens, 2,000 at a time\ndiffers .* of the largest logit; exact: True\n",
    "swap.py": r"same outputs: True\n3 swapped, 0 left\nblocks\.0\.attn +softmax -> inline .*\n(.*\n)+.*needs training: True\n",
    "train.py": r"96 images, 24 steps: .* %.*\nwritten: best\.safetensors, .*\nbest weights: .* % of 24 .*\na red image: red ",
}
"""A part of what each prints."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs(name, tmp_path, monkeypatch, capfd):
    """In this process, where a warning is an error: starting one for each would take longer than to run them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sys, "argv", [str(FOLDER / name)])
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    printed = capfd.readouterr()
    assert printed.err == ""
    assert re.search(PRINTED[name], printed.out), printed.out
    assert list(tmp_path.iterdir()) == []


def test_one_runs_as_a_process_of_its_own(tmp_path):
    name = "attention_layer.py"
    words = [sys.executable, "-W", "always", str(FOLDER / name)]
    done = subprocess.run(words, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(PRINTED[name], done.stdout), done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_short_and_has_a_docstring(name):
    text = (FOLDER / name).read_text()
    assert text.count("\n") < LONGEST
    assert ast.get_docstring(ast.parse(text))


def test_the_readme_lists_all_of_them():
    listed = re.findall(r"^\| \[(\w+\.py)\]\(\1\) \| \S", (FOLDER / "README.md").read_text(), flags=re.MULTILINE)
    assert listed == EXAMPLES
    assert sorted(PRINTED) == EXAMPLES
