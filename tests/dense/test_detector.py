"""Detectors whole: training, evaluation, learning rates, whatever the backbone."""

import pytest
import torch
from timm.layers import FrozenBatchNormAct2d
from timm.optim import create_optimizer_v2
from torch import nn
from torchvision.ops import FrozenBatchNorm2d, box_iou

from inline_attention.dense.detector import DETECTORS, WITH_MASKS, make_detector
from inline_attention.dense.pyramid import backbone_of, make_pyramid

FULL = {"zero_init_last": False}
"""A frozen norm that starts at zero would let nothing through."""
VIT = {"depth": 4, "embed_dim": 32, "num_heads": 2}
ODD = [(37, 53), (64, 41)]


def detector(head, name="inline_pvt_nano", arguments=None, *, classes=3, **options):
    torch.manual_seed(0)
    settings = {"width": 16, "sides": (64,), "longest": 96, "anchors": (4, 8, 16, 32, 64), **options}
    return make_detector(make_pyramid(name, arguments or {}), head, classes, mean=(0.5,) * 3, std=(0.25,) * 3, **settings)


def image(height, width, *boxes, labels=()):
    """Bright rectangles on noise, and what they are."""
    pixels = 0.2 * torch.rand(3, height, width, generator=torch.Generator().manual_seed(height))
    masks = torch.zeros(len(boxes), height, width, dtype=torch.uint8)
    for mask, (left, top, right, bottom), label in zip(masks, boxes, labels, strict=True):
        mask[top:bottom, left:right] = 1
        pixels[label % 3, top:bottom, left:right] = 1
    found = {"boxes": torch.tensor(boxes, dtype=torch.float).reshape(-1, 4), "labels": torch.tensor(labels, dtype=torch.int64)}
    return pixels, {**found, "masks": masks}


def batch(*images):
    pixels, targets = zip(*images, strict=True)
    return list(pixels), list(targets)


BATCH = batch(image(*ODD[0], (3, 4, 20, 30), (25, 5, 50, 20), labels=[1, 3]), image(*ODD[1], (5, 5, 36, 60), labels=[2]))
EMPTY = batch(image(*ODD[0]), image(*ODD[1]))
HALF = batch(image(*ODD[0], (3, 4, 20, 30), labels=[1]), image(*ODD[1]))


