"""Ratios of made-up records, and a small bench with all candidates and their files."""

from dataclasses import asdict
from functools import partial

import onnx
import pytest
import torch
from timm.models import create_model

from inline_attention.bench import export
from inline_attention.bench.export import EXPORT_CASES, FILES, FORMS, ExportCase, draw, measure_export, rows, sentences
from inline_attention.bench.models import TWIN
from inline_attention.deploy import formats, openvino_file
from inline_attention.deploy.onnx_file import write_onnx

CPU = torch.device("cpu")


def made_up(size, batch=1, errors=None, **milliseconds):
    names = {name.replace("_", " "): 1e-3 * value for name, value in milliseconds.items()}
    times = {name: {"best": value, "median": 1.5 * value, "rounds": 5} for name, value in names.items()}
    case = asdict(ExportCase("a", TWIN, size, batch))
    return {**case, "onnxruntime": "1.2", "forward": times, "memory": {}, "errors": errors or {}}


def test_ratios_are_relative_to_inline():
    record = made_up(448, inline=30, inline_onnx=20, int8_onnx=10, softmax_onnx=50, softmax=15)
    assert [row[3:] for row in rows([record])] == [
        ["InLine, torch", "30.0", "1.50", "1.00", "1.50"],
        ["InLine, ONNX", "20.0", "1.50", "0.67", "1.00"],
        ["InLine, ONNX int8", "10.0", "1.50", "0.33", "0.50"],
        ["softmax, torch", "15.0", "1.50", "0.50", "0.75"],
        ["softmax, ONNX", "50.0", "1.50", "1.67", "2.50"],
    ]


def test_openvino_is_compared_with_torch_and_with_onnx():
    record = {**made_up(448, inline=30, compiled=24, inline_onnx=20, inline_openvino=10, softmax_openvino=50), "openvino": "3"}
    assert [row[3:] for row in rows([record])] == [
        ["InLine, torch", "30.0", "1.50", "1.00", "1.50"],
        ["InLine, torch.compile", "24.0", "1.50", "0.80", "1.20"],
        ["InLine, ONNX", "20.0", "1.50", "0.67", "1.00"],
        ["InLine, OpenVINO", "10.0", "1.50", "0.33", "0.50"],
        ["softmax, OpenVINO", "50.0", "1.50", "1.67", "2.50"],
    ]
    said = sentences([record])
    assert said[0] == "Files were run by onnxruntime 1.2 and openvino 3"
    assert "a at 448, batch 1: in OpenVINO 3.00 times as fast as in torch, 2.40 as compiled, 2.00 as in ONNX" in said
    assert "InLine, OpenVINO is faster than InLine, ONNX: a at 448, batch 1 (0.50)" in said


def test_sentences_name_slower_cases_and_failures():
    slow = made_up(224, 8, inline=10, inline_onnx=20, softmax_onnx=16, rival=18)
    fast = made_up(448, inline=30, inline_onnx=20, int8_onnx=25, softmax_onnx=50, softmax=40, errors={"rival": "TypeError: no"})
    assert sentences([slow, fast]) == [
        "Files were run by onnxruntime 1.2",
        "a at 224, batch 8: in ONNX 0.50 times as fast as in torch, 0.80 times as fast as softmax in ONNX",
        "a at 448, batch 1: in ONNX 1.50 times as fast as in torch, 2.50 times as fast as softmax in ONNX",
        "InLine, torch is faster than InLine, ONNX: a at 224, batch 8 (0.50)",
        "InLine, ONNX int8 is faster than InLine, ONNX: in no case",
        "softmax, torch is faster than InLine, ONNX: in no case",
        "softmax, ONNX is faster than InLine, ONNX: a at 224, batch 8 (0.80)",
        "timm's softmax, torch is faster than InLine, ONNX: a at 224, batch 8 (0.90)",
        "Failed: rival of a at 448: TypeError: no",
    ]
    draw([slow, fast]).savefig("/dev/null", format="png")


def test_the_documented_cases_are_there():
    there = [(case.size, case.batch) for case in EXPORT_CASES if case.model == "inline_deit_tiny"]
    assert {(224, 1), (448, 1), (896, 1), (224, 8)} <= set(there)
    assert {case.rival for case in EXPORT_CASES if case.model == "inline_deit_tiny"} == {"deit_tiny_patch16_224"}
    assert len(set(EXPORT_CASES)) == len(EXPORT_CASES)


def test_other_devices_are_an_error():
    with pytest.raises(ValueError, match=r"^bench export runs files .* OpenVINO on the CPU, got --device meta$"):
        measure_export(EXPORT_CASES[0], 0.01, torch.device("meta"))


def write_onnx_once(written):
    """Translating a graph takes most of the time, and the files of one graph share it."""

    def write(program, path):
        if program not in written:
            write_onnx(program, path)
            written[program] = path.read_bytes()
        path.write_bytes(written[program])

    return write


def test_a_small_case_has_all_candidates(monkeypatch):
    """Files are made once for all sizes; softmax has one, 8 bits are 8 bits; a file that says something else is left out."""
    export._files.cache_clear()
    export._graph.cache_clear()
    monkeypatch.setattr(export, "create_model", partial(create_model, depth=1))
    monkeypatch.setattr(torch, "compile", lambda model, dynamic: model)
    once = write_onnx_once({})
    for module in (formats, openvino_file):
        monkeypatch.setattr(module, "write_onnx", once)
    for size in (32, 48):
        record = measure_export(ExportCase("inline_deit_nano", "vit_tiny_patch16_224", size, 1), 0.01, CPU)
        assert record["errors"] == {}
        assert set(record["forward"]) == {*FORMS, "product"}
    assert {"onnxruntime", "openvino"} <= set(record)
    assert export._files.cache_info().misses == len(FILES)
    assert export._graph.cache_info().misses == 2
    kinds = {
        name: {node.op_type for node in onnx.load_from_string(export._files("inline_deit_nano", *name)[".onnx"]).graph.node}
        for name in (file for file in FILES.values() if file[0] == "onnx")
    }
    assert "MatMulInteger" in kinds["onnx", "inline", "int8"] - kinds["onnx", "inline", "fp32"]
    assert "Softmax" in kinds["onnx", "softmax", "fp32"] - kinds["onnx", "inline", "fp32"]
    low, whole = (len(export._files("inline_deit_nano", "openvino", "inline", name)[".bin"]) for name in ("int8", "fp32"))
    assert low < whole / 2
    monkeypatch.setattr(export, "_model", lambda name, mixer: create_model(name, depth=1, mixer=mixer).eval())  # drawn anew
    record = measure_export(ExportCase("inline_deit_nano", TWIN, 32, 1), 0.01, CPU)
    assert set(record["errors"]) == {f"{mixer} {kind}" for mixer in ("inline", "softmax") for kind in ("onnx", "openvino")}
    assert record["errors"]["inline openvino"].startswith("ValueError: the file differs by ")
    assert "rival" not in record["forward"]
    export._files.cache_clear()
    export._graph.cache_clear()
