"""Four maps of strides 4 to 32, whatever the model and the size."""

from math import ceil

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.models import FeatureInfo, create_model, group_parameters
from timm.optim import create_optimizer_v2
from torch import nn

from inline_attention.dense.pyramid import STRIDES, Pyramid, backbone_of, make_pyramid
from inline_attention.models.load_official import load_official

VIT = {"depth": 6, "embed_dim": 32, "num_heads": 2}
SWIN = {"depths": (1, 1, 2, 1), "embed_dim": 16, "num_heads": (1, 2, 2, 4)}


class Averages(nn.Module):
    """Maps that are the image itself, averaged over cells."""

    def __init__(self, reductions):
        super().__init__()
        self.feature_info = FeatureInfo(
            [{"num_chs": 2, "reduction": reduction, "module": ""} for reduction in reductions], range(len(reductions))
        )

    def forward(self, pixels):
        return [F.avg_pool2d(pixels, reduction) for reduction in self.feature_info.reduction()]


@pytest.mark.parametrize(
    ("name", "arguments", "reductions"),
    [
        ("inline_pvt_nano", {}, (2, 4, 8, 16)),
        ("inline_pvt_nano", {"patch_size": 4}, STRIDES),
        ("inline_swin_nano", {}, (2, 4, 8, 16)),
        ("inline_cswin_nano", {"patch_size": 4}, STRIDES),
        ("inline_deit_nano", {}, (2, 2, 2, 2)),
        ("resnet18", {}, STRIDES),
        ("swin_tiny_patch4_window7_224", SWIN, STRIDES),
        ("swin_tiny_patch4_window7_224", {**SWIN, "feature_cls": "list"}, STRIDES),
        ("convnext_atto", {}, STRIDES),
        ("vit_tiny_patch16_224", VIT, (16, 16, 16, 16)),
        ("eva02_tiny_patch14_224", VIT, (14, 14, 14, 14)),
        ("densenet121", {}, STRIDES),
    ],
)
def test_maps_have_their_strides_at_any_size(name, arguments, reductions):
    pyramid = make_pyramid(name, arguments).eval()
    assert pyramid.reductions == reductions
    for height, width in ((64, 64), (37, 75)):
        with torch.no_grad():
            maps = pyramid(torch.randn(2, 3, height, width))
        assert [tuple(features.shape) for features in maps] == [
            (2, channels, ceil(height / stride), ceil(width / stride))
            for channels, stride in zip(pyramid.channels, STRIDES, strict=True)
        ]


