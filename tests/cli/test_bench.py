"""What a user of `inline bench` sees."""

import json
from dataclasses import replace

import pytest

from inline_attention.bench.layer import LayerCase
from inline_attention.bench.models import ModelCase
from inline_attention.bench.resolution import ResolutionCase
from inline_attention.bench.stream import StreamCase
from inline_attention.bench.stream_train import StreamTrainCase
from inline_attention.bench.suite import BENCHES

from .test_main import run

SHORT = ("--quick", "--seconds", "0.01", "--out")
MODELS = [
    ModelCase("inline_deit_nano", "vit_tiny_patch16_224", 32, 1),
    ModelCase("inline_swin_nano", "twin", 32, 1, "step"),
]


def few(monkeypatch, name, cases, **others):
    monkeypatch.setitem(BENCHES, name, replace(BENCHES[name], quick=cases, **others))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layer", "--device", "nowhere"], "inline: unknown device 'nowhere'"),
        (["models", "--out", "/proc/nowhere"], "inline: cannot write to /proc/nowhere"),
        (["resolution", "--seconds", "-1"], "inline: --seconds must be positive, got -1.0"),
        (["stream", "--sizes", "64"], "inline: --sizes 64 is of --train and --segment: give one of them too"),
        (["stream", "--train", "--sizes", "a"], "inline: --sizes is sides in pixels from 32 on"),
        (["compare", "a", "b", "--tolerance", "-1"], "inline: --tolerance must not be negative, got -1.0"),
        (["compare", "/nowhere", "b"], "inline: there is no file /nowhere"),
        (["compare", "/proc/self/status", "b"], "inline: /proc/self/status is no result of `inline bench`"),
    ],
)
def test_mistakes_end_in_one_line(capsys, arguments, message):
    code, _, err = run(capsys, "bench", *arguments)
    assert code == 2
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_bench_layer(capsys, tmp_path, monkeypatch):
    few(monkeypatch, "layer", [LayerCase(7, 64), LayerCase(14, 64)])
    code, out, err = run(capsys, "bench", "layer", *SHORT, str(tmp_path), "--json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "layer.json").read_text())
    assert "cases: 2/2" in err
    assert {file.name for file in tmp_path.iterdir()} == {"layer.json", "layer.md", "layer.png"}


def test_bench_models(capsys, tmp_path, monkeypatch):
    few(monkeypatch, "models", MODELS)
    code, out, _ = run(capsys, "bench", "models", *SHORT, str(tmp_path))
    assert code == 0
    assert "Step, against softmax twins\n  least speed over the rival's: " in out
    assert {file.name for file in tmp_path.iterdir()} == {"models.json", "models.md", "models.png"}
    assert "Stopped" not in (tmp_path / "models.md").read_text()
    code, out, _ = run(capsys, "bench", "models", *SHORT, str(tmp_path), "--json")
    found = json.loads(out)
    assert found == json.loads((tmp_path / "models.json").read_text())
    assert found["complete"] is True
    assert found["machine"]["torch"]
    assert [record["errors"] for record in found["records"]] == [{}, {}]


def test_bench_resolution(capsys, tmp_path, monkeypatch):
    cases = [ResolutionCase("inline_deit_nano", "vit_tiny_patch16_224", size, most=64, textbook=True) for size in (32, 64)]
    few(monkeypatch, "resolution", cases)
    code, out, _ = run(capsys, "bench", "resolution", *SHORT, str(tmp_path))
    assert code == 0
    assert "inline_deit_nano is faster than vit_tiny_patch16_224" in out
    assert {file.name for file in tmp_path.iterdir()} == {"resolution.json", "resolution.md", "resolution.png"}


def test_bench_stream(capsys, tmp_path, monkeypatch):
    few(monkeypatch, "stream", [StreamCase("inline_deit_nano", size, plain=64) for size in (64, 300)])
    code, out, _ = run(capsys, "bench", "stream", *SHORT, str(tmp_path))
    assert code == 0
    assert "Memory of the whole process, GB: at most " in out
    small, large = json.loads((tmp_path / "stream.json").read_text())["records"]
    assert small["difference"] < 1e-5
    assert large["difference"] is None
    assert large["stream"]["bands"]["rounds"] == 1
    assert 0.1e9 < large["process"] < 20e9


def test_bench_stream_train(capsys, tmp_path, monkeypatch):
    few(monkeypatch, "stream_train", [StreamTrainCase("inline_deit_nano", 64), StreamTrainCase("inline_deit_nano", 96, 0.001)])
    code, out, _ = run(capsys, "bench", "stream", "--train", *SHORT, str(tmp_path))
    assert code == 0
    assert "Memory of the whole process in bands, GB: at most " in out
    fitting, large = json.loads((tmp_path / "stream_train.json").read_text())["records"]
    assert set(fitting["once"]) == {"bands", "plain", "softmax"}
    assert set(large["once"]) == {"bands"}
    assert "the budget is 0.001 GB" in large["errors"]["plain"]
    assert all(0.1e9 < size < 20e9 for size in fitting["memory"].values())
    assert (tmp_path / "stream_train.png").stat().st_size > 5000


def test_a_stopped_bench_keeps_what_it_measured(capsys, tmp_path, monkeypatch):
    times = {"model": {"best": 1.0, "median": 1.0, "rounds": 5}, "product": {"best": 1.0, "median": 1.0, "rounds": 5}}

    def measure(case, seconds, device):
        if case.mode == "step":
            raise KeyboardInterrupt
        return {"flops": 1, "forward": times, "memory": {"model": 1}, "errors": {"rival": "ValueError: no"}}

    few(monkeypatch, "models", MODELS, measure=measure)
    code, out, err = run(capsys, "bench", "models", *SHORT, str(tmp_path))
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == f"inline: stopped after 1 of 2 cases, which are in {tmp_path}/models.json"
    found = json.loads((tmp_path / "models.json").read_text())
    assert found["complete"] is False
    assert [(record["model"], record["forward"]) for record in found["records"]] == [("inline_deit_nano", times)]
    assert "Stopped before all cases were measured." in (tmp_path / "models.md").read_text()
    few(monkeypatch, "models", MODELS[1:], measure=measure)
    code, _, err = run(capsys, "bench", "models", *SHORT, str(tmp_path / "nothing"))
    assert (code, err.splitlines()[-1]) == (130, "inline: stopped")
    assert not list((tmp_path / "nothing").iterdir())


def write(file, seconds, products, bench="layer"):
    timing = {"forward": {"four products": {"best": products}, "softmax": {"best": seconds}}}
    facts = {"bench": bench, "machine": {"threads": 2}, "seconds": 1.0, "seed": 0}
    file.write_text(json.dumps({**facts, "records": [{"side": 7, "dim": 64, **timing}]}))
    return str(file)


def test_bench_compare(capsys, tmp_path):
    before = write(tmp_path / "before.json", 0.1, 0.01)
    slower, same = write(tmp_path / "slower.json", 0.13, 0.01), write(tmp_path / "same.json", 0.2, 0.02)
    code, out, err = run(capsys, "bench", "compare", before, slower)
    assert (code, err) == (1, "")
    assert "1 slower, 0 faster, 0 within 10 %" in out
    assert "130.00" in out
    assert run(capsys, "bench", "compare", before, slower, "--tolerance", "0.5")[0] == 0
    assert run(capsys, "bench", "compare", slower, before)[0] == 0
    code, out, _ = run(capsys, "bench", "compare", before, same, "--json")
    assert code == 0
    assert json.loads(out)["unchanged"] == 1
    code, out, _ = run(capsys, "bench", "compare", before, slower, "--json")
    assert code == 1
    assert json.loads(out)["slower"][0]["in_products"] == pytest.approx(1.3)


def test_help_tells_the_exit_code(capsys):
    code, out, _ = run(capsys, "bench", "compare", "--help")
    assert code == 0
    assert "exit code is 1 if something is slower" in " ".join(out.replace("│", "").split())