@pytest.mark.parametrize("head", WITH_MASKS)
@pytest.mark.parametrize("examples", [BATCH, HALF, EMPTY], ids=["objects", "one without", "none"])
def test_losses_are_finite_and_gradients_reach_every_parameter(head, examples):
    model = detector(head)
    losses = model(*examples)
    assert all(loss.isfinite() for loss in losses.values())
    stages = ("_1", "_2", "_3") if head == "cascade_mask_rcnn" else ("",)
    assert {"loss_objectness", "loss_rpn_box_reg", *(f"loss_mask{stage}" for stage in stages)} <= losses.keys()
    if examples is EMPTY:
        assert [losses[f"loss_mask{stage}"].item() for stage in stages] == [0] * len(stages)
    sum(losses.values()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@pytest.mark.parametrize("head", ["faster_rcnn", "cascade_rcnn"])
def test_heads_for_boxes_alone_learn_from_boxes_alone(head):
    model = detector(head)
    pixels, targets = BATCH[0] + EMPTY[0], [{key: one[key] for key in ("boxes", "labels")} for one in BATCH[1] + EMPTY[1]]
    losses = model(pixels, targets)
    assert not any("mask" in name for name in (*losses, *dict(model.named_parameters())))
    sum(losses.values()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@pytest.mark.parametrize("head", DETECTORS)
def test_predictions_are_at_the_images_own_size_and_in_their_order(head):
    model = detector(head, width=8, sides=(32,), longest=64).eval().double()
    pixels = [one.double() for one in BATCH[0]]
    with torch.no_grad():
        found, turned = model(pixels), model(pixels[::-1])
    for (height, width), one, other in zip(ODD, found, turned[::-1], strict=True):
        count = len(one["boxes"])
        assert 0 < count <= 100
        assert ("masks" in one) == (head in WITH_MASKS)
        if "masks" in one:
            assert one["masks"].shape == (count, 1, height, width)
            assert 0 <= one["masks"].min() <= one["masks"].max() <= 1
        assert (one["boxes"] >= 0).all()
        assert (one["boxes"] <= torch.tensor([width, height, width, height]) + 1e-4).all()
        assert set(one["labels"].tolist()) <= {1, 2, 3}
        assert one["scores"].tolist() == sorted(one["scores"].tolist(), reverse=True)
        torch.testing.assert_close(one["boxes"], other["boxes"])


@pytest.mark.parametrize("head", WITH_MASKS)
def test_a_batch_of_two_equals_two_batches_of_one(head):
    model = detector(head, width=8, sides=(32,), longest=64).eval().double()
    pixels = [torch.rand(3, 50, 70, dtype=torch.double) for _ in range(2)]
    with torch.no_grad():
        together, apart = model(pixels), [model([one])[0] for one in pixels]
    for one, other in zip(together, apart, strict=True):
        for key in ("boxes", "labels", "scores", "masks"):
            torch.testing.assert_close(one[key], other[key])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("resnet18", FULL),
        ("vit_tiny_patch16_224", VIT),
        ("inline_deit_nano", {}),
        ("inline_swin_nano", {}),
    ],
)
@pytest.mark.parametrize("head", WITH_MASKS)
def test_any_backbone_trains(head, name, arguments):
    model = detector(head, name, arguments)
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, layer_decay=0.9)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    sum(model(*BATCH).values()).backward()
    optimizer.step()
    assert all((old != new).any() for old, new in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("head", WITH_MASKS)
def test_it_overfits_one_image(head):
    model = detector(head, arguments={"patch_size": 4})
    for part in (model.roi_heads, *getattr(model.roi_heads, "stages", ())):
        part.fg_bg_sampler.batch_size_per_image = 32  # faster
    pixels, targets = batch(image(64, 64, (8, 10, 40, 38), labels=[2]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(60):
        optimizer.zero_grad()
        sum(model(pixels, targets).values()).backward()
        optimizer.step()
    with torch.no_grad():
        (found,) = model.eval()(pixels)
    assert found["labels"][0] == 2
    assert box_iou(found["boxes"][:1], targets[0]["boxes"]).item() > 0.6
    mask, wanted = found["masks"][0, 0] > 0.5, targets[0]["masks"][0] > 0
    assert (mask & wanted).sum() / (mask | wanted).sum() > 0.6


def test_batch_norms_of_the_backbone_are_frozen_and_no_others():
    frozen = detector("cascade_mask_rcnn", "resnet18")
    assert not any(isinstance(module, nn.BatchNorm2d) for module in frozen.modules())
    assert sum(isinstance(module, FrozenBatchNorm2d | FrozenBatchNormAct2d) for module in frozen.modules()) == 20
    assert any(isinstance(module, nn.GroupNorm) for module in frozen.roi_heads.modules())
    state = {name: value.clone() for name, value in frozen.named_buffers() if "running" in name}
    frozen(*BATCH)
    assert all((value == state[name]).all() for name, value in frozen.named_buffers() if name in state)
    assert any(isinstance(module, nn.BatchNorm2d) for module in detector("mask_rcnn", "resnet18", freeze_norm=False).modules())
    layer_norms = [module for module in detector("mask_rcnn").modules() if isinstance(module, nn.LayerNorm)]
    assert layer_norms
    assert all(module.weight.requires_grad for module in layer_norms)


def test_learning_rates_by_layer_and_names_without_decay():
    model = detector("cascade_mask_rcnn")
    optimizer = create_optimizer_v2(model, "adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {names[id(p)]: group for group in optimizer.param_groups for p in group["params"]}
    assert groups.keys() == dict(model.named_parameters()).keys()
    depth = sum(backbone_of(model).depths())
    inside = "backbone.body.body.model.stages"
    for name, group in groups.items():
        if not name.startswith("backbone.body."):
            assert group["lr_scale"] == 1, name
        elif name.startswith((f"{inside}.0.embed", f"{inside}.0.positions")):
            assert group["lr_scale"] == 0.5 ** (depth + 1), name
        elif name.startswith(f"{inside}.3.blocks.{backbone_of(model).depths()[3] - 1}"):
            assert group["lr_scale"] == 0.5, name
        else:
            assert 0.5**depth <= group["lr_scale"] <= 0.5, name
    assert model.no_weight_decay()
    assert {groups[name]["weight_decay"] for name in model.no_weight_decay()} == {0.0}
    assert groups["rpn.head.cls_logits.weight"]["weight_decay"] == 0.1


def test_the_usual_numbers():
    model = make_detector(make_pyramid("inline_pvt_nano", {}), "mask_rcnn", 80, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert model.rpn.anchor_generator.sizes == ((32,), (64,), (128,), (256,), (512,))
    assert model.rpn.anchor_generator.num_anchors_per_location() == [3] * 5
    assert model.roi_heads.box_head.fc7.weight.shape == (1024, 1024)
    assert model.roi_heads.box_predictor.cls_score.out_features == 81
    assert (list(model.transform.min_size), model.transform.max_size) == ([800], 1333)
    with torch.no_grad():
        maps = model.backbone(torch.zeros(1, 3, 64, 96))
    assert [tuple(features.shape[1:]) for features in maps.values()] == [
        (256, 16, 24), (256, 8, 12), (256, 4, 6), (256, 2, 3), (256, 1, 2)
    ]  # fmt: skip


def test_training_samples_a_side_and_evaluation_takes_the_last():
    model = detector("mask_rcnn", sides=(32, 48, 64), longest=70)
    pixels = [torch.rand(3, 40, 40)]
    model.train()
    assert {model.transform(pixels)[0].image_sizes[0][0] for _ in range(40)} == {32, 48, 64}
    model.eval()
    assert {model.transform(pixels)[0].image_sizes[0] for _ in range(5)} == {(64, 64)}
    assert model.transform([torch.rand(3, 40, 80)])[0].image_sizes[0] == (35, 70)


@pytest.mark.parametrize("head", DETECTORS)
def test_boxes_are_exact_in_half_precision(head):
    model = detector(head)
    with torch.autocast("cpu", torch.bfloat16):
        losses = model(*BATCH)
        found = model.eval()(BATCH[0])
    assert all(loss.isfinite() and loss.dtype == torch.float32 for loss in losses.values())
    assert found[0]["boxes"].dtype == found[0]["scores"].dtype == torch.float32
    assert (found[0]["boxes"] != found[0]["boxes"].bfloat16()).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "yolo"}, "there is no detector 'yolo'; there are mask_rcnn, cascade_mask_rcnn, faster_rcnn, cascade_rcnn"),
        ({"classes": 0}, "classes must be 1 or more, background not counted, got 0"),
        ({"anchors": (8, 16)}, r"anchors must be 5 sides in pixels, one for each map, got \(8, 16\)"),
        ({"sides": ()}, r"sides must be one or more lengths in pixels, not all above longest=96, got \(\)"),
        ({"sides": (100,)}, r"not all above longest=96, got \(100,\)"),
    ],
)
def test_wrong_arguments_raise(options, message):
    with pytest.raises(ValueError, match=message):
        detector(**{"head": "mask_rcnn", **options})
