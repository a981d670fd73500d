"""A hub folder opened by transformers: its wrapper of timm, from a folder and from a hub on this machine."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from inline_attention.data.config import DataConfig
from inline_attention.data.transforms import evaluation_transform
from inline_attention.deploy.hub import from_pretrained

from .hub_server_checks import CARD, REPO, hub  # noqa: F401
from .test_hub import randomised, save, transform_fields

transformers = pytest.importorskip("transformers")
SIZE = (32, 48)
ARGUMENTS = {"img_size": SIZE, "num_classes": 3, "mixer": "inline", "drop_path_rate": 0.1}
FAMILIES = [
    "inline_deit_nano",
    "inline_swin_nano",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("inline_pvt_nano", "inline_cswin_nano")),
]
LABELS = {0: "cat", 1: "dog", 2: "pelican"}


def saved(folder: Path, name: str, **more):
    arguments = {**ARGUMENTS, **more}
    data = transform_fields(SIZE, arguments.get("in_chans", 3))
    model = randomised(name, **arguments)
    return model, str(save(folder, model, name, arguments, data=data, classes=[*LABELS.values()], card=CARD))


@pytest.fixture(scope="module")
def swin(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("swin") / "folder", "inline_swin_nano")


def images():
    return torch.linspace(-2, 2, 2 * 3 * SIZE[0] * SIZE[1]).view(2, 3, *SIZE).sin()


def check_logits(loaded, model, batch):
    """Equal weights; logits differ by rounding, since transformers leaves tensors where they are in the mapped file."""
    own = model.state_dict()
    other = loaded.timm_model.state_dict()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own)
    with torch.no_grad():
        torch.testing.assert_close(loaded(batch).logits, model(batch), rtol=1e-5, atol=1e-6)


def photo(mode="RGB"):
    return Image.linear_gradient("L").rotate(30).resize((61, 47)).convert(mode)


@pytest.mark.parametrize("name", FAMILIES)
def test_classifier_and_features_are_the_models(name, tmp_path):
    model, folder = saved(tmp_path / "folder", name)
    loaded = transformers.AutoModelForImageClassification.from_pretrained(folder)
    assert type(loaded).__name__ == "TimmWrapperForImageClassification"
    assert not loaded.training
    assert loaded.config.id2label == LABELS
    check_logits(loaded, model, images())
    check_logits(loaded, model, images()[..., :29])
    with torch.no_grad():
        check_features(model, f"local-dir:{folder}")


def check_features(model, source):
    """Maps, channels and strides. `AutoBackbone.from_pretrained` takes no folder, its configuration takes timm's names."""
    count = len(model.feature_info)
    indices = [count - 3, count - 1]
    config = transformers.TimmBackboneConfig(backbone=source, out_indices=indices)
    backbone = transformers.AutoBackbone.from_config(config, pretrained=True).eval()
    maps = backbone(images()).feature_maps
    expected = model.forward_intermediates(images(), indices, intermediates_only=True)
    assert [torch.equal(*pair) for pair in zip(maps, expected, strict=True)] == [True, True]
    information = [model.feature_info[index] for index in indices]
    assert [each.shape[1] for each in maps] == backbone.channels == [each["num_chs"] for each in information]
    assert [SIZE[0] // each.shape[2] for each in maps] == [each["reduction"] for each in information]


def test_the_last_map_by_default_and_all_hidden_states(swin):
    model, folder = swin
    (last,) = transformers.TimmBackbone.from_pretrained(f"local-dir:{folder}").eval()(images()).feature_maps
    features = transformers.AutoModel.from_pretrained(folder)(images(), output_hidden_states=True)
    final, maps = model.forward_intermediates(images())
    assert torch.equal(last, maps[-1])
    pooled = model.forward_head(final, pre_logits=True)
    found = [*features.hidden_states, features.last_hidden_state, features.pooler_output]
    torch.testing.assert_close(found, [*maps, final, pooled], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("crop_mode", "channels"), [("squash", 3), ("center", 1)])
def test_the_processor_makes_the_pixels_of_the_evaluation(crop_mode, channels, tmp_path):
    data = transform_fields(SIZE, channels, crop_mode=crop_mode)
    arguments = {**ARGUMENTS, "in_chans": channels}
    model = randomised("inline_pvt_nano", **arguments)
    folder = save(tmp_path / "folder", model, "inline_pvt_nano", arguments, data=data)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    image = photo("L" if channels == 1 else "RGB")
    expected = evaluation_transform(DataConfig(**data))(image)
    assert torch.equal(processor(image).pixel_values[0], expected)
    assert processor([image, image]).pixel_values.shape == (2, channels, *SIZE)


def test_the_pipeline_names_classes(swin):
    model, folder = swin
    answer = transformers.pipeline("image-classification", model=folder)(photo())
    data = DataConfig(**transform_fields(SIZE))
    scores = model(evaluation_transform(data)(photo())[None]).softmax(1)[0]
    assert [each["label"] for each in answer] == [LABELS[int(index)] for index in scores.argsort(descending=True)]
    assert answer[0]["score"] == pytest.approx(float(scores.max().detach()), rel=1e-5)


def test_trained_by_transformers_saved_and_back(swin, tmp_path):
    _, folder = swin
    loaded = transformers.AutoModelForImageClassification.from_pretrained(folder).train()
    loaded.gradient_checkpointing_enable()
    optimizer = torch.optim.SGD(loaded.parameters(), lr=0.01)
    loaded(images(), labels=torch.tensor([0, 2])).loss.backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())
    optimizer.step()
    loaded.eval().save_pretrained(tmp_path / "trained")
    again = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "trained")
    check_logits(again, loaded.timm_model, images())
    assert again.config.id2label == LABELS
    ours = from_pretrained(tmp_path / "trained")
    check_logits(loaded, ours, images())
    assert ours.pretrained_cfg["crop_mode"] == "squash"
    assert json.loads((tmp_path / "trained" / "config.json").read_text())["architecture"] == "inline_swin_nano"


def test_another_number_of_classes(swin):
    model, folder = swin
    other = transformers.AutoModelForImageClassification.from_pretrained(folder, num_labels=7, ignore_mismatched_sizes=True)
    assert other(images()).logits.shape == (2, 7)
    assert torch.equal(other.timm_model.norm.weight, model.norm.weight)


def test_from_a_hub(hub, swin):  # noqa: F811
    model, folder = swin
    hub.repos[REPO] = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    loaded = transformers.AutoModelForImageClassification.from_pretrained(REPO)
    check_logits(loaded, model, images())
    processor = transformers.AutoImageProcessor.from_pretrained(REPO)
    assert torch.equal(processor(photo()).pixel_values[0], evaluation_transform(DataConfig(**transform_fields(SIZE)))(photo()))
    with torch.no_grad():
        check_features(model, f"hf-hub:{REPO}")
