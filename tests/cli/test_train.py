"""What a user of `inline train` sees."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import timm
from PIL import Image
from safetensors.torch import load_file, save_file

from inline_attention.training.recipe import load, parse

from ..training.small import small_recipe, write_pictures, write_recipe
from .test_main import run


def test_a_run_ends_in_a_table_and_pictures(trained, tmp_path, capsys):
    code, out, err = run(
        capsys, "train", "--recipe", str(trained / "colours.toml"), "--out", str(tmp_path / "run"), "--schedule.epochs", "2",
        "--optim.lr=0.004", "--device", "cpu",
    )  # fmt: skip
    assert code == 0
    assert next(line.split()[2] for line in out.splitlines() if "last weights" in line) == "2"
    assert "of the time waiting for pictures" in out
    assert f"Next: inline eval {tmp_path / 'run'}" in out
    lines = err.splitlines()
    assert lines[0].startswith("inline_swin_nano on ")
    assert lines[1] == "48 pictures, batches of 12, 4 steps per epoch, 8 steps"
    assert lines[2].startswith("epoch   1  train loss ")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"curve.png", "confusion.png", "attention.png", "metrics.csv", "best.safetensors", "recipe.toml"}
    assert parse((tmp_path / "run" / "recipe.toml").read_text(), "it").optim.lr == 0.004


def test_weights_say_what_they_are(trained):
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
    assert set(result) == {"run", "last", "best", "bad"}
    assert 0 <= result["best"]["top1"] <= 100
    assert parse((tmp_path / "run" / "recipe.toml").read_text(), "it").run.seed == 3


def test_alone_it_is_the_demo_and_a_folder_gets_a_recipe(trained, capsys, monkeypatch):
    from inline_attention.cli.train import begin

    assert begin(["train"]).settings == load("digits")
    begun = begin(["train", "--data", str(trained / "data")])
    assert begun.recipe == "small_pictures"
    found = begun.settings
    small = load("small_pictures")
    assert found.optim == replace(small.optim, batch=8), "few pictures, small batches"
    assert found.data == replace(small.data, source=str(trained / "data"))
    assert begin(["train", "--recipe", "inline_swin_tiny", "--data", "/imagenet"]).settings.data.source == "/imagenet"


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
    assert "48 pictures, batches of 12 in 3 parts of 4, 4 steps per epoch, 24 steps, learning rate up to 2.00e-03" in out
    assert "of weights, gradients and moments" in out
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


def test_dry_run_of_the_papers_recipe(trained, capsys):
    """On a folder that stands for ImageNet, with a batch that it fills."""
    words = ("train", "--recipe", "inline_deit_tiny", "--data", str(trained / "data"), "--optim.batch", "32", "--dry-run")
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert 'auto = "rand-m9-mstd0.5-inc1"' in out
    assert "48 pictures, batches of 32, 1 steps per epoch, 300 steps, learning rate up to 3.1" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "/nowhere"], "inline: there is no folder /nowhere; sources by name: digits, fashion-mnist, torch/..., "),
        (["--recipe", "inline_swim_tiny"], "inline: unknown recipe 'inline_swim_tiny' (did you mean inline_swin_tiny?)"),
        (["--recipe", "nowhere.toml"], "inline: there is no recipe nowhere.toml"),
        (["--optim.lrr", "3"], "inline: unknown option --optim.lrr (did you mean --optim.lr?)"),
        (["--optm.lr", "3"], "inline: unknown option --optm.lr (did you mean --optim.lr?)"),
        (["fish"], "inline: 'fish' is one argument too many"),
        (["--out", "/proc/nowhere"], "inline: cannot write to /proc/nowhere: "),
        (["--device", "fish"], "inline: unknown device 'fish'; this machine has: cpu"),
        (["--optim.batch", "9999"], "inline: 1438 training pictures do not fill a batch of 9999: take "),
        (["--model.name", "inline_swin_nana"], "inline: unknown model 'inline_swin_nana' (did you mean inline_swin_nano?)"),
        (["--model.mixer", "sofmax"], "inline: unknown mixer 'sofmax'; known: inline, softmax, "),
        (["--optim.name", "adamx"], "inline: unknown optimizer 'adamx' (did you mean adamax?)"),
        (["--optim.lr", "-1"], "inline: optim.lr must be positive, got -1.0"),
        (["--optim.lr", "abc"], "inline: Error parsing --optim.lr: could not convert string to float: 'abc'"),
        (["--data.size", "32"], "inline: Missing value for argument '--data.size'. Expected 2 values."),
        (["--batch-size", "8"], "inline: unknown option --batch-size (did you mean --optim.batch?)"),
        (["--seed", "-1"], "inline: run.seed must not be negative, got -1"),
        (["--dry-run", "--device", "fish"], "inline: unknown device 'fish'; this machine has: cpu"),
        (["--augment.auto", "nonsense"], "inline: augment.auto: timm knows no policy 'nonsense'"),
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


def test_a_misspelt_key_of_a_recipe_is_told(capsys, tmp_path):
    (tmp_path / "mine.toml").write_text("[optim]\nlrr = 3\n")
    code, _, err = run(capsys, "train", "--recipe", str(tmp_path / "mine.toml"))
    assert (code, err) == (2, f"inline: {tmp_path / 'mine.toml'}: unknown key optim.lrr (did you mean optim.lr?)\n")


def test_a_folder_that_holds_a_run_is_not_written_over(capsys, trained):
    code, _, err = run(capsys, "train", "--recipe", str(trained / "colours.toml"), "--out", str(trained / "run"))
    assert (code, err) == (2, f"inline: {trained / 'run'} holds a run: go on with --resume, or choose another --out\n")


def test_bad_pictures_are_named_or_listed(capsys, tmp_path):
    data = write_pictures(tmp_path / "data", 20)
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
    assert f"1 pictures or entries were left out:\n  {bad} cannot be read: image file is truncated" in out


def test_a_file_of_another_model_is_refused(trained, tmp_path, capsys):
    save_file(timm.create_model("inline_pvt_nano", num_classes=3).state_dict(), tmp_path / "pvt.safetensors")
    words = ("train", "--recipe", str(trained / "colours.toml"), "--out", str(tmp_path / "run"), "--device", "cpu")
    code, _, err = run(capsys, *words, "--model.weights", str(tmp_path / "pvt.safetensors"))
    assert code == 2
    assert err.splitlines()[-1].startswith(f"inline: {tmp_path / 'pvt.safetensors'} does not fit inline_swin_nano: ")


def test_version_and_a_closed_pipe(capsys):
    code, out, _ = run(capsys, "--version")
    assert (code, out.split()[0]) == (0, "inline-attention")
    done = subprocess.run(f"{sys.executable} -m inline_attention --help | head -1", shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("usage: inline")
    assert not done.stderr


def test_a_run_stopped_by_a_held_out_picture_goes_on(tmp_path, capsys):
    """The epoch that was trained is not lost, and the advice that is given can be followed."""
    for split in ("train", "val"):
        write_pictures(tmp_path / "data" / split, 12)
    bad = tmp_path / "data" / "val" / "red" / "3.png"
    bad.write_bytes(b"no")
    recipe = write_recipe(tmp_path / "r.toml", small_recipe(tmp_path / "data"))
    out = str(tmp_path / "run")
    code, _, err = run(capsys, "train", "--recipe", str(recipe), "--out", out, "--device", "cpu")
    assert code == 2
    assert err.splitlines()[-1] == f"inline: {bad} cannot be read: not a picture (--skip-bad leaves such pictures out)"
    code, out_text, err = run(capsys, "train", "--out", out, "--device", "cpu", "--resume", "--skip-bad")
    assert code == 0, err
    assert "from step 3" in err
    assert [line.split()[1] for line in err.splitlines() if line.startswith("epoch")] == ["1", "2"]
    assert f"1 pictures or entries were left out:\n  {bad} cannot be read: not a picture" in out_text


def test_data_that_moved_is_remembered(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "here", 20)
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
    assert err.endswith("there does not hold the pictures that run was trained on\n")
