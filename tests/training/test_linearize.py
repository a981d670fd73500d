"""`inline linearize`: from a trained softmax model to a linear one that every other command can use."""

import json
import shutil
import signal
import subprocess
import time
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from io import StringIO

import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.models import volo

from inline_attention.cli.main import main
from inline_attention.data.config import DataConfig
from inline_attention.layers import InLineAttention, SoftmaxAttention
from inline_attention.training.folder_lock import lock_folder
from inline_attention.training.linearize import linearize
from inline_attention.training.linearize_config import LinearizeConfig
from inline_attention.training.linearize_task import Teacher
from inline_attention.training.load_trained import load_trained, metadata_of
from inline_attention.training.model_factory import make_model

from .small import RecordingReporter, command, environment, never, small_recipe, write_images, write_recipe

STEPS = ("--steps", "4", "4", "6", "--batch", "8", "--device", "cpu", "--workers", "1")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A softmax model of a few steps, and its images."""
    folder = tmp_path_factory.mktemp("linearize")
    data = write_images(folder / "data", 20)
    recipe = small_recipe(
        data,
        model={"name": "inline_deit_nano", "mixer": "softmax", "args": "patch_size=4, depth=2, embed_dim=16, num_heads=2"},
        schedule={"epochs": 2},
    )
    words = ["train", "--recipe", str(write_recipe(folder / "recipe.toml", recipe)), "--device", "cpu"]
    main([*words, "--out", str(folder / "run")])
    return folder


@pytest.fixture(scope="module")
def linear(teacher):
    out, printed = teacher / "linear", StringIO()
    with redirect_stdout(printed):
        main(["linearize", str(teacher / "run"), *STEPS, "--out", str(out)])
    return out, printed.getvalue()


def test_the_record_of_the_phases(teacher, linear):
    out, printed = linear
    record = json.loads((out / "linearize.json").read_text())
    assert [phase["phase"] for phase in record["phases"]] == ["new", "all", "distil"]
    assert [phase["steps"] for phase in record["phases"]] == [4, 4, 6]
    assert record["teacher"]["agreement"] == 100
    assert record["teacher"]["error"] == 0
    layers = record["swapped"]["layers"]
    assert all(phase["layers"].keys() == layers.keys() for phase in record["phases"])
    assert record["phases"][1]["error"] < record["phases"][0]["error"] < record["swapped"]["error"]
    for word in ("teacher", "swap only", "new matched", "all matched", "distilled", "of the teacher's accuracy kept"):
        assert word in printed
    assert (out / "layers.png").stat().st_size > 10_000


def test_the_model_is_linear_and_every_command_takes_it(teacher, linear, capsys):
    out, _ = linear
    found = load_trained(str(out))
    mixers = [type(module) for module in found.model.modules() if isinstance(module, InLineAttention | SoftmaxAttention)]
    assert mixers
    assert set(mixers) == {InLineAttention}
    record = json.loads((out / "linearize.json").read_text())
    main(["eval", str(out), "--json", "--device", "cpu", "--workers", "1", "--out", str(teacher / "eval")])
    assert json.loads(capsys.readouterr().out)["top1"] == pytest.approx(record["phases"][-1]["top1"], abs=1e-4)
    for run, chosen in ((out, False), (teacher / "run", True)):  # no weights were chosen among: the last are kept
        main(["eval", str(run), "--device", "cpu", "--workers", "1", "--out", str(teacher / f"eval-{run.name}")])
        assert ("chosen by these very images" in capsys.readouterr().out) == chosen


def test_only_new_parameters_change_first_then_attention(teacher, linear):
    out, _ = linear
    original = load_file(teacher / "run" / "best.safetensors")
    first, second, third = (load_file(out / name / "best.safetensors") for name in ("1-new", "2-all", "3-distil"))
    for name, value in original.items():
        assert torch.equal(first[name], value), name
        if ".mixer." not in name:
            assert torch.equal(second[name], value), name
    assert any(not torch.equal(second[name], value) for name, value in original.items() if ".mixer.q." in name)
    assert any(not torch.equal(third[name], value) for name, value in original.items() if ".mlp." in name)


def test_a_folder_that_another_process_writes_into_is_left_alone(teacher, tmp_path, capsys):
    with lock_folder(tmp_path):
        assert f"{tmp_path} is in use by process" in refused(capsys, str(teacher / "run"), *STEPS, "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_killed_and_resumed_it_is_the_same(teacher, linear):
    whole, _ = linear
    out = teacher / "killed"
    for attempt, words in enumerate(([str(teacher / "run"), *STEPS], ["--resume", "--device", "cpu"])):
        process = subprocess.Popen(
            command("linearize", *words, "--out", str(out)),
            env=environment(),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        begun = out / ("1-new" if attempt == 0 else "2-all") / "recipe.toml"
        while process.poll() is None and not begun.is_file():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    main(["linearize", "--out", str(out), "--resume", "--device", "cpu"])
    one, other = (json.loads((folder / "linearize.json").read_text()) for folder in (whole, out))
    for record in (one, other):
        for phase in record["phases"]:
            phase.pop("seconds")
    assert one == other
    tensors, again = load_file(whole / "best.safetensors"), load_file(out / "best.safetensors")
    assert all(torch.equal(again[name], value) for name, value in tensors.items())


KEEP = ("--keep", "1", "--keep-images", "20", "--keep-cost", "32")


@pytest.fixture(scope="module")
def kept(teacher):
    out, printed = teacher / "kept", StringIO()
    with redirect_stdout(printed):
        main(["linearize", str(teacher / "run"), *STEPS, *KEEP, "--out", str(out)])
    return out, printed.getvalue()


def test_a_kept_block_is_softmax_and_learns_in_the_last_phase_only(teacher, kept):
    out, printed = kept
    keep = json.loads((out / "linearize.json").read_text())["keep"]
    assert (len(keep["kept"]), keep["images"], keep["match_steps"]) == (1, 16, 4)
    errors = {row["name"]: row["error"] for row in keep["blocks"]}
    assert keep["kept"] == [max(errors, key=errors.get)]
    assert keep["error"] == keep["curve"][1] == min(errors.values())
    assert keep["curve"][2] == pytest.approx(0, abs=1e-9)
    cost = keep["cost"]["models"]
    assert cost["linear"]["flops"] < cost["kept"]["flops"] < cost["teacher"]["flops"]
    found = load_trained(str(out)).model
    name = keep["kept"][0]
    (other,) = set(errors) - {name}
    assert (type(found.get_submodule(name)), type(found.get_submodule(other))) == (SoftmaxAttention, InLineAttention)
    original = load_file(teacher / "run" / "best.safetensors")
    second, third = (load_file(out / phase / "best.safetensors") for phase in ("2-all", "3-distil"))
    own = [key for key in original if key.startswith(f"{name}.")]
    assert own
    assert all(torch.equal(second[key], original[key]) for key in own)
    assert not any(torch.equal(third[key], original[key]) for key in own if key.endswith("q.weight"))
    assert "Kept: block" in printed
    assert all((out / figure).stat().st_size > 10_000 for figure in ("keep.png", "layers.png"))


@pytest.mark.parametrize(("steps", "kept_is_known"), [pytest.param(1, False, marks=pytest.mark.slow), (18, True)])
def test_stopped_while_blocks_are_measured_or_later_it_resumes_to_the_same(teacher, kept, steps, kept_is_known, monkeypatch):
    whole, _ = kept
    out = teacher / f"kept-{steps}"
    with monkeypatch.context() as patch:
        patch.setattr("inline_attention.cli.train.stop_signals", lambda: nullcontext(After(steps)))
        with pytest.raises(SystemExit) as stop:
            main(["linearize", str(teacher / "run"), *STEPS, *KEEP, "--out", str(out)])
    assert stop.value.code == 130
    assert (out / "keep.json").is_file() == kept_is_known
    main(["linearize", "--out", str(out), "--resume", "--device", "cpu"])
    one, other = (json.loads((folder / "linearize.json").read_text()) for folder in (whole, out))
    for record in (one, other):
        record["keep"].pop("cost")
        for phase in record["phases"]:
            phase.pop("seconds")
    assert one == other
    tensors, again = load_file(whole / "best.safetensors"), load_file(out / "best.safetensors")
    assert all(torch.equal(again[name], value) for name, value in tensors.items())


def test_a_damaged_choice_is_named_and_made_again_only_before_anything_follows_from_it(kept, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(kept[0], out)
    (out / "keep.json").write_text("{}")
    resume = ("--resume", "--out", str(out), "--device", "cpu")
    assert "is there: begin anew in another folder" in refused(capsys, *resume)
    (out / "keep.json").unlink()
    assert "is there: begin anew in another folder" in refused(capsys, *resume)
    (out / "keep.json").write_text("{}")
    (out / "before.json").unlink()
    for phase in ("1-new", "2-all", "3-distil"):
        shutil.rmtree(out / phase)
    assert "keep.json holds no choice of blocks: remove it" in refused(capsys, *resume)


@pytest.mark.parametrize(
    ("name", "value"), [("seed", 5), ("keep_images", 16), ("mixer", "linear"), ("batch", 4), ("rates", [1e-3, 2e-3, 5e-4])]
)
def test_a_choice_is_not_taken_over_from_other_options(kept, tmp_path, name, value, capsys):
    out = tmp_path / "out"
    out.mkdir()
    options = json.loads((kept[0] / "options.json").read_text())
    (out / "options.json").write_text(json.dumps({**options, name: value}))
    shutil.copy(kept[0] / "keep.json", out)
    what = {"mixer": "swap", "rates": "matching"}.get(name, name)
    assert f"was begun with other options ({what})" in refused(capsys, "--resume", "--out", str(out), "--device", "cpu")


def test_a_choice_of_an_earlier_version_is_taken(kept, tmp_path, capsys):
    """It was stored with fewer conditions."""
    out = tmp_path / "out"
    shutil.copytree(kept[0], out)
    for file, known in (("keep.json", ("images", "teacher", "keep")), ("before.json", ("images", "teacher"))):
        stored = json.loads((out / file).read_text())
        stored["begun_with"] = {key: stored["begun_with"][key] for key in known}
        (out / file).write_text(json.dumps(stored))
    main(["linearize", "--resume", "--out", str(out), "--device", "cpu", "--workers", "1"])
    assert "Kept: block" in capsys.readouterr().out


def test_a_dry_run_measures_and_writes_nothing(teacher, kept, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["linearize", str(teacher / "run"), *STEPS, *KEEP, "--dry-run", "--json"])
    found = json.loads(capsys.readouterr().out)
    recorded = json.loads((kept[0] / "linearize.json").read_text())["keep"]
    assert {**found["keep"], "cost": None} == {**recorded, "cost": None}
    assert found["steps"] == {"new": 4, "all": 4, "distil": 6}
    assert list(found["left"]) == recorded["kept"]
    main(["linearize", str(teacher / "run"), *STEPS, "--dry-run"])
    assert "2 swapped, 0 left" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_timm_model_without_classes_keeps_blocks_by_its_features(teacher, tmp_path):
    name, arguments = "vit_tiny_patch16_224", {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
    arguments |= {"num_classes": 0}
    original = Teacher(timm.create_model(name, **arguments).eval(), name, arguments, ())
    data = DataConfig(source=str(teacher / "data"), size=(16, 16), workers=0)
    config = LinearizeConfig(data, steps=(2, 2, 2), batch=8, unlabelled=True, keep="auto", keep_images=8)
    record = linearize(original, config, tmp_path / "out", reporter=RecordingReporter(), stop=never, device="cpu")
    (block,) = record["keep"]["kept"]
    metadata = metadata_of(tmp_path / "out" / "best.safetensors")
    student = make_model(metadata["model"], metadata["arguments"])
    student.load_state_dict(load_file(tmp_path / "out" / "best.safetensors"))
    swapped = {f"blocks.{i}.attn" for i in range(3) if type(student.blocks[i].attn) is not type(original.model.blocks[0].attn)}
    assert swapped == {f"blocks.{i}.attn" for i in range(3)} - {block}
    reason = record["keep"]["cost"]["models"]["teacher"]["reason"]
    assert reason.startswith("not measured: ")
    assert "1024" in reason


def test_attention_that_is_found_is_linearized_and_loads(teacher, tmp_path, capsys, monkeypatch):
    """VOLO's attention is of no known kind; its outlook attention, which comes first, is left."""
    small = {"img_size": 32, "layers": (1, 2), "embed_dims": (16, 32), "num_heads": (2, 2), "mlp_ratio": 2.0}
    small |= {"downsamples": (True, False), "outlook_attention": (True, False), "stem_hidden_dim": 8, "post_layers": None}
    small |= {"use_mix_token": False, "use_aux_head": False}
    make = volo._create_volo
    monkeypatch.setattr(volo, "_create_volo", lambda name, **given: make(name, **{**given, **small}))
    name, arguments = "volo_d1_224", {"num_classes": 3}
    torch.manual_seed(0)
    model = make_model(name, arguments).eval().requires_grad_(False)
    for parameter in model.parameters():  # so that outputs differ by more than they are rounded
        parameter.mul_(10 if parameter.ndim == 2 else 1)
    classes = tuple(sorted(path.name for path in (teacher / "data").iterdir() if path.is_dir()))
    original = Teacher(model, name, arguments, classes)
    data = DataConfig(source=str(teacher / "data"), size=(32, 32), workers=0)
    swap_options = {"mixer": "inline", "local": False, "example": [3, 32, 32]}
    config = LinearizeConfig(data, swap_options=swap_options, steps=(0, 2, 2), batch=8, keep="1", keep_images=8, keep_cost=0)
    record = linearize(original, config, tmp_path / "out", reporter=RecordingReporter(), stop=never, device="cpu")
    blocks = [row["name"] for row in record["keep"]["blocks"]]
    assert blocks == ["network.2.0.attn", "network.2.1.attn"]
    assert all(row["error"] > 0 for row in record["keep"]["blocks"])
    found = load_trained(str(tmp_path / "out")).model
    (kept,) = record["keep"]["kept"]
    (other,) = set(blocks) - {kept}
    assert type(found.get_submodule(kept)) is type(model.get_submodule(kept))
    assert isinstance(found.get_submodule(other).mixer, InLineAttention)
    main(["eval", str(tmp_path / "out"), "--json", "--device", "cpu", "--workers", "0", "--out", str(tmp_path / "eval")])
    assert json.loads(capsys.readouterr().out)["top1"] == pytest.approx(record["phases"][-1]["top1"], abs=1e-4)


