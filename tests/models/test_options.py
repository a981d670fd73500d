"""What every option does to the model, read off its modules or compared with the definition."""

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import nn

from inline_attention import count, load_official
from inline_attention.layers import Block, InLineAttention
from inline_attention.layers.softmax import resample_table
from inline_attention.models.published_models import CSWIN, DEIT, PVT, identify
from inline_attention.models.stage import ConvEmbed, PatchMerge, resample

from .published import PUBLISHED, SMALL, golden_models, hollow


@pytest.mark.parametrize("name", SMALL)
def test_dropout(name):
    model = timm.create_model(name, drop_rate=0.1, proj_drop_rate=0.2, attn_drop_rate=0.3, drop_path_rate=0.4)
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    paths = [module.drop_prob for module in model.modules() if isinstance(module, DropPath)]
    assert paths == pytest.approx(torch.linspace(0, 0.4, len(blocks)).tolist())
    assert all((b.mixer.proj_drop.p, b.mixer.attn_drop, b.mlp.drop1.p, b.mlp.drop2.p) == (0.2, 0.3, 0.2, 0.2) for b in blocks)
    assert (model.head_drop.p, model.drop_rate) == (0.1, 0.1)
    torch.manual_seed(0)
    model = timm.create_model(name, drop_rate=0.5).train()
    features = model.forward_features(torch.randn(1, 3, 32, 32))
    assert (model.forward_head(features, pre_logits=True) == 0).any()


@pytest.mark.parametrize("name", SMALL)
def test_weights_start_as_the_authors_start_them(name):
    model = timm.create_model(name)
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.weight.numel() > 1000:
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.15)
            assert module.bias is None or (module.bias == 0).all()
    model.reset_classifier(50)
    assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.15)
    model = model.double().eval()
    model.reset_classifier(3)
    assert (model.head.weight.dtype, model.head.training) == (torch.float64, False)


@pytest.mark.parametrize("name", SMALL)
def test_checkpointing_computes_blocks_again(name):
    model = timm.create_model(name, num_classes=2)
    calls = []
    for block in (module for module in model.modules() if isinstance(module, Block)):
        block.register_forward_pre_hook(lambda *_: calls.append(1))
    images = torch.randn(1, 3, 32, 32)
    model(images).sum().backward()
    plain, calls[:] = len(calls), []
    model.set_grad_checkpointing()
    model(images).sum().backward()
    assert len(calls) == 2 * plain


@pytest.mark.parametrize("name", SMALL)
def test_stopping_early_and_order(name):
    model = timm.create_model(name).eval()
    calls = []
    for block in (module for module in model.modules() if isinstance(module, Block)):
        block.register_forward_hook(lambda *_: calls.append(1))
    images = torch.randn(1, 3, 32, 40)
    maps = model.forward_intermediates(images, [1, 0], intermediates_only=True, stop_early=True)
    assert len(calls) == (2 if "deit" in name else sum(model.depths()[:2]))
    everything = model.forward_intermediates(images, intermediates_only=True)
    assert torch.equal(maps[0], everything[1])
    assert torch.equal(maps[1], everything[0])
    features, _ = model.forward_intermediates(images, [0], stop_early=True)
    assert features.shape[-1 if features.ndim == 3 else 1] == everything[0].shape[1]


@pytest.mark.parametrize("options", [{}, {"class_token": True}])
def test_a_pruned_model_is_whole(options):
    model = timm.create_model("inline_pvt_nano", **options).eval()
    images = torch.randn(2, 3, 32, 32)
    maps = model.forward_intermediates(images, [1], intermediates_only=True)
    assert model.prune_intermediate_layers([0, 1]) == [0, 1]
    features = model.forward_features(images)
    torch.testing.assert_close(features, maps[0])
    assert (model.num_features, model.num_prefix_tokens) == (64, 0)
    model.reset_classifier(0, "avg")
    torch.testing.assert_close(model(images), features.mean((2, 3)))
    model.reset_classifier(5)
    assert model(images).shape == (2, 5)
    deit = timm.create_model("inline_deit_nano").eval()
    deit.prune_intermediate_layers([1, 2])
    assert len(deit.forward_intermediates(images, intermediates_only=True)) == 3


