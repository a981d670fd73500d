"""The authors' files, as they are and as they should not be: read, translated, fitted, refused."""

import logging
import os
import pickle
import re
import sys
import zipfile
from argparse import Namespace

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models.swin_transformer import checkpoint_filter_fn
from yacs.config import CfgNode

from inline_attention import load_official
from inline_attention.models.adapt_weights import adapt
from inline_attention.models.load_official import read_checkpoint

from ..golden.recipe import image, weights
from .published import PUBLISHED, TINY, golden_models, hollow, official, on_meta, publish

IMAGES = torch.from_numpy(image(1, 64, 96))


@pytest.mark.parametrize("name", TINY)
def test_published_files_load_in_every_way(name, tmp_path, monkeypatch):
    """By timm's own arguments and by ours, where yacs is not installed."""
    path = publish(name, tmp_path / "published.pth")
    monkeypatch.setitem(sys.modules, "yacs", None)
    monkeypatch.setitem(sys.modules, "yacs.config", None)
    models = [
        timm.create_model(name, checkpoint_path=str(path)),
        timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": str(path)}),
        hollow(name),
    ]
    report = load_official(models[2], path)
    assert len(report.matched) == len(models[2].state_dict())
    assert set(report.left_out.values()) <= {"computed from the window"}
    assert str(report).startswith(f"{len(report.matched)} tensors matched")
    expected = models[2](IMAGES)
    for model in models[:2]:
        assert torch.equal(model.eval()(IMAGES), expected)
    maps = timm.create_model(name, features_only=True, pretrained=True, pretrained_cfg_overlay={"file": str(path)}).eval()
    last = models[2].forward_intermediates(IMAGES, maps.out_indices, intermediates_only=True)[-1]
    torch.testing.assert_close(maps(IMAGES)[-1], last)


def test_every_published_name_has_its_place():
    """All fifteen key lists, without weights."""
    for name, golden in PUBLISHED.items():
        model = on_meta(name)
        with torch.device("meta"):
            state = {key: torch.empty(shape) for key, shape in golden_models()[golden]["params"].items()}
        translated, report = adapt(state, model, loose=False)
        assert {key: value.shape for key, value in translated.items()} == {
            key: value.shape for key, value in model.state_dict().items()
        }
        assert (report.resized, report.left_out, report.kept) == ({}, {}, {})


def test_a_file_that_holds_itself_is_read(tmp_path):
    state = dict(official("inline_deit_tiny"))
    whole = {"model": state, "again": {}}
    whole["again"]["whole"] = whole["self"] = whole
    torch.save(whole, tmp_path / "loop.pth")
    assert torch.equal(read_checkpoint(tmp_path / "loop.pth")["model"]["head.weight"], state["head.weight"])


def test_reading_leaves_no_trace(tmp_path):
    """One file after the other, by either way, in any order."""
    path = publish("inline_deit_tiny", tmp_path / "published.pth", args=Namespace(lr=1))
    for _ in range(2):
        load_official(hollow("inline_deit_tiny"), path)
        timm.create_model("inline_deit_tiny", checkpoint_path=str(path))


