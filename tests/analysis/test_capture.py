"""Captured weights are those of the layer: times the values they give its output, and they follow the equations."""

import pytest
import timm
import torch

from inline_attention import InLineAttention
from inline_attention.analysis.attention import SdpaAttention
from inline_attention.analysis.capture import capture, capture_pass
from inline_attention.analysis.rays import LENGTHS, ray
from inline_attention.compat import has_hooks
from inline_attention.layers.mixer import Mixer
from inline_attention.ops import reference

from .models import WEIGHTED, images, make_model

FAMILIES = ["inline_deit_nano", "inline_pvt_nano", "inline_swin_nano", "inline_cswin_nano"]
SOFTMAX = [
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_tiny_r_s16_p8_224",
    "eva02_tiny_patch14_224",
    "vit_base_patch16_siglip_224",
]


def outputs(model, pixels):
    """Output of every mixer, by a hook of its own."""
    kept = {}
    hooks = [
        module.register_forward_hook(lambda m, i, out, name=name: kept.update({name: out}))
        for name, module in model.named_modules()
        if isinstance(module, Mixer)
    ]
    with torch.no_grad():
        model(pixels)
    for hook in hooks:
        hook.remove()
    return kept


@pytest.mark.parametrize(
    ("name", "mixer"),
    [
        pytest.param(name, mixer, marks=[] if number % len(FAMILIES) == place or mixer == "inline" else pytest.mark.slow)
        for place, name in enumerate(FAMILIES)
        for number, mixer in enumerate(WEIGHTED)
    ],
)
def test_rows_times_values_are_the_layers_output(name, mixer):
    model = make_model(name, mixer)
    pixels = torch.randn(2, 3, 16, 24)
    expected = outputs(model, pixels)
    seen = capture_pass(model, pixels)
    assert [layer.name for layer in seen] == list(expected)
    for layer in seen:
        _, _, v = layer.project()
        rows = layer.rows(range(layer.tokens))
        values = v.transpose(2, 3).flatten(1, 2)  # (B, C, N)
        by_channel = rows.mixed.repeat_interleave(values.shape[1] // rows.mixed.shape[1], 1)
        out = torch.einsum("bcmn,bcn->bmc", by_channel, values)
        if rows.local is not None:
            own = layer.mixer.kv(layer.x).chunk(2, -1)[1].mT if not layer.whole else values
            out = out + torch.einsum("bcmn,bcn->bmc", rows.local, own)
        if layer.mixer.lepe is not None:
            out[:, layer.num_prefix_tokens :] += layer.mixer.lepe.bias
        out = layer.mixer.proj(out)
        scale = expected[layer.name].abs().max()
        torch.testing.assert_close(out / scale, expected[layer.name] / scale, atol=1e-5, rtol=0)


EQUATIONS = {
    "inline": reference.injective_weights,
    "softmax": reference.softmax_weights,
    "linear": lambda q, k: reference.linear_weights(q.relu(), k.relu()),
    "enhanced": lambda q, k: reference.linear_weights(q.relu(), k.relu()),
    "efficient": reference.efficient_weights,
    "hydra": lambda q, k: reference.hydra_weights(unit(q), unit(k)),
    "angular": lambda q, k: reference.angular_weights(q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)),
    "focused": lambda q, k: reference.linear_weights(focus(q), focus(k)),
}


def unit(x):
    return x / x.norm(dim=(1, 3), keepdim=True)


def focus(x):
    y = x.relu() + 1e-6
    return y**3 * (y.norm(dim=(1, 3), keepdim=True) / (y**3).norm(dim=(1, 3), keepdim=True))


