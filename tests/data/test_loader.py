"""Which images, in which order, varied how: the same whatever reads them."""

from collections import Counter

import pytest
import torch

from inline_attention.data.loader import TrainingOrder, evaluation_batches, training_batches
from inline_attention.data.sources import open_source
from inline_attention.data.transforms import evaluation_transform
from inline_attention.training.classify import Classify
from inline_attention.training.schedule import make_plan

from ..training.small import small_recipe, write_images


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loader")
    write_images(folder, 15)
    return open_source(small_recipe(folder).data)


def batches(source, *, workers=0, start=0, rank=0, processes=1, **optim):
    recipe = small_recipe("", optim=optim)
    plan = make_plan(recipe, len(source.train), processes)
    transform = Classify(recipe).transform(training=True)
    options = {"seed": 0, "rank": rank, "start": start, "channels": 3, "workers": workers}
    return list(training_batches(source.train, transform, plan, **options))


def same(first, second):
    return len(first) == len(second) and all(
        torch.equal(a.pixels, b.pixels) and torch.equal(a.targets, b.targets) for a, b in zip(first, second, strict=True)
    )


def test_an_epoch_has_every_image_once():
    plan = make_plan(small_recipe("", optim={"batch": 4}), 36, 1)
    samples = [sample for batch in TrainingOrder(plan, 0, 0, 0) for sample in batch]
    assert len(samples) == 72
    for epoch in (0, 1):
        assert Counter(t.index for t in samples if t.epoch == epoch) == Counter(range(36))
    first, second = ([t.index for t in samples if t.epoch == epoch] for epoch in (0, 1))
    assert first != second
    assert first != sorted(first)


def test_images_do_not_depend_on_the_number_of_workers(source):
    alone = batches(source)
    assert same(alone, batches(source, workers=2))
    assert not same(alone[:3], alone[3:]), "an epoch is varied unlike the one before"


def test_batches_resume_at_a_step(source):
    whole = batches(source)
    for start in (1, 3, 4):
        assert same(whole[start:], batches(source, start=start))


def test_processes_share_a_batch(source):
    """Two processes get the halves of what one gets in two parts."""
    alone = batches(source, device_batch=6)
    first, second = (batches(source, rank=rank, processes=2, device_batch=6) for rank in (0, 1))
    assert same(alone[0::2], first)
    assert same(alone[1::2], second)


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("batch", [2, 5])
def test_evaluation_has_every_image_once_over_processes(source, processes, batch):
    transform = Classify(small_recipe("")).transform(training=False)
    shares = [
        list(evaluation_batches(source.val, transform, batch, rank=rank, processes=processes, channels=3, workers=0))
        for rank in range(processes)
    ]
    assert len({len(share) for share in shares}) == 1, "all take equally many steps"
    labels = Counter(label for share in shares for found in share for label in found.targets[found.valid].tolist())
    assert labels == Counter(source.val.labels())
    pixels = torch.cat([found.pixels[found.valid] for share in shares for found in share])
    assert len(pixels.flatten(1).unique(dim=0)) == len(source.val)


def test_the_papers_evaluation_squashes():
    """Both sides to floor(256 / 224 x side), then the middle; timm's usual one keeps the aspect."""
    from PIL import Image

    image = Image.new("RGB", (100, 40))
    image.paste((255, 255, 255), (0, 0, 30, 40))
    data = small_recipe("", data={"size": (224, 224), "mean": (0.0,) * 3, "std": (1.0,) * 3}).data
    squashed = evaluation_transform(data)(image)[0, 112]
    assert squashed.shape == (224,)
    # the edge is at 30 % of 256 columns, of which the crop takes off 16
    assert int((squashed > 0.5).sum()) == pytest.approx(0.3 * 256 - 16, abs=1)
    usual = evaluation_transform(small_recipe("", data={"size": (224, 224), "crop_mode": "center"}).data)(image)[0, 112]
    assert float(usual.std()) < 1e-5, "the shorter side is resized, and the edge is outside of the middle"