def test_this_packages_maps_of_the_right_strides_are_returned_unchanged():
    pyramid = make_pyramid("inline_pvt_nano", {"patch_size": 4}).eval()
    pixels = torch.randn(1, 3, 45, 70)
    for ours, theirs in zip(pyramid(pixels), pyramid.body(pixels), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_images_of_other_models_are_zero_padded_right_and_below():
    pyramid = make_pyramid("resnet18", {}).eval()
    pixels = torch.randn(1, 3, 45, 70)
    whole = torch.zeros(1, 3, 64, 96)
    whole[:, :, :45, :70] = pixels
    for ours, theirs in zip(pyramid(pixels), pyramid.body(whole)[1:], strict=True):
        torch.testing.assert_close(ours, theirs[:, :, : ours.shape[2], : ours.shape[3]])


def test_maps_with_channels_last_are_permuted():
    pyramid = make_pyramid("swin_tiny_patch4_window7_224", {**SWIN, "feature_cls": "list"}).eval()
    pixels = torch.randn(1, 3, 64, 96)
    theirs = pyramid.body(pixels)
    assert theirs[0].shape == (1, 16, 24, 16)
    for ours, features in zip(pyramid(pixels), theirs, strict=True):
        torch.testing.assert_close(ours, features.permute(0, 3, 1, 2))


@pytest.mark.parametrize("reductions", [(16, 16, 16, 16), (2, 4, 8, 16), (1, 2, 2, 2, 2), (8, 8, 8, 8)])
@pytest.mark.parametrize("size", [(160, 224), (150, 219)])
def test_a_resized_cell_stays_where_it_is_in_the_image(reductions, size):
    rows, columns = torch.meshgrid(*(torch.arange(side) + 0.5 for side in size), indexing="ij")
    maps = Pyramid(Averages(reductions))(torch.stack((rows, columns))[None])
    for features, stride in zip(maps, STRIDES, strict=True):
        assert features.shape[2:] == (ceil(size[0] / stride), ceil(size[1] / stride))
        edge = ceil(32 / stride)
        centres = [(torch.arange(side) + 0.5) * stride for side in features.shape[2:]]
        wanted = torch.stack(torch.meshgrid(*centres, indexing="ij"))[:, edge : -edge - 1, edge : -edge - 1]
        torch.testing.assert_close(features[0, :, edge : -edge - 1, edge : -edge - 1], wanted)


def test_of_many_maps_those_of_the_four_strides_are_taken_and_else_the_last_four():
    assert Pyramid(Averages((1, 2, 4, 8, 16, 32))).chosen == (2, 3, 4, 5)
    assert Pyramid(Averages((4, 8, 16, 16, 32))).chosen == (0, 1, 3, 4)
    assert Pyramid(Averages((2, 2, 4, 8, 16))).chosen == (1, 2, 3, 4)


def test_four_maps_of_a_vit_are_spread_over_its_depth():
    assert list(make_pyramid("vit_tiny_patch16_224", {**VIT, "depth": 8}).body.out_indices) == [1, 3, 5, 7]
    chosen = make_pyramid("vit_tiny_patch16_224", {**VIT, "out_indices": (0, 1, 2, 3)})
    assert len(backbone_of(chosen).blocks) == 4


def scales(model, **options):
    optimizer = create_optimizer_v2(model, "adamw", lr=1.0, weight_decay=0.1, **options)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group.get("lr_scale", 1.0), group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def test_learning_rates_halve_from_block_to_block_and_the_stem_is_slowest():
    pyramid = make_pyramid("inline_pvt_nano", {})
    found = scales(pyramid, layer_decay=0.5)
    depths = backbone_of(pyramid).depths()
    blocks = [(stage, block) for stage, depth in enumerate(depths) for block in range(depth)]
    for name, (scale, _) in found.items():
        _, _, _, stage, *rest = name.split(".")
        block = int(rest[1]) if rest[0] == "blocks" else 0
        layer = 0 if int(stage) == 0 and rest[0] != "blocks" else 1 + blocks.index((int(stage), block))
        assert scale == 0.5 ** (len(blocks) - layer), name
    assert len(found) == len(list(pyramid.parameters()))
    assert pyramid.group_matcher()("head.weight") == (float("inf"),)
    assert len(group_parameters(pyramid, pyramid.group_matcher(coarse=True))) == 1 + len(depths)


def test_positions_have_no_weight_decay():
    pyramid = make_pyramid("inline_pvt_nano", {})
    named = pyramid.no_weight_decay()
    assert named
    assert named <= dict(pyramid.named_parameters()).keys()
    found = scales(pyramid, layer_decay=0.5)
    assert {found[name][1] for name in named} == {0.0}
    assert found["body.model.stages.1.embed.proj.weight"][1] == 0.1


@pytest.mark.parametrize("feature_cls", ["getter", "list"])
def test_layers_of_a_resnet_whole_or_taken_apart(feature_cls):
    pyramid = make_pyramid("resnet18", {"feature_cls": feature_cls})
    prefix = "body.model." if feature_cls == "getter" else "body."
    found = scales(pyramid, layer_decay=0.5)
    wanted = {"conv1": 8, "bn1": 8, "layer1.0.conv1": 7, "layer1.1.conv2": 6, "layer2.0.downsample.0": 5, "layer4.1.bn2": 0}
    assert {name: found[f"{prefix}{name}.weight"][0] for name in wanted} == {n: 0.5**k for n, k in wanted.items()}


@pytest.mark.parametrize(("name", "suffix"), [("inline_pvt_nano", ".safetensors"), ("inline_swin_nano", ".pth")])
def test_a_classifiers_weights_are_loaded_into_the_backbone(tmp_path, name, suffix):
    classifier = create_model(name, num_classes=7)
    file = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save({"model": classifier.state_dict()}, file)
    else:
        save_file(classifier.state_dict(), file)
    pyramid = make_pyramid(name, {})
    report = load_official(backbone_of(pyramid), file)
    state, laid = classifier.state_dict(), backbone_of(pyramid).state_dict()
    assert set(report.left_out) == set(state) - set(laid) >= {"head.weight", "head.bias"}
    for parameter, value in laid.items():
        torch.testing.assert_close(value, state[parameter], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet17", {}, "there is no model 'resnet17': `inline list`"),
        ("coat_tiny", {}, "coat_tiny cannot be a pyramid of maps with no arguments: features_only not implemented"),
        ("resnet18", {"heads": 3}, "resnet18 cannot be a pyramid of maps with heads=3: .*'heads'"),
        ("inline_pvt_nano", {"heads": 3}, "inline_pvt_nano cannot be .* with heads=3: inline_pvt_nano has no argument 'heads'"),
        (
            "resnet18",
            {"out_indices": (1, 2)},
            "resnet18: the backbone has 2 maps, and 4 are needed: list more",
        ),
    ],
)
def test_wrong_arguments_raise_one_line(name, arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_pyramid(name, arguments)
    assert "\n" not in str(caught.value)


def test_a_model_without_a_pyramid_has_no_backbone():
    with pytest.raises(ValueError, match="Linear has 0 pyramids, expected one"):
        backbone_of(nn.Linear(2, 2))


def test_gradients_reach_every_parameter():
    pyramid = make_pyramid("inline_deit_nano", {})
    sum(features.square().sum() for features in pyramid(torch.randn(1, 3, 33, 40))).backward()
    assert all(parameter.grad is not None for parameter in pyramid.parameters())


def test_a_map_is_shrunk_by_its_mean():
    """Every pixel counts: a checkerboard has no stripes left."""
    from inline_attention.dense.pyramid import _fit

    board = (torch.arange(16)[:, None] + torch.arange(16)) % 2
    shrunk = _fit(board.float()[None, None], 4, 16, (4, 4))
    torch.testing.assert_close(shrunk[..., 1:-1, 1:-1], torch.full((1, 1, 2, 2), 0.5), atol=0.02, rtol=0)
