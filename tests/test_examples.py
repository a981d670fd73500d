"""Every example runs, says nothing on stderr, and prints what it is there to show."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.py"))
LONGEST = 60

SHOWN = {
    "attention_layer.py": r"volume +\(4, 7, 7\) +\(2, 196, 64\) -> \(2, 196, 64\)\npadding has no influence: True\n",
    "classify.py": r"epoch 3: loss 0\.\d+, (8[5-9]|9\d)\.\d % of 360 held-out digits\n$",
    "compare_mixers.py": r"tokens +256 +1,024 +4,096 .*\nsoftmax .* ms .*\ninline .* ms .*\n.* [\d.]+ times as fast\.\n",
    "export.py": r"pets\.onnx pets\.onnx\.json\n4 comparisons; within 1e-04: True\n(.*as the model: True\n){2}$",
    "features.py": r"\(101, 67\) -> \[\(51, 34\), .* -> \(1, 5, 101, 67\)\n(.*\n)+.*gradients reach every parameter: True\n",
    "hub_folder.py": r"README\.md .*\nconfig\.json .*\nmodel\.safetensors .*\n.*\nthe same outputs, bit for bit: True\n",
    "large_picture.py": r"24,577 tokens, 2,000 at a time\ndiffers .* of the largest: exact\n",
    "swap.py": r"gives the same: True\n3 swapped, 0 left\nblocks\.0\.attn +softmax -> inline .*\n(.*\n)+.*train on: True\n",
}
"""A part of what each prints."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs(name, tmp_path):
    clean = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-W", "always", str(FOLDER / name)]
    done = subprocess.run(words, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(SHOWN[name], done.stdout), done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_short_and_says_what_it_is(name):
    text = (FOLDER / name).read_text()
    assert text.count("\n") < LONGEST
    assert ast.get_docstring(ast.parse(text))


def test_the_list_is_whole():
    listed = re.findall(r"^\| \[(\w+\.py)\]\(\1\) \| \S", (FOLDER / "README.md").read_text(), flags=re.MULTILINE)
    assert listed == EXAMPLES
    assert sorted(SHOWN) == EXAMPLES
