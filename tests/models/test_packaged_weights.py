"""The small trained models inside the package."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from inline_attention.data.sources import FASHION_CLASSES
from inline_attention.data.transforms import evaluation_transform
from inline_attention.models.packaged_weights import PACKAGED, packaged_path
from inline_attention.training import evaluate, predict
from inline_attention.training.config import ModelConfig, Recipe
from inline_attention.training.load_trained import load_trained, metadata_of
from inline_attention.training.model_factory import build_model
from inline_attention.training.task import make_task
from inline_attention.training.weights_metadata import data_of


@pytest.mark.parametrize("name", PACKAGED)
def test_the_table_agrees_with_the_file(name):
    path, packaged = packaged_path(name), PACKAGED[name]
    metadata = metadata_of(path)
    assert (metadata["model"], metadata["arguments"]) == (name.partition(".")[0], packaged.model_arguments)
    assert tuple(metadata["classes"]) == packaged.classes
    assert path.stat().st_size < 2e6
    cfg = timm.get_pretrained_cfg(name)
    data = metadata["data"]
    assert tuple(cfg.input_size) == (data["channels"], *data["size"])
    assert (cfg.crop_pct, cfg.crop_mode, cfg.interpolation) == (data["crop"], data["crop_mode"], data["interpolation"])
    grey = "fashion" in name
    assert cfg.mean == (pytest.approx(sum(data["mean"]) / 3),) if grey else tuple(data["mean"])
    assert cfg.std == (pytest.approx(sum(data["std"]) / 3),) if grey else tuple(data["std"])
    assert f"| {name} | {metadata['top1']:.2f} |" in (path.parent / "README.md").read_text()


@pytest.mark.parametrize(("name", "mode"), [("inline_swin_nano.digits", "RGB"), ("inline_swin_nano.fashion_mnist", "L")])
def test_timms_own_transform_gives_what_the_model_was_trained_on(name, mode):
    path, model = packaged_path(name), timm.create_model(name)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)).convert(mode)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    torch.testing.assert_close(transform(image), evaluation_transform(data_of(metadata_of(path), path))(image))


def test_names_of_classes():
    assert PACKAGED["inline_swin_nano.fashion_mnist"].classes == FASHION_CLASSES


@pytest.mark.parametrize("name", ["inline_deit_nano.digits", "inline_swin_nano.digits"])
def test_the_score_of_the_card(name):
    """timm's model, and ours by its name, see what the card says."""
    score = evaluate(packaged_path(name), "digits")
    assert score.images == 359
    assert score.metrics["top1"] == pytest.approx(metadata_of(packaged_path(name))["top1"])
    assert score.metrics["top1"] > 97
    ours, images = load_trained(name), torch.randn(2, 3, 16, 16)
    assert ours.trained
    assert ours.chosen_by == metadata_of(packaged_path(name))["fingerprint"]
    with torch.no_grad():
        assert torch.equal(timm.create_model(name, pretrained=True).eval()(images), ours.model(images))


def test_every_argument_of_timm():
    name = "inline_swin_nano.fashion_mnist"
    assert name in timm.list_pretrained("inline_*")
    plain = timm.create_model(name)
    assert (plain.in_chans, plain.img_size, plain.num_classes) == (1, (28, 28), 10)
    assert timm.create_model("inline_swin_nano").num_classes == 1000, "without a tag, nothing changes"
    model = timm.create_model(name, pretrained=True, num_classes=3, img_size=(40, 24)).eval()
    trained = timm.create_model(name, pretrained=True).eval()
    images = torch.randn(1, 1, 40, 24)
    assert model(images).shape == (1, 3)
    torch.testing.assert_close(model.forward_features(images), trained.forward_features(images))
    assert timm.create_model(name, pretrained=True, features_only=True)(images)[0].shape == (1, 20, 20, 12)
    with pytest.raises(ValueError, match=r"by their names only: inline_swin_nano\.digits, inline_swin_nano\.fashion_mnist"):
        timm.create_model("inline_swin_nano", pretrained=True)
    with pytest.raises(RuntimeError, match="Invalid pretrained tag"):
        timm.create_model("inline_swin_nano.cats", pretrained=True)


def test_a_clothes_model_without_its_images():
    """Prediction needs no data set."""
    from PIL import Image

    found = predict(load_trained("inline_deit_nano.fashion_mnist"), Image.new("L", (28, 28)))[0]
    assert {label for label, _ in found} < set(FASHION_CLASSES)


def starting(name, weights=None):
    recipe = Recipe(model=ModelConfig(name, pretrained=True, weights=weights))
    return build_model(make_task(recipe), ("a", "b", "c"))


@pytest.mark.parametrize("pretrained", [True, False])
def test_training_starts_from_them(pretrained):
    """A tag is that of weights, asked for or not."""
    recipe = Recipe(model=ModelConfig("inline_deit_nano.digits", pretrained=pretrained, args="patch_size=2"))
    model, report = build_model(make_task(recipe), ("a", "b", "c"))
    trained = load_trained("inline_deit_nano.digits").model
    for block, other in zip(model.stages[0].blocks, trained.stages[0].blocks, strict=True):
        assert torch.equal(block.mixer.kv.weight, other.mixer.kv.weight)
    assert model.num_classes == 3
    assert "10 classes, the model has 3 classes" in report


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("inline_pvt_nano", None, "^model.pretrained: inline_pvt_nano has no published weights: leave it out"),
        ("inline_swin_tiny", __file__, "published weights are looked for in a folder"),
        ("vit_tiny_patch16_224", "somewhere", "model.pretrained and model.weights somewhere: leave out one of the two"),
    ],
)
def test_what_training_refuses(name, weights, message):
    with pytest.raises(ValueError, match=message):
        starting(name, weights)


def test_a_folder_of_published_files(tmp_path):
    from .published import official, publish

    publish("inline_deit_tiny", tmp_path / "inline_deit_t.pth")
    for config in (
        ModelConfig("inline_deit_tiny", pretrained=True, weights=str(tmp_path)),
        ModelConfig("inline_deit_tiny", weights=str(tmp_path)),
    ):
        model, report = build_model(make_task(Recipe(model=config)), ("a", "b"))
        assert report.startswith(str(tmp_path / "inline_deit_t.pth"))
        assert torch.equal(model.norm.weight, official("inline_deit_tiny")["norm.weight"])
    other = Recipe(model=ModelConfig("inline_pvt_tiny", weights=str(tmp_path)))
    with pytest.raises(ValueError, match=r"no best\.safetensors and no file of inline_pvt_tiny, such as inline_pvt_t"):
        build_model(make_task(other), ("a", "b"))


def test_it_is_installed():
    assert Path(packaged_path("inline_swin_nano.digits")).parent.name == "weights"
    assert packaged_path("inline_swin_nano") is None
