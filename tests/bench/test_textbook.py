"""The textbook form computes the same function as the layer, also in whole models."""

import pytest
import torch
from timm.models import create_model

from inline_attention import InLineAttention
from inline_attention.bench.textbook import TextbookInLine, as_textbook


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("local", [False, True])
def test_textbook_is_the_same_function(local, prefix):
    layer = InLineAttention(64, 2, local=local)
    x = torch.randn(3, prefix + 30, 64)
    found = TextbookInLine(layer)(x, (5, 6), num_prefix_tokens=prefix)
    torch.testing.assert_close(found, layer(x, (5, 6), num_prefix_tokens=prefix), rtol=1e-5, atol=1e-5)


def test_a_model_converted_to_textbook_is_the_same_function():
    model = create_model("inline_deit_nano", img_size=32).eval()  # it has a class token
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = model(images)
        found = as_textbook(model)(images)
    assert sum(isinstance(module, TextbookInLine) for module in model.modules()) == 6
    assert not any(isinstance(module, InLineAttention) for module in model.modules())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"lepe": True}, {"kernel": "relu"}, {"windows": [(2, 2, False)]}])
def test_unsupported_layers_are_an_error(options):
    with pytest.raises(ValueError, match="the textbook form has no windows, no LePE"):
        TextbookInLine(InLineAttention(64, 2, **options))
