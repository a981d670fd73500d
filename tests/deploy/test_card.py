"""Model cards state what a run recorded, and nothing else."""

import json
import re
from dataclasses import replace

import pytest
import timm
import yaml

import inline_attention
from inline_attention.deploy.card import RECIPE_ROWS, Facts, model_card
from inline_attention.models.counting import Count
from inline_attention.training import recipe as recipes
from inline_attention.training.classify import Classify
from inline_attention.training.config import Recipe
from inline_attention.training.load_trained import load_trained, metadata_of
from inline_attention.training.run import run_training

from ..training.small import RecordingReporter, never, small_recipe, write_images

DATA = {
    "size": (16, 24),
    "channels": 3,
    "crop_mode": "squash",
    "crop": 0.875,
    "interpolation": "bicubic",
    "mean": (0, 0, 0),
    "std": (1, 1, 1),
}
BARE = Facts("inline_deit_nano", {"num_classes": 2}, ("cat", "dog"), DATA)


def head(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def sections(card: str) -> list[str]:
    return re.findall(r"^## (.+)$", card, flags=re.MULTILINE)


def cells(card: str) -> dict[str, str]:
    return dict(re.findall(r"^\| (\S.*?) \| (.*) \|$", card, flags=re.MULTILINE))


@pytest.fixture(scope="module")
def facts(tmp_path_factory) -> Facts:
    """Of a real run."""
    here = tmp_path_factory.mktemp("card")
    recipe = small_recipe(write_images(here / "three_colours", 8))
    run_training(Classify(recipe), here / "run", resume=False, reporter=RecordingReporter(), stop=never, device="cpu")
    run, told = here / "run", metadata_of(here / "run" / "best.safetensors")
    model = load_trained(str(run)).model
    return Facts(
        told["model"],
        told["arguments"],
        told["classes"],
        told["data"],
        inline_attention.count(model, tuple(told["data"]["size"])),
        json.loads((run / "result.json").read_text()),
        recipes.tomllib.loads((run / "recipe.toml").read_text()),
        json.loads((run / "environment.json").read_text()),
        repo="me/colours",
        license="cc-by-4.0",
    )


def test_the_card_states_the_numbers_of_a_run(facts):
    card = model_card(facts)
    assert sections(card) == ["Use", "Measured", "Training", "Model", "Unknown"]
    split = f"split val, 20 % of the images, split off by a hash of the names; fingerprint `{facts.result['fingerprint']}`"
    assert f"Measured on `three_colours`, 6 validation images ({split})." in card
    assert f"after epoch {facts.result['epoch']}, on these very images" in card
    found = cells(card)
    assert found["top-1"] == f"{facts.result['top1']:.2f} %"
    assert found["cross entropy"] == f"{facts.result['loss']:.3f}"
    assert "top-5" not in found  # of three classes
    assert found["epochs"] == "2"
    assert found["learning rate"] == "0.002"
    assert found["cutmix, alpha"] == "1.0"
    assert found["seed"] == "0"
    assert "upside down, probability" not in found  # off
    assert found["parameters"] == f"{facts.count.params:,}"
    assert found["multiply-adds for 16 x 24"] == f"{facts.count.flops:,}"
    assert f"torch {facts.environment['torch']}" in card
    assert 'timm.create_model("hf-hub:me/colours", pretrained=True)' in card
    assert "blue, green, red." in card


def test_no_path_of_the_disk_is_stated(facts):
    source = facts.recipe["data"]["source"]
    assert source.startswith("/")
    assert source.rsplit("/", 1)[0] not in model_card(facts)
    started = replace(facts, recipe={**facts.recipe, "model": {"weights": "/home/me/old/best.safetensors"}})
    assert cells(model_card(started))["started from"] == "`best.safetensors`"


def test_hub_datasets_keep_their_full_name(facts):
    named = replace(facts, recipe={"data": {"source": "hfds/owner/pets"}})
    assert "Measured on `hfds/owner/pets`, 6 validation images (split val, " in model_card(named)


def test_the_head(facts):
    known = {"library_name": "timm", "pipeline_tag": "image-classification"}
    tags = ["image-classification", "timm", "inline-attention"]
    assert head(model_card(facts)) == {**known, "tags": tags, "license": "cc-by-4.0"}
    assert head(model_card(BARE)) == {**known, "tags": tags}
    assert head(model_card(replace(BARE, license='odd: "one"\n- x')))["license"] == 'odd: "one"\n- x'


def test_nothing_is_stated_that_was_not_recorded():
    card = model_card(BARE)
    assert sections(card) == ["Use", "Model", "Unknown"]
    assert cells(card).keys() == {"images", "arguments"}
    assert "Its accuracy: no evaluation is recorded." in card
    assert "How it was trained: no recipe is recorded." in card
    assert "The licence of the weights: none was given." in card
    assert 'timm.create_model("local-dir:FOLDER", pretrained=True)' in card


def test_top_5_and_the_average():
    result = {"top1": 61.234, "top5": 90.5, "weights": "average"}
    many = replace(BARE, classes=[f"kind_{n}" for n in range(30)], result=result, count=Count(1, 2, 3))
    card = model_card(many)
    assert cells(card)["top-1"] == "61.23 %"
    assert cells(card)["top-5"] == "90.50 %"
    assert "Measured on validation images." in card
    assert "They are a moving average." in card
    assert "kind\\_19 and 10 more, in `config.json`." in card


def test_grey_images_and_models_of_timms_own():
    card = model_card(replace(BARE, data={**DATA, "channels": 1}, model="vit_tiny_patch16_224"))
    assert '.convert("L")' in card
    assert "import inline_attention" not in card
    assert "`vit_tiny_patch16_224` of timm," in card


def test_schedules_by_steps():
    found = cells(model_card(replace(BARE, recipe={"schedule": {"epochs": 30, "warmup": 2, "steps": 500, "warmup_steps": 10}})))
    assert (found["steps"], found["warm-up, steps"]) == ("500", "10")
    assert "epochs" not in found
    assert "warm-up, epochs" not in found


def test_rows_are_fields_of_a_recipe():
    recipe = Recipe()
    for _, part, key, _ in RECIPE_ROWS:
        assert hasattr(getattr(recipe, part), key), f"{part}.{key}"


def test_the_cards_own_snippet_runs(tmp_path, monkeypatch, capsys):
    """The card's own snippet, run on a folder."""
    from PIL import Image

    from inline_attention.deploy.hub import save_for_hub

    arguments = {"num_classes": 2, "img_size": (16, 24)}
    facts = replace(BARE, arguments=arguments)
    model = timm.create_model("inline_deit_nano", **arguments)
    save_for_hub(
        model,
        tmp_path / "FOLDER",
        name="inline_deit_nano",
        arguments=arguments,
        classes=BARE.classes,
        data=DATA,
        card=model_card(facts),
    )
    Image.effect_noise((30, 30), 90).save(tmp_path / "image.png")
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", (tmp_path / "FOLDER" / "README.md").read_text(), re.DOTALL)[1], {})
    assert capsys.readouterr().out.strip() in BARE.classes


def test_transformers_is_named_for_models_of_colour_images():
    """Its pipeline opens images as RGB."""
    data = {"size": (32, 32), "crop_mode": "squash", "crop": 0.9}
    colour, grey = (
        model_card(Facts("inline_swin_nano", {}, ("cat", "dog"), {**data, "channels": channels}, repo="me/pets"))
        for channels in (3, 1)
    )
    assert 'after `import inline_attention`, `transformers.pipeline("image-classification", model="me/pets")' in colour
    assert "transformers" not in grey
