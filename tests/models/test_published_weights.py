"""`pretrained=True`: the authors' files from a server, a folder or the cache; and what is refused."""

import io
import os
import pickle
import subprocess
import sys
from hashlib import sha256

import numpy as np
import pytest
import timm
import torch

from inline_attention.models import download, published_models
from inline_attention.models.packaged_weights import PACKAGED
from inline_attention.models.published_weights import FILES, TAG, cached_path, fetch_weights, find_weights, published_url

from ..golden.recipe import image
from .published import GOLDEN, PUBLISHED, TINY, official, publish
from .weights_server import weights_server

NANO = "inline_deit_nano"


@pytest.fixture(scope="module")
def server():
    with weights_server() as files:
        yield files


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """torch's cache is an empty folder, and nothing waits between attempts."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv("INLINE_WEIGHTS", raising=False)
    monkeypatch.setattr(download.time, "sleep", lambda _: None)
    return tmp_path / "hub" / "checkpoints"


@pytest.fixture(scope="module")
def nano():
    """A small model and its file."""
    torch.manual_seed(0)
    model = timm.create_model(NANO).eval()
    file = io.BytesIO()
    torch.save({"model": model.state_dict()}, file)
    return model, file.getvalue()


def pretrained(url, name=NANO, **options):
    return timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"url": url}, **options).eval()


@pytest.mark.parametrize("name", TINY)
def test_golden_outputs_from_a_downloaded_file(name, server, tmp_path):
    """One argument, the authors' outputs; of CSwin the moving average, by which the authors evaluate it."""
    more = {}
    if "cswin" in name:
        more = {"state_dict_ema": official(name), "model": {key: value + 1 for key, value in official(name).items()}}
    url = server.url(name, publish(name, tmp_path / "published.pth", **more).read_bytes())
    model = pretrained(url, name)
    images = torch.from_numpy(image(2, 224, 224))
    expected = torch.from_numpy(np.load(GOLDEN / "outputs.npz")[f"{PUBLISHED[name]}/logits"])
    with torch.no_grad():
        assert (model(images) - expected).abs().max() < 5e-6 * expected.abs().max()


def test_timm_knows_them():
    assert set(timm.list_pretrained("inline_*")) == {*(f"{name}.{TAG}" for name in FILES), *PACKAGED}
    assert len(FILES) == 13
    assert len(set(FILES.values())) == 13
    cfg = timm.get_pretrained_cfg("inline_cswin_small")
    assert cfg.url == "https://cloud.tsinghua.edu.cn/f/59f4e65f776f4052b93c/?dl=1" == published_url("inline_cswin_small")
    with pytest.raises(RuntimeError, match="No pretrained weights exist for inline_swin_base_384"):
        timm.create_model("inline_swin_base_384", pretrained=True, device="meta")


def test_every_argument_of_timm(server, nano):
    model, content = nano
    url = server.url("nano", content)
    images = torch.randn(1, 3, 40, 56)
    torch.testing.assert_close(pretrained(url)(images), model(images))
    other = pretrained(url, num_classes=7)
    torch.testing.assert_close(other.forward_features(images), model.forward_features(images))
    assert other(images).shape == (1, 7)
    maps = pretrained(url, features_only=True)
    last = model.forward_intermediates(images, maps.out_indices, intermediates_only=True)[-1]
    torch.testing.assert_close(maps(images)[-1], last)
    assert pretrained(url, in_chans=1)(images[:, :1]).shape == (1, 1000)
    larger = pretrained(url, img_size=(48, 64), patch_size=2)  # positions are resampled
    assert torch.equal(larger.stages[0].blocks[0].mlp.fc1.weight, model.stages[0].blocks[0].mlp.fc1.weight)
    assert server.asked["nano"] == 1, "the second time the cached file is used"


def test_the_hash_is_kept_and_a_change_is_said(server, nano, cache):
    _, content = nano
    url = server.url("hash", content)
    path = fetch_weights(NANO, url)
    assert path == cached_path(NANO, url) == find_weights(NANO, url)
    assert path.parent == cache
    assert (path.parent / f"{path.name}.sha256").read_text() == f"{sha256(content).hexdigest()}  {path.name}\n"
    assert path.read_bytes() == content
    path.write_bytes(content + b" ")
    with pytest.warns(UserWarning, match="has changed since it was downloaded: its sha256 was"):
        fetch_weights(NANO, url)
    path.unlink()
    other = io.BytesIO()
    torch.save({"model": nano[0].state_dict(), "epoch": 1}, other)
    server.url("hash", other.getvalue())
    with pytest.warns(UserWarning, match=r"gives another file than before: its sha256 was \w{64} and is \w{64}"):
        fetch_weights(NANO, url)


