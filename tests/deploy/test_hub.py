"""Hub folders: what timm loads from one is the model that was saved, bit for bit."""

import json
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import timm
import torch
from PIL import Image
from torch import nn

from inline_attention.data.config import DataConfig
from inline_attention.data.transforms import evaluation_transform
from inline_attention.deploy import hub
from inline_attention.deploy.hub import from_pretrained, push_to_hub, save_for_hub
from inline_attention.training.load_trained import load_trained

MODELS = timm.list_models("inline_*")
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
SMALL = {"img_size": (24, 40), "num_classes": 3}


def transform_fields(size=(24, 40), channels=3, **more) -> dict:
    """The evaluation transform as the metadata of a run's weights have it."""
    usual = {"crop_mode": "squash", "crop": 0.9, "interpolation": "bilinear", "mean": MEAN, "std": STD}
    return {"size": size, "channels": channels, **usual, **more}


def randomised(name: str, **arguments) -> nn.Module:
    """A model with none of its initial parameters left."""
    model = timm.create_model(name, **arguments)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def save(folder: Path, model: nn.Module, name: str, arguments: dict, **more) -> Path:
    count = model.num_classes
    data = transform_fields(arguments.get("img_size", (24, 40)), arguments.get("in_chans", 3))
    given = {"classes": [f"class {n}" for n in range(count)], "data": data, "card": "# A card\n", **more}
    return save_for_hub(model, folder, name=name, arguments=arguments, **given)


def check_same(model: nn.Module, folder: Path, *shape: int) -> None:
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(2, *shape)
    with torch.no_grad():
        assert torch.equal(loaded(images), model(images))


@pytest.mark.parametrize(
    "name", [name if name.endswith(("_nano", "_tiny")) else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_every_model_comes_back(name, tmp_path):
    """With one block a stage. The wide ones, which differ in width alone, are slow."""
    fewer = {"depth": 1} if "deit" in name else {"depths": (1, 1, 1, 1)}
    arguments = {**fewer, "img_size": (64, 64), "num_classes": 5}
    model = randomised(name, **arguments)
    check_same(model, save(tmp_path / "folder", model, name, arguments), 3, 64, 64)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("inline_swin_nano", {"mixer": "softmax"}),
        ("inline_swin_nano", {"mixer": "linear", "kernel": "relu", "local": True}),
        ("inline_swin_nano", {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 8], "drop_path_rate": 0.2}),
        ("inline_deit_nano", {"mixer": "focused", "global_pool": "avg"}),
        ("inline_deit_nano", {"patch_size": 8}),
        ("inline_deit_nano", {"in_chans": 1}),
        ("inline_pvt_nano", {"in_chans": 4}),
        ("inline_cswin_nano", {"in_chans": 5, "patch_size": 2}),
        ("inline_pvt_nano", {"num_classes": 0}),
    ],
)
def test_arguments_channels_and_rectangles_come_back(name, more, tmp_path):
    arguments = {**SMALL, **more}
    model = randomised(name, **arguments)
    folder = save(tmp_path / "folder", model, name, arguments)
    check_same(model, folder, arguments.get("in_chans", 3), 24, 40)
    check_same(model, folder, arguments.get("in_chans", 3), 50, 33)


def test_a_model_of_timms_own_comes_back(tmp_path):
    arguments = {"img_size": (32, 48), "in_chans": 4, "num_classes": 3}
    model = randomised("vit_tiny_patch16_224", **arguments)
    check_same(model, save(tmp_path / "folder", model, "vit_tiny_patch16_224", arguments), 4, 32, 48)


def test_the_folder_is_timms_format(tmp_path):
    model = randomised("inline_swin_nano", **SMALL)
    folder = save(tmp_path / "new" / "folder", model, "inline_swin_nano", SMALL)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]
    assert (folder / "README.md").read_text() == "# A card\n"
    config = json.loads((folder / "config.json").read_text())
    assert config["architecture"] == "inline_swin_nano"
    assert (config["num_classes"], config["num_features"]) == (3, model.num_features)
    assert config["label_names"] == ["class 0", "class 1", "class 2"]
    assert config["model_args"] == {"img_size": [24, 40]}  # num_classes stands above it, and transformers takes it once
    cfg = config["pretrained_cfg"]
    assert cfg["input_size"] == [3, 24, 40]
    assert (cfg["mean"], cfg["std"], cfg["num_classes"]) == ([*MEAN], [*STD], 3)
    assert (cfg["crop_pct"], cfg["crop_mode"], cfg["interpolation"]) == (0.9, "squash", "bilinear")
    assert timm.create_model(f"local-dir:{folder}").pretrained_cfg["label_names"] == config["label_names"]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("crop_mode", ["squash", "center"])