def test_merging_pads_below_and_to_the_right():
    merge = PatchMerge(3, 6, norm=nn.LayerNorm(12))
    image = torch.randn(2, 3, 5, 7)
    assert torch.equal(merge(image), merge(F.pad(image, (0, 1, 0, 1))))
    neighbours = F.pad(image, (0, 1, 0, 1))[:, :, 2:4, 4:6]
    order = torch.cat([neighbours[:, :, row, column] for row, column in ((0, 0), (1, 0), (0, 1), (1, 1))], 1)
    torch.testing.assert_close(merge(image)[:, 1, 2], merge.reduction(merge.norm(order)))


def test_what_is_resampled_is_resampled_as_the_originals_have_it():
    """DeiT bicubic, PVT bilinear, tables bicubic: torch's own, corners not aligned, not smoothed."""
    positions = torch.randn(1, 7, 5, 3)
    for name, mode in (("inline_deit_nano", "bicubic"), ("inline_pvt_nano", "bilinear")):
        assert all(s.positions.mode == mode for s in timm.create_model(name).stages)
        for grid in ((3, 4), (9, 11)):
            expected = F.interpolate(positions.permute(0, 3, 1, 2), size=grid, mode=mode).permute(0, 2, 3, 1)
            torch.testing.assert_close(resample(positions, grid, mode), expected)
    table = torch.randn(13, 13, 2)
    expected = F.interpolate(table.permute(2, 0, 1)[None], size=(23, 9), mode="bicubic")[0].permute(1, 2, 0)
    torch.testing.assert_close(resample_table(table, (12, 5)), expected)


@pytest.mark.parametrize("name", SMALL)
def test_frozen_parts_stay_frozen(name):
    model = timm.create_model(name).eval().requires_grad_(False)
    before = model.stages[0].embed.proj.weight.clone()
    model.set_input_size((64, 64), patch_size=4)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any(module.training for module in model.modules())
    assert [i["reduction"] for i in model.feature_info][-1] == (4 if "deit" in name else 32)
    weight = model.stages[0].embed.proj.weight
    assert weight.sum((2, 3)).sub(before.sum((2, 3))).abs().max() < 2 * before.abs().sum((2, 3)).max()
    assert F.cosine_similarity(weight.mean((2, 3)).flatten(), before.mean((2, 3)).flatten(), 0) > 0.9


@pytest.mark.parametrize("name", SMALL)
def test_weights_of_another_patch_size(name):
    """As `set_input_size` would have it."""
    small, large = timm.create_model(name, img_size=32).eval(), timm.create_model(name, img_size=64).eval()
    assert (small.patch_size, large.patch_size) == (2, 4)
    report = load_official(large, small.state_dict())
    kernels = "3x3 to 7x7" if "cswin" in name else "2x2 to 4x4"
    assert report.resized["stages.0.embed.proj.weight"] == f"patches of {kernels}"
    small.set_input_size(64, patch_size=4)
    images = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(small(images), large(images))


def test_windows_of_linear_blocks_are_shifted_too():
    model = hollow("inline_swin_tiny", inline_window=14)
    blocks = [m for m in model.modules() if isinstance(m, InLineAttention)]
    assert [m.windows[0] for m in blocks] == [(14, 14, False), (14, 14, True)] * 5
    with pytest.raises(ValueError, match="set window_size instead of inline_window=14"):
        hollow("inline_swin_tiny", mixer="softmax", inline_window=14)


def test_strict_means_strict():
    """With this package's names only sizes are adapted to; classes and colours have to be the model's."""
    state = timm.create_model("inline_swin_nano").state_dict()
    for options in ({"num_classes": 10}, {"num_classes": 0}, {"in_chans": 1}):
        with pytest.raises(RuntimeError):
            timm.create_model("inline_swin_nano", **options).load_state_dict(state)
        load_official(timm.create_model("inline_swin_nano", **options), state)
    wrapped = {f"module.{key}": value for key, value in state.items()}
    assert len(load_official(timm.create_model("inline_swin_nano"), wrapped).matched) == len(state)
    pyramid = timm.create_model("inline_swin_nano", features_only=True)
    assert load_official(pyramid, pyramid.state_dict()).matched


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_colour_channels_by_timms_pretrained(channels, tmp_path):
    source = timm.create_model("inline_swin_nano")
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    overlay = {"file": str(tmp_path / "weights.pth")}
    model = timm.create_model("inline_swin_nano", in_chans=channels, pretrained=True, pretrained_cfg_overlay=overlay)
    ours = timm.create_model("inline_swin_nano", in_chans=channels)
    load_official(ours, source.state_dict())
    torch.testing.assert_close(model.stages[0].embed.proj.weight, ours.stages[0].embed.proj.weight)


