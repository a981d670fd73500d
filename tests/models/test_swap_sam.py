"""SAM's image encoder of timm and of transformers: windows that the block cuts, or none; what is dropped is said."""

import copy

import pytest
import torch
from timm.models import VisionTransformerSAM

from inline_attention import swap
from inline_attention.layers import InLineAttention
from inline_attention.models.swap_sam import MapAttention

transformers = pytest.importorskip("transformers")

SIDE = 88  # 11 x 11 tokens: windows of 4 do not divide them, and are padded


def of_timm(**options):
    size = {"img_size": SIDE, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 5}
    return VisionTransformerSAM(**size, window_size=4, global_attn_indexes=(1,), neck_chans=8, **options)


def of_transformers(kind="sdpa", **options):
    size = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": SIDE, "patch_size": 8}
    more = {"window_size": 4, "global_attn_indexes": [1], "output_channels": 8, "mlp_dim": 48, **options}
    return transformers.SamVisionModel(transformers.SamVisionConfig(**size, **more, attn_implementation=kind))


MODELS = {
    "timm": of_timm,
    "timm-relative": lambda: of_timm(use_rel_pos=True),
    "timm-rope": lambda: of_timm(use_rope=True, qk_norm=True, init_values=0.5),
    "sdpa": lambda: of_transformers(use_rel_pos=False),
    "sdpa-relative": of_transformers,
    "eager": lambda: of_transformers("eager", use_rel_pos=False),
}


def made(name, dtype=torch.float64, *, relative=False):
    torch.manual_seed(0)
    model = MODELS[name]()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if relative or "rel_pos" not in key:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.to(dtype).eval()


def blocks_of(model):
    return model.blocks if hasattr(model, "blocks") else model.vision_encoder.layers


def output(model, images):
    out = model(images)
    return out if isinstance(out, torch.Tensor) else out.last_hidden_state


@pytest.mark.parametrize("name", MODELS)
def test_softmax_in_the_same_windows_is_exact(name):
    """Padded windows and the whole map; relative positions are zero, as they start."""
    model, images = made(name), torch.randn(2, 3, SIDE, SIDE, dtype=torch.float64)
    before = output(model, images)
    report = swap(model, "softmax", keep_windows=True)
    assert not report.left
    lost = "; dropped: relative positions" if "relative" in name else ""
    kept = "; kept: rotary positions" if "rope" in name else ""
    windows = " in windows of 4 x 4"
    assert list(report.changed.values()) == [
        f"softmax{windows} -> softmax{windows}{kept}{lost}",
        f"softmax -> softmax{kept}{lost}",
        f"softmax{windows} -> softmax{windows}{kept}{lost}",
    ]
    close = 1e-6 if name == "eager" else 1e-10  # its softmax is always in fp32
    torch.testing.assert_close(output(model, images), before, rtol=close, atol=close)


@pytest.mark.parametrize("name", ["timm-relative", "sdpa-relative"])
def test_learned_relative_positions_are_dropped_and_nothing_else(name):
    model, images = made(name, relative=True), torch.randn(1, 3, SIDE, SIDE, dtype=torch.float64)
    before, without = output(model, images), copy.deepcopy(model)
    for key, parameter in without.named_parameters():
        if "rel_pos" in key:
            parameter.data.zero_()
    swap(model, "softmax", keep_windows=True)
    after = output(model, images)
    assert not torch.allclose(after, before, rtol=1e-3)
    torch.testing.assert_close(after, output(without, images), rtol=1e-10, atol=1e-10)
    assert not any("rel_pos" in key for key in model.state_dict())


@pytest.mark.parametrize("name", ["timm-relative", "sdpa-relative", "eager"])
def test_inline_over_the_whole_map(name):
    model = made(name, torch.float32)
    report = swap(model)
    lost = "; dropped: relative positions" if "relative" in name else ""
    assert next(iter(report.changed.values())) == f"softmax in windows of 4 x 4 -> inline with local residual{lost}"
    block = blocks_of(model)[0]
    assert block.window_size == 0
    x = torch.randn(2, 5, 7, 32)
    expected = block.attn.mixer(x.flatten(1, 2), (5, 7)).unflatten(1, (5, 7))
    out = block.attn(x)
    torch.testing.assert_close(out if name.startswith("timm") else out[0], expected)
    out = output(model, torch.randn(1, 3, SIDE, SIDE))
    out.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in block.attn.parameters())


def test_windows_are_kept_on_request_and_given_up_later():
    model, images = made("timm", torch.float32), torch.randn(1, 3, SIDE, SIDE)
    swap(model, keep_windows=True)
    assert [block.window_size for block in model.blocks] == [4, 0, 4]
    kept = model(images)
    with pytest.raises(ValueError, match="inline with local residual already"):
        swap(model, keep_windows=True)
    mixer = model.blocks[0].attn.mixer
    report = swap(model)
    assert report.changed == {
        f"blocks.{number}.attn": "inline with local residual in windows of 4 x 4 -> inline with local residual"
        for number in (0, 2)
    }
    assert report.left == {"blocks.1.attn": "inline with local residual already"}
    assert model.blocks[0].attn.mixer is mixer
    assert not torch.allclose(model(images), kept)
    swap(model, "linear")
    assert all(type(block.attn) is MapAttention for block in model.blocks)


def test_positions_of_a_window_do_not_fit_the_map():
    model = made("timm-rope")
    report = swap(model)
    why = "its rotary positions are those of a window: pass keep_windows=True"
    assert report.left == {"blocks.0.attn": why, "blocks.2.attn": why}
    assert list(report.changed) == ["blocks.1.attn"]
    assert [block.window_size for block in model.blocks] == [4, 0, 4]


def test_other_sizes():
    """timm's takes them; transformers' says that it does not."""
    model = made("timm", torch.float32)
    swap(model)
    assert model(torch.randn(1, 3, 120, 56)).shape == (1, 5)
    assert isinstance(model.blocks[0].attn.mixer, InLineAttention)


def test_weights_are_refused():
    model = made("eager", torch.float32)
    swap(model)
    with pytest.raises(ValueError, match="swapped attention has no weights to give"):
        blocks_of(model)[0].attn(torch.randn(1, 3, 3, 32), output_attentions=True)


def test_a_whole_sam_keeps_its_decoder():
    config = transformers.SamConfig(vision_config=of_transformers().config.to_dict())
    with torch.device("meta"):
        model = transformers.SamModel(config)
    report = swap(model)
    assert list(report.changed) == [f"vision_encoder.layers.{number}.attn" for number in range(3)]
    assert report.left
    assert all(name.startswith("mask_decoder.transformer.") for name in report.left)
    assert report.left["mask_decoder.transformer.final_attn_token_to_image"].startswith("swap does not know transformers.")
