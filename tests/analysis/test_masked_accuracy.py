"""Masked keys have no influence with any mixer; the masked keys are those that were chosen."""

from dataclasses import replace

import pytest
import timm
import torch

from inline_attention.analysis.capture import capture_pass
from inline_attention.analysis.locality import visible_keys
from inline_attention.analysis.masked_accuracy import _hide, keys_to_mask, mask_keys, masked_accuracy, masked_output
from inline_attention.compat import has_hooks
from inline_attention.layers.mixer import Mixer

from .models import WEIGHTED, images, make_model


@pytest.mark.parametrize("mixer", WEIGHTED)
def test_an_empty_mask_changes_nothing(mixer):
    model = make_model(mixer=mixer)
    expected = model(images())
    with torch.no_grad(), mask_keys(model, lambda layer: torch.zeros(layer.tokens, layer.tokens, dtype=torch.bool)):
        found = model(images())
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert not any(map(has_hooks, model.modules()))


@pytest.mark.parametrize("mixer", WEIGHTED)
def test_keys_masked_for_all_queries_are_as_padding(mixer):
    """The same keys masked for every query are a padding mask, which mixers support themselves."""
    model = make_model(mixer=mixer)
    layer = capture_pass(model, images())[1]
    gone = torch.zeros(layer.tokens, dtype=torch.bool)
    gone[[2, 5]] = True
    with torch.no_grad():
        found = masked_output(layer, gone.expand(layer.tokens, -1))
        mask = (~gone).expand(len(layer.x), -1)
        options = {key: value for key, value in layer.options.items() if key != "local_input"}
        expected = layer.mixer(layer.x, layer.grid, mask=mask, local_input=None, **options)
        if layer.mixer.local is not None:  # the mask also changes the mean that makes the kernels: take that out
            kernels = layer.mixer.local.kernels
            mean = layer.x.mean(1)
            layer.mixer.local.kernels = lambda _: kernels(mean)
            expected = layer.mixer(layer.x, layer.grid, mask=mask, **options)
    kept = [place for place in range(layer.tokens) if not gone[place]]
    torch.testing.assert_close(found[:, kept], expected[:, kept], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mixer", WEIGHTED)
def test_masked_keys_have_no_influence(mixer):
    """A change of a token does not reach a query for which it is masked."""
    model = make_model(mixer=mixer, local=False) if mixer == "inline" else make_model(mixer=mixer)
    layer = capture_pass(model, images(1))[0]
    hidden = torch.zeros(layer.tokens, layer.tokens, dtype=torch.bool)
    hidden[3, 7] = True
    with torch.no_grad():
        before = masked_output(layer, hidden)
        x = layer.x.clone()
        x[:, 7] = -x[:, 7]  # not by adding one number, which the norm of MHLA takes out
        after = masked_output(replace(layer, x=x), hidden)
    torch.testing.assert_close(after[:, 3], before[:, 3], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(after[:, 4], before[:, 4], atol=1e-3)


def test_softmax_in_windows_is_masked_too():
    """Swin with softmax: masked keys have no influence, the other weights are normalised again."""
    model = make_model("inline_swin_nano", "softmax")
    layer = next(layer for layer in capture_pass(model, images()) if layer.windowed and max(layer.grid) > 3)
    with torch.no_grad():
        plain = masked_output(layer, torch.zeros(layer.tokens, layer.tokens, dtype=torch.bool))
        torch.testing.assert_close(plain, layer.mixer(layer.x, layer.grid), atol=1e-4, rtol=1e-4)
        hidden = torch.ones(layer.tokens, layer.tokens, dtype=torch.bool).fill_diagonal_(False)
        itself = masked_output(layer, hidden)
        expected = layer.mixer.proj(layer.mixer.kv(layer.x).chunk(2, -1)[1])
        torch.testing.assert_close(itself, expected, atol=1e-4, rtol=1e-4)
    assert any(layer.windowed for layer in capture_pass(model, images()))


def test_softmax_of_timm_is_masked_too():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=(64, 96), depth=2, num_classes=3).eval()
    pixels = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        expected = model(pixels)
        with mask_keys(model, lambda layer: torch.zeros(layer.tokens, layer.tokens, dtype=torch.bool)):
            torch.testing.assert_close(model(pixels), expected, atol=1e-4, rtol=1e-4)
        hidden = torch.ones(25, 25, dtype=torch.bool).fill_diagonal_(False)
        kept = {}
        model.blocks[0].attn.proj.register_forward_pre_hook(lambda m, inputs: kept.update(out=inputs[0]))
        with mask_keys(model, lambda layer: hidden if layer.name == "blocks.0.attn" else None):
            model(pixels)
        v = capture_pass(model, pixels)["blocks.0.attn"].v.transpose(1, 2).flatten(2)
    # each token attends only to itself in the masked block; `kept` was overwritten by the last pass, so run it again
    with torch.no_grad(), mask_keys(model, lambda layer: hidden if layer.name == "blocks.0.attn" else None):
        model(pixels)
    torch.testing.assert_close(kept["out"], v, atol=1e-5, rtol=1e-4)


def test_which_keys_are_masked():
    layer = capture_pass(make_model(patch_size=2), images())[0]
    assert layer.grid == (8, 12)
    own = keys_to_mask(layer, 3, "own window", torch.Generator())
    drawn = keys_to_mask(layer, 3, "random tokens", torch.Generator().manual_seed(0))
    assert torch.equal(own.sum(-1), drawn.sum(-1)), "as many"
    assert own[layer.index((4, 5))].sum() == 9
    assert own[layer.index((0, 0))].sum() == 4
    assert own[layer.index((4, 5)), layer.index((5, 6))]
    prefix = layer.num_prefix_tokens
    assert not drawn[:, :prefix].any()
    assert not own[:prefix].any()
    assert not torch.equal(own, drawn)


def test_masked_accuracy_is_that_of_the_models_predictions():
    """Counted again with `mask_keys`."""
    model = make_model(patch_size=2, depth=2).train()
    pixels = images(6)
    with torch.no_grad():
        labels = model.eval()(pixels).argmax(1)
    model.train()
    batches = [(pixels[:4], labels[:4]), (pixels[4:], labels[4:])]
    found = masked_accuracy(model, batches, (3, 5))
    assert model.training
    assert (found.top1, found.images, found.sizes, found.untouched) == (100, 6, (3, 5), {3: [], 5: []})
    assert found == masked_accuracy(model, batches, (3, 5))
    with torch.no_grad():
        for rule in ("own window", "random tokens"):
            for place, size in enumerate((3, 5)):
                with mask_keys(model.eval(), _hide(rule, size, 0, [])):
                    right = (model(pixels).argmax(1) == labels).double().mean()
                assert found.found[rule][place] == pytest.approx(100 * float(right))


def test_layers_that_cannot_be_masked_are_named():
    model = make_model("inline_swin_nano")
    batch = [(images(), torch.zeros(2, dtype=torch.long))]
    found = masked_accuracy(model, batch, (3, 7))
    names = [name for name, module in model.named_modules() if isinstance(module, Mixer)]
    assert set(found.untouched[3]) < set(found.untouched[7]) <= set(names)
    alone = masked_accuracy(model, batch, (3,))
    assert alone.untouched[3] == found.untouched[3]
    assert [rule[0] for rule in alone.found.values()] == [rule[0] for rule in found.found.values()], (
        "independent of the other sizes"
    )
    with pytest.raises(ValueError, match="no layer has a map larger than 31 tokens"):
        masked_accuracy(model, [(images(), torch.zeros(2, dtype=torch.long))], (31,))
    with pytest.raises(ValueError, match="no image"):
        masked_accuracy(model, [])


def test_in_windows_only_visible_keys_are_masked():
    """As many random tokens as neighbours, both of the query's own window."""
    layer = next(layer for layer in capture_pass(make_model("inline_swin_nano", "softmax"), images()) if layer.windowed)
    seen = visible_keys(layer, torch.arange(layer.tokens))
    assert not seen.all()
    own, drawn = (keys_to_mask(layer, 3, rule, torch.Generator().manual_seed(0)) for rule in ("own window", "random tokens"))
    assert not (own & ~seen).any()
    assert not (drawn & ~seen).any()
    assert torch.equal(own.sum(-1), drawn.sum(-1))


def test_random_tokens_differ_between_layers_and_sizes():
    """With the same seed."""
    seen = capture_pass(make_model(patch_size=2), images())
    drawn = [_hide("random tokens", size, 0, [])(layer) for layer in seen for size in (3, 5)]
    assert len({tuple(hidden.flatten().tolist()) for hidden in drawn}) == len(drawn)
    again = _hide("random tokens", 3, 0, [])(seen[0])
    assert torch.equal(again, drawn[0])


def test_masking_the_neighbourhood_hurts_a_local_model():
    """Each token attends to itself: masking its window changes its output, masking random tokens mostly does not."""
    torch.manual_seed(0)
    layer = capture_pass(make_model(mixer="softmax", patch_size=2), images())[0]
    with torch.no_grad():
        layer.mixer.q.weight.copy_(layer.mixer.kv.weight[: layer.mixer.dim])
        layer.mixer.q.bias.copy_(layer.mixer.kv.bias[: layer.mixer.dim])
        layer.mixer.q.weight.mul_(30)
        layer.mixer.q.bias.mul_(30)
        plain = masked_output(layer, torch.zeros(layer.tokens, layer.tokens, dtype=torch.bool))
        apart = {}
        for rule in ("own window", "random tokens"):
            hidden = keys_to_mask(layer, 3, rule, torch.Generator().manual_seed(0))
            apart[rule] = ((masked_output(layer, hidden) - plain).norm(dim=-1) > 0.1 * plain.norm(dim=-1)).float().mean()
    assert apart["own window"] > 3 * apart["random tokens"]
