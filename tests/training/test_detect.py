"""Detection through the one loop: truth against itself, a killed run, images without objects."""

import shutil

import pytest
import torch
from accelerate import Accelerator
from PIL import Image
from safetensors.torch import save_file
from timm.models import create_model
from torch import nn

from inline_attention.data.loader import evaluation_batches, training_batches
from inline_attention.training.dense_task import load_dense
from inline_attention.training.model_factory import build_model
from inline_attention.training.run_folder import RunFolder
from inline_attention.training.schedule import build_optimizer, make_plan
from inline_attention.training.task import evaluate_batches, make_task

from .small import metrics, weights
from .small_dense import detect_recipe, run, without_masks, write_coco


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_coco(tmp_path_factory.mktemp("detect"))


class Oracle(nn.Module):
    """Knows the objects of the images it is shown, one after the other, but `moved` shares of a width to the right."""

    def __init__(self, images, moved=0.0):
        super().__init__()
        self.truths, self.moved = iter([images.load(index, 3)[1] for index in range(len(images))]), moved

    def forward(self, images):
        found = []
        for _ in images:
            truth = next(self.truths)
            boxes = torch.from_numpy(truth.boxes).clone()
            boxes[:, 0::2] += self.moved * (boxes[:, 2:3] - boxes[:, 0:1])
            masks = torch.from_numpy(truth.masks())[:, None].float()
            labels = torch.from_numpy(truth.labels)
            found.append({"boxes": boxes, "labels": labels, "scores": torch.ones(len(labels)), "masks": masks})
        return found


def score(task, model):
    accelerator, source = Accelerator(cpu=True), task.open()
    how = {"rank": 0, "processes": 1, "channels": 3, "workers": 0}
    batches = evaluation_batches(source.val, task.transform(training=False), 3, **how)
    return evaluate_batches(model, batches, task.meter(source, accelerator), accelerator, skip_bad=False)


def test_truth_against_itself_is_100(data):
    task = make_task(detect_recipe(data))
    found = score(task, Oracle(task.open().val))
    assert found.metrics["box_ap"] == found.metrics["mask_ap"] == pytest.approx(100)
    assert found.details["per_class"] == [pytest.approx(100)] * 2
    assert found.images == 8
    moved = score(task, Oracle(task.open().val, 0.1)).metrics
    assert moved["box_ap"] == pytest.approx(70), "overlaps of 0.9 / 1.1 reach the thresholds from 0.5 to 0.8"
    assert moved["box_ap75"] == pytest.approx(100)
    assert moved["mask_ap"] == pytest.approx(100), "masks were not moved"


@pytest.mark.parametrize("head", ["mask_rcnn", "cascade_mask_rcnn"])
def test_a_stopped_run_resumes_bit_for_bit(data, tmp_path, head):
    recipe = detect_recipe(data, task={"head": head}, model={"drop_path": 0.2})
    run(recipe, tmp_path / "whole")
    steps = []
    _, outcome = run(recipe, tmp_path / "cut", stop=lambda: bool(steps.append(1)) or len(steps) == 3)
    assert not outcome.finished
    run(recipe, tmp_path / "cut", resume=True)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    rows = metrics(tmp_path / "whole")
    rates = [row["lr"] for row in rows if row["kind"] == "training"]
    assert rates == pytest.approx([2e-3, 2e-3, 2e-4, 2e-4]), "a tenth after the first epoch"
    assert {"mask_ap", "mask_ap_small", "box_ap", "box_ap50"} <= set([row for row in rows if row["kind"] == "evaluation"][-1])


def test_annotations_without_masks_train_a_head_without_masks(tmp_path):
    """Chosen and said, stored in recipe and weights, scored by boxes alone, resumed bit for bit, loaded again."""
    recipe = detect_recipe(without_masks(write_coco(tmp_path / "data")), task={"head": "auto"})
    report, outcome = run(recipe, tmp_path / "whole")
    assert report.messages[1:] == ["faster_rcnn for boxes without masks (no mask is read), 2 classes: ball, box"]
    assert RunFolder(tmp_path / "whole").recipe().task.head == "faster_rcnn"
    assert outcome.best["box_ap"] == max(row["box_ap"] for row in outcome.rows if row["kind"] == "evaluation")
    rows = metrics(tmp_path / "whole")
    assert not [name for row in rows for name in row if "mask" in name]
    steps = []
    run(recipe, tmp_path / "cut", stop=lambda: bool(steps.append(1)) or len(steps) == 3)
    run(recipe, tmp_path / "cut", resume=True)
    assert metrics(tmp_path / "cut") == rows
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    dense = load_dense(str(tmp_path / "whole"))
    assert (dense.task.head, list(dense.task.columns)) == ("faster_rcnn", ["box_ap", "box_ap50", "box_ap75"])
    assert set(dense.task.predict(dense.model, Image.new("RGB", (64, 48)), torch.device("cpu"))) == {
        "boxes",
        "labels",
        "scores",
    }


