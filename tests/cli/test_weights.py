"""`inline weights` against a server on this machine."""

import json

import pytest
import timm
import torch

from inline_attention.cli.main import main
from inline_attention.models import published_weights
from inline_attention.models.published_weights import cached_path, published_url

from ..models.published import official, publish
from ..models.weights_server import weights_server

NAME = "inline_deit_tiny"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The authors' server, played by one that has one of their files; and an empty cache."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("INLINE_WEIGHTS", raising=False)
    with weights_server() as files:
        monkeypatch.setattr(published_weights, "SERVER", f"{files.address}/f/{{}}/?dl=1")
        files.url(published_weights.FILES[NAME], publish(NAME, tmp_path / "published.pth").read_bytes())
        yield files


def records(capsys, *words):
    main(["weights", *words, "--json"])
    return {record["model"]: record for record in json.loads(capsys.readouterr().out)["models"]}


def test_fetch_verify_convert_remove(server, tmp_path, capsys, monkeypatch):
    assert not any(record["file"] for record in records(capsys).values())
    assert len(records(capsys)) == 13
    fetched = records(capsys, NAME)[NAME]
    path = cached_path(NAME, published_url(NAME))
    assert (fetched["file"], fetched["bytes"], len(fetched["sha256"])) == (str(path), path.stat().st_size, 64)
    main(["weights", "inline_deit_t*", "--verify", "--convert", str(tmp_path / "converted")])
    out = capsys.readouterr().out
    assert fetched["sha256"][:12] in out
    assert "no licence" in out
    main(["list", "--json"])
    listed = {record["model"]: record["weights"] for record in json.loads(capsys.readouterr().out)["models"]}
    assert (listed[NAME], listed["inline_swin_tiny"], listed["inline_swin_nano"]) == ("here", "online", "digits, fashion_mnist")
    assert records(capsys, NAME, "--remove")[NAME]["file"] is None
    assert {file.suffix for file in path.parent.iterdir()} == {".lock", ".sha256"}
    assert server.asked.total() == 1
    monkeypatch.setenv("INLINE_WEIGHTS", str(tmp_path / "converted"))
    model = timm.create_model(NAME, pretrained=True)
    assert torch.equal(model.head.weight, official(NAME)["head.weight"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inline_swin_tniy"], "no published weights are named 'inline_swin_tniy' (did you mean inline_swin_tiny?)"),
        (["inline_pvt_tiny"], "the weights of inline_pvt_tiny cannot be downloaded from http://127.0.0.1"),
        (["--remove", "--verify"], "leave out --verify and --convert"),
        (["--remove"], "--remove needs the models whose files are deleted"),
    ],
)
def test_messages(words, message, server, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["weights", *words])
    assert stopped.value.code == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_changed_file_is_named(server, capsys):
    main(["weights", NAME])
    path = cached_path(NAME, published_url(NAME))
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(SystemExit):
        main(["weights", "--verify"])
    assert f"{path} has changed since it was downloaded" in capsys.readouterr().err
