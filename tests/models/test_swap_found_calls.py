"""Attention found on an example: other sizes than the example's, arguments H and W, dropout, tokens in another order."""

import re

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from inline_attention import swap

from .test_swap_found import Plain


class OnPatches(nn.Module):
    """Patches of 8 x 8, one attention, and the mean; `call` calls the attention with tokens, (B, N, C), and their grid."""

    def __init__(self, attention, call=lambda attention, x, grid: attention(x)):
        super().__init__()
        self.embed, self.attention, self.call = nn.Conv2d(3, 32, 8, 8), attention, call

    def forward(self, x):
        image = self.embed(x)
        return self.call(self.attention, image.flatten(2).mT, tuple(image.shape[2:]))


class Local(Plain):
    """Global up to 25 tokens; above, parts of five tokens."""

    def attend(self, q, k, v, x):
        if x.shape[1] <= 25:
            return super().attend(q, k, v, x)
        q, k, v = (part.unflatten(2, (-1, 5)).movedim(2, 1).flatten(0, 1) for part in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v)
        return out.unflatten(0, (len(x), -1)).movedim(1, 2).flatten(2, 3)


class Cooler(Plain):
    """A temperature that depends on the number of tokens."""

    def attend(self, q, k, v, x):
        return F.scaled_dot_product_attention(q * (1 if x.shape[1] <= 25 else 0.5), k, v)


class Silent(Plain):
    """Attention only in small images."""

    def attend(self, q, k, v, x):
        return F.scaled_dot_product_attention(q, k, v) if x.shape[1] <= 25 else v


def example(height=40, width=40):
    torch.manual_seed(0)
    return torch.randn(2, 3, height, width)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Local, "with images twice as high: its queries are not one for each token: (20, 4, 5, 8) for an input of (2, 50, 32)"),
        (Cooler, "with images twice as high: softmax attention with its projections is off by"),
        (Silent, "with images twice as high: 0 calls"),
    ],
)
def test_a_larger_image_may_show_another_attention(kind, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        swap(OnPatches(kind()), "softmax", example=example())


def test_a_model_of_one_size_is_proven_at_that_size():
    def call(attention, x, grid):
        assert grid == (5, 5)
        return attention(x)

    assert swap(OnPatches(Local(), call), local=False, example=example()).changed


def test_the_first_axis_is_not_the_images():
    """Sequence first, (N, B, C), beside attention of images first: the one is left, and does not keep the other from it."""

    class First(Plain):
        def forward(self, x):
            q, k, v = self.maps(x).unflatten(2, (3, 4, 8)).permute(2, 1, 3, 0, 4)
            return self.last(F.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3).flatten(2))

    model = nn.Sequential(OnPatches(Plain()), First())
    model[1].register_forward_pre_hook(lambda module, given: (given[0].transpose(0, 1),))
    report = swap(model, local=False, example=example())
    assert list(report.changed) == ["0.attention"]
    assert report.left["1"].endswith("its queries are not one for each token: (2, 4, 25, 8) for an input of (25, 2, 32)")


class Sided(Plain):
    def forward(self, x, H, W):
        assert x.shape[1] == H * W
        return super().forward(x)


class Reversed(Plain):
    def forward(self, x, size):
        assert size[0] * size[1] == x.shape[1]
        return super().forward(x)


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (Sided, lambda attention, x, grid: attention(x, *grid)),
        (Sided, lambda attention, x, grid: attention(x, W=grid[1], H=grid[0])),
        (Reversed, lambda attention, x, grid: attention(x, grid[::-1])),
    ],
)
def test_height_and_width_are_the_grid(kind, call):
    """At any size, and the local residual sees it the right way round."""
    model = OnPatches(kind(), call).eval()
    before = [model(example(*size)) for size in ((40, 40), (24, 56))]
    swap(model, "softmax", example=example())
    after = [model(example(*size)) for size in ((40, 40), (24, 56))]
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
    assert swap(model).changed["attention"] == "softmax -> inline with local residual"
    x = model.embed(example(24, 56)).flatten(2).mT
    torch.testing.assert_close(model(example(24, 56)), model.attention.mixer(x, (3, 7)))


@pytest.mark.slow
def test_a_pair_of_sides_is_exported_with_any_size():
    model = OnPatches(Reversed(), lambda attention, x, grid: attention(x, grid[::-1])).eval()
    swap(model, example=example())
    height, width = (8 * torch.export.Dim(side, min=2, max=64) for side in ("height", "width"))
    exported = torch.export.export(model, (example(40, 48),), dynamic_shapes=({2: height, 3: width},)).module()
    torch.testing.assert_close(exported(example(24, 56)), model(example(24, 56)), rtol=1e-5, atol=1e-5)


def test_other_numbers_are_no_grid():
    class Counted(Plain):
        def forward(self, x, H, W):
            return super().forward(x)

    model = OnPatches(Counted(), lambda attention, x, grid: attention(x, 3, 25))
    with pytest.raises(ValueError, match="it is called with H=3, W=25, which are not the sides of its grid"):
        swap(model, example=example())


def test_an_argument_that_changed_is_named():
    class Tempered(Plain):
        def forward(self, x, factor=1.0):
            return super().forward(x)

    model = OnPatches(Tempered(), lambda attention, x, grid: attention(x, 0.5))
    swap(model, local=False, example=example())
    with pytest.raises(ValueError, match=r"found with factor=0\.5, got 2\.0: call the model as in the example of swap"):
        model.attention(torch.randn(2, 25, 32), 2.0)


def test_dropout_is_kept_or_named():
    class Dropping(Plain):
        def __init__(self):
            super().__init__()
            self.path, self.weights_drop = timm.layers.DropPath(0.2), nn.Dropout(0.3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += self.training
            return super().forward(F.dropout(self.path(x), 0.4, self.training))

        def attend(self, q, k, v, x):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=self.weights_drop.p if self.training else 0.0)

    model = OnPatches(Dropping()).train()
    original = model.attention
    change = swap(model, local=False, example=example()).changed["attention"]
    assert change.endswith("-> inline; dropped: path (DropPath), dropout of 0.4")
    mixer = model.attention.mixer
    assert mixer.proj_drop is original.last[1]
    assert (mixer.attn_drop, mixer.training, original.training, float(original.calls)) == (0.3, True, True, 0)


def test_windows_are_in_the_report():
    """timm's DaViT attends in windows of 7 x 7."""
    model = timm.create_model("davit_tiny", embed_dims=(16, 32), depths=(1, 1), num_heads=(2, 4), num_classes=5).eval()
    images = torch.randn(1, 3, 64, 64)
    before = model(images)
    changed = swap(model, "softmax", example=images).changed
    found, where = "softmax (timm.models.davit.WindowAttention, found on the example)", " in parts of 49 tokens"
    assert list(changed.values()) == [f"{found}{where} -> softmax{where}"] * 2
    torch.testing.assert_close(model(images), before, rtol=1e-4, atol=1e-5)
