"""timm's `hf-hub:`, transformers and `push_to_hub` through huggingface_hub's own client, against a hub on this machine."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
import timm
import torch
from huggingface_hub import constants

from inline_attention.deploy.hub import from_pretrained, push_to_hub

from .hub_server import TOKEN, hub_server
from .test_hub import SMALL, randomised, save

REPO = "me/pets"
CARD = "---\nlibrary_name: timm\n---\n# Pets\n"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """What HF_ENDPOINT, HF_HOME and HF_HUB_DISABLE_XET set when huggingface_hub is imported."""
    with hub_server() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub


@pytest.fixture(scope="module")
def model():
    return randomised("inline_swin_nano", **SMALL)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return save(tmp_path_factory.mktemp("hub") / "folder", model, "inline_swin_nano", SMALL, card=CARD)


@pytest.fixture
def published(hub, folder):
    hub.repos[REPO] = {path.name: path.read_bytes() for path in folder.iterdir()}
    return hub


def logits(model):
    with torch.no_grad():
        return model(torch.linspace(-1, 1, 3 * 24 * 40).view(1, 3, 24, 40))


def test_timm_downloads_once_and_then_uses_its_cache(published, model):
    loaded = timm.create_model(f"hf-hub:{REPO}", pretrained=True).eval()
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.pretrained_cfg["label_names"] == ["class 0", "class 1", "class 2"]
    weights = hashlib.sha256(published.repos[REPO]["model.safetensors"]).hexdigest()
    assert published.files_sent() == ["config.json", weights]
    assert torch.equal(logits(from_pretrained(f"{REPO}@main")), logits(model))
    assert published.files_sent() == ["config.json", weights]


def test_a_changed_file_is_downloaded_again(published, model):
    from_pretrained(REPO)
    config = json.loads(published.repos[REPO]["config.json"])
    published.repos[REPO]["config.json"] = json.dumps({**config, "label_names": ["cat", "dog", "pelican"]}).encode()
    assert from_pretrained(REPO).pretrained_cfg["label_names"] == ["cat", "dog", "pelican"]
    assert [file for file in published.files_sent() if file == "config.json"] == ["config.json"] * 2
    assert len(published.files_sent()) == 3  # the weights, whose ETag is the same, once


@pytest.mark.parametrize("how", ["the hub is down", "no connection", "HF_HUB_OFFLINE"])
def test_without_the_hub_the_cache_is_used(published, model, how, monkeypatch):
    from_pretrained(REPO)
    published.requests.clear()
    if how == "the hub is down":
        published.up = False
    elif how == "no connection":
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(published.address, "http://127.0.0.1:1")
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    else:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert torch.equal(logits(from_pretrained(REPO)), logits(model))
    assert published.files_sent() == []


def test_offline_and_not_in_the_cache(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"^me/other cannot be loaded: .*annot find the requested files") as caught:
        from_pretrained("me/other")
    assert "\n" not in str(caught.value)
    assert hub.requests == []


def test_a_private_repository_needs_the_token_which_the_storage_never_sees(published, model, monkeypatch):
    published.private.add(REPO)
    with pytest.raises(ValueError, match=r"^me/pets cannot be loaded: 401 ") as caught:
        from_pretrained(REPO)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert torch.equal(logits(from_pretrained(REPO)), logits(model))
    assert {token for _, kind, path, token in published.requests if kind == "cdn"} == {None}


def test_a_repository_without_weights(published):
    del published.repos[REPO]["model.safetensors"]
    with pytest.raises(ValueError, match=r"^me/pets cannot be loaded: .*404") as caught:
        from_pretrained(REPO)
    assert "\n" not in str(caught.value)


# huggingface_hub hands the file to its HTTP client by an argument that the client calls deprecated
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
class TestUpload:
    """By Git LFS; with `hf_xet` installed and not switched off, the client uploads weights by Xet instead."""

    def test_what_is_uploaded_loads(self, hub, folder, model):
        address = push_to_hub(folder, REPO, private=True, token=TOKEN)
        assert hub.repos[REPO] == {path.name: path.read_bytes() for path in folder.iterdir()}
        assert (hub.commits, hub.private) == ([(REPO, "Add model")], {REPO})
        assert address.startswith(f"{hub.address}/{REPO}/")
        hub.private.clear()
        assert torch.equal(logits(from_pretrained(REPO)), logits(model))

    def test_an_existing_repository_gets_a_commit(self, published, folder):
        published.repos[REPO]["README.md"] = b"old"
        push_to_hub(folder, REPO, token=TOKEN, message="Say more")
        assert published.repos[REPO]["README.md"] == CARD.encode()
        assert published.commits == [(REPO, "Say more")]

    def test_without_a_token(self, hub, folder):
        with pytest.raises(ValueError, match=r"cannot be uploaded to me/pets: .*401.*; hf auth login stores a token") as caught:
            push_to_hub(folder, REPO)
        assert "\n" not in str(caught.value)
        assert hub.repos == {}


@pytest.mark.slow
def test_processes_that_read_the_environment_variables(tmp_path):
    """As users do it: export and upload by the command, load in a new process, load again without the hub."""
    load = "import sys, timm, inline_attention; timm.create_model(sys.argv[1], pretrained=True)"
    export = ["-m", "inline_attention", "export", "inline_swin_nano", "--format", "hub", "--out", "pets", "--push", REPO]

    def run(*words, **more):
        environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN, **more}
        words = [sys.executable, *words]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with hub_server() as hub:
        assert f"Uploaded: {hub.address}/{REPO}/" in run(*export, HF_ENDPOINT=hub.address)
        run("-c", load, f"hf-hub:{REPO}", HF_ENDPOINT=hub.address)
        assert len(hub.files_sent()) == 2
    run("-c", load, f"hf-hub:{REPO}", HF_ENDPOINT=hub.address)
    run("-c", load, f"hf-hub:{REPO}", HF_ENDPOINT=hub.address, HF_HUB_OFFLINE="1")
