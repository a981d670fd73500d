"""What a run's folder holds may be damaged: its files are named."""

import json

import pytest

from inline_attention.cli.linearize import Linearize
from inline_attention.training.run_folder import RunFolder

ROW = json.dumps({"step": 1, "kind": "step", "loss": 0.5})


@pytest.mark.parametrize("line", [b"", b"\xff\xfe", b"[1]", b'{"step": 1}', b'{"step": "1", "kind": "step"}', b"[" * 100_000])
def test_a_damaged_line_of_metrics_is_named_and_a_cut_one_left_out(line, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(ROW.encode() + b"\n" + line + b"\n" + ROW.encode())
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2, is no row of metrics"):
        RunFolder(tmp_path).rows()
    path.write_bytes(ROW.encode() + b"\n" + line)
    assert RunFolder(tmp_path).rows() == [json.loads(ROW)]


@pytest.mark.parametrize(
    ("name", "value"), [("batch", "x"), ("rates", [1, 2]), ("epochs", 0), ("model", 3), ("other", 1), ("weights", [])]
)
def test_damaged_options_of_a_distillation_are_named(name, value, tmp_path):
    options = Linearize(model="teacher", out=tmp_path, resume=True)
    options._write_options(tmp_path)
    assert options._read_options(tmp_path) == options
    path = tmp_path / "options.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(ValueError, match=r"options\.json cannot be read: "):
        options._read_options(tmp_path)