@pytest.mark.parametrize("shape", [3, [3, 32], [3, 0, 32], [3, 32.0, 32], "image"])
def test_a_stored_example_is_the_shape_of_an_image(shape):
    with pytest.raises(ValueError, match=r"is the shape of an image, \[3, 224, 224\], got"):
        make_model("vit_tiny_patch16_224", {"depth": 1, "swap": [{"mixer": "inline", "example": shape}]})


class After:
    """A stop that is requested after so many steps."""

    def __init__(self, steps):
        self.left = steps

    def is_set(self):
        self.left -= 1
        return self.left <= 0


@pytest.mark.parametrize(("steps", "phase", "at"), [(2, "1-new", 2), (4 + 4 + 3, "3-distil", 3)])
def test_stopped_within_a_phase_it_resumes_to_the_same(teacher, linear, steps, phase, at, monkeypatch):
    whole, _ = linear
    out = teacher / f"stopped-{steps}"
    with monkeypatch.context() as patch:
        patch.setattr("inline_attention.cli.train.stop_signals", lambda: nullcontext(After(steps)))
        with pytest.raises(SystemExit) as stop:
            main(["linearize", str(teacher / "run"), *STEPS, "--out", str(out)])
    assert stop.value.code == 130
    assert [path.name for path in (out / phase / "checkpoints").glob("step-*")] == [f"step-{at:08}"]
    if steps == 2:
        (out / "options.json").rename(out / "lesson.json")  # as the first version called it
    main(["linearize", "--out", str(out), "--resume", "--device", "cpu"])
    tensors, again = load_file(whole / "best.safetensors"), load_file(out / "best.safetensors")
    assert all(torch.equal(again[name], value) for name, value in tensors.items())