@pytest.mark.parametrize("mixer", EQUATIONS)
def test_rows_are_the_equations(mixer):
    for layer in capture_pass(make_model("inline_deit_nano", mixer), torch.randn(2, 3, 16, 24)):
        q, k, _ = layer.project()
        assert layer.kind == mixer
        torch.testing.assert_close(layer.weights(), EQUATIONS[mixer](q, k), atol=1e-6, rtol=1e-5)
        chosen = [3, 0, layer.tokens - 1]
        torch.testing.assert_close(layer.rows(chosen).mixed, EQUATIONS[mixer](q, k)[:, :, chosen], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(layer.weigh(q, k), layer.weights(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mixer", WEIGHTED)
def test_queries_can_be_weighed_again(mixer):
    """All of them, and one at its place in one image of the batch: where weights depend on other queries, on those."""
    layer = capture_pass(make_model("inline_deit_nano", mixer), images())[1]
    q, k, _ = layer.project()
    weights = layer.weights()
    torch.testing.assert_close(layer.weigh(q, k), weights, atol=1e-6, rtol=1e-5)
    one = layer.weigh(q[1:, :, 6:7], k[1:], place=6, images=slice(1, 2))
    torch.testing.assert_close(one, weights[1:, :, 6:7], atol=1e-6, rtol=1e-5)


def test_a_layer_without_weights_is_known_by_its_answers():
    """ViT^3: what its heads give, without the second branch."""
    layer = capture_pass(make_model("inline_deit_nano", "vit3"), images())[1]
    assert not layer.has_weights
    answers = layer.compared([3, 0])
    assert answers.shape == (2, 4, 2, layer.mixer.head_dim)
    torch.testing.assert_close(layer.weigh(layer.project()[0], None)[:, :, [3, 0]], answers)
    with pytest.raises(ValueError, match="no attention rows: its output is not a weighted sum"):
        layer.rows([3])
    kept = {}
    layer.mixer.proj.register_forward_pre_hook(lambda _, inputs: kept.update(mixed=inputs[0]))
    layer.mixer(layer.x, layer.grid, num_prefix_tokens=1)
    heads = kept["mixed"][..., : layer.mixer.dim].unflatten(2, (4, -1)).transpose(1, 2)
    torch.testing.assert_close(heads[:, :, [3, 0]], answers)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", SOFTMAX)
def test_any_softmax_transformer_of_timm(name, fused):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=3, depth=2, img_size=(64, 96) if "patch14" not in name else (56, 84)).eval()
    attention = [module for module in model.modules() if hasattr(module, "fused_attn")]
    for module in attention:
        module.fused_attn = fused
    pixels = torch.randn(2, 3, *model.patch_embed.img_size)
    expected = {}
    for key, module in model.named_modules():
        if key.endswith("attn"):
            module.proj.register_forward_pre_hook(lambda m, inputs, key=key: expected.update({key: inputs[0]}))
    seen = capture_pass(model, pixels)
    assert [layer.name for layer in seen] == ["blocks.0.attn", "blocks.1.attn"]
    for layer in seen:
        assert isinstance(layer, SdpaAttention)
        assert layer.grid == tuple(model.patch_embed.grid_size)
        assert layer.num_prefix_tokens == model.num_prefix_tokens
        out = (layer.weights() @ layer.project()[2]).transpose(1, 2).flatten(2)
        torch.testing.assert_close(out, expected[layer.name], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(layer.rows([5, 1]).mixed, layer.weights()[:, :, [5, 1]])
    assert [module.fused_attn for module in attention] == [fused] * len(attention)


def test_attention_with_a_bias_of_positions():
    """BEiT adds a bias for each pair of tokens to the logits."""
    torch.manual_seed(0)
    model = timm.create_model("beit_base_patch16_224", num_classes=3, depth=1, embed_dim=24, num_heads=2, img_size=64).eval()
    torch.nn.init.normal_(model.blocks[0].attn.relative_position_bias_table)
    kept = {}
    model.blocks[0].attn.proj.register_forward_pre_hook(lambda m, inputs: kept.update(out=inputs[0]))
    (layer,) = capture_pass(model, torch.randn(2, 3, 64, 64))
    assert layer.bias is not None
    own = ray(layer, 5).weights[:, LENGTHS.index(1.0)]
    torch.testing.assert_close(own, layer.rows([5]).mixed[0, :, 0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close((layer.weights() @ layer.v).transpose(1, 2).flatten(2), kept["out"], atol=1e-5, rtol=1e-4)


def hooks_of(model):
    return list(map(has_hooks, model.modules()))


@pytest.mark.parametrize("name", ["inline_deit_nano", "vit_tiny_patch16_224"])
def test_the_model_is_left_as_it_was(name):
    model = timm.create_model(name, img_size=32, depth=1, num_classes=2) if "vit" in name else make_model(name)
    pixels = torch.randn(1, 3, 32, 32) if "vit" in name else torch.randn(1, 3, 16, 24)
    before, expected = hooks_of(model), model.eval()(pixels)

    def fail():
        with capture(model) as seen:
            model(pixels)
            kept.append(seen)
            raise RuntimeError("own fault")

    kept = []
    with pytest.raises(RuntimeError, match="own fault"):
        fail()
    assert hooks_of(model) == before
    with pytest.raises(Exception, match=r"channels|images must be"), capture(model):
        model(torch.zeros(1, 5, *pixels.shape[2:]))
    assert hooks_of(model) == before
    torch.testing.assert_close(model(pixels), expected)
    number = len(kept[0])
    assert number
    model(pixels)
    assert len(kept[0]) == number


def test_memory_is_linear_in_the_tokens():
    """And a second pass replaces the first."""
    model = make_model("inline_deit_nano", "linear")
    with torch.no_grad(), capture(model) as seen:
        model(torch.randn(1, 3, 16, 24))
        first = len(seen)
        model(torch.randn(1, 3, 16, 24))
    assert len(seen) == first
    for layer in seen:
        held = [value for value in vars(layer).values() if isinstance(value, torch.Tensor)]
        held += [value for value in layer.options.values() if isinstance(value, torch.Tensor)]
        assert sum(value.numel() for value in held) <= layer.tokens * layer.mixer.dim
        assert not any(value.requires_grad for value in held)


def test_tensors_are_detached_and_only_a_bias_is_quadratic():
    """With gradients on, for calls of torch's own function too."""
    torch.manual_seed(0)
    for name, quadratic in (("vit_tiny_patch16_224", False), ("beit_base_patch16_224", True)):
        model = timm.create_model(name, num_classes=2, depth=1, embed_dim=24, num_heads=2, img_size=64)
        with capture(model) as seen:
            model(torch.randn(1, 3, 64, 64))
        (layer,) = seen
        held = {key: value for key, value in vars(layer).items() if isinstance(value, torch.Tensor)}
        assert not any(value.requires_grad for value in held.values())
        assert {key for key, value in held.items() if value.numel() > layer.tokens * 24} == ({"bias"} if quadratic else set())


@pytest.mark.parametrize("name", ["inline_deit_nano", "vit_tiny_patch16_224"])
def test_forward_features_is_captured_too(name):
    """Twice: the second pass replaces the first."""
    model = timm.create_model(name, img_size=64, num_classes=2).eval()
    with torch.no_grad(), capture(model) as seen:
        model(torch.randn(1, 3, 64, 64))
        whole = [(layer.name, layer.grid) for layer in seen]
        for _ in range(2):
            model.forward_features(torch.randn(1, 3, 64, 64))
            assert [(layer.name, layer.grid) for layer in seen] == whole
    assert not seen.left_out


def test_modules_in_eval_mode_stay_in_it():
    model = make_model().train()
    model.stages[0].blocks[0].eval()
    before = [part.training for part in model.modules()]
    capture_pass(model, torch.randn(1, 3, 16, 24))
    assert [part.training for part in model.modules()] == before


def test_models_without_attention_over_the_image_are_an_error():
    model = timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1), num_classes=2)
    with pytest.raises(ValueError, match=r"no attention over the image was found in SwinTransformer: 2 layers attend"):
        capture_pass(model, torch.randn(1, 3, 224, 224))
    with pytest.raises(ValueError, match=r"no attention over the image was found in ResNet$"):
        capture_pass(timm.create_model("resnet18"), torch.randn(1, 3, 32, 32))


@pytest.mark.parametrize("name", ["inline_deit_nano", "vit_tiny_patch16_224"])
@pytest.mark.parametrize("queries", [5, [], [0.5], [99], [-1]])
def test_queries_are_checked(name, queries):
    layer = capture_pass(timm.create_model(name, img_size=32, num_classes=2, patch_size=8), torch.randn(1, 3, 32, 32))[0]
    with pytest.raises(ValueError, match=r"queries .*(token indices|not all within)"):
        layer.rows(queries)


def test_a_layer_by_name():
    seen = capture_pass(make_model("inline_deit_nano"), torch.randn(1, 3, 16, 24))
    assert seen[seen[1].name] is seen[1]
    with pytest.raises(KeyError, match=r"no layer 'x'; there are: "):
        seen["x"]


def test_local_kernels_are_the_layers_own():
    model = make_model("inline_deit_nano")
    layer = capture_pass(model, torch.randn(2, 3, 16, 24))[0]
    kernels = layer.local_kernels()
    assert kernels.shape == (2, layer.mixer.dim, 3, 3)
    middle = layer.index((1, 2))
    rows = layer.rows([middle]).local[:, :, 0, layer.num_prefix_tokens :].unflatten(2, layer.grid)
    torch.testing.assert_close(rows[:, :, 0:3, 1:4], kernels)
    assert capture_pass(make_model("inline_deit_nano", "softmax"), torch.randn(2, 3, 16, 24))[0].local_kernels() is None


def test_a_single_layer_is_captured_too():
    layer = InLineAttention(24, 3)
    with capture(layer) as seen:
        for _ in range(2):
            out = layer(x=torch.randn(2, 12, 24), grid=(3, 4))
    assert len(seen) == 1
    rows, v = seen[0].rows(range(12)), seen[0].project()[2]
    mixed = rows.mixed.repeat_interleave(8, 1) + rows.local
    again = torch.einsum("bcmn,bcn->bmc", mixed, v.transpose(2, 3).flatten(1, 2))
    torch.testing.assert_close(layer.proj(again), out, atol=1e-5, rtol=1e-4)