def test_images_are_transformed_as_in_the_run(channels, crop_mode, tmp_path):
    arguments = {**SMALL, "in_chans": channels}
    data = transform_fields(channels=channels, crop_mode=crop_mode)
    folder = save(tmp_path / "folder", randomised("inline_pvt_nano", **arguments), "inline_pvt_nano", arguments, data=data)
    loaded = from_pretrained(folder)
    image = Image.effect_noise((61, 47), 90).convert("L" if channels == 1 else "RGB")
    theirs = timm.data.create_transform(**timm.data.resolve_model_data_config(loaded), is_training=False)
    assert torch.equal(theirs(image), evaluation_transform(DataConfig(**data))(image))


def test_the_weights_have_the_metadata_of_a_runs_weights(tmp_path):
    """So the commands of the package take the file as it is."""
    model = randomised("inline_swin_nano", **SMALL)
    folder = save(tmp_path / "folder", model, "inline_swin_nano", SMALL)
    trained = load_trained(str(folder / "model.safetensors"))
    assert trained.classes == ("class 0", "class 1", "class 2")
    assert (trained.data.size, trained.data.crop, trained.data.mean) == ((24, 40), 0.9, MEAN)
    images = torch.randn(1, 3, 24, 40)
    assert torch.equal(trained.model(images), model(images))


def test_weights_in_other_memory_formats_and_precisions(tmp_path):
    model = randomised("inline_swin_nano", **SMALL).to(memory_format=torch.channels_last).half().train()
    folder = save(tmp_path / "folder", model, "inline_swin_nano", SMALL)
    assert model.training
    assert next(model.parameters()).dtype == torch.half
    check_same(model.float().eval(), folder, 3, 24, 40)


def test_arguments_replace_those_of_the_model(tmp_path):
    folder = save(tmp_path / "folder", randomised("inline_deit_nano", **SMALL), "inline_deit_nano", SMALL)
    model = from_pretrained(folder, num_classes=7, img_size=32)
    assert not model.training
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 7)
    assert torch.equal(model.norm.weight, from_pretrained(str(folder)).norm.weight)


class TestErrors:
    @pytest.fixture
    def model(self) -> nn.Module:
        return randomised("inline_swin_nano", **SMALL)

    def test_the_folder_is_there(self, model, tmp_path):
        (tmp_path / "mine").write_text("dear")
        with pytest.raises(ValueError, match=r"mine exists already: choose another folder$"):
            save(tmp_path / "mine", model, "inline_swin_nano", SMALL)
        assert (tmp_path / "mine").read_text() == "dear"

    def test_no_such_model(self, model, tmp_path):
        with pytest.raises(ValueError, match=r"^'inline_swim' is not a model in timm's registry"):
            save(tmp_path / "x", model, "inline_swim", SMALL)

    def test_no_classifier(self, tmp_path):
        pyramid = timm.create_model("inline_swin_nano", features_only=True)
        with pytest.raises(ValueError, match=r"is not a classifier of timm's"):
            save_for_hub(
                pyramid, tmp_path / "x", name="inline_swin_nano", arguments={}, classes=(), data=transform_fields(), card=""
            )

    def test_names_of_classes(self, model, tmp_path):
        with pytest.raises(ValueError, match=r"^there are 2 class names for a model of 3 classes: give one for each$"):
            save(tmp_path / "x", model, "inline_swin_nano", SMALL, classes=["a", "b"])

    def test_data(self, model, tmp_path):
        with pytest.raises(ValueError, match=r"^data has no 'mean'; it must have: size, channels,"):
            save(
                tmp_path / "x",
                model,
                "inline_swin_nano",
                SMALL,
                data={"size": (1, 1), "channels": 3, "crop_mode": "", "crop": 1, "interpolation": ""},
            )

    def test_data_of_the_first_version(self, model, tmp_path):
        """Metadata of 0.1.0 weights has another name for crop_mode."""
        old = transform_fields(view="center")
        del old["crop_mode"]
        folder = save(tmp_path / "x", model, "inline_swin_nano", SMALL, data=old)
        assert load_trained(str(folder / "model.safetensors")).data.crop_mode == "center"

    def test_arguments_that_are_no_json(self, model, tmp_path):
        with pytest.raises(ValueError, match=r"^the arguments of inline_swin_nano cannot be written as JSON: .*type"):
            save(tmp_path / "x", model, "inline_swin_nano", {**SMALL, "norm_layer": nn.LayerNorm})

    @pytest.mark.parametrize(
        ("other", "why"),
        [
            ({"embed_dim": 8}, "size mismatch"),
            ({"img_size": (24, 24), "patch_size": 4}, "the weights differ"),
            ({"kernel": "relu"}, "the outputs differ"),
            ({"no_such": 1}, "has no argument 'no_such'"),
        ],
    )
    def test_arguments_of_another_model(self, model, other, why, tmp_path):
        """Those that leave no trace in the weights too. Nothing is left behind."""
        with pytest.raises(ValueError, match=rf"^inline_swin_nano with these arguments is not the model.*{why}") as caught:
            save(tmp_path / "x", model, "inline_swin_nano", {**SMALL, **other}, data=transform_fields())
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    def test_no_room(self, model, tmp_path, monkeypatch):
        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(hub, "save_file", full)
        with pytest.raises(OSError, match=r"^cannot write .*x: No space left on device$"):
            save(tmp_path / "x", model, "inline_swin_nano", SMALL)
        assert list(tmp_path.iterdir()) == []

    def test_what_cannot_be_loaded(self, model, tmp_path):
        with pytest.raises(ValueError, match=r"nowhere is neither a folder nor a repository of the hub, which is owner/name$"):
            from_pretrained(tmp_path / "nowhere")
        with pytest.raises(ValueError, match=r"has no config.json: it is not a folder in timm's hub format$"):
            from_pretrained(tmp_path)
        folder = save(tmp_path / "x", model, "inline_swin_nano", SMALL)
        with pytest.raises(ValueError, match=r"x cannot be loaded: inline_swin_nano has no argument 'foo'"):
            from_pretrained(folder, foo=1)
        with pytest.raises(ValueError, match=r"x cannot be loaded: Error\(s\) in loading state_dict.* size mismatch") as caught:
            from_pretrained(folder, embed_dim=8)
        assert "\n" not in str(caught.value)
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ValueError, match=r"x cannot be loaded: .*"):
            from_pretrained(folder)