def test_images_without_classes(teacher, capsys):
    """A flat folder: agreement is told, accuracy is not."""
    flat = teacher / "flat"
    flat.mkdir()
    for number, file in enumerate(sorted((teacher / "data").rglob("*.png"))[:40]):
        (flat / f"{number}.png").write_bytes(file.read_bytes())
    out = teacher / "unlabelled"
    main(["linearize", str(teacher / "run"), "--data", str(flat), *STEPS, "--out", str(out)])
    record = json.loads((out / "linearize.json").read_text())
    assert record["labelled"] is False
    assert record["teacher"]["top1"] is None
    assert record["phases"][-1]["agreement"] > 0
    assert "top-1" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no model"),
        (["inline_deit_nano"], "inline_deit_nano needs weights: --weights FILE, or inline_deit_nano.digits or"),
        (["RUN", "--mixer", "fast"], "unknown mixer 'fast'"),
        (["RUN", "--only", "blocks.9"], "matches the whole name of no attention"),
        (["RUN", "--batch", "0"], "must be positive"),
        (["RUN", "--data", "nowhere"], "nowhere"),
        (["RUN", "--batch", "8", "--steps", "0", "0", "0"], "no phase has both steps and parameters to train"),
        (["RUN", "--batch", "1000"], "do not fill a batch of 1000"),
        (["RUN", "--size", "4", "4"], "does not take images of 4 x 4"),
        (["RUN", "--weights", "RUN"], "leave out one of the two"),
        (["RUN", "--keep", "2"], "keep '2': 2 of 2 blocks, which leaves none to be linear: keep fewer than 2"),
        (["RUN", "--keep", "3,"], "keep '3,': there is no block 3, blocks are counted from 1 to 2"),
        (["RUN", "--keep", "1,", "--only", r"stages\.0\.blocks\.1\.mixer"], "is not among those to swap"),
        (["RUN", "--keep", "1", "--keep-images", "0"], "keep_images must be positive"),
        (["RUN", "--keep-images", "20"], "keep_images 20 is for keep, which is not given"),
        (["RUN", "--keep-cost", "0"], "keep_cost 0 is for keep, which is not given"),
        (["--resume"], "--resume needs --out"),
    ],
)
def test_bad_input_is_reported_in_one_line(teacher, words, said, tmp_path, capsys):
    asked = [str(teacher / "run") if word == "RUN" else word for word in words]
    out = [] if "--resume" in words else ["--out", str(tmp_path / "out")]
    assert said in refused(capsys, *asked, *out, "--device", "cpu")
    assert not (tmp_path / "out").exists()  # nothing stands in the way of the next try


