"""The newer mixers give the golden outputs of the published modules: with their extras (`out`) and alone (`bare`).

`tests/golden/README.md` says what is stored. Official parameters are laid into this package's names here.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from inline_attention import MIXERS
from inline_attention.layers.mhla import starting_mixing

from ..golden.recipe import weights

GOLDEN = Path(__file__).parents[1] / "golden"
SHAPES = json.loads((GOLDEN / "rivals.json").read_text())
STORED = np.load(GOLDEN / "rivals.npz")
DIM, HEADS = 96, 3
STEPS = {"out": 9, "bare": 16}
"""Which tokens are stored: every so many of them."""
EXTRAS = {
    "mala": {"gate": True, "lepe": 5, "rope": "heads"},
    "rala": {"gate": True, "lepe": 5, "rope": "heads"},
    "pola": {"gate": True, "lepe": 5, "lepe_shared": True},
    "pola_sr2": {"gate": True, "lepe": 5, "lepe_shared": True},
    "pola_swin": {"gate": True, "lepe": 5, "lepe_shared": True},
    "vittt": {},
    "vittt_rope": {"rope": "all"},
    "mhla": {"lepe": 5},
    "mhla_b4": {"lepe": 5},
    "agent": {"lepe": 3},
    "agent_n9_sr2": {"lepe": 3},
    "agent_cls": {"lepe": 3},
    "mila": {"lepe": 3, "rope": "all"},
    "nala": {"gate": "silu", "out_norm": True, "lepe": 5, "rope": "heads"},
}
"""What each design was published with; without it the mixer is bare."""
OPTIONS = {
    "pola_sr2": {"reduction": 2},
    "mhla": {"blocks": 2, "divisor": "published", "qkv_bias": False},
    "mhla_b4": {"blocks": 4, "divisor": "published", "qkv_bias": False},
    "agent_n9_sr2": {"reduction": 2, "agents": 3},
    "agent_cls": {"prefix_bias": True},
}
MIXER_OF = {"vittt": "vit3", "vittt_rope": "vit3"}
RENAMED = {
    "proj.": "proj.", "out_proj.": "proj.", "to_out.0.": "proj.", "lepe.": "lepe.", "dwc.": "lepe.", "ln.": "out_norm.",
    "sr.": "reduction.conv.", "q_norm.": "q_rms.", "k_norm.": "k_rms.",
}  # fmt: skip
FUSED = {
    "qkvo": ["q", "kv", "kv", "gate.map"], "qkvg": ["q", "kv", "kv", "gate.map"], "qg": ["q", "gate.map"], "kv": ["kv", "kv"],
    "to_qkv": ["q", "kv", "kv"], "qk": ["q", "k"], "q": ["q"],
}  # fmt: skip
BIASES = {
    "an_bias": "key_table", "na_bias": "query_table", "ah_bias": "key_lines.0", "aw_bias": "key_lines.1",
    "ha_bias": "query_lines.0", "wa_bias": "query_lines.1", "ac_bias": "key_prefix", "ca_bias": "query_prefix",
}  # fmt: skip


def mixer_name(design: str) -> str:
    return MIXER_OF.get(design, design.split("_")[0])


def official(design: str, grid: str) -> dict[str, Tensor]:
    state = {key: torch.from_numpy(value) for key, value in weights(SHAPES[design]["grids"][grid]["params"]).items()}
    if (key := "piece_attn.conv.weight") in state:
        state[key] = state[key].abs() + 0.1
    return state


def adapted(state: dict[str, Tensor], like: dict[str, Tensor]) -> dict[str, Tensor]:
    """Official parameters under this package's names, in its shapes."""
    rows: dict[str, list[Tensor]] = {}
    for key, value in state.items():
        module, _, kind = key.rpartition(".")
        if module == "qkv" and value.shape[0] == 4 * DIM:  # ViT^3: q1, k1, v1, and d channels each of q2, k2, v2
            q1, k1, v1, q2, k2, v2 = value.split([DIM] * 3 + [DIM // HEADS] * 3)
            rows[f"q.{kind}"], rows[f"kv.{kind}"] = [q1, q2], [k1, k2, v1, v2]
        elif module in FUSED or module == "qkv":
            names = FUSED.get(module, ["q", "kv", "kv"])
            for name, part in zip(names, value.chunk(len(names)), strict=True):
                rows.setdefault(f"{name}.{kind}", []).append(part)
        elif key in BIASES:  # (1, h, H, 1, n) and (1, h, 1, n) have the agents last
            value = value.mT if key == "ca_bias" else value
            value = value.squeeze(0).movedim(-1, 1) if key in ("ha_bias", "wa_bias") else value
            rows[BIASES[key]] = [value]
        elif key.startswith("norm."):
            rows[key if "norm.weight" in like else f"reduction.{key}"] = [value]
        elif key == "piece_attn.conv.weight":
            rows["mixing"] = [value]
        elif key == "positional_encoding":
            rows["positions"] = [value.mT]
        else:
            new = next((ours + key.removeprefix(theirs) for theirs, ours in RENAMED.items() if key.startswith(theirs)), key)
            rows[new] = [value]
    return {name: torch.cat(parts).reshape(like[name].shape) for name, parts in rows.items() if name in like}


def build(design: str, grid: str, *, extras: bool):
    size = tuple(map(int, grid.split("x")))
    name = mixer_name(design)
    options = {**OPTIONS.get(design, {}), **(EXTRAS[design] if extras else {})}
    if name in ("pola", "agent"):
        options["grid_size"] = size
    mixer = MIXERS[name](DIM, HEADS, **options).eval()
    state = adapted(official(design, grid), mixer.state_dict())
    mixer.load_state_dict(state)
    if not extras and not isinstance(mixer.proj, torch.nn.Identity):
        torch.nn.init.eye_(mixer.proj.weight)
        torch.nn.init.zeros_(mixer.proj.bias)
    prefix = SHAPES[design]["grids"][grid]["tokens"] - size[0] * size[1]
    x = np.random.RandomState(7).standard_normal((2, prefix + size[0] * size[1], DIM)).astype(np.float32)
    return mixer, torch.from_numpy(x), size, prefix


CASES = [(design, grid) for design in SHAPES for grid in SHAPES[design]["grids"]]


@pytest.mark.parametrize(("design", "grid"), CASES)
def test_published_module(design, grid):
    kinds = ("out", "bare") if SHAPES[design]["bare"] else ("out",)
    for kind in kinds:
        mixer, x, size, prefix = build(design, grid, extras=kind == "out")
        with torch.no_grad():
            ours = mixer(x, size, num_prefix_tokens=prefix)
        step = STEPS[kind]
        expected = torch.from_numpy(STORED[f"{design}/{grid}/{kind}"])
        error = float((ours[:, ::step] - expected).abs().max() / expected.abs().max())
        assert error < 5e-6, f"{kind}: {error:.1e}"


@pytest.mark.parametrize("start", ["linear", "cos"])
def test_published_start_of_mhla(start):
    torch.testing.assert_close(starting_mixing((4, 4), start), torch.from_numpy(STORED[f"mhla_init/{start}"]).reshape(16, 16))
