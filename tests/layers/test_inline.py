"""InLineAttention beyond the common contract: two forms of one function, and who chooses."""

import copy

import pytest
import torch
from torch import nn

from inline_attention import InLineAttention
from inline_attention.layers import LinearAttention
from inline_attention.layers.bands import Place


def twins(**options):
    folded = InLineAttention(24, 3, form="folded", dtype=torch.float64, **options)
    heads = InLineAttention(24, 3, form="heads", dtype=torch.float64, **options)
    heads.load_state_dict(folded.state_dict())
    return folded, heads


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("scale", [None, 2.5])
def test_forms_are_one_function(local, batch, scale):
    folded, heads = twins(local=local, scale=scale)
    x = torch.randn(batch, 31, 24, dtype=torch.float64)
    torch.testing.assert_close(
        folded(x, (5, 6), num_prefix_tokens=1), heads(x, (5, 6), num_prefix_tokens=1), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_learned_scale_is_a_fixed_one_of_each_head(local, batch):
    """It starts as the fixed one, in both forms; every head follows its own; without gradients too, where weights are kept."""
    folded, heads = twins(local=local, scale="learned", start_scale=2.5)
    fixed, _ = twins(local=local, scale=2.5)
    fixed.load_state_dict({key: value for key, value in folded.state_dict().items() if key != "scale"})
    x, call = torch.randn(batch, 31, 24, dtype=torch.float64), {"grid": (5, 6), "num_prefix_tokens": 1}
    for layer in (folded, heads):
        torch.testing.assert_close(layer(x, **call), fixed(x, **call), rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        folded(x, **call)
        for layer in (folded, heads):
            layer.scale.copy_(torch.tensor([0.0, 1.0, -3.0]))
        torch.testing.assert_close(folded(x, **call), heads(x, **call), rtol=1e-12, atol=1e-12)
        folded.reset_parameters()
        assert folded.scale.tolist() == [2.5] * 3
    even = heads.attention_rows(x, (5, 6), [4], num_prefix_tokens=1).mixed[:, 0]
    torch.testing.assert_close(even, torch.full_like(even, 1 / 31))


def test_linear_attention_plus_the_covariance_term():
    """The member of the family between InLine and MALA: rows of both, less even ones, at every length of a query."""
    layer = InLineAttention(24, 3, base="linear", local=False, dtype=torch.float64)
    inline = InLineAttention(24, 3, local=False, dtype=torch.float64)
    linear = LinearAttention(24, 3, dtype=torch.float64)
    for other in (inline, linear):
        other.load_state_dict(layer.state_dict())
    x = torch.randn(2, 30, 24, dtype=torch.float64)
    bias = layer.proj.bias
    torch.testing.assert_close(
        layer(x) - bias, inline(x) + linear(x) - 2 * bias - layer.proj(layer.kv(x).chunk(2, -1)[1].mean(1, keepdim=True)) + bias
    )
    rows = layer.attention_rows(x, None, [3, 7]).mixed
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, 3, 2, dtype=torch.float64), rtol=0, atol=1e-5)
    assert not layer.folds(x.repeat(1, 100, 1))


