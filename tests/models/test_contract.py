"""One contract for every registered model, and for every mixer in every family: what timm promises of a model."""

import copy
import io

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.optim import create_optimizer_v2, param_groups_layer_decay
from torch import nn

from inline_attention import KERNELS, MIXERS
from inline_attention.layers import Block, SoftmaxAttention

from .published import PUBLISHED, SMALL, TINY, hollow, on_meta

MODELS = timm.list_models("inline_*")
COMBINATIONS = [(name, mixer) for name in SMALL for mixer in MIXERS]
PAIRS = [
    pytest.param(name, mixer, marks=[] if mixer in ("inline", "softmax") or number % len(SMALL) == place else pytest.mark.slow)
    for place, name in enumerate(SMALL)
    for number, mixer in enumerate(MIXERS)
]
"""Every family with inline and softmax, and every other mixer in one family; the other combinations by `make slow`."""
TRACED = [("inline_swin_nano", "inline"), ("inline_cswin_nano", "inline"), ("inline_deit_nano", "inline")]
TRACED += [("inline_pvt_nano", "inline"), ("inline_pvt_nano", "softmax")]
"""Every family; PVT's softmax blocks reduce their keys. The linear Swin and CSwin have softmax blocks in windows."""
GRAPHS = [
    pytest.param(*c, marks=[] if c in TRACED else pytest.mark.slow)
    for c in COMBINATIONS
    if c[0] == "inline_swin_nano" or c[1] in ("inline", "softmax")
]
SIZES = [pytest.param((224, 224), marks=pytest.mark.slow), (256, 320), (101, 67)]


def make(name, **options):
    torch.manual_seed(0)
    return timm.create_model(name, **options).eval()


def test_all_models_are_registered():
    assert set(MODELS) == {*PUBLISHED, *SMALL}
    assert timm.list_models(module="inline_swin") == sorted(name for name in MODELS if "_swin_" in name)


@pytest.mark.parametrize("name", SMALL)
def test_nano_models_are_small_and_take_small_images(name):
    for side, patch in ((8, 1), (28, 2), (32, 2), (64, 4), (224, 16 if "deit" in name else 4)):
        model = make(name, img_size=side, num_classes=10)
        assert sum(parameter.numel() for parameter in model.parameters()) < 1e6
        assert model.patch_size == patch
        assert model(torch.randn(1, 3, side, side)).shape == (1, 10)
    assert make(name, img_size=(8, 100), num_classes=10)(torch.randn(1, 3, 8, 100)).shape == (1, 10)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in (*TINY, *SMALL) else pytest.mark.slow) for n in MODELS])
