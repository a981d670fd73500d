"""DINOv3, EVA-02, CLIP, SigLIP and DINOv2 of timm and of transformers: exact with softmax, trainable with InLine."""

import copy
import pickle
from functools import partial

import pytest
import timm
import torch
from timm.layers import AttentionRope
from torch import nn

from inline_attention import MIXERS, InLineAttention, swap
from inline_attention.analysis.capture import capture_pass
from inline_attention.layers.rope import Rotation

transformers = pytest.importorskip("transformers")

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
TINY |= {"intermediate_size": 48}


def of_timm(name, **options):
    return partial(timm.create_model, name, **{**SMALL, **options})


def of_transformers(family, **options):
    def make():
        config = getattr(transformers, f"{family}Config")(**TINY, **options)
        return getattr(transformers, f"{family}Model")(config)

    return make


MODELS = {
    "dinov3": (of_timm("vit_small_patch16_dinov3"), "rotary positions", (48, 24)),
    "dinov3-qkvb": (of_timm("vit_small_patch16_dinov3_qkvb"), "rotary positions", (24, 48)),
    "dinov3-aug": (of_timm("vit_small_patch16_dinov3", rope_shift_coords=0.3), "rotary positions", None),
    "eva02": (of_timm("eva02_tiny_patch14_224"), "rotary positions", None),
    "eva02-fused": (of_timm("eva02_tiny_patch14_224", qkv_fused=True, qk_norm=True), "rotary positions", None),
    "eva-plain": (of_timm("eva_giant_patch14_224"), "", None),
    "rope-mixed": (of_timm("vit_small_patch16_rope_mixed_224", dynamic_img_size=True), "rotary positions", (48, 24)),
    "clip": (of_timm("vit_base_patch16_clip_224", dynamic_img_size=True), "", (48, 24)),
    "siglip": (of_timm("vit_base_patch16_siglip_224", dynamic_img_size=True), "", (48, 24)),
    "dinov2-registers": (of_timm("vit_small_patch14_reg4_dinov2", dynamic_img_size=True), "", (48, 24)),
    "t-dinov3": (of_transformers("DINOv3ViT", num_register_tokens=2), "rotary positions", (48, 24)),
    "t-clip": (of_transformers("CLIPVision"), "", None),
    "t-siglip": (of_transformers("SiglipVision"), "", None),
}
"""Name -> how it is made, what the report says is kept, another size that the model takes as it is."""


def made(name, dtype=torch.float32):
    torch.manual_seed(0)
    model = MODELS[name][0]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.to(dtype).eval()


def output(model, images, **options):
    out = model(images, **options)
    return out if isinstance(out, torch.Tensor) else out.last_hidden_state


@pytest.mark.parametrize("name", MODELS)
def test_softmax_is_exact_and_inline_learns(name):
    kept, size = MODELS[name][1:]
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    model = made(name, torch.float64)
    before = output(model, images)
    report = swap(model, "softmax", local=False)
    assert len(report.changed) == 2
    assert set(report.changed.values()) == {f"softmax -> softmax{f'; kept: {kept}' if kept else ''}"}
    after = output(model, images)
    assert float((after - before).detach().abs().max()) <= 1e-10 * float(before.detach().abs().max())
    swap(model, "inline")
    if size is not None:
        images = torch.randn(2, 3, *size, dtype=torch.float64)
    out = output(model, images)
    assert out.shape == (before.shape if size is None or out.ndim == 2 else (2, out.shape[1], 32))
    out.square().sum().backward()
    new = {key: parameter for key, parameter in model.named_parameters() if ".mixer." in key}
    assert len(new) >= 2 * 7
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in new.values())


@pytest.mark.parametrize("name", ["dinov3", "eva02", "t-dinov3", "t-clip", "t-siglip"])
def test_fp32_up_to_rounding(name):
    model, images = made(name), torch.randn(2, 3, 32, 32)
    before = output(model, images)
    swap(model, "softmax")
    torch.testing.assert_close(output(model, images), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["dinov3", "t-dinov3"])