def test_a_folder_is_not_overwritten_and_keeps_its_options(teacher, linear, capsys):
    out, _ = linear
    assert "holds a run" in refused(capsys, str(teacher / "run"), *STEPS, "--out", str(out))
    assert "--keep 1" in refused(capsys, "--out", str(out), "--resume", "--keep", "1")
    assert "--mixer linear" in refused(capsys, "--out", str(out), "--resume", "--mixer", "linear")
    assert "nothing" in refused(capsys, "nothing", "--out", str(out), "--resume")
    assert "other weights or images" in refused(capsys, "--out", str(out), "--resume", "--data", str(teacher / "flat"))
    with pytest.raises(SystemExit):
        main(["train", "--resume", "--out", str(out)])
    assert "inline linearize --out" in capsys.readouterr().err


def _as_the_first_version_wrote_it(folder):
    """The same folder with the names that some keys had."""
    for path, new, old in (("before.json", '"images":', '"pictures":'), ("3-distil/recipe.toml", "crop_mode =", "view =")):
        text = (folder / path).read_text()
        assert new in text
        (folder / path).write_text(text.replace(new, old))


def test_a_finished_folder_may_have_moved(linear, tmp_path, monkeypatch, capsys):
    """Resumed under another name, and with key names of the first version, it reports what it reported."""
    out, _ = linear
    moved = tmp_path / "moved"
    shutil.copytree(out, moved)
    (moved / "3-distil" / "result.json").unlink()
    _as_the_first_version_wrote_it(moved)
    monkeypatch.chdir(tmp_path)
    main(["linearize", "--resume", "--out", "moved", "--device", "cpu", "--workers", "1"])
    assert "distilled" in capsys.readouterr().out
    one, other = ((folder / "best.safetensors").read_bytes() for folder in (out, moved))
    assert one == other