@pytest.mark.parametrize("resumable", [True, False])
def test_a_download_that_breaks_off(resumable, server, nano, cache, monkeypatch):
    """It goes on where it broke off, or begins again; if it always breaks, nothing that looks whole stays."""
    _, content = nano
    url = server.url("broken", (content, 200_000) if resumable else content[:200_000])
    server.ranges.clear()
    if resumable:
        assert fetch_weights(NANO, url).read_bytes() == content
        assert server.ranges == [200_000]
        return
    with pytest.raises(ConnectionError, match=r"cannot be downloaded from http.*ended too early, 3 times\. Put the file"):
        fetch_weights(NANO, url)
    assert not list(cache.glob("*.pth"))
    server.url("broken", content)
    assert fetch_weights(NANO, url).read_bytes() == content, "the half that is left does no harm"


def test_a_whole_file_that_was_not_yet_checked(server, nano, cache):
    """Killed after the last byte: the server has nothing to go on with, and the file is fetched again."""
    _, content = nano
    url = server.url("whole", (content, len(content)))
    cache.mkdir(parents=True)
    download.part_path(cached_path(NANO, url)).write_bytes(content)
    assert fetch_weights(NANO, url).read_bytes() == content


def test_a_cache_that_is_only_read(server, nano, cache, monkeypatch):
    """As on a cluster: no lock is taken for a file that is there."""
    url = server.url("read", nano[1])
    path = fetch_weights(NANO, url)
    monkeypatch.setattr(download, "FileLock", lambda _: pytest.fail("a lock was taken"))
    assert fetch_weights(NANO, url) == path


def test_halves_of_two_files_are_not_put_together(server, nano, cache):
    _, content = nano
    url = server.url("halves", (content, 10))
    cache.mkdir(parents=True)
    download.part_path(cached_path(NANO, url)).write_bytes(b"PK" + bytes(100_000))
    assert fetch_weights(NANO, url).read_bytes() == content


def hostile():
    class Payload:
        def __reduce__(self):
            return os.system, ("touch /tmp/inline-was-here",)

    return pickle.dumps({"model": Payload()})


def wrong(nano):
    model, _ = nano
    file = io.BytesIO()
    torch.save({"model": {**model.state_dict(), "another": torch.zeros(1)}}, file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: b"<!DOCTYPE html><html>Not here</html>", "answers with a web page instead of the weights of"),
        (lambda _: hostile(), "wants to call posix.system: refused, nothing was run"),
        (wrong, f"holds weights of no model of this package, not of {NANO}"),
        (lambda _: b"", "cannot be read as a checkpoint"),
    ],
    ids=["a web page", "a hostile pickle", "a wrong model", "nothing"],
)
def test_what_is_refused(make, message, server, nano, cache, monkeypatch):
    monkeypatch.setattr(published_models, "_candidates", lambda _: [(NANO, {})])  # all of them take seconds
    url = server.url("bad", make(nano))
    with pytest.raises(ValueError, match=message) as refused:
        pretrained(url)
    assert str(refused.value).startswith(url)
    assert "\n" not in str(refused.value)
    assert f"as {NANO}.pth and set INLINE_WEIGHTS to that folder" in str(refused.value)
    assert {file.suffix for file in cache.iterdir()} <= {".lock"}
    assert not os.path.exists("/tmp/inline-was-here")  # noqa: PTH110


def test_another_model_is_named(server, tmp_path, monkeypatch):
    monkeypatch.setattr(published_models, "_candidates", lambda _: [(name, {}) for name in TINY])
    url = server.url("other", publish("inline_pvt_tiny", tmp_path / "other.pth").read_bytes())
    with pytest.raises(ValueError, match="holds weights of inline_pvt_tiny, not of inline_pvt_small"):
        pretrained(url, "inline_pvt_small")


def test_no_server():
    with pytest.raises(ConnectionError, match=r"weights of inline_deit_nano cannot be downloaded from http://127.0.0.1:9/f/x/"):
        pretrained("http://127.0.0.1:9/f/x/?dl=1")


def test_an_error_of_the_server(server):
    with pytest.raises(ConnectionError, match="HTTP Error 404"):
        pretrained(f"{server.address}/f/nothing/?dl=1")


@pytest.mark.parametrize("file", ["inline_deit_tiny.pth", "inline_deit_t.pth", "inline_deit_tiny.in1k.pth"])
def test_a_folder_of_files_comes_first(file, tmp_path, monkeypatch):
    """For machines without internet: the address is not asked."""
    publish("inline_deit_tiny", tmp_path / file)
    monkeypatch.setenv("INLINE_WEIGHTS", str(tmp_path))
    model = timm.create_model("inline_deit_tiny", pretrained=True)
    assert torch.equal(model.head.weight, official("inline_deit_tiny")["head.weight"])
    assert find_weights("inline_deit_tiny") == tmp_path / file
    monkeypatch.setenv("INLINE_WEIGHTS", str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="INLINE_WEIGHTS: there is no folder"):
        timm.create_model("inline_deit_tiny", pretrained=True)


def test_two_processes_make_one_download(server, nano):
    """The server takes its time, so that both wait."""
    server.delay = 1.0
    url = server.url("twice", nano[1])
    code = f"from inline_attention.models.published_weights import fetch_weights; fetch_weights({NANO!r}, {url!r})"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    server.delay = 0.0
    assert server.asked["twice"] == 1
