"""What a user of `inline train` sees."""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
import timm
from PIL import Image
from safetensors.torch import load_file, save_file

from inline_attention.cli.arguments import option_types
from inline_attention.cli.train import Train, newest_run
from inline_attention.cli.train_report import STREAMING_MODELS, print_result
from inline_attention.large.stages import all_linear
from inline_attention.training.classify import Classify
from inline_attention.training.recipe import load, parse
from inline_attention.training.run import TrainingResult

from ..training.small import small_recipe, write_images, write_recipe
from .test_main import run


def test_a_run_ends_in_a_table_and_images(trained, tmp_path, capsys):
    code, out, err = run(
        capsys, "train", "--recipe", str(trained / "colours.toml"), "--out", str(tmp_path / "run"), "--schedule.epochs", "2",
        "--optim.lr=0.004", "--device", "cpu",
    )  # fmt: skip
    assert code == 0
    assert next(line.split()[2] for line in out.splitlines() if "last weights" in line) == "2"
    assert "of the time waiting for images" in out
    assert f"Next: inline eval {tmp_path / 'run'}" in out
    lines = err.splitlines()
    assert lines[0].startswith("inline_swin_nano on ")
    assert lines[1] == "scored on 12 images of the split val (20 % of the images, split off by a hash of the names)"
    assert lines[2] == "48 images, batches of 12, 4 steps per epoch, 8 steps"
    assert lines[3].startswith("epoch   1  train loss ")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"curve.png", "confusion.png", "attention.png", "metrics.csv", "best.safetensors", "recipe.toml"}
    assert parse((tmp_path / "run" / "recipe.toml").read_text(), "it").optim.lr == 0.004


def test_a_model_without_attention_ends_in_a_table_too(trained, tmp_path, capsys):
    code, out, err = run(
        capsys, "train", "--recipe", str(trained / "colours.toml"), "--out", str(tmp_path / "run"), "--schedule.epochs", "1",
        "--model.name", "resnet10t", "--model.args", "", "--model.drop-path", "0", "--device", "cpu",
    )  # fmt: skip
    assert code == 0, err
    assert "last weights" in out
    assert "attention.png" not in out
    assert not (tmp_path / "run" / "attention.png").exists()


def test_the_newest_run_is_the_one_trained_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("stopped", "finished", "evaluated")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        for file in ("recipe.toml", "metrics.jsonl"):
            (folder / file).touch()
            os.utime(folder / file, (1000 - 100 * (name == "evaluated") + age, 1000 - 100 * (name == "evaluated") + age))
        if name != "stopped":
            (folder / "result.json").touch()
    (tmp_path / "runs" / "evaluated" / "eval").mkdir()
    assert newest_run().name == "finished"
    assert newest_run(unfinished=True).name == "stopped"


def test_weights_record_their_model(trained):
    from safetensors import safe_open

    with safe_open(trained / "run" / "best.safetensors", "pt") as file:
        facts = json.loads(file.metadata()["inline"])
    assert facts["model"] == "inline_swin_nano"
    assert facts["classes"] == ["blue", "green", "red"]
    assert facts["data"]["size"] == [16, 24]
    model = timm.create_model(facts["model"], **facts["arguments"])
    model.load_state_dict(load_file(trained / "run" / "best.safetensors"))


def test_json_is_all_that_is_printed(trained, tmp_path, capsys):
    words = ("train", "--recipe", str(trained / "colours.toml"), "--out", str(tmp_path / "run"), "--schedule.epochs", "1")
    code, out, _ = run(capsys, *words, "--json", "--device", "cpu", "--seed", "3")
    assert code == 0
    result = json.loads(out)
    assert set(result) == {"run", "split", "split_note", "images", "fingerprint", "last", "best", "bad"}
    assert 0 <= result["best"]["top1"] <= 100
    assert parse((tmp_path / "run" / "recipe.toml").read_text(), "it").run.seed == 3