def test_shapes(name):
    """Features, logits, pyramid and strides at an odd size, without computing."""
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=7, in_chans=1)
        features = model.forward_features(torch.empty(2, 1, 101, 67))
        assert model.forward_head(features).shape == (2, 7)
        assert model.forward_head(features, pre_logits=True).shape == (2, model.num_features)
        pyramid = timm.create_model(name, features_only=True)
        maps = pyramid(torch.empty(2, 3, 101, 67))
    strides, channels = pyramid.feature_info.reduction(), pyramid.feature_info.channels()
    assert [m.shape for m in maps] == [(2, c, -(-101 // s), -(-67 // s)) for c, s in zip(channels, strides, strict=True)]
    patch = model.patch_size
    assert strides == ([patch] * 4 if "deit" in name else [patch, 2 * patch, 4 * patch, 8 * patch])


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("size", SIZES)
def test_sizes_at_run_time(name, size):
    """Any image, with the weights of 224 x 224; a batch gives what its images give one by one."""
    model = make(name, num_classes=7)
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        out = model(images)
        assert out.shape == (2, 7)
        assert out.isfinite().all()
        alone = torch.cat([model(image[None]) for image in images])
        torch.testing.assert_close(out, alone, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(images.flip(0)), out.flip(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "mixer"), COMBINATIONS)
def test_forward_and_backward(name, mixer):
    model = make(name, mixer=mixer, num_classes=7).train()
    images = torch.randn(2, 3, 45, 39, requires_grad=True)
    model(images).square().sum().backward()
    assert images.grad.isfinite().all()
    unused = [key for key, parameter in model.named_parameters() if parameter.grad is None]
    assert unused == []


@pytest.mark.parametrize(("name", "mixer"), PAIRS)
def test_features(name, mixer):
    model = make(name, mixer=mixer, num_classes=7)
    images = torch.randn(2, 3, 41, 35)
    with torch.no_grad():
        features = model.forward_features(images)
        last, maps = model.forward_intermediates(images, norm=True)
        torch.testing.assert_close(last, features)
        at_end = features[:, 1:].mT.unflatten(2, maps[-1].shape[2:]) if features.ndim == 3 else features
        torch.testing.assert_close(maps[-1], at_end)
        assert len(maps) == len(model.feature_info)
        two = model.forward_intermediates(images, [0, -1], intermediates_only=True, stop_early=True, output_fmt="NHWC")
        plain = model.forward_intermediates(images, intermediates_only=True)
        for some, index in zip(two, (0, -1), strict=True):
            torch.testing.assert_close(some.permute(0, 3, 1, 2), plain[index])
        tokens = model.get_intermediate_layers(images, 2)
        torch.testing.assert_close(tokens[-1].mT.unflatten(2, plain[-1].shape[2:]), plain[-1])
        pyramid = timm.create_model(name, mixer=mixer, features_only=True, out_indices=(0, 2)).eval()
        pyramid.load_state_dict({f"model.{key}": value for key, value in model.state_dict().items()}, strict=False)
        for map_, index in zip(pyramid(images), (0, 2), strict=True):
            torch.testing.assert_close(map_, plain[index])
        assert sum(p.numel() for p in pyramid.parameters()) < sum(p.numel() for p in model.parameters())


def test_prefix_tokens_come_with_their_maps():
    model = make("inline_deit_nano")
    pairs = model.forward_intermediates(torch.randn(2, 3, 32, 32), 2, return_prefix_tokens=True, intermediates_only=True)
    assert [(m.shape, p.shape) for m, p in pairs] == [((2, 96, 16, 16), (2, 1, 96))] * 2


@pytest.mark.parametrize(("name", "mixer"), PAIRS)
def test_classifiers(name, mixer):
    model = make(name, mixer=mixer)
    images = torch.randn(2, 3, 32, 32)
    assert model.num_classes == 1000
    with torch.no_grad():
        pooled = model.forward_head(model.forward_features(images), pre_logits=True)
        model.reset_classifier(5)
        assert model(images).shape == (2, 5)
        assert isinstance(model.get_classifier(), nn.Linear)
        model.reset_classifier(0)
        torch.testing.assert_close(model(images), pooled)
        assert make(name, mixer=mixer, num_classes=0)(images).shape == pooled.shape
        model.reset_classifier(0, "")
        torch.testing.assert_close(model(images), model.forward_features(images))
        for pool in ("avg", "max", "avgmax"):
            model.reset_classifier(3, pool)
            assert model(images).shape == (2, 3)


@pytest.mark.parametrize(("name", "mixer"), PAIRS)
def test_checkpointed_gradients_equal_plain_ones(name, mixer):
    plain = make(name, mixer=mixer, num_classes=3).train()
    saving = copy.deepcopy(plain)
    saving.set_grad_checkpointing()
    images = torch.randn(2, 3, 32, 32)
    for model in (plain, saving):
        model(images).square().sum().backward()
    for (key, a), b in zip(plain.named_parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize(("name", "mixer"), PAIRS)
def test_weights_make_round_trips(name, mixer, tmp_path):
    model, other = make(name, mixer=mixer), timm.create_model(name, mixer=mixer).eval()
    images = torch.randn(1, 3, 32, 40)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(images), model(images))
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    assert load_file(tmp_path / "weights.safetensors").keys() == model.state_dict().keys()
    third = timm.create_model(name, mixer=mixer, checkpoint_path=str(tmp_path / "weights.safetensors")).eval()
    assert torch.equal(third(images), model(images))


def shallow(name, mixer):
    """Options for one block a stage; the last two stages of a linear pyramid have the family's softmax blocks."""
    if "deit" in name:
        return {"depth": 1}
    return {"depths": (1, 1, 1, 1)} | ({} if mixer == "softmax" else {"inline_depths": (1, 1, 0, 0)})


@pytest.mark.parametrize(("name", "mixer"), GRAPHS)
def test_exports_with_a_dynamic_batch(name, mixer):
    model = make(name, mixer=mixer, num_classes=3, **shallow(name, mixer))
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (torch.randn(4, 3, 32, 40),), dynamic_shapes=({0: batch},))
    for count in (2, 5):
        images = torch.randn(count, 3, 32, 40)
        torch.testing.assert_close(program.module()(images), model(images), rtol=1e-4, atol=1e-5)


COMPILED = [
    pytest.param(name, mixer, backend, marks=[] if quick else pytest.mark.slow, id=f"{name}-{mixer}-{backend}")
    for name in SMALL
    for mixer in ("inline", "softmax")
    for backend in ("aot_eager", "inductor")
    if (quick := mixer == "inline" and (backend == "aot_eager") != (name == "inline_swin_nano")) or backend == "inductor"
]
"""Every family traced, one of them compiled to machine code; the others by `make slow`."""


@pytest.mark.parametrize(("name", "mixer", "backend"), COMPILED)
def test_compiled_equals_eager(name, mixer, backend):
    torch.compiler.reset()
    model = make(name, mixer=mixer, num_classes=3, img_size=16, **shallow(name, mixer))
    images = torch.randn(2, 3, 16, 24)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=backend)(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_device_and_dtype(name):
    model = timm.create_model(name, device="meta", dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.bfloat16)}
    assert {p.dtype for p in timm.create_model(name).parameters()} == {torch.float32}


@pytest.mark.parametrize("name", MODELS)
def test_parameter_groups(name):
    """No weight decay on vectors, positions, class tokens and tables; learning rates fall with depth."""
    model = on_meta(name)
    listed = model.no_weight_decay()
    assert listed <= dict(model.named_parameters()).keys()
    assert {key for key in dict(model.named_parameters()) if "position" in key} == listed
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    free = [group for group in optimizer.param_groups if group["weight_decay"] == 0]
    plain = sum(p.ndim <= 1 for key, p in model.named_parameters() if key not in listed)
    assert sum(len(group["params"]) for group in free) == plain + len(listed)
    groups = param_groups_layer_decay(model, weight_decay=0.05, no_weight_decay_list=listed, layer_decay=0.5)
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    named = dict(model.named_parameters())
    assert len(scale) == len(named)
    order = [scale[id(named[key])] for key in named if key.endswith("mixer.proj.weight")]
    assert order == sorted(order)
    assert len(set(order)) == len(order)
    assert scale[id(named["stages.0.embed.proj.weight"])] < order[0]
    assert scale[id(named["head.weight"])] == 1


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mixer", ["inline", "linear"])
def test_kernels(mixer, kernel):
    model = make("inline_swin_nano", mixer=mixer, kernel=kernel)
    assert model(torch.randn(1, 3, 32, 32)).isfinite().all()
    assert ("stages.0.blocks.0.mixer.kernel.bias" in model.no_weight_decay()) == (kernel == "relu_affine")


@pytest.mark.parametrize("name", TINY)
def test_depths_and_local(name):
    depths = hollow(name).depths()
    wanted = (1,) if len(depths) == 1 else (1, 0, 2, 1)
    model = hollow(name, inline_depths=wanted)
    blocks = [[type(b.mixer).__name__ for b in stage.blocks] for stage in model.stages]
    for stage, linear, depth in zip(blocks, wanted, depths, strict=True):
        assert stage == ["InLineAttention"] * linear + ["SoftmaxAttention"] * (depth - linear)
    assert not [key for key in hollow(name, local=False).state_dict() if ".local." in key]
    shallow = hollow(name, **({"depth": 1} if len(depths) == 1 else {"depths": (1, 1, 1, 1)}))
    assert shallow.depths() == (1,) * len(depths)
    control = hollow(name, mixer="softmax", local=True)
    assert all(block.mixer.local is not None for block in control.modules() if isinstance(block, Block))


def test_softmax_twins_see_what_the_originals_see():
    swin = [m for m in hollow("inline_swin_tiny", mixer="softmax").modules() if isinstance(m, SoftmaxAttention)]
    assert [m.windows[0][:2] for m in swin] == [(7, 7)] * 12
    assert [m.windows[0].shifted for m in swin] == [False, True] * 6
    assert all(m.position is not None for m in swin)
    cswin = hollow("inline_cswin_tiny", mixer="softmax")
    stripes = [[w[:2] for w in stage.blocks[0].mixer.windows] for stage in cswin.stages]
    assert stripes == [[(None, 1), (1, None)], [(None, 2), (2, None)], [(None, 7), (7, None)], []]
    pvt = hollow("inline_pvt_tiny", mixer="softmax")
    ratios = [stage.blocks[0].mixer.reduction for stage in pvt.stages]
    assert [None if r is None else r.ratio for r in ratios] == [8, 4, 2, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"inline_depths": (2, 2, 7, 0)},
            "inline_depths must be a number from 0 to its depth for each stage of (2, 2, 6, 2), got",
        ),
        ({"inline_depths": (2, 2)}, "inline_depths must be a number from 0 to its depth for each stage"),
        ({"mixer": "softmax", "inline_depths": (1, 1, 1, 1)}, "mixer 'softmax' has no linear blocks to count"),
        ({"mixer": "mamba"}, "unknown mixer 'mamba'; known: inline, softmax"),
        ({"kernel": "cosine"}, "unknown kernel 'cosine'; known: identity"),
        ({"mixer": "hydra", "kernel": "relu"}, "mixer 'hydra' has no kernel to choose, got kernel='relu'"),
        ({"global_pool": "token"}, "unknown global_pool 'token'; known for this model: 'avg', 'max', 'avgmax', ''"),
        ({"depths": (2, 2, 6)}, "each stage needs one value of each, got depths=(2, 2, 6), num_heads=(3, 6, 12, 24)"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        hollow("inline_swin_tiny", **options)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 7, 5), r"images must be at least (8 x 8|32 x 32) pixels for patches of (4|16), got 7 x 5"),
        ((1, 1, 64, 64), r"images must be \(batch, 3, height, width\), got \(1, 1, 64, 64\)"),
        ((3, 64, 64), r"images must be \(batch, 3, height, width\), got \(3, 64, 64\)"),
    ],
)
def test_wrong_images_are_named(name, shape, message):
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        hollow(name)(torch.empty(shape))


def test_features_that_do_not_exist_are_named():
    model = make("inline_pvt_nano")
    with pytest.raises(ValueError, match=r"the model has 4 features, 0 to 3, got indices \[4\]"):
        model.forward_intermediates(torch.randn(1, 3, 32, 32), [4])
    with pytest.raises(ValueError, match="the model has 4 features, of which the last 5 cannot be taken"):
        model.get_intermediate_layers(torch.randn(1, 3, 32, 32), 5)
