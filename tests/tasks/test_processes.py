"""Several processes detect and segment like one: the same losses, and every picture counted once."""

import json

import pytest
import torch
from safetensors.torch import load_file

from inline_attention.cli.main import main

from ..training.small import metrics, write_recipe
from ..training.test_processes import torchrun
from .small import detect_recipe, segment_recipe, write_coco, write_maps

PARTS = {
    "segment": {
        "task": {"inference": "slide", "head": "upernet"},
        "optim": {"device_batch": 2},
        "schedule": {"steps": 3},
        "ema": {"decay": 0.9, "rate_batch": 4},
    },
    "detect": {"data": {"val": "validation"}, "schedule": {"epochs": 1, "shape": "cosine", "drops": ()}},
}


@pytest.mark.parametrize("name", ["segment", "detect"])
def test_two_processes_are_like_one(tmp_path, name):
    """Three pictures are held out, an odd number, and windows slide over pictures of a size of their own."""
    if name == "segment":
        recipe = segment_recipe(write_maps(tmp_path / "data", 8, 3), model={"drop_path": 0.2}, **PARTS[name])
    else:
        recipe = detect_recipe(write_coco(tmp_path / "data", 8, 3), **PARTS[name])
    path = write_recipe(tmp_path / "recipe.toml", recipe)
    words = ("train", "--recipe", str(path), "--device", "cpu")
    main([*words, "--out", str(tmp_path / "one")])
    torchrun(2, "-m", "inline_attention", *words, "--out", str(tmp_path / "two"))
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    losses = [[row["train_loss"] for row in rows] for rows in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    last = sorted((tmp_path / "one" / "checkpoints").glob("step-*"))[-1].name
    alone, pair = (load_file(tmp_path / run / "checkpoints" / last / "model.safetensors") for run in ("one", "two"))
    for key, value in alone.items():
        if "running_" in key or "num_batches" in key:  # batch norms of two processes see half of the pictures each
            continue
        torch.testing.assert_close(pair[key], value, atol=2e-3, rtol=1e-2)

    asked = ("eval", str(tmp_path / "one"), "--batch", "1", "--device", "cpu", "--out")
    main([*asked, str(tmp_path / "alone")])
    torchrun(2, "-m", "inline_attention", *asked, str(tmp_path / "pair"))
    found = [json.loads((tmp_path / name / "eval.json").read_text()) for name in ("alone", "pair")]
    for key in {"segment": ("miou", "macc", "aacc", "loss"), "detect": ("mask_ap", "box_ap", "box_ap50")}[name]:
        assert found[1][key] == pytest.approx(found[0][key], abs=1e-4), key
    assert found[0]["pictures"] == found[1]["pictures"] == 3