def test_alone_it_is_the_demo_and_a_folder_gets_a_recipe(trained):
    assert Train.from_words([]).settings == load("digits")
    parsed = Train.from_words(["--data", str(trained / "data")])
    assert parsed.recipe == "small_images"
    found = parsed.settings
    small = load("small_images")
    assert found.optim == replace(small.optim, batch=8), "few images, small batches"
    assert found.data == replace(small.data, source=str(trained / "data"))
    assert Train.from_words(["--recipe", "inline_swin_tiny", "--data", "/imagenet"]).settings.data.source == "/imagenet"


def test_options_change_the_recipe_that_comes_first():
    """Whatever their order, and however they are written; a shorter run has a shorter warm-up."""
    digits = load("digits")
    for words in (["--optim.lr", "0.1", "--recipe", "digits"], ["--recipe=digits", "--optim.lr=0.1"], ["--optim.lr", "0.1"]):
        assert Train.from_words(words).settings == replace(digits, optim=replace(digits.optim, lr=0.1))
    assert digits.schedule.warmup > 1
    assert Train.from_words(["--schedule.epochs", "1"]).settings.schedule.warmup == 0
    steps = Train.from_words(["--schedule.steps", "100"]).settings.schedule
    assert (steps.steps, steps.warmup, steps.warmup_steps) == (100, 0, 5)
    assert Train.from_words(["--schedule.steps", "100", "--schedule.warmup-steps", "7"]).settings.schedule.warmup_steps == 7


def test_help_shows_what_a_beginner_needs(capsys):
    """All other options are behind --help-all, or shown by section."""
    code, out, _ = run(capsys, "train", "--help")
    assert code == 0
    first = ("task", "recipe", "data", "out", "resume", "dry-run", "seed", "device", "json", "model.name", "schedule.epochs",
             "optim.batch", "optim.lr", "data.size")  # fmt: skip
    assert all(f"--{name} " in out or f"--{name}," in out for name in first)
    assert "--help-all" in out
    assert "--optim.eps" not in out
    code, out, _ = run(capsys, "train", "--help-all", "--recipe", "inline_swin_tiny")
    assert code == 0
    shown = out.replace(" ", "").replace("│", "").replace("\n", "")
    assert all(f"--{name}" in out for name in option_types(Train))
    assert "(default:inline_swin_tiny)" in shown, "defaults are the recipe's"
    code, out, _ = run(capsys, "train", "--help", "optim")
    assert code == 0
    assert "--optim.eps" in out
    assert "--model.name" not in out
    assert run(capsys, "train", "-h", "optim") == (0, out, "")
    for option in ("--help", "-h"):
        code, out, err = run(capsys, "train", option, "optimizer")
        assert (code, out) == (2, "")
        assert err.startswith("inline: unknown section optimizer (did you mean optim?); there are: ")
        assert err.count("\n") == 1


def test_runs_are_numbered_and_the_newest_goes_on(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "train", "--resume")
    assert (code, err) == (
        2,
        f"inline: there is no run under {tmp_path / 'runs'}: `inline train` makes one, --out names one elsewhere\n",
    )
    words = ("train", "--recipe", str(trained / "colours.toml"), "--schedule.epochs", "1", "--device", "cpu")
    for name in ("data-inline_swin_nano", "data-inline_swin_nano-2"):
        code, out, _ = run(capsys, *words)
        assert code == 0
        assert f"Written: runs/{name}: " in out
    code, out, err = run(capsys, "train", "--resume", "--device", "cpu")
    assert code == 0
    assert "into runs/data-inline_swin_nano-2" in err
    assert "from step 4" in err
    code, out, _ = run(capsys, "predict", str(trained / "data" / "red" / "0.png"))
    assert code == 0


