"""Hugging Face's ViT, DeiT and DINOv2 with another attention."""

import copy
import pickle

import pytest
import torch

from inline_attention import swap
from inline_attention.layers import InLineAttention

transformers = pytest.importorskip("transformers")

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
FAMILIES = {"ViT": 1, "DeiT": 2, "Dinov2": 1, "Dinov2WithRegisters": 5}
"""Name -> prefix tokens."""


def made(family, kind="sdpa", **options):
    config = getattr(transformers, f"{family}Config")(**SIZE, **options, attn_implementation=kind)
    model = getattr(transformers, f"{family}Model")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def features(model, images, **options):
    return model(images, **options).last_hidden_state


def attention_of(model):
    layers = model.layers if hasattr(model, "layers") else model.encoder.layer
    return layers[1].attention


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_softmax_for_softmax_changes_nothing(family, kind):
    model, images = made(family, kind), torch.randn(2, 3, 32, 32)
    before = features(model, images)
    report = swap(model, "softmax", local=False)
    assert len(report.changed) == 2
    assert not report.left
    torch.testing.assert_close(features(model, images), before, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_swapped_attention_is_the_mixer_built_by_hand(family):
    model = made(family, qkv_bias=True)
    old = attention_of(model)
    swap(model)
    new, seen = attention_of(model), []
    mixer = InLineAttention(32, 4).eval()
    rest = {key: value for key, value in new.mixer.state_dict().items() if key.startswith("local")}
    for kind in ("weight", "bias"):
        rest[f"q.{kind}"], rest[f"proj.{kind}"] = getattr(old.q_proj, kind), getattr(old.o_proj, kind)
        rest[f"kv.{kind}"] = torch.cat([getattr(old.k_proj, kind), getattr(old.v_proj, kind)])
    mixer.load_state_dict(rest)
    new.register_forward_hook(lambda _, inputs, out: seen.append((inputs[0], out[0])))
    other = {} if "Dino" in family else {"interpolate_pos_encoding": True}
    for size, options in (((4, 4), {}), ((3, 6), other), ((6, 3), other)):
        features(model, torch.randn(2, 3, 8 * size[0], 8 * size[1]), **options)
        x, out = seen.pop()
        torch.testing.assert_close(out, mixer(x, size, num_prefix_tokens=FAMILIES[family]), rtol=1e-5, atol=1e-6)


def test_what_the_attention_had_is_kept():
    model = made("ViT", attention_probs_dropout_prob=0.3).train().to(torch.bfloat16)
    model.requires_grad_(False)
    swap(model)
    mixer = attention_of(model).mixer
    assert (mixer.attn_drop, mixer.proj_drop.p, mixer.training) == (0.3, 0.0, True)
    assert {parameter.dtype for parameter in mixer.parameters()} == {torch.bfloat16}
    assert {name.split(".")[0] for name, parameter in mixer.named_parameters() if parameter.requires_grad} == {"local"}


def test_copies_and_checkpointing():
    model, images = made("Dinov2"), torch.randn(1, 3, 48, 32)
    swap(model)
    expected = features(model, images)
    for each in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        features(model, torch.randn(1, 3, 32, 48))
        torch.testing.assert_close(features(each, images), expected)
    model.train()
    plain, checkpointed = [], []
    for found in (plain, checkpointed):
        model.zero_grad()
        total = sum(features(model, some).square().sum() for some in (images, images[:, :, :16]))
        total.backward()
        found += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        model.gradient_checkpointing_enable()
    for ours, theirs in zip(checkpointed, plain, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_needs_weights_is_refused(family):
    model, images = made(family, "eager"), torch.randn(1, 3, 32, 32)
    swap(model)
    mask = torch.ones(1, 16 + FAMILIES[family])
    mask[:, -1] = 0
    for given in ({"output_attentions": True}, {"attention_mask": mask}, {"head_mask": torch.ones(2, 4)}, {"is_causal": True}):
        with pytest.raises(ValueError, match=f"no weights to mask or to give: call the model without {next(iter(given))}"):
            model(images, **given)
    assert len(model(images, output_hidden_states=True).hidden_states) == 3
    model.config.output_attentions = True
    with pytest.raises(ValueError, match="without output_attentions"):
        model(images)


def test_a_whole_classifier_and_what_is_left():
    size = {**SIZE, "num_labels": 3}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**size)).eval()
    report = swap(model, only=r"vit\.layers\.0\.attention")
    assert report.left == {"vit.layers.1.attention": "not chosen"}
    assert model(torch.randn(1, 3, 32, 32)).logits.shape == (1, 3)
    attention = model.vit.layers[1].attention
    del attention.q_proj
    assert swap(model, "linear").left == {
        "vit.layers.1.attention": "it has no q_proj: this version of transformers builds it in another way"
    }
    other = transformers.ViTMSNModel(transformers.ViTMSNConfig(**SIZE))
    with pytest.raises(
        ValueError, match=r"is left \(swap does not know transformers.models.vit_msn.\S+ViTMSNAttention\), and 1 more"
    ):
        swap(other)
