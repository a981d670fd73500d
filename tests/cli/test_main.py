"""What a user of the command sees."""

import json
import sys

import pytest

from inline_attention.cli.main import main


def run(capsys, *arguments):
    """Exit code, what was printed, what was complained about."""
    code = 0
    try:
        main(list(arguments))
    except SystemExit as stop:
        code = stop.code if stop.code is not None else 0
    out, err = capsys.readouterr()
    return code, out, err


def test_help_is_a_table_of_contents(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "bench" in out
    code, out, _ = run(capsys, "bench", "layer", "--help")
    assert code == 0
    assert all(option in out for option in ("--out", "--seed", "--device", "--json", "--quick"))


def test_a_misspelt_option_is_met_with_the_right_one(capsys):
    code, out, err = run(capsys, "bench", "layer", "--quik")
    assert code == 2
    assert "--quick" in out + err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "nowhere"], "inline: unknown device 'nowhere'"),
        (["--out", "/proc/nowhere"], "inline: cannot write to /proc/nowhere"),
        (["--seconds", "-1"], "inline: --seconds must be positive, got -1.0"),
    ],
)
def test_mistakes_end_in_one_line(capsys, arguments, message):
    code, _, err = run(capsys, "bench", "layer", *arguments)
    assert code == 2
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_bench_layer(capsys, tmp_path):
    code, out, err = run(capsys, "bench", "layer", "--quick", "--seconds", "0.01", "--out", str(tmp_path), "--json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "layer.json").read_text())
    assert "sizes: 6/6" in err
    assert {file.name for file in tmp_path.iterdir()} == {"layer.json", "layer.md", "layer.png"}


def test_without_the_extra_it_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    code, _, err = run(capsys, "--help")
    assert code == 2
    assert err == "inline: the command needs tyro: pip install 'inline-attention[cli]'\n"
