"""Train the small models whose weights are in the package, round them to half precision, score them, and write their card.

    pip install '.[train]' && apt install dataset-fashion-mnist
    python benchmarks/packaged_weights.py --runs runs/packaged

A model whose run is finished is not trained again; one that was interrupted goes on. The files and the card, README.md, go to
src/inline_attention/weights.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from inline_attention.models.packaged_weights import PACKAGED, packaged_path
from inline_attention.training import evaluate
from inline_attention.training.checkpoint import to_bytes, write_atomically

DIGITS = "Scikit-learn's 1,797 handwritten digits (UCI ML, CC BY 4.0)"
FASHION = "Fashion-MNIST, 70,000 grey images of clothes (Zalando, MIT)"
OPTIONS = {
    "inline_deit_nano.digits": ("--model.name", "inline_deit_nano", "--model.args", 'patch_size=2, weight_init="xavier"'),
    "inline_swin_nano.digits": (),
    "inline_deit_nano.fashion_mnist": (
        *("--data", "fashion-mnist", "--model.name", "inline_deit_nano"),
        *("--model.args", 'patch_size=4, weight_init="xavier"', "--schedule.epochs", "5"),
    ),
    "inline_swin_nano.fashion_mnist": ("--data", "fashion-mnist"),
}
"""What `inline train` gets for each file."""
HEADER = f"""# Weights in this folder

Small models that this package trained itself: `timm.create_model("inline_swin_nano.digits", pretrained=True)`. They are for
trying things, without a download. Licence: Apache-2.0, as the package. Numbers are stored in half precision, and scored as
they are stored.

- digits: {DIGITS}. Scored on a fifth of them, which is not trained on.
- fashion_mnist: {FASHION}. Scored on its 10,000 test images.

The weights of each run are those of the epoch that scored best on these very images, so the top-1 of a model is a little too
high; that of the last epoch, which nothing was chosen by, stands beside it. One seed. `python benchmarks/packaged_weights.py`
trains them again and writes this page. Minutes are of one thread, on a machine that did other work too.

| model | top-1 %, these weights | top-1 %, last epoch | images | minutes | commit | command |
| --- | ---: | ---: | ---: | ---: | --- | --- |
"""


def main() -> None:
    """Train, convert, score, write the card."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/packaged"), help="folder of the runs (runs/packaged)")
    runs = parser.parse_args().runs
    rows = []
    for name, options in OPTIONS.items():
        run = runs / name
        train(run, options)
        rows.append(row(name, run, options, pack(name, run)))
    card = packaged_path(name).with_name("README.md")
    write_atomically(card, (HEADER + "".join(rows)).encode())
    print(f"Written: {card.parent}")


def train(run: Path, options: tuple[str, ...]) -> None:
    """Train, or go on with what was interrupted."""
    if not (run / "commit.txt").is_file():
        run.mkdir(parents=True, exist_ok=True)
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
        (run / "commit.txt").write_text(commit)
    if not (run / "result.json").is_file():
        how = ["--resume"] if (run / "recipe.toml").is_file() else options
        subprocess.run([sys.executable, "-m", "inline_attention", "train", *how, "--out", str(run)], check=True)


def pack(name: str, run: Path) -> dict[str, float]:
    """Write the run's best weights in half precision; returns their score."""
    with safe_open(run / "best.safetensors", "pt") as file:
        tensors = {key: file.get_tensor(key).half() for key in file.keys()}  # noqa: SIM118  it is no dictionary
        metadata = json.loads(file.metadata()["inline"])
    path = packaged_path(name)
    kept = {key: metadata[key] for key in ("classes", "data", "split", "split_note", "fingerprint", "images")}
    kept |= {"model": metadata["model"], "arguments": PACKAGED[name].model_arguments}
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, to_bytes(tensors, kept))
    score = evaluate(path, PACKAGED[name].data).metrics
    write_atomically(path, to_bytes(tensors, {**kept, "top1": score["top1"], "loss": score["loss"]}))
    return score


def row(name: str, run: Path, options: tuple[str, ...], score: dict[str, Any]) -> str:
    """A line of the card."""
    result = json.loads((run / "result.json").read_text())
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [entry for entry in last if entry["kind"] == "evaluation"][-1]
    commit = (run / "commit.txt").read_text().strip()
    command = shlex.join(("inline", "train", *options))
    return (
        f"| {name} | {score['top1']:.2f} | {last['top1']:.2f} | {result['images']:,} | {result['seconds'] / 60:.0f} | "
        f"{commit} | `{command}` |\n"
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
