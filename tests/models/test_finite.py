"""Weights and outputs with NaN or infinity are errors that name the tensor or the image, whichever way weights are loaded."""

import re

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf

from inline_attention import load_official
from inline_attention.cli.main import main
from inline_attention.deploy.hub import from_pretrained
from inline_attention.models.finite import check_outputs, nonfinite
from inline_attention.training.load_trained import load_trained
from inline_attention.training.model_factory import make_model

from .published import hollow, official

ARGUMENTS = {"patch_size": 4, "depth": 1, "embed_dim": 16, "num_heads": 2, "num_classes": 3}
VIT = {"img_size": 32, "depth": 1, "embed_dim": 16, "num_heads": 2, "num_classes": 3}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Weights with one NaN: of a small model of this package, of a timm model, and of a published model as a pickle."""
    here = tmp_path_factory.mktemp("nan")
    for name, model in (
        ("ours", timm.create_model("inline_deit_nano", **ARGUMENTS)),
        ("vit", timm.create_model("vit_tiny_patch16_224", **VIT)),
    ):
        with torch.no_grad():
            model.head.weight[1, 2] = float("nan")
        save_file(model.state_dict(), here / f"{name}.safetensors")
        save_for_hf(model, str(here / f"{name}_hub"), safe_serialization=True)
    state = official("inline_deit_tiny")
    state["blocks.3.norm1.bias"] = state["blocks.3.norm1.bias"].clone().index_fill_(0, torch.tensor([5]), float("-inf"))
    torch.save({"model": state}, here / "published.pth")
    return here


@pytest.mark.parametrize(
    ("load", "tensor"),
    [
        (lambda here: load_trained("inline_deit_nano", here / "ours.safetensors"), "head.weight"),
        (lambda here: load_trained("vit_tiny_patch16_224", here / "vit.safetensors"), "head.weight"),
        (lambda here: timm.create_model("inline_deit_nano", **ARGUMENTS, checkpoint_path=here / "ours.safetensors"), "weight"),
        (lambda here: make_model("vit_tiny_patch16_224", {**VIT, "checkpoint_path": here / "vit.safetensors"}), "head.weight"),
        (lambda here: from_pretrained(here / "ours_hub", **ARGUMENTS), "head.weight"),
        (lambda here: from_pretrained(here / "vit_hub", **VIT), "head.weight"),
        (lambda here: load_trained(str(here / "published.pth")), "blocks.3.norm1.bias"),
        (lambda here: load_official(hollow("inline_deit_tiny"), here / "published.pth"), "blocks.3.norm1.bias"),
        (lambda here: hollow("inline_deit_tiny").load_state_dict(torch.load(here / "published.pth")["model"]), "norm1.bias"),
    ],
)  # fmt: skip
def test_every_loader_names_the_tensor(files, load, tensor):
    with pytest.raises(
        ValueError, match=rf"{tensor} holds numbers that are not finite \(NaN or infinity\): .*take other weights$"
    ):
        load(files)


def test_convert_writes_nothing(files, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["convert", str(files / "published.pth"), str(tmp_path / "out.safetensors")])
    said = capsys.readouterr().err
    assert said.startswith(f"inline: {files / 'published.pth'}: blocks.3.norm1.bias holds numbers that are not finite")
    assert not list(tmp_path.iterdir())


def test_numbers_of_every_kind_of_tensor():
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2):
        assert nonfinite(torch.tensor([1.0, float("nan")]).to(dtype))
        assert not nonfinite(torch.tensor([1.0, 2.0]).to(dtype))
    assert not any(nonfinite(value) for value in (None, torch.tensor([1, 2]), torch.empty(2, device="meta"), torch.empty(0)))


def test_the_image_is_named():
    outputs = torch.zeros(3, 2, 4)
    check_outputs(outputs, ["a", "b", "c"])
    outputs[1, 0, 2] = float("inf")
    said = "m gives numbers that are not finite (NaN or infinity) for b: its numbers overflow in float32"
    with pytest.raises(FloatingPointError, match=re.escape(said)):
        check_outputs(outputs, ["a", "b", "c"], "m")
    with pytest.raises(FloatingPointError, match="for image 2 of 3"):
        check_outputs(outputs)
