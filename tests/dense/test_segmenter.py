"""Segmenters, against segmentation-models-pytorch's own, and at sizes that those do not take."""

import re
from itertools import pairwise

import pytest
import segmentation_models_pytorch as smp
import torch
from timm.optim import create_optimizer_v2
from torch import nn

from inline_attention.dense.pyramid import backbone_of, make_pyramid
from inline_attention.dense.segmenter import SEGMENTERS, Segmenter


def segmenter(head, classes=3, backbone="inline_pvt_nano", width=64, **arguments):
    return Segmenter(make_pyramid(backbone, arguments), head, classes, width=width)


def stages(model):
    return backbone_of(model).stages


def randomised(model):
    """With statistics and biases that are not those of a new model."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1) if parameter.ndim == 1 else None
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    return model


THEIRS = {
    "upernet": (smp.UPerNet, {"decoder_channels": 256}),
    "semantic_fpn": (smp.FPN, {"decoder_pyramid_channels": 256, "decoder_segmentation_channels": 128}),
}
NAMES = {"encoder.model.": "backbone.body.", "segmentation_head.0.": "head.", "decoder.p5.": "decoder.neck.inner_blocks.3.0."}
NAMES |= {f"decoder.p{level}.skip_conv.": f"decoder.neck.inner_blocks.{level - 2}.0." for level in (2, 3, 4)}
# A branch of theirs is of blocks of three layers and enlarges by a function; ours has a fourth layer for that.
NAMES |= {
    f"decoder.seg_blocks.{3 - doublings}.block.{step}.block.{layer}.": f"decoder.branches.{doublings}.{4 * step + layer}."
    for doublings in range(4)
    for step in range(3)
    for layer in range(2)
}


@pytest.mark.parametrize("head", SEGMENTERS)
def test_same_weights_give_what_the_other_package_computes(head):
    """At stride 4. Its SemanticFPN has no 3x3 convolutions in the pyramid, ours are made to copy; and aligns corners."""
    make, arguments = THEIRS[head]
    other = randomised(make("tu-inline_pvt_tiny", encoder_weights=None, classes=3, **arguments)).eval()
    own = segmenter(head, backbone="inline_pvt_tiny", width=256).eval()
    weights = {}
    for name, value in other.state_dict().items():
        before = next((start for start in NAMES if name.startswith(start)), "")
        weights[NAMES.get(before, "") + name.removeprefix(before)] = value
    missing, unexpected = own.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all(name.startswith(("auxiliary.", "decoder.neck.layer_blocks.")) for name in missing)
    for block in own.decoder.neck.layer_blocks if head == "semantic_fpn" else ():
        nn.init.dirac_(block[0].weight)
        nn.init.zeros_(block[0].bias)
    for module in own.modules():
        if isinstance(module, nn.Upsample):
            module.align_corners = True
    pixels = torch.randn(2, 3, 96, 64)
    fine = []
    own.head.register_forward_hook(lambda module, inputs, output: fine.append(output))
    with torch.no_grad():
        own(pixels)
        torch.testing.assert_close(fine[0], other.segmentation_head[0](other.decoder(other.encoder(pixels))))


@pytest.mark.parametrize("head", SEGMENTERS)
@pytest.mark.parametrize("size", [(33, 70), (64, 32), (7, 100)])
def test_logits_have_the_size_of_the_image(head, size):
    model, pixels = segmenter(head, 5), torch.randn(2, 3, *size)
    outputs = model(pixels)
    assert isinstance(outputs, tuple)
    assert [tuple(output.shape) for output in outputs] == [(2, 5, *size)] * (2 if head == "upernet" else 1)
    with torch.no_grad():
        logits = model.eval()(pixels)
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (2, 5, *size)


@pytest.mark.parametrize("head", SEGMENTERS)
def test_images_are_zero_padded_to_the_right_and_below(head):
    model, pixels = randomised(segmenter(head)).eval(), torch.randn(1, 3, 50, 70)
    whole = torch.zeros(1, 3, 64, 96)
    whole[..., :50, :70] = pixels
    with torch.no_grad():
        torch.testing.assert_close(model(pixels), model(whole)[..., :50, :70])


@pytest.mark.parametrize("head", SEGMENTERS)
def test_an_image_does_not_depend_on_those_beside_it(head):
    model, pixels = randomised(segmenter(head)).eval(), torch.randn(3, 3, 40, 64)
    with torch.no_grad():
        together = model(pixels)
        alone = torch.cat([model(image[None]) for image in pixels])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", SEGMENTERS)
def test_gradients_reach_all_parameters(head):
    model = segmenter(head)
    outputs = model(torch.randn(2, 3, 64, 64))
    sum(output.square().mean() for output in outputs).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_the_auxiliary_head_reads_the_third_map_and_does_not_change_the_logits():
    model = segmenter("upernet")
    logits, auxiliary = model(torch.randn(2, 3, 64, 64))
    assert model.auxiliary[0].in_channels == model.backbone.channels[2]
    assert [tuple(layer.weight.shape) for layer in (model.auxiliary[0], model.auxiliary[-1])] == [
        (32, model.backbone.channels[2], 3, 3),
        (3, 32, 1, 1),
    ]
    logits.sum().backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in model.auxiliary.parameters())
    model.zero_grad()
    auxiliary.square().sum().backward()
    assert all(parameter.grad is None for parameter in model.decoder.parameters())
    reached = {number: any(p.grad is not None for p in stage.parameters()) for number, stage in enumerate(stages(model))}
    assert reached == {0: True, 1: True, 2: True, 3: False}, "the fourth map has no part in it"
    assert segmenter("semantic_fpn").auxiliary is None


def test_upernet_raises_on_a_training_batch_of_one_image():
    model, pixels = segmenter("upernet"), torch.randn(1, 3, 64, 64)
    with pytest.raises(ValueError, match=r"^UperNet cannot be trained on a batch of one image, .*: take 2 or more$"):
        model(pixels)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    assert len(model(pixels)) == 2, "frozen statistics do not need a batch"
    assert len(segmenter("semantic_fpn")(pixels)) == 1


def test_a_plain_transformer_and_a_convolutional_network_are_backbones_too():
    for backbone, arguments in (("inline_deit_nano", {"img_size": 64}), ("resnet10t", {})):
        model = segmenter("upernet", backbone=backbone, **arguments).eval()
        with torch.no_grad():
            assert model(torch.randn(1, 3, 64, 96)).shape == (1, 3, 64, 96)


@pytest.mark.parametrize("head", SEGMENTERS)
def test_learning_rates_fall_from_the_heads_to_the_stem(head):
    model = segmenter(head)
    optimizer = create_optimizer_v2(model, "adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {names[id(parameter)]: group for group in optimizer.param_groups for parameter in group["params"]}
    assert groups.keys() == set(names.values())
    scales = {name: group["lr_scale"] for name, group in groups.items()}
    assert {scale for name, scale in scales.items() if not name.startswith("backbone.")} == {1.0}
    own = [scale for name, scale in scales.items() if name.startswith("backbone.")]
    assert max(own) == 0.5
    assert len(set(own)) > 4
    of_stage = [{scale for name, scale in scales.items() if f".stages.{stage}." in name} for stage in range(4)]
    assert all(max(earlier) <= min(later) for earlier, later in pairwise(of_stage))
    assert min(own) == min(of_stage[0])
    kept = model.no_weight_decay()
    assert kept
    assert kept <= groups.keys()
    assert all(groups[name]["weight_decay"] == 0 for name in kept)


@pytest.mark.parametrize(
    ("head", "classes", "width", "message"),
    [
        ("fcn", 3, 64, "there is no segmenter 'fcn'; there are semantic_fpn, upernet"),
        ("semantic_fpn", 3, 44, "semantic_fpn needs a width that is a multiple of 8, got 44"),
        ("semantic_fpn", 3, 0, "semantic_fpn needs a width of at least 2, got width=0"),
        ("upernet", 3, 1, "upernet needs a width of at least 2, got width=1"),
        ("upernet", 0, 64, "a segmenter needs at least one class, got classes=0"),
    ],
)
def test_wrong_arguments_raise_one_line(head, classes, width, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Segmenter(make_pyramid("inline_pvt_nano", {}), head, classes, width=width)


def test_a_crop_whose_coarsest_map_is_one_pixel():
    """Alone in its batch: there is one value for each channel to normalise."""
    with torch.no_grad():
        assert segmenter("semantic_fpn").eval()(torch.randn(1, 3, 32, 32)).isfinite().all()


@pytest.mark.parametrize("width", [96, 160])
def test_upsampling_keeps_pixels_in_place(width):
    """A ramp on the coarsest map comes out as the same ramp, whatever the size of the map: pixels keep their places."""
    branch = segmenter("semantic_fpn").decoder.branches[3]
    enlarged = torch.linspace(0, 1, width // 32)[None, None, None].expand(1, 1, 2, -1)
    for module in branch:
        enlarged = module(enlarged) if isinstance(module, nn.Upsample) else enlarged
    centres = (torch.arange(width // 4) + 0.5) / (width // 4)
    expected = ((centres * (width // 32) - 0.5) / (width // 32 - 1)).clamp(0, 1)
    inner = slice(width // 16, -(width // 16))  # borders are flat
    torch.testing.assert_close(enlarged[0, 0, 8, inner], expected[inner], atol=0.08, rtol=0)