def test_a_head_with_masks_needs_masks_and_keeps_its_name(data, tmp_path):
    assert make_task(detect_recipe(data, task={"head": "auto"})).suited_to(make_task(detect_recipe(data)).open()).recipe == (
        detect_recipe(data, task={"head": "auto", "freeze_norm": False})
    ), "so that runs of earlier versions resume"
    bare = without_masks(write_coco(tmp_path / "data"))
    with pytest.raises(ValueError, match=r"has no segmentation, which this head is trained with: --task\.head faster_rcnn"):
        make_task(detect_recipe(bare)).open()
    trained = make_task(detect_recipe(bare, task={"head": "auto"}))
    with pytest.raises(ValueError, match=r"instances_train2017\.json has no segmentations, and mask_rcnn is scored by masks"):
        trained.meter(trained.open_split("train", ("ball", "box")), Accelerator(cpu=True))


def test_instance_masks_are_detected(tmp_path):
    for number in range(2):
        for folder, mode in (("PNGImages", "RGB"), ("PedMasks", "L")):
            (tmp_path / folder).mkdir(exist_ok=True)
            image = Image.new(mode, (24, 16))
            image.paste(1 if mode == "L" else "red", (2, 3, 8 + number, 9))
            image.save(tmp_path / folder / f"{number}{'_mask' * (mode == 'L')}.png")
    source = make_task(detect_recipe(tmp_path, data={"class_name": "pedestrian"})).open()
    assert (source.classes, len(source.train)) == (("pedestrian",), 2)
    assert source.train.load(1, 3)[1].boxes.tolist() == [[2, 3, 9, 9]]


def test_crowds_are_left_out_of_training_and_empty_images_are_not(data):
    task = make_task(detect_recipe(data, augment={"hflip": 0.0}))
    source = task.open()
    images = {int(source.train.load(index, 3)[1].image_id): source.train.load(index, 3)[1] for index in range(8)}
    plan = make_plan(task.recipe, 8, 1)
    how = {"seed": 0, "rank": 0, "start": 0, "channels": 3, "workers": 0}
    shown = {}
    for batch in list(training_batches(source.train, task.transform(training=True), plan, **how))[:4]:
        assert isinstance(batch.targets, list)
        for target in batch.targets:
            shown[int(target["image_id"])] = target
    assert len(shown[2]["boxes"]) == 0, "the second image has no objects"
    assert shown[2]["masks"].shape == (0, 48, 64)
    for number, target in shown.items():
        objects = images[number]
        assert target["boxes"].tolist() == objects.boxes[~objects.crowd].tolist()
    assert any(objects.crowd.any() for objects in images.values())
    model, _ = build_model(task, source.classes)
    empty = [target for number, target in shown.items() if number == 2]
    losses = model.train()([torch.rand(3, 48, 64)], empty)
    assert all(torch.isfinite(loss) for loss in losses.values())


def test_layer_decay_scales_rates(data):
    task = make_task(detect_recipe(data, optim={"layer_decay": 0.5}))
    model, _ = build_model(task, ("ball", "box"))
    optimizer = build_optimizer(model, task.recipe, make_plan(task.recipe, 8, 1))
    scale = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    named = {name: scale[id(parameter)] for name, parameter in model.named_parameters()}
    heads = {value for name, value in named.items() if not name.startswith("backbone.body.")}
    assert heads == {1.0}
    inside = [value for name, value in named.items() if name.startswith("backbone.body.")]
    assert max(inside) < 1.0
    assert min(inside) < max(inside) / 4, "early layers learn more slowly than late ones"


def test_a_run_does_not_resume_with_other_annotations(data, tmp_path):
    root = shutil.copytree(data, tmp_path / "data")
    recipe = detect_recipe(root)
    steps = []
    run(recipe, tmp_path / "run", stop=lambda: bool(steps.append(1)) or len(steps) == 1)
    path = root / "annotations" / "instances_train2017.json"
    path.write_text(path.read_text().replace('"category_id": 3', '"category_id": 8', 1))
    with pytest.raises(ValueError, match=r"does not hold the images that .* was trained on"):
        run(recipe, tmp_path / "run", resume=True)


@pytest.mark.parametrize(("weights", "frozen"), [(False, False), (True, True)])
def test_weights_of_a_timm_classifier_and_its_norms(data, tmp_path, weights, frozen):
    """They are laid in without the classifier; norms are frozen where there are weights, and only there."""
    classifier = create_model("resnet18", num_classes=5)
    save_file(classifier.state_dict(), tmp_path / "resnet.safetensors")
    named = {"name": "resnet18", "args": "", "weights": str(tmp_path / "resnet.safetensors") if weights else None}
    task = make_task(detect_recipe(data, model=named))
    model, said = build_model(task, ("ball", "box"))
    norms = [type(module).__name__ for module in task.backbone(model).modules() if "BatchNorm" in type(module).__name__]
    assert all(name.startswith("Frozen") == frozen for name in norms)
    assert task.recipe.task.freeze_norm is frozen, "and the run's recipe says so"
    if weights:
        assert said.endswith("resnet.safetensors: 100 tensors matched, left out: fc.bias, fc.weight")
        assert torch.equal(task.backbone(model).state_dict()["layer4.1.conv2.weight"], classifier.layer4[1].conv2.weight)


def test_parts_of_the_backbone_can_be_frozen(data):
    task = make_task(detect_recipe(data, optim={"freeze": ("stages.0",)}))
    model, _ = build_model(task, ("ball", "box"))
    still = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert still
    assert all(".stages.0." in name for name in still)
