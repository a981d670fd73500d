"""Training, evaluation and prediction by a recipe: folders of images in, weights and an accuracy out."""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from inline_attention.training import evaluate, load_recipe, predict, train

COLOURS = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (200, 50, 40)}
generator = np.random.default_rng(0)

with tempfile.TemporaryDirectory() as temporary:
    # A folder for each class is all that training needs; a fifth of each class is kept for validation.
    images = Path(temporary) / "images"
    for name, colour in COLOURS.items():
        (images / name).mkdir(parents=True)
        for number in range(40):
            noise = generator.normal(0, 40, (16, 16, 3)) + np.array(colour)
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(images / name / f"{number}.png")

    # A recipe is typed fields, by name; `inline train` has the same fields as options.
    recipe = load_recipe("small_images").with_fields(
        {
            "model.args": "embed_dim=16, depths=[1, 1, 1, 1], num_heads=[1, 2, 4, 8]",
            "data.size": (16, 16),
            "data.workers": 0,
            "optim.batch": 16,
            "optim.rate_batch": 16,
            "optim.lr": 2e-3,
            "schedule.epochs": 4,
            "schedule.warmup": 1,
        }
    )
    result = train(recipe, data=images, out=Path(temporary) / "run", device="cpu")
    print(f"{len(result.source.train)} images, {result.metrics['step']} steps: {result.metrics['top1']:.1f} % after the last")
    print("written:", ", ".join(sorted(path.name for path in result.folder.iterdir())))

    # A run's folder is all that evaluation and prediction need.
    score = evaluate(result.folder, device="cpu", workers=0)
    print(f"best weights: {score.metrics['top1']:.1f} % of {score.images} validation images")
    classes = predict(result.folder, [Image.new("RGB", (30, 20), COLOURS["red"])])[0]
    print("a red image:", ", ".join(f"{name} {probability:.0%}" for name, probability in classes))