class TestUpload:
    """huggingface_hub's API object is replaced by one that records what it is asked: nothing here reaches the hub."""

    @pytest.fixture
    def folder(self, tmp_path) -> Path:
        return save(tmp_path / "folder", randomised("inline_swin_nano", **SMALL), "inline_swin_nano", SMALL)

    @pytest.fixture
    def asked(self, monkeypatch) -> list:
        asked = []

        class Recorder:
            def __init__(self, **given):
                asked.append(("HfApi", given))

            def create_repo(self, repo_id, **given):
                asked.append(("create_repo", {"repo_id": repo_id, **given}))

            def upload_folder(self, **given):
                asked.append(("upload_folder", given))
                return "https://hub/me/mine/tree/main/"

        monkeypatch.setattr(hub, "HfApi", Recorder)
        return asked

    def test_what_the_hub_is_asked(self, folder, asked):
        assert push_to_hub(folder, "me/mine", private=True, token="secret") == "https://hub/me/mine/tree/main/"
        assert asked == [
            ("HfApi", {"token": "secret"}),
            ("create_repo", {"repo_id": "me/mine", "private": True, "exist_ok": True}),
            ("upload_folder", {"repo_id": "me/mine", "folder_path": folder, "commit_message": "Add model"}),
        ]

    def test_what_is_asked_is_what_huggingface_hub_takes(self, folder, asked):
        """Names of arguments, against the real object's signatures."""
        from inspect import signature

        push_to_hub(folder, "me/mine")
        for name, given in asked[1:]:
            signature(getattr(huggingface_hub.HfApi, name)).bind(None, **given)

    @pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "README.md"])
    def test_a_folder_that_is_not_whole(self, folder, asked, missing):
        (folder / missing).unlink()
        with pytest.raises(ValueError, match=rf"folder has no {missing}: it is not a folder that save_for_hub wrote$"):
            push_to_hub(folder, "me/mine")
        assert asked == []

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (ConnectionError("no route\nto the hub"), r"to me/mine: no route$"),
            (huggingface_hub.errors.LocalTokenNotFoundError("Token is required"), r"Token is required; hf auth login stores"),
        ],
    )
    def test_refusals_are_one_line(self, folder, asked, monkeypatch, error, message):
        def refuse(*_, **__):
            raise error

        monkeypatch.setattr(hub.HfApi, "create_repo", refuse)
        with pytest.raises(ValueError, match=message) as caught:
            push_to_hub(folder, "me/mine")
        assert "\n" not in str(caught.value)

    def test_a_refusal_by_the_hub_advises_a_token(self, folder, asked, monkeypatch):
        class RefusedError(Exception):
            response = SimpleNamespace(status_code=401)

        def refuse(*_, **__):
            raise RefusedError("401 Client Error")

        monkeypatch.setattr(hub.HfApi, "create_repo", refuse)
        with pytest.raises(ValueError, match=r"401 Client Error; hf auth login stores a token, token= passes one"):
            push_to_hub(folder, "me/mine")


def test_a_repository_of_the_hub_is_loaded_through_timm(monkeypatch):
    asked = []

    def record(name, **given):
        asked.append((name, given))
        return nn.Identity()

    monkeypatch.setattr(hub, "create_model", record)
    assert not from_pretrained("me/mine@main", num_classes=4).training
    assert asked == [("hf-hub:me/mine@main", {"pretrained": True, "num_classes": 4})]
