"""Three stages, against numbers worked out by hand."""

from math import log

import pytest
import torch
from torch import nn
from torchvision.ops import MultiScaleRoIAlign

from inline_attention.dense.cascade import CascadeHeads, assign, box_losses, refine

WIDTH, CLASSES = 8, 2
SHAPES = [(64, 96), (64, 96)]


@pytest.fixture
def heads():
    torch.manual_seed(0)
    return CascadeHeads(
        CLASSES,
        width=WIDTH,
        box_roi_pool=MultiScaleRoIAlign(["0", "1"], 3, 2),
        mask_roi_pool=MultiScaleRoIAlign(["0", "1"], 4, 2),
        side=3,
        batch_size_per_image=16,
        positive_fraction=0.25,
        score_thresh=0.05,
        nms_thresh=0.5,
        detections_per_img=10,
    )


@pytest.fixture
def features():
    torch.manual_seed(1)
    return {"0": torch.randn(2, WIDTH, 16, 24), "1": torch.randn(2, WIDTH, 8, 12)}


def target(*boxes, labels=()):
    masks = torch.zeros(len(boxes), 64, 96, dtype=torch.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes, strict=True):
        mask[int(top) : int(bottom), int(left) : int(right)] = 1
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float).reshape(-1, 4),
        "labels": torch.tensor(labels, dtype=torch.int64),
        "masks": masks,
    }


PROPOSALS = [
    torch.tensor([[8.0, 8, 40, 40], [10, 10, 44, 44], [50, 20, 80, 50], [0, 0, 20, 20]]),
    torch.tensor([[30.0, 10, 60, 50], [5, 5, 25, 30]]),
]
TARGETS = [target((8, 8, 42, 41), labels=[1]), target((30, 12, 62, 50), (60, 5, 90, 30), labels=[2, 1])]


def zeroed(heads, *, classes=(0.0, 0.0, 0.0), offsets=((0.0,) * 4,) * 3):
    """Stages with the same outputs for every box: these logits of class 1, and these offsets."""
    for stage, logit, offset in zip(heads.stages, classes, offsets, strict=True):
        nn.init.zeros_(stage.box_predictor.cls_score.weight)
        nn.init.zeros_(stage.box_predictor.bbox_pred.weight)
        stage.box_predictor.cls_score.bias.data = torch.tensor([0.0, logit, 0.0])
        stage.box_predictor.bbox_pred.bias.data = torch.tensor(offset)
        nn.init.zeros_(stage.mask_predictor.mask_fcn_logits.weight)
        nn.init.zeros_(stage.mask_predictor.mask_fcn_logits.bias)
    return heads


def test_iou_thresholds_rise_from_stage_to_stage(heads):
    boxes = torch.tensor([[0.0, 0, 100, height] for height in (45, 55, 65, 75)])
    labels = [
        assign(stage, [boxes], [{"boxes": torch.tensor([[0.0, 0, 100, 100]]), "labels": torch.tensor([2])}])[1][0].tolist()
        for stage in heads.stages
    ]
    assert labels == [[0, 2, 2, 2], [0, 0, 2, 2], [0, 0, 0, 2]]


def test_offsets_worked_out_by_hand_and_decoded(heads):
    box, target = torch.tensor([[10.0, 20, 30, 60]]), torch.tensor([[12.0, 16, 36, 56]])
    shift = torch.tensor([(24 - 20) / 20, (36 - 40) / 40, log(24 / 20), log(40 / 40)])
    for stage, weights in zip(heads.stages, ((10, 10, 5, 5), (20, 20, 10, 10), (30, 30, 15, 15)), strict=True):
        matched = [{"boxes": target, "labels": torch.tensor([1])}]
        stage.proposal_matcher.high_threshold = stage.proposal_matcher.low_threshold = 0.1
        numbers, labels, offsets = assign(stage, [box], matched)
        assert (numbers[0].tolist(), labels[0].tolist()) == ([0], [1])
        torch.testing.assert_close(offsets[0][0], torch.tensor(weights) * shift)
        torch.testing.assert_close(refine(stage, offsets[0], [box], [(100, 100)])[0], target)


def test_scores_are_means_and_boxes_go_through_three_decodes(heads, features):
    moved = ((1.0, 0, 0, 0), (0, 4.0, 0, 0), (0, 0, 15 * log(1.5), 0))  # a tenth right, a fifth down, half as wide again
    zeroed(heads, classes=(0.0, 1.0, 2.0), offsets=moved).eval()
    found, losses = heads(features, [torch.tensor([[20.0, 10, 40, 30]]), torch.zeros(0, 4)], SHAPES)
    assert losses == {}
    scores = torch.stack([torch.tensor([0.0, logit, 0.0]).softmax(0) for logit in (0.0, 1.0, 2.0)]).mean(0)
    assert found[0]["labels"].tolist() == [1, 2]
    torch.testing.assert_close(found[0]["scores"], scores[1:])
    torch.testing.assert_close(found[0]["boxes"], torch.tensor([[17.0, 14, 47, 34]] * 2))
    assert found[0]["masks"].shape == (2, 1, 8, 8)
    assert [len(found[1][key]) for key in ("boxes", "labels", "scores", "masks")] == [0, 0, 0, 0]