def test_other_sizes_are_exact_too(name):
    model, images = made(name, torch.float64), torch.randn(1, 3, 24, 56, dtype=torch.float64)
    before = output(model, images)
    swap(model, "softmax")
    torch.testing.assert_close(output(model, images), before, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mixer", [mixer for mixer in MIXERS if not MIXERS[mixer].own_projections])
@pytest.mark.parametrize("name", ["dinov3", "t-dinov3"])
def test_a_swapped_attention_is_the_mixer_with_the_models_own_angles(name, mixer):
    """Projected, turned and attended to by hand: prefix tokens as they are, halves of a head as pairs, before the kernel."""
    model = made(name, torch.float64)
    swap(model, mixer, local=False)
    attention = model.blocks[1].attn if hasattr(model, "blocks") else model.model.layer[1].attention
    seen = []
    attention.register_forward_hook(lambda _, inputs, options, out: seen.append((inputs, options, out)), with_kwargs=True)
    output(model, torch.randn(2, 3, 24, 40, dtype=torch.float64))
    inputs, options, out = seen[0]
    x = inputs[0] if inputs else options["hidden_states"]
    if "rope" in options:
        sines, cosines = options["rope"].chunk(2, -1)
    else:
        cosines, sines = options["position_embeddings"]
        out = out[0]
    prefix = x.shape[1] - 15
    assert prefix == (5 if name == "dinov3" else 3)

    def turned(heads):
        first, second = heads[:, :, prefix:].chunk(2, -1)
        rest = heads[:, :, prefix:] * cosines + torch.cat([-second, first], -1) * sines
        return torch.cat([heads[:, :, :prefix], rest], 2)

    mixer = attention.mixer
    q, k, v = mixer.project(x, (3, 5), num_prefix_tokens=prefix)
    lying = {"layout": mixer.layout((3, 5), prefix)} if mixer.reads_layout else {}
    by_hand = mixer.merge_heads(mixer.attend(turned(q), turned(k), v, None, **lying))
    if parts := mixer.local_parts():  # focused and angular have their own
        rows = mixer.attention_rows(x, (3, 5), range(x.shape[1]), num_prefix_tokens=prefix).local
        assert parts
        by_hand = by_hand + torch.einsum("bcmn,bnc->bmc", rows, mixer.merge_heads(v))
    torch.testing.assert_close(out, mixer.proj(by_hand), rtol=1e-10, atol=1e-10)
    table = torch.cat([sines, cosines], -1)
    rotation = Rotation.from_table(table, num_prefix_tokens=prefix, half=True)
    torch.testing.assert_close(mixer(x, (3, 5), num_prefix_tokens=prefix, rotation=rotation), out)


def test_the_per_head_form_is_taken_with_rotary_positions_only():
    model, other = made("dinov3"), made("clip")
    for each in (model, other):
        swap(each, "inline", local=False)
    folds = {mixer.folds(torch.zeros(1, 64, 32)) for mixer in other.modules() if isinstance(mixer, InLineAttention)}
    assert folds == {True}
    model.blocks[0].attn.mixer.form = "folded"
    with pytest.raises(ValueError, match="the folded form makes no queries to turn"):
        model(torch.randn(1, 3, 32, 32))


def test_copies_and_checkpointing():
    model, images = made("dinov3"), torch.randn(1, 3, 32, 48)
    swap(model)
    expected = output(model, images)
    for each in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(output(each, images), expected)
    model.train()
    grads = []
    for _ in range(2):
        model.zero_grad()
        output(model, images).square().sum().backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
        model.set_grad_checkpointing()
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_patches_that_are_dropped_keep_their_positions():
    """The table then differs from image to image."""
    torch.manual_seed(0)
    model = of_timm("vit_small_patch16_dinov3", patch_drop_rate=0.5)().train().double()
    images, outs = torch.randn(2, 3, 32, 32, dtype=torch.float64), []
    for _ in range(2):
        torch.manual_seed(1)
        outs.append(model(images))
        swap(model, "softmax", local=False) if len(outs) == 1 else None
    torch.testing.assert_close(*outs, rtol=1e-10, atol=1e-10)


def test_analysis_sees_turned_queries():
    model = made("dinov3")
    images = torch.randn(2, 3, 32, 32)
    theirs = capture_pass(model, images)[1]
    swap(model, "softmax")
    ours = capture_pass(model, images)[1]
    torch.testing.assert_close(ours.rows([0, 7]).mixed, theirs.rows([0, 7]).mixed)


@pytest.mark.parametrize(
    ("attention", "why"),
    [
        (AttentionRope(32, 4, qkv_fused=False, num_kv_heads=2), "2 of its heads share one key"),
        (AttentionRope(32, 4, scale_norm=True, norm_layer=nn.LayerNorm), "its output goes through a norm (LayerNorm)"),
        (AttentionRope(32, 4, gated=True), "its output is gated"),
    ],
)
def test_what_a_mixer_does_not_have_is_left(attention, why):
    model = made("dinov3")
    model.blocks[0].attn = attention
    report = swap(model)
    assert report.left == {"blocks.0.attn": why}
    assert list(report.changed) == ["blocks.1.attn"]


def clip(family):
    text = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 40}
    kind = getattr(transformers, f"{family}Config")
    model = getattr(transformers, f"{family}Model")(kind(text_config=text, vision_config={**TINY, "num_hidden_layers": 1}))
    return model.eval()


def test_a_text_tower_that_looks_back_is_left():
    model = clip("CLIP")
    report = swap(model)
    assert list(report.changed) == ["vision_model.encoder.layers.0.self_attn"]
    assert report.left == {"text_model.encoder.layers.0.self_attn": "its tokens look back only: a mixer has no causal mask"}
    words = torch.randint(0, 40, (2, 7))
    assert model(input_ids=words, pixel_values=torch.randn(2, 3, 32, 32)).logits_per_image.shape == (2, 2)


def test_a_text_tower_without_a_mask_has_no_grid():
    model, words = clip("Siglip"), torch.randint(0, 40, (2, 7))
    given = {"input_ids": words, "pixel_values": torch.randn(2, 3, 32, 32)}
    before = model(**given).logits_per_image
    report = swap(model)
    assert report.left["text_model.encoder.layers.0.self_attn"].startswith("the grid of its tokens is unknown")
    assert report.left["vision_model.head"] == "SiglipMultiheadAttentionPoolingHead pools tokens"
    swap(model, "softmax")
    assert "text_model.encoder.layers.0.self_attn.mixer.q.weight" in model.state_dict()
    torch.testing.assert_close(model(**given).logits_per_image, before, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="call the model without attention_mask"):
        model(**given, attention_mask=torch.tensor([[1] * 7, [1] * 4 + [0] * 3]))


def test_dinov3s_frozen_weights_stay_frozen():
    model = made("eva02")
    model.requires_grad_(False)
    swap(model, local=False)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert isinstance(model.blocks[0].attn.mixer.q, nn.Linear)
