"""torch's own attention: swapped where it is self-attention on the example, as in torchvision's ViT; otherwise left."""

import re

import pytest
import torch
from torch import nn
from torchvision.models import VisionTransformer

from inline_attention import swap
from inline_attention.layers import InLineAttention


def vit():
    """torchvision's, which makes its positions for square images: here of 32 x 32."""
    torch.manual_seed(0)
    model = VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=5, attention_dropout=0.1).double()
    nn.init.normal_(model.heads.head.weight)
    return model


def test_torchvisions_vit():
    model, images = vit(), torch.randn(2, 3, 32, 32).double()
    before = model.eval()(images)
    model.train()
    name = "encoder.layers.encoder_layer_0.self_attention"
    assert swap(model, "softmax", example=images).changed[name] == "softmax -> softmax"
    mixer = model.get_submodule(name).mixer
    assert (mixer.attn_drop, mixer.training) == (0.1, True)
    torch.testing.assert_close(model.eval()(images), before, rtol=1e-10, atol=1e-10)
    assert swap(model).changed[name] == "softmax -> inline with local residual"
    model(images).square().sum().backward()
    mixer = model.get_submodule(name).mixer
    assert isinstance(mixer, InLineAttention)
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


def test_torchs_encoder_calls_the_mixer():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).double().eval()
    tokens = torch.randn(2, 9, 32).double()
    with torch.no_grad():
        before = model(tokens)
        assert len(swap(model, "softmax", local=False, example=tokens).changed) == 2
        torch.testing.assert_close(model(tokens), before, rtol=1e-10, atol=1e-10)
        calls = []
        model.layers[0].self_attn.mixer.register_forward_hook(lambda *a: calls.append(1))
        model(tokens)
    assert calls == [1]
    with pytest.raises(ValueError, match=r"was called with attn_mask of shape \(9, 9\): leave it as it was"):
        model(tokens, mask=torch.zeros(9, 9).double())


class Calling(nn.Module):
    def __init__(self, call, **options):
        super().__init__()
        self.attention, self.call = nn.MultiheadAttention(32, 4, **options), call

    def forward(self, x):
        return self.call(self.attention, x)[0]


SWAPPABLE = {"batch_first": True}


@pytest.mark.parametrize(
    ("call", "options", "why"),
    [
        (lambda m, x: m(x, x + 1, x + 1), SWAPPABLE, "it is called with other keys or values than its queries"),
        (lambda m, x: m(x, x, x, attn_mask=x.new_zeros(9, 9)), SWAPPABLE, "it is called with attn_mask of shape (9, 9)"),
        (lambda m, x: m(x, x, x, x.new_zeros(2, 9)), SWAPPABLE, "it is called with key_padding_mask of shape (2, 9)"),
        (lambda m, x: m(x, x, x), {}, "its tokens are (2, 9, 32) with batch_first=False: not (B, N, C)"),
        (lambda m, x: m(x, x, x), SWAPPABLE | {"add_zero_attn": True}, "it has kdim, vdim, bias_k or add_zero_attn"),
    ],
)
def test_other_calls_are_left(call, options, why):
    model = nn.Sequential(Calling(call, **options)).eval()
    said = f"0.attention is left (torch.nn.modules.activation.MultiheadAttention: {why})"
    with pytest.raises(ValueError, match=re.escape(said)):
        swap(model, local=False, example=torch.randn(2, 9, 32))


def test_without_an_example_it_is_left():
    with pytest.raises(ValueError, match="MultiheadAttention may be called with masks or other keys: pass example= to see how"):
        swap(vit())