def test_damaged_files_are_not_called_hostile(tmp_path):
    path = publish("inline_deit_tiny", tmp_path / "published.pth")
    whole = path.read_bytes()
    path.write_bytes(whole[:2000] + b"x" * 20 + whole[2020:])
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        read_checkpoint(path)
    renamed = path.with_suffix(".safetensors")
    renamed.write_bytes(whole)
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        read_checkpoint(renamed)
    torch.save({"config": CfgNode({"A": 1})}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        read_checkpoint(path)
    path.write_text("<html>not found</html>")
    with pytest.raises(ValueError, match="perhaps it is truncated: it is no whole file of weights"):
        read_checkpoint(path)


def test_names_put_together_from_memory_are_named(tmp_path):
    path = tmp_path / "hostile.pth"
    path.write_bytes(pickle.dumps([os.system, os.remove, os.popen], protocol=4))
    with pytest.raises(ValueError, match=r"wants to call posix.system, posix.remove, os.popen: refused"):
        read_checkpoint(path)
    path.write_bytes(b"\x80\x02ctorch\ncompile\n(tR.")
    with pytest.raises(ValueError, match=r"wants to call torch.compile: refused"):
        read_checkpoint(path)


@pytest.mark.parametrize("key", ["state_dict_ema", "model_ema"])
def test_moving_averages_are_taken_when_asked_for(key, tmp_path):
    average = {name: value + 1 for name, value in official("inline_cswin_tiny").items()}
    path = publish("inline_cswin_tiny", tmp_path / "published.pth", **{key: average})
    model = hollow("inline_cswin_tiny")
    load_official(model, path)
    plain = model.norm.weight.clone()
    load_official(model, path, ema=True)
    torch.testing.assert_close(model.norm.weight, plain + 1)
    with pytest.raises(ValueError, match=r"holds no moving average \(EMA\); it has: model, optimizer"):
        load_official(model, publish("inline_deit_tiny", tmp_path / "plain.pth"), ema=True)


def test_other_classes_keep_all_but_the_head(tmp_path, caplog):
    path = publish("inline_pvt_tiny", tmp_path / "published.pth")
    model = timm.create_model("inline_pvt_tiny", num_classes=10)
    before = model.head.weight.clone()
    report = load_official(model, path)
    assert report.left_out == dict.fromkeys(["head.weight", "head.bias"], "1000 classes, the model has 10 classes")
    assert report.kept == dict.fromkeys(["head.weight", "head.bias"], "the classifier is newly initialised")
    assert torch.equal(model.head.weight, before)
    full = hollow("inline_pvt_tiny")
    load_official(full, path)
    torch.testing.assert_close(model.eval().forward_features(IMAGES), full.forward_features(IMAGES))
    with caplog.at_level(logging.WARNING):
        other = timm.create_model("inline_pvt_tiny", num_classes=10, checkpoint_path=str(path)).eval()
    assert "left out: head.weight and 1 more (1000 classes, the model has 10 classes)" in caplog.text
    torch.testing.assert_close(other.forward_features(IMAGES), full.forward_features(IMAGES))
    none = timm.create_model("inline_pvt_tiny", num_classes=0)
    assert load_official(none, path).left_out["head.bias"] == "1000 classes, the model has no classifier"


@pytest.mark.parametrize("name", ["inline_deit_tiny", "inline_pvt_tiny"])
def test_another_size_resamples_once_what_would_be_resampled_at_each_pass(name):
    at_224, at_64x96 = hollow(name), hollow(name, img_size=(64, 96))
    load_official(at_224, official(name))
    report = load_official(at_64x96, official(name))
    grids = [key for key in report.resized if key.endswith("positions.grid")]
    assert len(grids) == (1 if "deit" in name else 4)
    torch.testing.assert_close(at_64x96(IMAGES), at_224(IMAGES))
    at_224.set_input_size((64, 96))
    assert at_224.img_size == (64, 96)
    torch.testing.assert_close(at_224(IMAGES), at_64x96(IMAGES))
    again = hollow(name, img_size=(64, 96))
    again.load_state_dict(at_224.state_dict())
    assert torch.equal(again(IMAGES), at_224(IMAGES))
    back = hollow(name)
    assert load_official(back, at_224.state_dict()).resized[grids[0]].endswith("to 14x14" if "deit" in name else "to 56x56")


def test_windows_of_another_size_resample_their_tables():
    small, large = hollow("inline_swin_tiny"), hollow("inline_swin_tiny", window_size=12)
    load_official(small, official("inline_swin_tiny"))
    report = load_official(large, official("inline_swin_tiny"))
    assert report.resized == dict.fromkeys(report.resized, "13x13 to 23x23")
    assert len(report.resized) == 2
    images = torch.from_numpy(image(1, 480, 448))
    assert not torch.allclose(small(images), large(images))
    small.set_input_size(window_size=12)
    torch.testing.assert_close(small(images), large(images))


def test_one_colour_channel():
    grey, colour = hollow("inline_swin_tiny", in_chans=1), hollow("inline_swin_tiny")
    load_official(colour, official("inline_swin_tiny"))
    assert load_official(grey, official("inline_swin_tiny")).resized == {"stages.0.embed.proj.weight": "3 to 1 colour channels"}
    image = torch.randn(1, 1, 64, 64)
    torch.testing.assert_close(grey(image), colour(image.expand(1, 3, 64, 64)), rtol=1e-4, atol=1e-5)


def test_a_module_that_holds_a_backbone():
    pyramid = timm.create_model("inline_swin_tiny", features_only=True, out_indices=(0, 1)).eval()
    report = load_official(torch.nn.ModuleDict({"body": pyramid}), official("inline_swin_tiny"))
    assert set(report.left_out.values()) == {
        "after the last map that is returned",
        "1000 classes, the model has no classifier",
    }
    whole = hollow("inline_swin_tiny")
    load_official(whole, official("inline_swin_tiny"))
    torch.testing.assert_close(pyramid(IMAGES)[1], whole.forward_intermediates(IMAGES, [1], intermediates_only=True)[0])
    with pytest.raises(ValueError, match="Linear holds 0 of the package's backbones, and not one"):
        load_official(torch.nn.Linear(2, 2), official("inline_swin_tiny"))


def swin_file(depths=(2, 2, 6, 2), dim=96, heads=(3, 6, 12, 24)):
    """Shapes in a published Swin file."""
    shapes = {"patch_embed.proj.weight": [dim, 3, 4, 4], "patch_embed.proj.bias": [dim]}
    shapes |= {f"patch_embed.norm.{kind}": [dim] for kind in ("weight", "bias")}
    for s, depth in enumerate(depths):
        c = dim * 2**s
        for b in range(depth):
            at = f"layers.{s}.blocks.{b}"
            for norm in ("norm1", "norm2"):
                shapes |= {f"{at}.{norm}.weight": [c], f"{at}.{norm}.bias": [c]}
            for part, out, inside in (
                ("attn.qkv", 3 * c, c),
                ("attn.proj", c, c),
                ("mlp.fc1", 4 * c, c),
                ("mlp.fc2", c, 4 * c),
            ):
                shapes |= {f"{at}.{part}.weight": [out, inside], f"{at}.{part}.bias": [out]}
            shapes[f"{at}.attn.relative_position_bias_table"] = [169, heads[s]]
        if s < 3:
            shapes |= {f"layers.{s}.downsample.reduction.weight": [2 * c, 4 * c]}
            shapes |= {f"layers.{s}.downsample.norm.{kind}": [4 * c] for kind in ("weight", "bias")}
    last = dim * 8
    shapes |= {"norm.weight": [last], "norm.bias": [last], "head.weight": [1000, last], "head.bias": [1000]}
    return {key: torch.from_numpy(value) for key, value in weights(shapes).items()}


def test_the_swin_twin_is_swin():
    """A published file in our softmax twin and in timm's Swin: the same outputs, shifted windows, tables and all."""
    state = swin_file()
    ours = hollow("inline_swin_tiny", mixer="softmax")
    report = load_official(ours, state)
    assert not report.resized
    theirs = timm.create_model("swin_tiny_patch4_window7_224").eval()
    theirs.load_state_dict(checkpoint_filter_fn(dict(state), theirs), strict=False)
    images = torch.from_numpy(image(2, 224, 224))
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-5)


