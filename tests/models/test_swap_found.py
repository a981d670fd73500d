"""Attention that swap does not know: found by its call of `scaled_dot_product_attention`, proven by numbers, or left."""

import copy
import re

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models import VOLO, VisionTransformer
from torch import nn

from inline_attention import swap
from inline_attention.layers import InLineAttention
from inline_attention.models.found_attention import FoundAttention

IMAGES = (2, 3, 32, 32)
SIZE = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}


class Plain(nn.Module):
    """One map for queries, keys and values; `after` sees them before attention, `finish` the result."""

    def __init__(self):
        super().__init__()
        self.maps = nn.Linear(32, 96)
        self.last = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1))

    def forward(self, x, attn_mask=None, is_causal=False):
        q, k, v = self.maps(x).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        return self.finish(self.attend(q, k, v, x), x)

    def attend(self, q, k, v, x):
        return F.scaled_dot_product_attention(q, k, v)

    def finish(self, out, x):
        return self.last(out.transpose(1, 2).flatten(2))


class ByHead(Plain):
    """Queries, keys and values of a head side by side."""

    def forward(self, x, attn_mask=None, is_causal=False):
        q, k, v = self.maps(x).unflatten(2, (4, 3, 8)).permute(3, 0, 2, 1, 4)
        return self.finish(self.attend(q, k, v, x), x)


class Scaled(Plain):
    """Another scale, some of it before the call; batch and heads in one axis."""

    def attend(self, q, k, v, x):
        q, k, v = (part.flatten(0, 1) for part in (q * 0.5, k, 2 * v))
        return F.scaled_dot_product_attention(q, k, v, scale=0.6).unflatten(0, (-1, 4))


class Apart(Plain):
    """Three maps, one without bias; the input has a name, and weights come back as None."""

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList([nn.Linear(32, 32), nn.Linear(32, 32, bias=False), nn.Linear(32, 32)])

    def forward(self, x, attn_mask=None, is_causal=False):
        q, k, v = (part(x).unflatten(2, (4, 8)).transpose(1, 2) for part in self.maps)
        return self.finish(self.attend(q, k, v, x), x)


class Biased(Plain):
    def attend(self, q, k, v, x):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(17, 17))


class Causal(Plain):
    def attend(self, q, k, v, x):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Twice(Plain):
    def attend(self, q, k, v, x):
        return F.scaled_dot_product_attention(q, k, v) + F.scaled_dot_product_attention(k, q, v)


class Normed(Plain):
    def attend(self, q, k, v, x):
        return F.scaled_dot_product_attention(F.normalize(q, dim=-1), k, v)


class Gated(Plain):
    def finish(self, out, x):
        return self.last(out.transpose(1, 2).flatten(2)) * torch.sigmoid(x)


class Switched(Plain):
    """Plain for the example, and something else for other inputs: only numbers on other inputs can tell."""

    def finish(self, out, x):
        out = self.last(out.transpose(1, 2).flatten(2))
        self.first = getattr(self, "first", x)
        return out if torch.equal(x, self.first) else out + 0.1 * x


class Pooled(Plain):
    def attend(self, q, k, v, x):
        return F.scaled_dot_product_attention(q, k[:, :, 1:], v[:, :, 1:])


def vit(kind, **options):
    torch.manual_seed(0)
    model = VisionTransformer(**{**SIZE, **options})
    for block in model.blocks:
        block.attn = kind()
    return model.eval()


@pytest.mark.parametrize("kind", [Plain, ByHead, Scaled, Apart])
def test_plain_attention_is_found_proven_and_swapped(kind):
    model, images = vit(kind).double().train(), torch.randn(IMAGES).double()
    before = model.eval()(images)
    model.train()
    report = swap(model, "softmax", local=False, example=images)
    found = f"softmax ({kind.__module__}.{kind.__name__}, found on the example) -> softmax"
    assert report.changed == {f"blocks.{number}.attn": found for number in range(2)}
    assert model.blocks[0].attn.training
    torch.testing.assert_close(model.eval()(images), before, rtol=1e-10, atol=1e-10)
    assert swap(model).changed["blocks.0.attn"] == "softmax -> inline with local residual"
    mixer = model.blocks[0].attn.mixer
    assert isinstance(mixer, InLineAttention)
    model(images).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