def test_a_model_on_the_meta_device_is_filled():
    source = timm.create_model("inline_swin_nano").eval()
    empty = timm.create_model("inline_swin_nano", device="meta").eval()
    load_official(empty, source.state_dict())
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(empty(images), source(images))
    with pytest.raises(ValueError, match=r"the model is on the meta device, and the checkpoint has no head.weight for it"):
        load_official(timm.create_model("inline_swin_nano", num_classes=3, device="meta"), source.state_dict())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"inline_window": 0}, ValueError, "windows must have at least one token a side"),
        ({"window_size": 0}, ValueError, "windows must have at least one token a side"),
        ({"img_size": (8, 0)}, ValueError, r"img_size must be one or two positive whole numbers, got \(8, 0\)"),
        ({"img_size": -32}, ValueError, "img_size must be one or two positive whole numbers, got -32"),
        ({"img_size": (32,)}, ValueError, r"img_size must be one or two positive whole numbers, got \(32,\)"),
        ({"img_size": 65_536}, ValueError, "img_size: 65,536 x 65,536 pixels .* INLINE_MAX_PIXELS sets the limit"),
        ({"depths": (2, 0, 2, 2)}, ValueError, r"depths must be positive whole numbers, got \(2, 0, 2, 2\)"),
        ({"embed_dim": -8}, ValueError, "embed_dim must be positive whole numbers, got -8"),
        ({"in_chans": 0}, ValueError, "in_chans must be positive whole numbers, got 0"),
        ({"drop_path_rate": 2.0}, ValueError, "drop_path_rate must be within 0..1, got 2.0"),
        ({"mlp_ratio": -1.0}, ValueError, "mlp_ratio must be positive numbers, got -1.0"),
        ({"img_size": 4}, ValueError, "img_size must be at least 8 a side"),
        ({"num_classes": -1}, ValueError, "num_classes must not be negative, got -1"),
        ({"output_stride": 8}, TypeError, "inline_swin_nano has no argument 'output_stride'; it has: attn_drop_rate"),
        ({"weight_init": "zero"}, ValueError, "unknown weight_init 'zero'; known: normal, xavier"),
        ({"global_pool": "bogus"}, ValueError, "known for this model: 'avg', 'max', 'avgmax', ''"),
    ],
)
def test_wrong_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        timm.create_model("inline_swin_nano", **options)


def test_first_weights_of_an_unknown_kind_are_refused_by_hand_too():
    with pytest.raises(ValueError, match="unknown weight_init 'xavir'"):
        timm.create_model("inline_swin_nano").init_weights("xavir")


@pytest.mark.parametrize("name", SMALL)
def test_first_weights(name):
    """Of the published deviation, or of one by the width; the classifier is the same in both."""
    for kind in ("normal", "xavier"):
        model = timm.create_model(name, weight_init=kind)
        for called, module in model.named_modules():
            if isinstance(module, nn.Linear):
                by_width = (2 / sum(module.weight.shape)) ** 0.5
                wanted = by_width if kind == "xavier" and called != "head" else 0.02
                assert module.weight.std().item() == pytest.approx(wanted, rel=0.15), called
                assert module.bias is None or not module.bias.any()


def test_a_wrong_input_size_changes_nothing():
    model = timm.create_model("inline_pvt_nano")
    for size, patch in ((-1, None), (4, None), (32, 0)):
        with pytest.raises(ValueError, match="img_size must be at least"):
            model.set_input_size(size, patch)
    assert (model.img_size, model.patch_size) == ((32, 32), 2)
    assert isinstance(model.stages[0].embed, ConvEmbed)