def test_the_deit_twin_is_deit():
    theirs = timm.create_model("deit_tiny_patch16_224").eval()
    ours = hollow("inline_deit_tiny", mixer="softmax", num_heads=3)
    assert len(load_official(ours, theirs.state_dict()).matched) == len(ours.state_dict())
    images = torch.from_numpy(image(2, 224, 224))
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-5)


def pvt_file(model):
    """A published PVT file for a twin with class token: names from the model, written the authors' way."""
    state = {}
    for key, value in model.state_dict().items():
        key = re.sub(r"^stages\.(\d)\.embed", lambda m: f"patch_embed{int(m[1]) + 1}", key)
        key = re.sub(r"^stages\.(\d)\.blocks", lambda m: f"block{int(m[1]) + 1}", key)
        key = key.replace("mixer.reduction.conv", "attn.sr").replace("mixer.reduction.norm", "attn.norm")
        key = key.replace("mixer.", "attn.")
        if grid := re.fullmatch(r"stages\.(\d)\.positions\.grid", key):
            prefix = [model.stages[3].positions.cls_position] if grid[1] == "3" else []
            state[f"pos_embed{int(grid[1]) + 1}"] = torch.cat([*prefix, value.flatten(1, 2)], 1)
        elif key.endswith("cls_token"):
            state["cls_token"] = value
        elif not key.endswith("cls_position"):
            state[key] = value
    return state