def test_without_an_example_it_is_named_only_if_its_name_says_attention():
    with pytest.raises(ValueError, match="nothing to swap in VisionTransformer: none of its modules is attention"):
        swap(vit(Plain))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Biased, "with a mask or bias of shape (17, 17)"),
        (Causal, "causal"),
        (Twice, "2 calls"),
        (Normed, "its queries are no linear map of its input"),
        (Gated, "its output is not one linear map of the result"),
        (Pooled, "its keys are not one for each token: (2, 4, 16, 8) for an input of (2, 17, 32)"),
    ],
)
def test_what_is_not_plain_is_named_and_left(kind, why):
    model = vit(kind)
    state, attention = copy.deepcopy(model.state_dict()), model.blocks[0].attn
    name = f"{kind.__module__}.{kind.__name__}"
    said = f"blocks.0.attn is left (swap does not know {name}; it calls scaled_dot_product_attention with 4 heads of 8: {why})"
    with pytest.raises(ValueError, match=re.escape(said)):
        swap(model, example=torch.randn(IMAGES))
    assert model.blocks[0].attn is attention
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_numbers_on_other_input_decide():
    with pytest.raises(ValueError, match=r"softmax attention with its projections is off by 0\.\d+ of its largest output"):
        swap(vit(Switched), example=torch.randn(IMAGES))


def test_known_and_unknown_together_and_some_chosen():
    model, images = vit(Plain), torch.randn(IMAGES)
    model.blocks[1].attn = timm.layers.Attention(32, 4)
    report = swap(model, example=images, only=r"blocks\.0\.attn")
    assert list(report.changed) == ["blocks.0.attn"]
    assert report.left == {"blocks.1.attn": "not chosen"}
    assert swap(model, example=images).left == {"blocks.0.attn": "inline with local residual already"}


def test_the_grid_is_checked_on_the_example():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Plain()

        def forward(self, x, attn_mask=None, is_causal=False):
            return F.pad(self.inner(x[:, 2:]), (0, 0, 2, 0))

    model, images = vit(Inner), torch.randn(IMAGES)
    said = "its 15 tokens are not those of the image, which local=True needs: pass local=False"
    with pytest.raises(ValueError, match=re.escape(said)):
        swap(model, example=images)
    assert list(swap(model, example=images, local=False).changed) == ["blocks.0.attn.inner", "blocks.1.attn.inner"]
    assert model(images).shape == (2, 5)


def test_it_is_called_as_in_the_example():
    model, images = vit(Plain), torch.randn(IMAGES)
    swap(model, example=images)
    attention = model.blocks[0].attn
    assert isinstance(attention, FoundAttention)
    with pytest.raises(
        ValueError, match=r"found with attn_mask=None, got a tensor of shape \(17, 17\): call the model as in the example"
    ):
        model.forward_features(images, attn_mask=torch.zeros(17, 17))


def test_maps_and_a_library_that_swap_does_not_know():
    """VOLO's attention takes maps, (B, H, W, C)."""
    torch.manual_seed(0)
    sizes = {"img_size": 64, "embed_dims": (16, 32, 32, 32), "num_heads": (2, 4, 4, 4), "mlp_ratio": 2.0, "stem_hidden_dim": 8}
    model = VOLO((1, 1, 1, 1), **sizes, num_classes=5).eval()
    images = torch.randn(1, 3, 64, 64)
    before = model(images)
    report = swap(model, "softmax", example=images)
    assert list(report.changed) == ["network.2.0.attn", "network.3.0.attn", "network.4.0.attn"]
    assert report.left["network.0.0.attn"] == "swap does not know timm.models.volo.OutlookAttention"
    torch.testing.assert_close(model(images), before, rtol=1e-4, atol=1e-5)
    swap(model)
    assert model(images).shape == before.shape


def test_arguments_by_name():
    """transformers' ViT-MSN, whose images have a name."""
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
    model = transformers.ViTMSNModel(transformers.ViTMSNConfig(**size)).eval()
    images = torch.randn(IMAGES)
    before = model(images).last_hidden_state
    report = swap(model, "softmax", example={"pixel_values": images})
    assert len(report.changed) == 2
    torch.testing.assert_close(model(images).last_hidden_state, before, rtol=1e-5, atol=1e-5)
    swap(model)
    assert model(images).last_hidden_state.shape == before.shape
