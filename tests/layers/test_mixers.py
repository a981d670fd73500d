"""One contract for every member of MIXERS: its dense reference, outputs and gradients, and the same call."""

from math import prod

import pytest
import torch

from inline_attention import KERNELS, MIXERS
from inline_attention.layers import Block
from inline_attention.layers.layout import Layout

from ..dense_form import dense_forward, gradients
from ..formulas import formula
from .variants import CROSS, VARIANTS, WEIGHTED, build, random_mask

GRIDS = [((1, 1), 0), ((1, 2), 0), ((7, 1), 0), ((14, 14), 1), ((14, 9), 0), ((3, 2), 3)]


def assert_same(mixer, ours, theirs, inputs):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    inputs = [*inputs, *mixer.parameters()]
    slope = torch.linspace(-1, 2, ours.numel(), dtype=ours.dtype).view_as(ours)
    pairs = [torch.autograd.grad((slope * out).sum(), inputs, allow_unused=True) for out in (ours, theirs)]
    for name, a, b in zip(["x", *dict(mixer.named_parameters())], *pairs, strict=True):
        a, b = (torch.zeros(()) if g is None else g for g in (a, b))
        torch.testing.assert_close(
            a.expand_as(b), b.expand_as(a), rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(("name", "options"), WEIGHTED)
@pytest.mark.parametrize(("grid", "prefix"), GRIDS)
@pytest.mark.parametrize(
    ("batch", "masked"),
    [
        (1, False),
        (5, True),
        pytest.param(1, True, marks=pytest.mark.slow),
        pytest.param(5, False, marks=pytest.mark.slow),
    ],
)
def test_equals_its_dense_reference(name, options, grid, prefix, masked, batch):
    mixer = build(name, **options)
    x = torch.randn(batch, prefix + prod(grid), 8, dtype=torch.float64, requires_grad=True)
    call = {"num_prefix_tokens": prefix, "mask": random_mask(batch, x.shape[1]) if masked else None}
    assert_same(mixer, mixer(x, grid, **call), dense_forward(mixer, x, grid, **call), [x])


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize(("grid", "prefix"), [((1, 1), 0), ((14, 9), 0), ((3, 5), 2), ((9,), 1), ((2, 3, 4), 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_its_formula_written_out(name, options, grid, prefix, masked):
    """Outputs and all gradients of valid rows, against code that shares nothing with the package."""
    mixer = build(name, grid_dims=len(grid), **options)
    x = torch.randn(3, prefix + prod(grid), 8, dtype=torch.float64, requires_grad=True)
    mask = random_mask(3, x.shape[1]) if masked else None
    rows = torch.ones(3, x.shape[1], dtype=torch.bool) if mask is None else mask
    ours = mixer(x, grid, num_prefix_tokens=prefix, mask=mask)[rows]
    theirs = formula(name, dict(mixer.named_parameters()), x, grid, 2, prefix, mask, options=options)[rows]
    assert_same(mixer, ours, theirs, [x])


def channels_of_context(name):
    return 8 if name == "mila" else 6  # MILA's values are the context itself


@pytest.mark.parametrize("name", CROSS)
@pytest.mark.parametrize("masked", [False, True])
def test_cross_attention_equals_its_formula_written_out(name, masked):
    mixer = build(name, context_dim=channels_of_context(name))
    assert mixer.local_parts() == []
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    context = torch.randn(3, 7, mixer.context_dim, dtype=torch.float64)
    mask = random_mask(3, 7) if masked else None
    theirs = formula(name, dict(mixer.named_parameters()), x, None, 2, 0, mask, context)
    ours = mixer(x, context=context, mask=mask)
    assert_same(mixer, ours, theirs, [x])
    mixer(x, context=context, mask=mask).square().sum().backward()
    assert not [key for key, parameter in mixer.named_parameters() if parameter.grad is None]


@pytest.mark.parametrize(("name", "options"), WEIGHTED)
@pytest.mark.parametrize("grid", [(9,), (2, 3, 4)])
def test_grids_of_one_and_three_sides(name, options, grid):
    mixer = build(name, grid_dims=len(grid), **options)
    x = torch.randn(2, 1 + prod(grid), 8, dtype=torch.float64, requires_grad=True)
    call = {"num_prefix_tokens": 1, "mask": random_mask(2, x.shape[1])}
    assert_same(mixer, mixer(x, grid, **call), dense_forward(mixer, x, grid, **call), [x])


@pytest.mark.parametrize("name", CROSS)
@pytest.mark.parametrize("masked", [False, True])
def test_cross_attention(name, masked):
    mixer = build(name, context_dim=channels_of_context(name))
    x, context = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 7, mixer.context_dim, dtype=torch.float64)
    call = {"context": context, "mask": random_mask(2, 7) if masked else None}
    torch.testing.assert_close(mixer(x, **call), dense_forward(mixer, x, None, **call), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), [variant for variant in VARIANTS if variant.values[0] in CROSS])
def test_a_context_turns_the_local_part_off(name, options):
    mixer = build(name, **{**options, "form": "auto"} if "form" in options else options)
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    rows = mixer.attention_rows(x, (3, 4), [0, 5], context=x)
    assert rows.local is None
    torch.testing.assert_close(mixer(x, (3, 4), context=x), mixer(x, context=x))


@pytest.mark.parametrize("name", ["inline", "linear"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel(name, kernel):
    mixer = build(name, kernel=kernel)
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 12, 8, dtype=torch.float64, requires_grad=True)
    tolerance = 1e-10 if name == "inline" or kernel in ("relu", "relu_affine", "exp") else 1e-6  # the divisor comes near zero
    ours, dense = mixer(x, (3, 4)), dense_forward(mixer, x, (3, 4))
    torch.testing.assert_close(ours, dense, rtol=tolerance, atol=tolerance)
    for a, b in zip(gradients(ours, [x]), gradients(dense, [x]), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", [name for name in CROSS if not MIXERS[name].own_projections])
def test_norm_of_queries_and_keys(name):
    """The same as doing it by hand: tokens whose projections are normalised already, projected by the identity."""
    normed, plain = build(name, qk_norm=True, local=False), build(name, local=False)
    context = torch.randn(2, 12, 8, dtype=torch.float64)
    for mixer in (normed, plain):
        mixer.load_state_dict(plain.state_dict(), strict=False)
        torch.nn.init.eye_(mixer.q.weight)
        mixer.kv.weight.data[:8] = torch.eye(8)
        mixer.q.bias.data.zero_()
        mixer.kv.bias.data.zero_()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    q, k = (torch.nn.functional.layer_norm(tokens.unflatten(2, (2, 4)), (4,)).transpose(1, 2) for tokens in (x, context))
    v = (context @ plain.kv.weight[8:].T).unflatten(2, (2, 4)).transpose(1, 2)
    layout = {"layout": Layout(None, None)} if plain.reads_layout else {}
    by_hand = plain.proj(plain.attend(q, k, v, None, **layout).transpose(1, 2).flatten(2))
    torch.testing.assert_close(normed(x, context=context), by_hand)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_an_image_without_valid_tokens_spoils_nothing(name, options):
    """Finite, and no gradient to the other images' parameters is lost to NaN."""
    mixer = build(name, **options)
    x = torch.randn(2, 12, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True] * 12, [False] * 12])
    out = mixer(x, (3, 4), mask=mask)
    assert out.isfinite().all()
    out.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in (x, *mixer.parameters()))
    if mixer.is_weighted_sum:
        rows = mixer.attention_rows(x, (3, 4), range(12), mask=mask)
        assert torch.equal(rows.mixed[1], torch.zeros_like(rows.mixed[1]))
        torch.testing.assert_close(out, dense_forward(mixer, x, (3, 4), mask=mask), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), WEIGHTED)