def test_larger_local_kernels():
    folded, heads = twins(local_size=(3, 5))
    x = torch.randn(2, 30, 24, dtype=torch.float64)
    assert folded.local.kernels(x.mean(1)).shape == (2, 24, 3, 5)
    torch.testing.assert_close(folded(x, (5, 6)), heads(x, (5, 6)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("local", "least"), [(True, 18), (False, 24)])
def test_the_rule(local, least):
    """Folded from N = C on, with a local part from 3 C / 4."""
    layer = InLineAttention(24, 3, local=local)
    assert [layer.folds(torch.zeros(1, n, 24)) for n in (1, least - 1, least, 1000)] == [False, False, True, True]


def test_the_rule_can_be_overridden():
    assert InLineAttention(24, 3, form="folded").folds(torch.zeros(1, 1, 24))
    assert not InLineAttention(24, 3, form="heads").folds(torch.zeros(1, 1000, 24))


def test_what_cannot_be_folded_is_not():
    x = torch.zeros(1, 1000, 24)
    assert not InLineAttention(24, 3, kernel="relu").folds(x)
    dropping = InLineAttention(24, 3, attn_drop=0.1)
    assert not dropping.folds(x)
    assert dropping.eval().folds(x)


@pytest.mark.parametrize("name", ["q", "kv", "proj"])
def test_an_adapted_projection_is_called_and_not_folded(name):
    """A layer around a projection, as adapters make them, must not be passed by."""

    class Adapted(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.weight, self.bias = inner.weight, inner.bias

        def forward(self, x):
            return self.inner(x) + x.sum()

    layer = InLineAttention(24, 3)
    x = torch.randn(1, 30, 24)
    plain = layer(x, (5, 6))
    setattr(layer, name, Adapted(getattr(layer, name)))
    assert not layer.folds(x)
    assert not torch.allclose(layer(x, (5, 6)), plain)


@pytest.mark.parametrize("name", ["q", "kv", "proj"])
@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_an_observed_projection_is_called(name, register):
    """Hooks, and all that works by them: pruning, weight norm, feature extractors."""
    layer = InLineAttention(24, 3)
    x, seen = torch.randn(1, 30, 24), []
    assert layer.folds(x)
    handle = getattr(getattr(layer, name), register)(lambda *_: seen.append(name))
    layer(x, (5, 6))
    assert seen == [name]
    handle.remove()
    assert layer.folds(x)


def test_an_empty_batch():
    assert InLineAttention(24, 3)(torch.zeros(0, 30, 24), (5, 6)).shape == (0, 30, 24)


def test_starts_like_the_convolutions_it_stands_for():
    layer = InLineAttention(64, 2)
    for part in (layer.local.hidden, layer.local.taps):
        bound = 32**-0.5
        assert 0.9 * bound < part.weight.abs().max() <= bound


def test_the_keys_bias_is_void():
    layer, heads = twins()
    x = torch.randn(2, 30, 24, dtype=torch.float64)
    for module in (layer, heads):
        module(x, (5, 6)).square().sum().backward()
        torch.testing.assert_close(module.kv.bias.grad[:24], torch.zeros(24, dtype=torch.float64), rtol=0, atol=1e-10)
        assert module.kv.bias.grad[24:].abs().min() > 0


def test_an_exported_graph_is_folded():
    """It has to serve every N, and makes neither queries nor keys: no product has 3 C or 2 C columns."""
    layer = InLineAttention(24, 3).eval()

    class OnImages(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, image):
            return self.layer(image.flatten(2).mT, tuple(image.shape[2:]))

    sides = {2: torch.export.Dim("height", min=1, max=99), 3: torch.export.Dim("width", min=1, max=99)}
    program = torch.export.export(OnImages(), (torch.randn(1, 24, 2, 3),), dynamic_shapes=(sides,))
    assert {node.meta["val"].shape[-1] for node in program.graph.nodes if "linear" in str(node.target)} == {24}
    image = torch.randn(1, 24, 1, 2)
    torch.testing.assert_close(program.module()(image), layer(image.flatten(2).mT, (1, 2)), rtol=1e-5, atol=1e-5)


def test_a_kernel_can_be_any_function():
    layer = InLineAttention(24, 3, kernel=lambda x: torch.cat([x, x.abs()], -1), dtype=torch.float64)
    x = torch.randn(2, 30, 24, dtype=torch.float64)
    rows = layer.attention_rows(x, (5, 6), [3])
    assert layer(x, (5, 6)).shape == x.shape
    torch.testing.assert_close(rows.mixed.sum(-1), torch.ones(2, 3, 1, dtype=torch.float64))


def test_learned_kernels_start_as_relu():
    learned, relu = InLineAttention(24, 3, kernel="relu_affine"), InLineAttention(24, 3, kernel="relu")
    missing = learned.load_state_dict(relu.state_dict(), strict=False).missing_keys
    assert missing == ["kernel.weight", "kernel.bias"]
    x = torch.randn(2, 30, 24)
    torch.testing.assert_close(learned(x, (5, 6)), relu(x, (5, 6)))


def test_behaves_like_a_module():
    layer = InLineAttention(24, 3)
    twin = copy.deepcopy(layer)
    x = torch.randn(2, 30, 24)
    assert torch.equal(layer(x, (5, 6)), twin(x, (5, 6)))
    assert "dim=24, num_heads=3" in repr(layer)
    assert "kernel_size=(3, 3)" in repr(layer)
    meta = InLineAttention(24, 3, device="meta")
    assert meta(x.to("meta"), (5, 6)).shape == x.shape
    assert {p.dtype for p in InLineAttention(24, 3, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


def test_no_more_than_linear_memory_is_written():
    """No tensor of the forward pass has N x N elements."""
    layer = InLineAttention(8, 2)
    with torch.profiler.profile(record_shapes=True) as profile:
        layer(torch.randn(1, 1024, 8), (32, 32))
    largest = max((torch.Size(shape).numel() for event in profile.events() for shape in event.input_shapes if shape), default=0)
    assert 1024 * 8 <= largest <= 4 * 1024 * 8


@pytest.mark.parametrize("kernel", ["identity", "relu"])
@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("size", [3, (5, 3), (2, 3)])
def test_summaries_of_bands_answer_like_the_whole(kernel, local, size):
    """An image of 7 x 4 tokens and a class token, in bands of 1, 4 and 2 rows, with the rows next to them."""
    layer = InLineAttention(24, 3, kernel=kernel, local=local, local_size=size if local else 3, dtype=torch.float64).eval()
    x = torch.randn(2, 29, 24, dtype=torch.float64)
    whole = layer(x, (7, 4), num_prefix_tokens=1)
    rows = x[:, 1:].unflatten(1, (7, 4))
    bands = [(0, 1), (1, 5), (5, 7)]
    parts = [layer.summarize(rows[:, a:b].flatten(1, 2)) for a, b in bands]
    masked = torch.tensor([[True] + [False] * 28]).expand(2, -1)
    summary = parts[2] + layer.summarize(x, mask=masked) + parts[0] + parts[1]
    assert summary.numel() == 2 * (1 + 3 * 24 + 24 * 8)
    tall = (size if isinstance(size, int) else size[0]) if local else 1
    above, below = (tall - 1) // 2, tall // 2
    answers = [layer.respond(x[:, :1], (summary,))]
    for a, b in bands:
        start, stop = max(0, a - above), min(7, b + below)
        place = Place(start, 7, (a - start, stop - b))
        answers.append(layer.respond(rows[:, start:stop].flatten(1, 2), (summary,), (stop - start, 4), place=place))
    torch.testing.assert_close(torch.cat(answers, 1), whole, rtol=1e-11, atol=1e-11)