def test_masks_are_means_of_probabilities_of_the_class(heads, features):
    zeroed(heads, classes=(1.0, 1.0, 1.0)).eval()
    for stage, logit in zip(heads.stages, (-1.0, 0.5, 3.0), strict=True):
        stage.mask_predictor.mask_fcn_logits.bias.data = torch.tensor([9.0, logit, -9.0])
    found, _ = heads(features, [torch.tensor([[20.0, 10, 40, 30]]), torch.zeros(0, 4)], SHAPES)
    wanted = torch.tensor([-1.0, 0.5, 3.0]).sigmoid().mean()
    torch.testing.assert_close(found[0]["masks"][0], wanted.expand(1, 8, 8))
    assert found[0]["masks"][1].max().item() < 0.001


def test_boxes_do_not_leave_the_image(heads):
    (moved,) = refine(heads.stages[0], torch.tensor([[20.0, -20, 0, 0]]), [torch.tensor([[60.0, 10, 90, 50]])], [(64, 96)])
    assert moved.tolist() == [[96, 0, 96, 0]]


def test_losses_are_weighted_by_stage(heads, features):
    _, losses = zeroed(heads)(features, PROPOSALS, SHAPES, TARGETS)
    assert sorted(losses) == sorted(f"loss_{kind}_{number}" for kind in ("classifier", "box", "mask") for number in (1, 2, 3))
    for number, weight in enumerate((1, 0.5, 0.25), 1):
        assert losses[f"loss_classifier_{number}"].item() == pytest.approx(weight * log(3))
        assert losses[f"loss_mask_{number}"].item() == pytest.approx(weight * log(2))


def test_box_loss_by_hand():
    logits, offsets = torch.zeros(4, 3), torch.zeros(4, 4)
    wanted = torch.tensor([[0.5, 0, 0, 0], [3.0, 0, 0, -2], [9, 9, 9, 9], [9, 9, 9, 9]])
    of_class, of_box = box_losses(logits, offsets, torch.tensor([1, 2, 0, 0]), wanted)
    assert of_class.item() == pytest.approx(log(3))
    assert of_box.item() == pytest.approx((0.125 + 2.5 + 1.5) / 4)


def test_every_stage_is_trained_on_the_ground_truth(heads, features):
    far = [torch.tensor([[0.0, 0, 5, 5]])] * 2
    _, losses = zeroed(heads)(features, far, SHAPES, TARGETS)
    assert all(losses[f"loss_mask_{number}"].item() > 0 for number in (1, 2, 3))
    assert all(losses[f"loss_box_{number}"].item() == 0 for number in (1, 2, 3)), "they lie where they should"


@pytest.mark.parametrize("targets", [[TARGETS[0], target()], [target(), TARGETS[1]], [target(), target()]])
def test_images_without_objects(heads, features, targets):
    _, losses = heads(features, PROPOSALS, SHAPES, targets)
    assert all(loss.isfinite() for loss in losses.values())
    for number in (1, 2, 3):
        assert losses[f"loss_classifier_{number}"].item() > 0
    if not any(len(one["boxes"]) for one in targets):
        assert all(losses[f"loss_{kind}_{number}"].item() == 0 for kind in ("mask", "box") for number in (1, 2, 3))
    sum(losses.values()).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in heads.parameters())


def test_boxes_that_lost_their_area_are_left_out(heads, features):
    out = (1000.0, 0.0, 0.0, 0.0)
    _, losses = zeroed(heads, offsets=(out, (0.0,) * 4, (0.0,) * 4))(features, PROPOSALS, SHAPES, TARGETS)
    assert losses["loss_classifier_1"].item() == pytest.approx(log(3))
    assert [losses[f"loss_{kind}_{n}"].item() for kind in ("classifier", "box", "mask") for n in (2, 3)] == [0.0] * 6
    sum(losses.values()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in heads.parameters())


def test_gradients_reach_every_parameter_but_not_through_refined_boxes(heads, features):
    features["0"].requires_grad_()
    _, losses = heads(features, PROPOSALS, SHAPES, TARGETS)
    later = sum(losses[f"loss_{kind}_{number}"] for kind in ("classifier", "box", "mask") for number in (2, 3))
    later.backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in heads.stages[0].parameters())
    assert features["0"].grad.abs().sum().item() > 0
    sum(losses.values()).backward()
    assert all(parameter.grad.abs().sum().item() > 0 for name, parameter in heads.named_parameters() if "bias" not in name)
    assert all(parameter.grad is not None for parameter in heads.parameters())


def test_training_without_targets_raises(heads, features):
    with pytest.raises(ValueError, match="targets are needed in training"):
        heads(features, PROPOSALS, SHAPES)