def test_without_biases(name, options):
    mixer = build(name, qkv_bias=False, proj_bias=False, **options)
    assert {type(part.bias) for part in mixer.children() if isinstance(part, torch.nn.Linear)} == {type(None)}
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    torch.testing.assert_close(mixer(x, (3, 4)), dense_forward(mixer, x, (3, 4)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("garbage", [1e6, float("nan")])
def test_masked_tokens_have_no_influence(name, options, garbage):
    """On valid rows, nor on any gradient, nor through a block."""
    mixer = build(name, **options)
    block = Block(mixer).double()
    x = torch.randn(3, 13, 8, dtype=torch.float64)
    mask = random_mask(3, 13)
    spoilt = x.masked_fill(~mask.unsqueeze(-1), garbage)
    for module in (mixer, block):
        results = []
        for given in (x, spoilt):
            module.zero_grad()
            out = module(given, (3, 4), num_prefix_tokens=1, mask=mask)[mask]
            out.square().sum().backward()
            results.append([out, *(parameter.grad for parameter in mixer.parameters())])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_masked_garbage_under_autocast_leaves_gradients_finite(name, options):
    mixer = build(name, dtype=torch.float32, **options)
    mask = random_mask(3, 13)
    x = torch.randn(3, 13, 8).masked_fill(~mask.unsqueeze(-1), 1e6)
    with torch.autocast("cpu", torch.float16):
        out = mixer(x, (3, 4), num_prefix_tokens=1, mask=mask)
    out[mask].float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


@pytest.mark.parametrize(("name", "options"), [variant for variant in VARIANTS if not MIXERS[variant.values[0]].stretches])
def test_a_mask_is_the_same_as_a_shorter_sequence(name, options):
    """Padding at the end of a row of tokens, where the convolutions' own padding is zero too."""
    mixer = build(name, grid_dims=1, **options)
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    mask = (torch.arange(12) < 9).expand(2, -1)
    torch.testing.assert_close(mixer(x, (12,), mask=mask)[:, :9], mixer(x[:, :9], (9,)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_images_of_a_batch_do_not_meet(name, options):
    mixer = build(name, **options)
    x = torch.randn(4, 12, 8, dtype=torch.float64)
    one_by_one = torch.cat([mixer(image, (3, 4)) for image in x.split(1)])
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(mixer(x, (3, 4)), one_by_one, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(mixer(x[order], (3, 4)), one_by_one[order], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [n for n in MIXERS if n not in ("angular", "focused") and MIXERS[n].needs_grid is None])
def test_without_a_local_part_tokens_have_no_order(name):
    mixer = build(name, local=False)
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    order = torch.randperm(12)
    torch.testing.assert_close(mixer(x[:, order], (3, 4)), mixer(x)[:, order], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_no_parameter_is_unused_and_none_shares_a_name(name, options):
    mixer = build(name, **options)
    mixer(torch.randn(2, 12, 8, dtype=torch.float64), (3, 4)).square().sum().backward()
    assert not [key for key, parameter in mixer.named_parameters() if parameter.grad is None]
    twin = build(name, **options)
    twin.load_state_dict(mixer.state_dict())
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    assert torch.equal(mixer(x, (3, 4)), twin(x, (3, 4)))


@pytest.mark.parametrize("name", MIXERS)
def test_the_local_part_is_on_by_default_for_inline_only(name):
    assert (MIXERS[name](8, 2).local is not None) == (name == "inline")


@pytest.mark.parametrize("name", MIXERS)
def test_dropout(name):
    """Key or weight dropout while training only; a dropped key leaves no trace in the others' rows."""
    x = torch.randn(2, 24, 8, dtype=torch.float64)
    mixer = build(name, attn_drop=0.5)
    assert torch.equal(mixer(x, (4, 6)), mixer(x, (4, 6)))
    mixer.train()
    assert not torch.equal(mixer(x, (4, 6)), mixer(x, (4, 6)))
    dropped = build(name, proj_drop=0.5).train()(x, (4, 6))
    assert 0.3 < float((dropped == 0).double().mean()) < 0.7


@pytest.mark.parametrize("name", [n for n in CROSS if n != "softmax"])
def test_key_dropout_is_a_random_mask(name, monkeypatch):
    mixer = build(name, attn_drop=0.5, local=False)
    x, context = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 24, 8, dtype=torch.float64)
    draw, mask = torch.rand(2, 24), torch.rand(2, 24) > 0.3
    expected = mixer(x, context=context, mask=mask & (draw >= 0.5))
    monkeypatch.setattr(torch, "rand", lambda *_, **__: draw)
    out = mixer.train()(x, context=context, mask=mask)
    if name == "hydra":  # its sum is not divided by anything: what is dropped is made up for
        out, expected = out - mixer.proj.bias, 2 * (expected - mixer.proj.bias)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("name", [n for n in MIXERS if n not in CROSS])
def test_key_dropout_without_a_context(name, monkeypatch):
    """Queries of dropped keys stay."""
    mixer = build(name, attn_drop=0.5)
    x, draw = torch.randn(2, 24, 8, dtype=torch.float64), torch.rand(2, 24)
    given = mixer._prepare(x, (4, 6), 0, None, None, None, None)
    q, k, v = mixer.project(x, (4, 6))
    heads = mixer.attend(q, k, v, draw >= 0.5, **mixer._formula_options(given))
    monkeypatch.setattr(torch, "rand", lambda *_, **__: draw)
    torch.testing.assert_close(mixer.train()(x, (4, 6)), mixer.proj(mixer.merge_heads(heads)))


@pytest.mark.parametrize(("name", "options"), WEIGHTED)
def test_rows_of_chosen_queries_are_rows_of_all(name, options):
    mixer = build(name, **options)
    x = torch.randn(2, 13, 8, dtype=torch.float64)
    every = mixer.attention_rows(x, (3, 4), range(13), num_prefix_tokens=1)
    some = mixer.attention_rows(x, (3, 4), torch.tensor([7, 0]), num_prefix_tokens=1)
    torch.testing.assert_close(some.mixed, every.mixed[:, :, [7, 0]])
    assert (some.local is None) == (every.local is None) == (not mixer.local_parts())
    if some.local is not None:
        torch.testing.assert_close(some.local, every.local[:, :, [7, 0]])