def test_the_pvt_twin_takes_published_files():
    options = {"mixer": "softmax", "class_token": True, "num_heads": (1, 2, 5, 8)}
    source = timm.create_model("inline_pvt_tiny", **options).eval()
    state = pvt_file(source)
    assert state["pos_embed4"].shape == (1, 50, 512)
    twin = hollow("inline_pvt_tiny", **options)
    assert (type(twin.norm), twin.norm.eps) == (torch.nn.LayerNorm, 1e-6)  # PVT has one, InLine-PVT does not
    load_official(twin, state)
    assert torch.equal(twin(IMAGES), source(IMAGES))
    assert torch.equal(twin.norm(twin.stages(IMAGES))[:, 0], twin.forward_head(twin.forward_features(IMAGES), True))
    with pytest.raises(ValueError, match=r"perhaps it is for class_token=True, num_heads=\(1, 2, 5, 8\)"):
        load_official(hollow("inline_pvt_tiny", mixer="softmax"), state)


def cswin_file(model):
    """A published CSWin file: one `qkv`, LePE by branch."""
    state = {}
    for key, value in model.state_dict().items():
        key = key.replace("stages.0.embed.proj", "stage1_conv_embed.0").replace("stages.0.embed.norm", "stage1_conv_embed.2")
        key = re.sub(r"^stages\.(\d)\.embed\.proj", r"merge\1.conv", key)
        key = re.sub(r"^stages\.(\d)\.embed\.norm", r"merge\1.norm", key)
        key = re.sub(r"^stages\.(\d)\.blocks", lambda m: f"stage{int(m[1]) + 1}", key)
        if ".mixer.q." in key:
            other = model.state_dict()[
                re.sub(r"^stage(\d)", lambda m: f"stages.{int(m[1]) - 1}.blocks", key).replace(".q.", ".kv.")
            ]
            state[key.replace("mixer.q", "qkv")] = torch.cat([value, other])
        elif ".mixer.lepe." in key:
            value = value.unsqueeze(1) if "weight" in key else value
            for number, part in enumerate([value] if key.startswith("stage4") else value.chunk(2)):
                state[key.replace("mixer.lepe", f"attns.{number}.get_v")] = part
        elif ".mixer.kv." not in key:
            state[key.replace("mixer.", "")] = value
    return state


def test_the_cswin_twin_takes_published_files():
    options = {"mixer": "softmax", "depths": (1, 2, 21, 1)}
    source = timm.create_model("inline_cswin_tiny", **options).eval()
    state = cswin_file(source)
    twin = hollow("inline_cswin_tiny", **options)
    load_official(twin, state)
    assert torch.equal(twin(IMAGES), source(IMAGES))
    with pytest.raises(ValueError, match=r"perhaps it is for depths=\(1, 2, 21, 1\)"):
        load_official(hollow("inline_cswin_tiny", mixer="softmax"), state)


