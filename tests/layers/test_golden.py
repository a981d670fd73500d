"""The published model InLine-DeiT-T, put together from this floor's block, gives the golden outputs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inline_attention import InLineAttention
from inline_attention.layers.block import Block

from ..golden.recipe import image, weights

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def published() -> dict[str, Tensor]:
    shapes = json.loads((GOLDEN / "models.json").read_text())["inline_deit_t"]["params"]
    return {key: torch.from_numpy(value) for key, value in weights(shapes).items()}


def block_weights(published: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    """Block `index` of the published checkpoint under this package's names."""
    prefix = f"blocks.{index}."
    state = {key.removeprefix(prefix): value for key, value in published.items() if key.startswith(prefix)}
    out = {}
    for key, value in state.items():
        if key.startswith("attn.qkv"):
            kind = key.rsplit(".", 1)[1]
            out[f"mixer.q.{kind}"], out[f"mixer.kv.{kind}"] = value[:192], value[192:]
        elif key.startswith("attn.residual"):
            name = {"0": "hidden", "2": "taps"}[key.split(".")[2]]
            kind = key.rsplit(".", 1)[1]
            out[f"mixer.local.{name}.{kind}"] = value.view(6, -1, 32) if kind == "weight" else value
        else:
            out[key.replace("attn.", "mixer.")] = value
    return out


@pytest.mark.parametrize("form", ["folded", "heads"])
def test_inline_deit_tiny(published, form):
    x = F.conv2d(
        torch.from_numpy(image(2, 224, 224)),
        published["patch_embed.proj.weight"],
        published["patch_embed.proj.bias"],
        stride=16,
    )
    x = torch.cat([published["cls_token"].expand(2, -1, -1), x.flatten(2).mT], 1) + published["pos_embed"]
    inside = np.load(GOLDEN / "intermediates.npz")
    for index in range(12):
        block = Block(InLineAttention(192, 6, form=form), norm_layer=lambda dim: torch.nn.LayerNorm(dim, eps=1e-6)).eval()
        block.load_state_dict(block_weights(published, index))
        with torch.no_grad():
            mixed = block.mixer(block.norm1(x), (14, 14), num_prefix_tokens=1)
            x = block(x, (14, 14), num_prefix_tokens=1)
        key = f"inline_deit_t/blocks.{index}.attn"
        if key in inside:
            expected = torch.from_numpy(inside[key])
            assert (mixed[:, :40:3, :24] - expected).abs().max() < 5e-6 * expected.abs().max(), key
    features = F.layer_norm(x, (192,), published["norm.weight"], published["norm.bias"], 1e-6)[:, 0]
    logits = features @ published["head.weight"].T + published["head.bias"]
    golden = np.load(GOLDEN / "outputs.npz")
    for name, ours in (("features", features), ("logits", logits)):
        expected = torch.from_numpy(golden[f"inline_deit_t/{name}"])
        assert (ours - expected).abs().max() < 5e-6 * expected.abs().max(), name
