"""Hidden keys have no influence, on any mixer; what is hidden is what was asked for."""

from dataclasses import replace

import pytest
import timm
import torch

from inline_attention import MIXERS
from inline_attention.analysis.capture import seen_by
from inline_attention.analysis.masking import _hide, blindfold, hidden_keys, masked_output, masking
from inline_attention.analysis.neighbours import visible
from inline_attention.layers.mixer import Mixer

from .models import made, pictures


@pytest.mark.parametrize("mixer", MIXERS)
def test_nothing_hidden_changes_nothing(mixer):
    model = made(mixer=mixer)
    expected = model(pictures())
    with torch.no_grad(), blindfold(model, lambda layer: torch.zeros(layer.tokens, layer.tokens, dtype=torch.bool)):
        found = model(pictures())
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert not any(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_query_whose_hidden_keys_are_those_of_all_is_as_with_padding(mixer):
    """The same keys hidden from every query: that is a mask, which mixers have themselves."""
    model = made(mixer=mixer)
    layer = seen_by(model, pictures())[1]
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


@pytest.mark.parametrize("mixer", MIXERS)
def test_hidden_keys_have_no_influence(mixer):
    """What is at a place does not reach those from whom it is hidden."""
    model = made(mixer=mixer, local=False) if mixer == "inline" else made(mixer=mixer)
    layer = seen_by(model, pictures(1))[0]
    hidden = torch.zeros(layer.tokens, layer.tokens, dtype=torch.bool)
    hidden[3, 7] = True
    with torch.no_grad():
        before = masked_output(layer, hidden)
        x = layer.x.clone()
        x[:, 7] += 1
        after = masked_output(replace(layer, x=x), hidden)
    torch.testing.assert_close(after[:, 3], before[:, 3], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(after[:, 4], before[:, 4], atol=1e-3)


def test_softmax_in_windows_is_masked_too():
    """Swin's softmax twin: what is hidden has no influence, what is left is shared anew."""
    model = made("inline_swin_nano", "softmax")
    layer = next(layer for layer in seen_by(model, pictures()) if layer.windowed and max(layer.grid) > 3)
    with torch.no_grad():
        plain = masked_output(layer, torch.zeros(layer.tokens, layer.tokens, dtype=torch.bool))
        torch.testing.assert_close(plain, layer.mixer(layer.x, layer.grid), atol=1e-4, rtol=1e-4)
        hidden = torch.ones(layer.tokens, layer.tokens, dtype=torch.bool).fill_diagonal_(False)
        itself = masked_output(layer, hidden)
        expected = layer.mixer.proj(layer.mixer.kv(layer.x).chunk(2, -1)[1])
        torch.testing.assert_close(itself, expected, atol=1e-4, rtol=1e-4)
    assert any(layer.windowed for layer in seen_by(model, pictures()))


def test_softmax_of_timm_is_masked_too():
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=(64, 96), depth=2, num_classes=3).eval()
    pixels = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        expected = model(pixels)
        with blindfold(model, lambda layer: torch.zeros(layer.tokens, layer.tokens, dtype=torch.bool)):
            torch.testing.assert_close(model(pixels), expected, atol=1e-4, rtol=1e-4)
        hidden = torch.ones(25, 25, dtype=torch.bool).fill_diagonal_(False)
        kept = {}
        model.blocks[0].attn.proj.register_forward_pre_hook(lambda m, inputs: kept.update(out=inputs[0]))
        with blindfold(model, lambda layer: hidden if layer.name == "blocks.0.attn" else None):
            model(pixels)
        v = seen_by(model, pixels)["blocks.0.attn"].v.transpose(1, 2).flatten(2)
    # everyone saw only itself in the block that was blindfolded: `kept` was overwritten by the last pass, so look again
    with torch.no_grad(), blindfold(model, lambda layer: hidden if layer.name == "blocks.0.attn" else None):
        model(pixels)
    torch.testing.assert_close(kept["out"], v, atol=1e-5, rtol=1e-4)


def test_what_is_hidden():
    layer = seen_by(made(patch_size=2), pictures())[0]
    assert layer.grid == (8, 12)
    own = hidden_keys(layer, 3, "own window", torch.Generator())
    drawn = hidden_keys(layer, 3, "random tokens", torch.Generator().manual_seed(0))
    assert torch.equal(own.sum(-1), drawn.sum(-1)), "as many"
    assert own[layer.index((4, 5))].sum() == 9
    assert own[layer.index((0, 0))].sum() == 4
    assert own[layer.index((4, 5)), layer.index((5, 6))]
    prefix = layer.num_prefix_tokens
    assert not drawn[:, :prefix].any()
    assert not own[:prefix].any()
    assert not torch.equal(own, drawn)


def test_accuracy_with_and_without():
    """A model that counts is not hurt by chance: the numbers are those of its own predictions."""
    model = made(patch_size=2).train()
    pixels = pictures(6)
    with torch.no_grad():
        labels = model.eval()(pixels).argmax(1)
    model.train()
    batches = [(pixels[:4], labels[:4]), (pixels[4:], labels[4:])]
    found = masking(model, batches, (3, 5))
    assert model.training
    assert (found.top1, found.pictures, found.sizes, found.untouched) == (100, 6, (3, 5), {3: [], 5: []})
    assert found == masking(model, batches, (3, 5))
    with torch.no_grad():
        for rule in ("own window", "random tokens"):
            for place, size in enumerate((3, 5)):
                with blindfold(model.eval(), _hide(rule, size, 0, [])):
                    right = (model(pixels).argmax(1) == labels).double().mean()
                assert found.found[rule][place] == pytest.approx(100 * float(right))


def test_layers_that_cannot_be_masked_are_named():
    model = made("inline_swin_nano")
    batch = [(pictures(), torch.zeros(2, dtype=torch.long))]
    found = masking(model, batch, (3, 7))
    names = [name for name, module in model.named_modules() if isinstance(module, Mixer)]
    assert set(found.untouched[3]) < set(found.untouched[7]) <= set(names)
    alone = masking(model, batch, (3,))
    assert alone.untouched[3] == found.untouched[3]
    assert [rule[0] for rule in alone.found.values()] == [rule[0] for rule in found.found.values()], "whatever else is asked"
    with pytest.raises(ValueError, match="no layer has a map larger than 31 tokens"):
        masking(model, [(pictures(), torch.zeros(2, dtype=torch.long))], (31,))
    with pytest.raises(ValueError, match="no picture"):
        masking(model, [])


def test_what_is_hidden_within_windows_is_what_could_be_seen():
    """As many random tokens as neighbours, both out of the query's own window."""
    layer = next(layer for layer in seen_by(made("inline_swin_nano", "softmax"), pictures()) if layer.windowed)
    seen = visible(layer, torch.arange(layer.tokens))
    assert not seen.all()
    own, drawn = (hidden_keys(layer, 3, rule, torch.Generator().manual_seed(0)) for rule in ("own window", "random tokens"))
    assert not (own & ~seen).any()
    assert not (drawn & ~seen).any()
    assert torch.equal(own.sum(-1), drawn.sum(-1))


def test_layers_draw_for_themselves():
    """The same seed draws other tokens in every layer and at every size."""
    seen = seen_by(made(patch_size=2), pictures())
    drawn = [_hide("random tokens", size, 0, [])(layer) for layer in seen for size in (3, 5)]
    assert len({tuple(hidden.flatten().tolist()) for hidden in drawn}) == len(drawn)
    again = _hide("random tokens", 3, 0, [])(seen[0])
    assert torch.equal(again, drawn[0])


def test_a_model_that_needs_its_neighbours_loses_them():
    """Weights on oneself only: hiding the own window leaves nothing of it, random tokens leave it mostly alone."""
    torch.manual_seed(0)
    layer = seen_by(made(mixer="softmax", patch_size=2), pictures())[0]
    with torch.no_grad():
        layer.mixer.q.weight.copy_(layer.mixer.kv.weight[: layer.mixer.dim])
        layer.mixer.q.bias.copy_(layer.mixer.kv.bias[: layer.mixer.dim])
        layer.mixer.q.weight.mul_(30)
        layer.mixer.q.bias.mul_(30)
        plain = masked_output(layer, torch.zeros(layer.tokens, layer.tokens, dtype=torch.bool))
        apart = {}
        for rule in ("own window", "random tokens"):
            hidden = hidden_keys(layer, 3, rule, torch.Generator().manual_seed(0))
            apart[rule] = ((masked_output(layer, hidden) - plain).norm(dim=-1) > 0.1 * plain.norm(dim=-1)).float().mean()
    assert apart["own window"] > 3 * apart["random tokens"]