def test_dry_run(trained, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("train", "--recipe", str(trained / "colours.toml"), "--dry-run", "--optim.device-batch", "5")
    code, out, _ = run(capsys, *words)
    assert code == 0
    recipe = parse(out[: out.index("parameters,")].rsplit("\n", 1)[0], "printed")
    assert recipe.optim.device_batch == 5
    assert "48 images, batches of 12 in 3 micro-batches of 4, 4 steps per epoch, 24 steps, learning rate up to 2.00e-03" in out
    assert "of weights, gradients and moments" in out
    assert out.startswith(f"# the recipe {trained / 'colours.toml'}\n[task]\nname = ")
    assert not any(f"\n{field} = " in out for field in ("head", "anchors", "sides", "inference", "resize", "limit"))
    assert re.search(r"of training, 0 min \d\d s of 12 evaluations on 12 images", out), "of the weights and their average"
    assert not list(tmp_path.iterdir()), "nothing is written"
    code, out, _ = run(capsys, *words, "--json")
    found = json.loads(out)["estimate"]
    model = timm.create_model(
        "inline_swin_nano", num_classes=3, img_size=(16, 24), embed_dim=8, depths=(1,) * 4, num_heads=(1, 2, 4, 8)
    )
    parameters = sum(p.numel() for p in model.parameters())
    assert found["parameters"] == parameters
    assert found["state_bytes"] == 4 * 5 * parameters, "weights, gradients, two moments, the average"
    assert found["activation_bytes"] > 0
    assert found["evaluation_seconds"] > 0
    assert found["seconds"] == found["training_seconds"] + found["evaluation_seconds"]


def test_dry_run_of_the_papers_recipe(trained, capsys):
    """On a folder that stands for ImageNet, with a batch that it fills."""
    words = ("train", "--recipe", "inline_deit_tiny", "--data", str(trained / "data"), "--optim.batch", "32", "--dry-run")
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert 'auto = "rand-m9-mstd0.5-inc1"' in out
    assert "48 images, batches of 32, 1 steps per epoch, 300 steps, learning rate up to 3.1" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "/nowhere"], "inline: there is no folder /nowhere; sources by name: digits, fashion-mnist, torch/..., "),
        (["--recipe", "inline_swim_tiny"], "inline: unknown recipe 'inline_swim_tiny' (did you mean inline_swin_tiny?)"),
        (["--recipe", "nowhere.toml"], "inline: there is no recipe nowhere.toml"),
        (["--optim.lrr", "3"], "inline: unknown option --optim.lrr (did you mean --optim.lr?)"),
        (["--data.view", "center"], "inline: --data.view is now called --data.crop-mode"),
        (["--recipe", "small_pictures"], "inline: the recipe small_pictures is now called small_images"),
        (["--optm.lr", "3"], "inline: unknown option --optm.lr (did you mean --optim.lr?)"),
        (["fish"], "inline: 'fish' is one argument too many"),
        (["--out", "/proc/nowhere"], "inline: cannot write to /proc/nowhere: "),
        (["--device", "fish"], "inline: unknown device 'fish'; this machine has: cpu"),
        (["--optim.batch", "9999"], "inline: 1438 training images do not fill a batch of 9999: take "),
        (["--model.name", "inline_swin_nana"], "inline: unknown model 'inline_swin_nana' (did you mean inline_swin_nano?)"),
        (["--model.mixer", "sofmax"], "inline: unknown mixer 'sofmax'; known: inline, softmax, "),
        (["--optim.name", "adamx"], "inline: unknown optimizer 'adamx' (did you mean adamax?)"),
        (["--optim.lr", "-1"], "inline: optim.lr must be positive, got -1.0"),
        (["--optim.lr", "abc"], "inline: --optim.lr takes a number, got abc"),
        (["--schedule.epochs", "abc"], "inline: --schedule.epochs takes a whole number, got abc"),
        (["--task", "fish"], "inline: --task takes one of classify, detect, segment, bags, slides, got fish"),
        (["--data.size", "32"], "inline: --data.size takes 2 whole numbers, got 32"),
        (["--batch-size", "8"], "inline: unknown option --batch-size (did you mean --optim.batch?)"),
        (["--seed", "-1"], "inline: --seed must be from 0 to 2^63 - 1, got -1"),
        (["--run.seed", str(2**63)], "inline: run.seed must be 9,223,372,036,854,775,807 at most, got 9223372036854775808"),
        (["--data", ""], "inline: --data is empty: give a value, or leave it out"),
        (["--recipe="], "inline: --recipe is empty: give a value, or leave it out"),
        (["--out", ""], "inline: --out is empty: give a value, or leave it out"),
        (["--augment.auto", "rand-mX"], "inline: augment.auto: 'mX' of 'rand-mX' means nothing; rand takes parts such as m9, "),
        (["--schedule.epochs", str(10**24)], "inline: schedule.epochs must be 1,000,000 at most, got 100000000000000000"),
        (["--model.args", "num_classes=3"], "inline: model.args: num_classes is 3, and the data gives 10: leave it out of "),
        (["--model.args", "pretrained=true"], "inline: model.args: pretrained is True, and model.pretrained, or model.weigh"),
        (["--dry-run", "--device", "fish"], "inline: unknown device 'fish'; this machine has: cpu"),
        (["--augment.auto", "nonsense"], "inline: augment.auto: timm has no policy 'nonsense'"),
        (["--augment.ratio", "0", "0"], "inline: augment.ratio must be two rising positive numbers, got 0.0 0.0"),
        (["--augment.scale", "2", "1"], "inline: augment.scale must be two rising positive numbers, 1 at most, got 2.0 1.0"),
        (["--data.val-share", "0"], "inline: data.val_share must be positive, got 0.0"),
        (["--optim.name", "sgd", "--optim.betas", "0.5", "0.5"], "inline: optim.betas: sgd has none, got (0.5, 0.5)"),
        (["--optim.name", "adahessian"], "inline: optim.name: adahessian needs second derivatives, which this loop "),
        (["--model.name", "vgg11", "--model.checkpointing"], "inline: model.checkpointing: vgg11 cannot recompute its "),
        (["--model.weights", "/nowhere"], "inline: there is no file /nowhere"),
        (["--data", "torch/cifar10"], "inline: torch/cifar10 needs the folder that holds it: --data.root DIR, got None"),
        (["--run.precision", "fp16"], "inline: run.precision fp16 needs a GPU: take bf16 or fp32"),
    ],
)  # fmt: skip
def test_mistakes_end_in_one_line(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    if "--out" not in words:
        words = [*words, "--out", str(tmp_path / "run")]
    code, _, err = run(capsys, "train", *words)
    assert code == 2, err
    assert err.splitlines()[-1].startswith(message), err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists(), "a run that could not begin leaves nothing behind"


def test_a_misspelt_key_of_a_recipe_is_one_line(capsys, tmp_path):
    (tmp_path / "mine.toml").write_text("[optim]\nlrr = 3\n")
    code, _, err = run(capsys, "train", "--recipe", str(tmp_path / "mine.toml"))
    assert (code, err) == (2, f"inline: {tmp_path / 'mine.toml'}: unknown key optim.lrr (did you mean optim.lr?)\n")


def test_a_folder_that_holds_a_run_is_not_written_over(capsys, trained):
    code, _, err = run(capsys, "train", "--recipe", str(trained / "colours.toml"), "--out", str(trained / "run"))
    assert (code, err) == (2, f"inline: {trained / 'run'} holds a run: go on with --resume, or choose another --out\n")


def test_bad_images_are_named_or_listed(capsys, tmp_path):
    data = write_images(tmp_path / "data", 20)
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    bad = data / "red" / "cut.jpg"
    Image.fromarray(noise).save(bad, quality=95)
    bad.write_bytes(bad.read_bytes()[:2000])
    recipe = write_recipe(tmp_path / "colours.toml", small_recipe(data, schedule={"epochs": 1, "warmup": 0}))
    words = ("train", "--recipe", str(recipe), "--device", "cpu", "--data.val-share", "0.05")
    code, _, err = run(capsys, *words, "--out", str(tmp_path / "a"))
    assert code == 2
    assert err.splitlines()[-1].startswith(f"inline: {bad} cannot be read: image file is truncated")
    code, out, _ = run(capsys, *words, "--out", str(tmp_path / "b"), "--skip-bad")
    assert code == 0
    assert f"1 images or entries were left out:\n  {bad} cannot be read: image file is truncated" in out


def test_a_file_of_another_model_is_refused(trained, tmp_path, capsys):
    save_file(timm.create_model("inline_pvt_nano", num_classes=3).state_dict(), tmp_path / "pvt.safetensors")
    words = ("train", "--recipe", str(trained / "colours.toml"), "--out", str(tmp_path / "run"), "--device", "cpu")
    code, _, err = run(capsys, *words, "--model.weights", str(tmp_path / "pvt.safetensors"))
    assert code == 2
    assert err.splitlines()[-1].startswith(f"inline: {tmp_path / 'pvt.safetensors'} does not fit inline_swin_nano: ")


def test_a_run_stopped_by_a_bad_validation_image_goes_on(tmp_path, capsys):
    """The epoch that was trained is not lost, and the advice that is given can be followed."""
    for split in ("train", "val"):
        write_images(tmp_path / "data" / split, 12)
    bad = tmp_path / "data" / "val" / "red" / "3.png"
    bad.write_bytes(b"no")
    recipe = write_recipe(tmp_path / "r.toml", small_recipe(tmp_path / "data"))
    out = str(tmp_path / "run")
    code, _, err = run(capsys, "train", "--recipe", str(recipe), "--out", out, "--device", "cpu")
    assert code == 2
    assert err.splitlines()[-1] == f"inline: {bad} cannot be read: not an image (--skip-bad goes on without such images)"
    code, out_text, err = run(capsys, "train", "--out", out, "--device", "cpu", "--resume", "--skip-bad")
    assert code == 0, err
    assert "from step 3" in err
    assert [line.split()[1] for line in err.splitlines() if line.startswith("epoch")] == ["1", "2"]
    assert f"1 images or entries were left out:\n  {bad} cannot be read: not an image" in out_text


def test_data_that_moved_is_remembered(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "here", 20)
    recipe = write_recipe(tmp_path / "r.toml", small_recipe("here", schedule={"epochs": 1, "warmup": 0}))
    assert run(capsys, "train", "--recipe", str(recipe), "--data", "here", "--out", "run", "--device", "cpu")[0] == 0
    assert parse((tmp_path / "run" / "recipe.toml").read_text(), "it").data.source == str(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert run(capsys, "train", "--resume", "--out", "run", "--data", "there", "--device", "cpu")[0] == 0
    assert run(capsys, "eval", "run", "--device", "cpu")[0] == 0
    for number, file in enumerate(sorted((tmp_path / "there").rglob("*.png"))):
        file.rename(file.with_name(f"new{number}.png"))
    code, _, err = run(capsys, "train", "--resume", "--out", "run", "--device", "cpu")
    assert code == 2
    assert err.endswith("there does not hold the images that run was trained on\n")


@pytest.mark.parametrize(
    ("name", "more"), [("inline_deit_nano", {"mixer": "softmax"}), ("inline_swin_nano", {}), ("inline_pvt_nano", {})]
)
def test_the_last_line_is_about_large_images(tmp_path, capsys, name, more):
    """Which models take them at their own size, or how this one does."""
    recipe = small_recipe(write_images(tmp_path / "data", 2, size=(513, 520)))
    task, arguments = Classify(recipe), {"num_classes": 3, **more}
    facts = json.dumps({"model": name, "arguments": arguments, "classes": ["blue", "green", "red"]})
    save_file(timm.create_model(name, **arguments).state_dict(), tmp_path / "best.safetensors", {"inline": facts})
    score = {"epoch": 1, "top1": 50.0, "top5": 100.0, "loss": 1.0, "seconds": 1.0}
    rows = [{"kind": "training", "waiting": 0.0, "images_per_second": 9.0}, {"kind": "evaluation", **score}]
    best = {"weights": "model", **score}
    print_result(TrainingResult(tmp_path, True, best, ("blue", "green", "red"), rows, (), task.open()), task, [])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Your images have about 513 pixels on their shorter side, and the model sees them at 16 x 24. ")
    if not more:
        assert last.endswith(f"At their own size: inline predict IMAGE --stream --model {tmp_path}")
    else:
        told = "inline_deit_nano cannot take them at their own size: --model.name inline_pvt_nano or inline_deit_nano can"
        assert told in last
        for other in STREAMING_MODELS:
            all_linear(timm.create_model(other), "--stream")
