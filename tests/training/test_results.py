"""The accuracies of docs/training.md are the stored results."""

import json
import re
from pathlib import Path

from inline_attention.training.recipe import load, shipped

ROOT = Path(__file__).parents[2]


def test_the_table_of_cifar10_is_what_was_measured():
    found = json.loads((ROOT / "benchmarks" / "results" / "cifar10.json").read_text())
    table = re.search(r"<!-- cifar10 -->\n(.*?)<!-- /cifar10 -->", (ROOT / "docs" / "training.md").read_text(), re.DOTALL)[1]
    epochs = load(found["recipe"]).schedule.epochs
    for mixer, run in found["runs"].items():
        row = next(line for line in table.splitlines() if line.startswith(f"| {mixer}"))
        last, speed = run["evaluations"][-1], found["images_per_second"][mixer]
        assert last["epoch"] == epochs
        assert f"{last['top1']:.2f} %" in row
        assert f"{found['parameters'][mixer]:,}" in row
        assert f"{speed} images/s, {round(50_000 * epochs / speed / 60)} minutes" in row
        assert f"{last['top1']:.2f} %" in shipped()[found["recipe"]]
        assert run["waiting"] < 0.05