@pytest.mark.parametrize("words", [("--local", "False"), ("--steps", "0", "4", "4")])
def test_without_the_first_phase_it_starts_from_the_teacher(teacher, words, tmp_path):
    """Not with drawn weights: what attention does not hold is the teacher's."""
    asked = [str(teacher / "run"), *STEPS, *words, "--out", str(tmp_path / "out")]
    main(["linearize", *asked])
    original, second = (load_file(folder / "best.safetensors") for folder in (teacher / "run", tmp_path / "out" / "2-all"))
    assert all(torch.equal(second[name], value) for name, value in original.items() if ".mixer." not in name)


def test_a_linear_model_can_be_linearized_again(linear, tmp_path):
    """Its second swap comes after its first: one block stays InLine."""
    out, _ = linear
    words = ("--mixer", "linear", "--only", r"stages\.0\.blocks\.1\.mixer", "--out", str(tmp_path / "out"))
    main(["linearize", str(out), *STEPS, *words])
    found = load_trained(str(tmp_path / "out")).model
    assert [type(block.mixer).__name__ for block in found.stages[0].blocks] == ["InLineAttention", "LinearAttention"]


def refused(capsys, *words):
    """What the command says in its last line when it ends with 2."""
    with pytest.raises(SystemExit) as stop:
        main(["linearize", *words])
    assert stop.value.code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("inline: ")
    return last


def test_a_timm_model_can_be_trained_with_another_attention(teacher):
    """`model.swap`, and its weights know of it."""
    out = teacher / "vit"
    args = "img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2"
    main([
        "train", "--data", str(teacher / "data"), "--model.name", "vit_tiny_patch16_224", "--model.args", args,
        "--model.swap", 'mixer="inline"', "--data.size", "16", "16", "--schedule.epochs", "1", "--optim.batch", "8",
        "--device", "cpu", "--data.workers", "1", "--out", str(out),
    ])  # fmt: skip
    assert any(isinstance(module, InLineAttention) for module in load_trained(str(out)).model.modules())


def test_phases_share_the_steps_of_the_epochs():
    usual = LinearizeConfig(DataConfig(source="images"))
    assert usual.phase_steps(64_000) == (50, 100, 2350)
    assert replace(usual, epochs=0.01).phase_steps(64_000) == (1, 1, 9)
    assert replace(usual, steps=(3, 0, 7)).phase_steps(64_000) == (3, 0, 7)