def test_files_are_recognised():
    """All fifteen key lists; only what differs in windows alone fits twice."""
    for name, golden in PUBLISHED.items():
        with torch.device("meta"):
            state = {key: torch.empty(shape) for key, shape in golden_models()[golden]["params"].items()}
        twice = ["inline_cswin_base", "inline_cswin_base_384"]
        assert identify(state) == [(n, {}) for n in (twice if name in twice else [name])]
    assert identify(timm.create_model("deit_tiny_patch16_224").state_dict()) == [("inline_deit_tiny", DEIT)]
    assert identify(hollow("inline_pvt_tiny", num_classes=7).state_dict()) == [("inline_pvt_tiny", {"num_classes": 7})]
    assert CSWIN == {"tiny": (1, 2, 21, 1), "small": (2, 4, 32, 2), "base": (2, 4, 32, 2)}
    assert PVT["num_heads"] == (1, 2, 5, 8)


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (None, TypeError, "images must be a tensor, got None"),
        (torch.zeros(1, 3, 32, 32).byte(), ValueError, "images must hold floating-point numbers, got torch.uint8"),
        (torch.zeros(1, 3, 32, 32).double(), ValueError, "images is torch.float64, and the weights are torch.float32"),
        (
            torch.zeros(1, 3, 32, 32).to_sparse(),
            ValueError,
            "images must be a dense tensor, got one of layout torch.sparse_coo",
        ),
        (torch.zeros(1, 3, 32, 32, device="meta"), ValueError, "images is on meta, and the weights are on cpu"),
    ],
)
def test_wrong_images_are_named(images, error, message):
    with pytest.raises(error, match=message):
        timm.create_model("inline_deit_nano", depth=1)(images)


@pytest.mark.parametrize("size", [-1, 0, "a", 2.5, True, (3,), (-1, 5), (32, 32, 32)], ids=str)
def test_a_size_that_cannot_be_counted(size):
    model = timm.create_model("inline_deit_nano", depth=1)
    with pytest.raises(ValueError, match="size must be one or two positive whole numbers, got "):
        count(model, size)
    with pytest.raises(ValueError, match=r"size 1000000, 1000000: .* more than 268,435,456: INLINE_MAX_PIXELS sets the limit"):
        count(model, (10**6, 10**6))
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got None"):
        count(None)


def test_parts_of_a_mixer_are_arguments_of_the_model():
    """MALA's attention as it was published."""
    published = {"gate": True, "lepe": 5, "rope": "heads", "cpe": True}
    model = timm.create_model("inline_deit_nano", mixer="mala", depth=2, **published)
    for block in model.stages[0].blocks:
        assert (block.mixer.gate.kind, block.mixer.lepe.kernel_size, block.mixer.rope.kind) == ("linear", (5, 5), "heads")
        assert block.cpe1 is not None
        assert block.cpe2 is None
    plain = timm.create_model("inline_deit_nano", mixer="mala", depth=2)
    assert not any(part for block in plain.stages[0].blocks for part in (block.mixer.gate, block.mixer.lepe, block.cpe1))
    more = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in plain.parameters())
    assert more == 2 * (96 * 97 + 96 * 26 + 96 * 10)
    nala = timm.create_model("inline_deit_nano", mixer="nala", gate="silu", out_norm=True, lepe=5, cpe="both")
    assert nala.stages[0].blocks[0].mixer.out_norm is not None
    assert nala.stages[0].blocks[0].cpe2 is not None
    hidden = timm.create_model("inline_cswin_nano", mixer="linear", lepe=5)
    assert hidden.stages[0].blocks[0].mixer.lepe.kernel_size == (5, 5)
    assert timm.create_model("inline_cswin_nano", mixer="linear").stages[0].blocks[0].mixer.lepe.kernel_size == (3, 3)


def test_parameters_that_are_bound_to_a_size_have_that_of_the_model():
    agent = timm.create_model("inline_deit_nano", mixer="agent", img_size=(32, 48), patch_size=4).stages[0].blocks[0].mixer
    assert [line.shape[-1] for line in agent.query_lines] == [8, 12]
    assert agent.query_prefix is not None
    pola = timm.create_model("inline_pvt_nano", mixer="pola", img_size=(32, 48), patch_size=4)
    assert [tuple(stage.blocks[0].mixer.positions.shape[2:]) for stage in pola.stages] == [(8, 12), (4, 6), (2, 3), (1, 2)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixer": "mhla", "mixer_args": {"divisor": "none"}}, "unknown divisor 'none'; known: paper, published"),
        ({"mixer": "mhla", "mixer_args": {"divisors": 1}}, "unknown argument of mixer 'mhla' 'divisors'; known: blocks, div"),
        ({"mixer": "mala", "lepe": 3, "mixer_args": {"lepe": 5}}, "mixer_args has lepe=5, and the model lepe=3"),
        ({"gate": "tanh"}, "unknown gate 'tanh'; known: linear, silu"),
        ({"cpe": 3}, "cpe must be False, True or 'both', got 3"),
        ({"mixer": "hydra", "rope": "heads"}, "takes no rope"),
    ],
)
def test_parts_that_are_not_there_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        timm.create_model("inline_deit_nano", **options)