class Hostile:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("how", ["torch", "old torch", "pickle 2", "pickle 4"])
def test_a_hostile_file_is_refused_by_the_name_of_what_it_would_call(how, tmp_path):
    path, proof = tmp_path / "hostile.pth", tmp_path / "executed"
    saved = {"model": official("inline_deit_tiny"), "config": Hostile(f"touch {proof}")}
    if "torch" in how:
        torch.save(saved, path, _use_new_zipfile_serialization=how == "torch")
    else:
        path.write_bytes(pickle.dumps({"config": saved["config"]}, protocol=int(how[-1])))
    model = hollow("inline_deit_tiny")
    with pytest.raises(ValueError, match=rf"{path} wants to call posix.system: refused, nothing was run"):
        load_official(model, path)
    with pytest.raises((RuntimeError, UserWarning, pickle.UnpicklingError)):
        timm.create_model("inline_deit_tiny", checkpoint_path=str(path))
    assert not proof.exists()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_named(suffix, share, tmp_path):
    path = tmp_path / f"weights{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(official("inline_deit_tiny"), path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ValueError, match=rf"{path} cannot be read as a checkpoint, perhaps it is truncated: \S") as error:
        read_checkpoint(path)
    assert "\n" not in str(error.value)


def test_wrong_files_are_named(tmp_path):
    model = timm.create_model("inline_deit_tiny")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="there is no file /nowhere"):
        load_official(model, "/nowhere")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="holds a list, not a dictionary of weights"):
        load_official(model, tmp_path / "list.pth")
    torch.save({"epoch": 3, "best": 0.5}, tmp_path / "empty.pth")
    with pytest.raises(ValueError, match="holds no weights; it has: epoch, best"):
        load_official(model, tmp_path / "empty.pth")
    for other in ("inline_deit_small", "inline_pvt_tiny", "inline_swin_tiny", "inline_cswin_tiny"):
        with pytest.raises(ValueError, match="the checkpoint does not fit inline_deit_tiny: ") as error:
            load_official(model, official(other))
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="perhaps it is for mixer='softmax'"):
        load_official(hollow("inline_swin_tiny"), swin_file())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_text_is_no_checkpoint(tmp_path):
    path = tmp_path / "text.pth"
    path.write_text("easily mistaken")
    with pytest.raises(ValueError, match=r"text\.pth cannot be read as a checkpoint, .*: \w+ .*\w$"):
        read_checkpoint(path)


def test_a_compressed_archive_is_refused_before_it_is_unpacked(tmp_path):
    """20 MB of zeros in 20 kB."""
    plain, bomb = tmp_path / "plain.pth", tmp_path / "bomb.pth"
    torch.save({"model": {"a": torch.zeros(5_000_000)}}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        for entry in source.infolist():
            packed.writestr(entry.filename, source.read(entry))
    assert bomb.stat().st_size < 30_000
    with pytest.raises(ValueError, match=r"bomb\.pth has \d\d,\d\d\d bytes and would be unpacked to 20,\d\d\d,\d\d\d: refused"):
        read_checkpoint(bomb)


def test_a_tensor_that_claims_more_than_the_file_is_refused(tmp_path):
    torch.save({"model": {"a": torch.zeros(1).expand(10**12)}}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"a\.pth: a claims to be \(1000000000000,\), more than the file's"):
        read_checkpoint(tmp_path / "a.pth")


class Allocates:
    """A pickle that asks for as many bytes as it likes."""

    def __reduce__(self):
        return bytearray, (10**11,)


def test_a_pickle_that_allocates_is_refused(tmp_path):
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        torch.save({"a": Allocates()}, tmp_path / "a.pth", **options)
        with pytest.raises(ValueError, match=r"a\.pth wants to call bytearray, which allocates any size: refused"):
            read_checkpoint(tmp_path / "a.pth")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value.to_sparse(), "the checkpoint: .* is sparse_coo, and dense tensors are expected"),
        (lambda value: value.to("meta"), "the checkpoint: .* is on the meta device, without numbers"),
        (lambda value: value.int(), "the checkpoint holds whole numbers where"),
    ],
)
def test_weights_that_are_no_dense_numbers_are_refused(change, message):
    model = timm.create_model("inline_deit_nano", depth=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        load_official(model, {name: change(value) for name, value in before.items()})
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(TypeError, match="weights must be a path or a dictionary of tensors, got None"):
        load_official(model, None)
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got None"):
        load_official(None, before)
