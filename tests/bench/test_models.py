"""The bench of models: its cases, its ratios, compiled models, and a rival that fails."""

from dataclasses import asdict
from functools import partial

import pytest
import torch
from timm.models import create_model
from torch import nn

from inline_attention import MIXERS
from inline_attention.bench import models
from inline_attention.bench.models import MODEL_CASES, TWIN, ModelCase, draw, memory, rows, sentences, share, speed
from inline_attention.bench.suite import BENCHES


def made_up(mode="forward", rival="timms", seconds=(0.01, 0.02), memory=(300, 200), **others):
    names = ("model", "rival")
    times = {name: {"best": best, "median": 1.5 * best} for name, best in zip(names, seconds, strict=True) if best}
    times["product"] = {"best": 0.01, "median": 0.01}
    case = asdict(ModelCase("a", rival, 224, 2, mode))
    return {**case, "flops": 2**28, mode: times, "memory": dict(zip(names, memory, strict=True)), "errors": {}, **others}


def test_speed_and_memory_ratios():
    assert speed(made_up()) == 2
    assert speed(made_up("step", seconds=(0.04, 0.03))) == pytest.approx(0.75)
    assert memory(made_up()) == 1.5
    assert rows([made_up()]) == [["a", "timm", "224", "2", "forward", "10.0", "1.50", "2.00", "1.50", "0.50"]]


def test_the_share_of_the_matrix_products_rate():
    """Two images of 2^28 multiply-adds are half of 1024^3; a step is three times that."""
    assert share(made_up()) == pytest.approx(0.5)
    assert share(made_up(seconds=(0.04, 0.02))) == pytest.approx(0.125)
    assert share(made_up("step", seconds=(0.03, 0.02))) == pytest.approx(0.5)


def test_sentences_have_the_worst_cases():
    records = [
        made_up(memory=(100, 200)),
        made_up(size=448, seconds=(0.04, 0.03), memory=(100, 200)),
        made_up(rival=TWIN, compiled=True),
        made_up("step", seconds=(0.01, None), memory=(100, None), errors={"rival": "RuntimeError: no"}),
    ]
    assert sentences(records) == [
        "Forward, against timm",
        "  least speed over the rival's: 0.75 (a at 448, batch 2)",
        "  greatest memory over the rival's: 0.50 (a at 448, batch 2)",
        "  least share of the matrix product's rate: 0.12 (a at 448, batch 2)",
        "  the rival is faster than: a at 448, batch 2 (0.75)",
        "  the rival needs less memory than: none",
        "Compiled, against softmax twins",
        "  least speed over the rival's: 2.00 (a at 224, batch 2)",
        "  greatest memory over the rival's: 1.50 (a at 224, batch 2)",
        "  least share of the matrix product's rate: 0.50 (a at 224, batch 2)",
        "  the rival is faster than: none",
        "  the rival needs less memory than: a at 224, batch 2 (1.50)",
        "Step, against timm",
        "  least speed over the rival's: not measured",
        "  greatest memory over the rival's: not measured",
        "  least share of the matrix product's rate: 1.50 (a at 224, batch 2)",
        "  the rival is faster than: none",
        "  the rival needs less memory than: none",
        "Failed: rival of a at 224, batch 2, step: RuntimeError: no",
    ]
    assert rows(records)[3][-4:] == ["1.50", "-", "-", "1.50"]
    draw(records).savefig("/dev/null", format="png")


def test_the_documented_cases_are_there():
    def there(model, rival, mode="forward", compiled=False):
        return [
            (c.size, c.batch) for c in MODEL_CASES if (c.model, c.rival, c.mode, c.compiled) == (model, rival, mode, compiled)
        ]

    deit, swin = ("inline_deit_tiny", "deit_tiny_patch16_224"), ("inline_swin_tiny", "swin_tiny_patch4_window7_224")
    assert there(*deit) == [(224, 1), (224, 16), (448, 4), (896, 1), (1792, 1)]
    assert there(*deit, compiled=True) == there(*deit, "step") == [(224, 16), (448, 4), (896, 1)]
    assert there(*swin) == [(224, 8), (896, 1)]
    for model in ("inline_swin_tiny", "inline_cswin_tiny", "inline_pvt_tiny"):
        assert there(model, TWIN)[:1] == there(model, TWIN, compiled=True) == there(model, TWIN, "step") == [(224, 8)]
    assert there("inline_pvt_tiny", TWIN) == [(224, 8), (448, 2)]
    assert len(set(MODEL_CASES)) == len(MODEL_CASES)


def measured(case):
    (record,) = BENCHES["models"].run([case], seconds=0.01, device=torch.device("cpu"), seed=0)
    return record


def test_both_models_are_compiled(monkeypatch):
    monkeypatch.setattr(models, "create_model", partial(create_model, depth=1))
    compiled, compile_module = [], nn.Module.compile

    def compile_quickly(self, **options):  # traced, but without generated code, which takes long
        compiled.append(self)
        compile_module(self, backend="eager", **options)

    monkeypatch.setattr(nn.Module, "compile", compile_quickly)
    record = measured(ModelCase("inline_deit_nano", TWIN, 32, 2, compiled=True))
    assert [type(model.stages[0].blocks[0].mixer) for model in compiled] == [MIXERS["inline"], MIXERS["softmax"]]
    assert set(record["forward"]) == {"model", "rival", "product"}
    assert record["errors"] == {}
    assert all(timing["median"] < 1 for timing in record["forward"].values())


def test_a_rival_may_fail():
    record = measured(ModelCase("inline_deit_nano", "resnet18", 32, 2, "step"))  # it has no img_size
    assert set(record["step"]) == {"model", "product"}
    assert record["errors"]["rival"].startswith("TypeError: ")
    assert 0 < share(record) < 1
