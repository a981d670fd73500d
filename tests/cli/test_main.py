"""What a user of the command sees."""

import json
import sys

import timm
import torch

from inline_attention import load_official
from inline_attention.cli.main import main

from ..models.published import hollow, official


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
    assert all(command in out for command in ("list", "convert", "bench"))
    code, out, _ = run(capsys, "bench", "layer", "--help")
    assert code == 0
    assert all(option in out for option in ("--out", "--seed", "--device", "--json", "--quick"))


def test_a_misspelt_option_is_met_with_the_right_one(capsys):
    code, out, err = run(capsys, "bench", "layer", "--quik")
    assert code == 2
    assert "--quick" in out + err


def test_list(capsys, tmp_path):
    code, out, _ = run(capsys, "list", "inline_pvt_*", "--plot", "--out", str(tmp_path))
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["inline_pvt_large", "224x224", "51.15M*", "10.13G", "83.6"] in lines
    assert ["inline_pvt_tiny", "224x224", "12.03M", "1.98G", "78.2"] in lines
    assert "as reported by Han et al." in out
    assert "* the authors' table prints: inline_pvt_large 50.2M." in out
    assert (tmp_path / "models.png").stat().st_size > 10_000
    code, out, _ = run(capsys, "list", "inline_deit_tiny", "--json")
    assert json.loads(out)["models"][0]["params"] == 6_477_736
    code, _, err = run(capsys, "list", "resnet*")
    assert code == 2
    assert err.startswith("inline: no model is named like 'resnet*'; there are: inline_cswin_base, ")


def test_convert(capsys, tmp_path):
    source, target = tmp_path / "published.pth", tmp_path / "new" / "weights.safetensors"
    torch.save({"model": official("inline_pvt_tiny"), "epoch": 3}, source)
    code, out, _ = run(capsys, "convert", str(source), str(target))
    assert code == 0
    assert f"{source} is inline_pvt_tiny\n166 parameters matched\nWritten: {target}\n" in out
    model = timm.create_model("inline_pvt_tiny", checkpoint_path=str(target)).eval()
    expected = hollow("inline_pvt_tiny")
    load_official(expected, source)
    pictures = torch.randn(1, 3, 64, 64)
    assert torch.equal(model(pictures), expected(pictures))
    assert [file.name for file in target.parent.iterdir()] == ["weights.safetensors"]
    twin = timm.create_model("inline_swin_nano", mixer="softmax", num_classes=5)
    torch.save(twin.state_dict(), source)
    code, out, _ = run(capsys, "convert", str(source), str(target))
    assert f"{source} is inline_swin_nano with mixer='softmax', num_classes=5" in out


def test_convert_asks_where_weights_do_not_tell(capsys, tmp_path):
    source, target = tmp_path / "published.pth", tmp_path / "weights.safetensors"
    torch.save({"model": timm.create_model("deit_tiny_patch16_224").state_dict()}, source)
    code, out, _ = run(capsys, "convert", str(source), str(target))
    assert "is inline_deit_tiny with mixer='softmax', num_heads=3" in out
    torch.save(hollow("inline_cswin_base_384").state_dict(), source)
    code, _, err = run(capsys, "convert", str(source), str(target))
    assert err == f"inline: {source} fits inline_cswin_base, inline_cswin_base_384: say which with --model, got None\n"
    code, out, _ = run(capsys, "convert", str(source), str(target), "--model", "inline_cswin_base_384")
    assert code == 0
    assert f"{source} is inline_cswin_base_384\n" in out


def test_convert_says_what_is_wrong(capsys, tmp_path):
    weights = tmp_path / "weights.pth"
    torch.save({"fc.weight": torch.zeros(3, 3)}, weights)
    out = str(tmp_path / "out.safetensors")
    for arguments, message in (
        (["/nowhere", out], "inline: there is no file /nowhere"),
        ([str(weights), "out.pth"], "inline: the file to write must end in .safetensors, got out.pth"),
        ([str(weights), out], f"inline: {weights} is of none of the package's models, nor of a softmax twin of one"),
        ([str(weights), out, "--ema"], f"inline: {weights} holds no moving average (EMA); it has: fc.weight"),
    ):
        code, _, err = run(capsys, "convert", *arguments)
        assert (code, err) == (2, message + "\n")
    assert [file.name for file in tmp_path.iterdir()] == ["weights.pth"]


def test_without_the_extra_it_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    code, _, err = run(capsys, "--help")
    assert code == 2
    assert err == "inline: the command needs tyro: pip install 'inline-attention[cli]'\n"
