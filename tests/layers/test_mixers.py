"""One contract for every member of MIXERS: its dense reference, outputs and gradients, and the same call."""

from math import prod

import pytest
import torch

from inline_attention import KERNELS, MIXERS
from inline_attention.layers import Block

from ..dense import dense_forward, gradients
from ..formulas import formula

VARIANTS = [
    pytest.param(name, {"local": local, **form}, id="-".join([name, *(["local"] if local else []), *form.values()]))
    for name in MIXERS
    for local in (False, True)
    for form in ([{"form": "folded"}, {"form": "heads"}] if name == "inline" else [{}])
]
GRIDS = [((1, 1), 0), ((1, 2), 0), ((7, 1), 0), ((14, 14), 1), ((14, 9), 0), ((3, 2), 3)]


def build(name, dim=8, num_heads=2, dtype=torch.float64, **options):
    return MIXERS[name](dim, num_heads, dtype=dtype, **options).eval()


def random_mask(batch, count):
    """Some valid; in the last picture only one."""
    mask = torch.rand(batch, count) > 0.4
    mask[:, 0] = True
    mask[-1] = torch.arange(count) == count // 2
    return mask


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


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize(("grid", "prefix"), GRIDS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", [1, 5])
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
    theirs = formula(name, dict(mixer.named_parameters()), x, grid, 2, prefix, mask)[rows]
    assert_same(mixer, ours, theirs, [x])


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("masked", [False, True])
def test_cross_attention_equals_its_formula_written_out(name, masked):
    mixer = build(name, context_dim=6)
    assert mixer.local_parts() == []
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    context = torch.randn(3, 7, 6, dtype=torch.float64)
    mask = random_mask(3, 7) if masked else None
    theirs = formula(name, dict(mixer.named_parameters()), x, None, 2, 0, mask, context)
    ours = mixer(x, context=context, mask=mask)
    assert_same(mixer, ours, theirs, [x])
    mixer(x, context=context, mask=mask).square().sum().backward()
    assert not [key for key, parameter in mixer.named_parameters() if parameter.grad is None]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("grid", [(9,), (2, 3, 4)])
def test_grids_of_one_and_three_sides(name, options, grid):
    mixer = build(name, grid_dims=len(grid), **options)
    x = torch.randn(2, 1 + prod(grid), 8, dtype=torch.float64, requires_grad=True)
    call = {"num_prefix_tokens": 1, "mask": random_mask(2, x.shape[1])}
    assert_same(mixer, mixer(x, grid, **call), dense_forward(mixer, x, grid, **call), [x])


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("masked", [False, True])
def test_cross_attention(name, masked):
    mixer = build(name, context_dim=6)
    x, context = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 7, 6, dtype=torch.float64)
    call = {"context": context, "mask": random_mask(2, 7) if masked else None}
    torch.testing.assert_close(mixer(x, **call), dense_forward(mixer, x, None, **call), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
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


@pytest.mark.parametrize("name", MIXERS)
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
    by_hand = plain.proj(plain.attend(q, k, v, None).transpose(1, 2).flatten(2))
    torch.testing.assert_close(normed(x, context=context), by_hand)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_picture_without_valid_tokens_spoils_nothing(name, options):
    """Finite, and no gradient to the other pictures' parameters is lost to NaN."""
    mixer = build(name, **options)
    x = torch.randn(2, 12, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True] * 12, [False] * 12])
    out = mixer(x, (3, 4), mask=mask)
    assert out.isfinite().all()
    out.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in (x, *mixer.parameters()))
    rows = mixer.attention_rows(x, (3, 4), range(12), mask=mask)
    assert torch.equal(rows.mixed[1], torch.zeros_like(rows.mixed[1]))
    torch.testing.assert_close(out, dense_forward(mixer, x, (3, 4), mask=mask), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_without_biases(name, options):
    mixer = build(name, qkv_bias=False, proj_bias=False, **options)
    assert mixer.q.bias is None
    assert mixer.kv.bias is None
    assert mixer.proj.bias is None
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


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_mask_is_the_same_as_a_shorter_sequence(name, options):
    """Padding at the end of a row of tokens, where the convolutions' own padding is zero too."""
    mixer = build(name, grid_dims=1, **options)
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    mask = (torch.arange(12) < 9).expand(2, -1)
    torch.testing.assert_close(mixer(x, (12,), mask=mask)[:, :9], mixer(x[:, :9], (9,)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_pictures_of_a_batch_do_not_meet(name, options):
    mixer = build(name, **options)
    x = torch.randn(4, 12, 8, dtype=torch.float64)
    one_by_one = torch.cat([mixer(picture, (3, 4)) for picture in x.split(1)])
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(mixer(x, (3, 4)), one_by_one, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(mixer(x[order], (3, 4)), one_by_one[order], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [n for n in MIXERS if n not in ("angular", "focused")])
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


@pytest.mark.parametrize("name", [n for n in MIXERS if n != "softmax"])
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


def in_half_and_full_precision(name, options, dtype, autocast, count, size, dim=8, offset=0.0):
    """Output and gradient in half precision and in fp32, from the same rounded inputs."""
    grid, prefix = ((14, 14), 1) if count == 197 else ((1, count), 0) if count < 64 else ((count // 64, 64), 0)
    mixer = build(name, dim, dtype=torch.float32, **options)
    x = (size * torch.randn(1, count, dim) + offset * torch.randn(dim)).to(dtype)
    results = []
    for low in (True, False):
        given = x.to(dtype if low and not autocast else torch.float32).requires_grad_()
        mixer = mixer.to(dtype if low and not autocast else torch.float32)
        with torch.autocast("cpu", dtype, enabled=low and autocast):
            out = mixer(given, grid, num_prefix_tokens=prefix)
        assert out.dtype is (dtype if low else torch.float32)
        (grad,) = torch.autograd.grad(out.float().square().mean(), given)
        results.append((out.detach().float(), grad.float()))
    return results


HALF = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("options", [options.values[1] for options in VARIANTS if options.values[0] == "inline"])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7, 197, 65_536])
def test_inline_in_half_precision_is_near_fp32(options, dtype, autocast, count):
    (out, grad), (expected, expected_grad) = in_half_and_full_precision("inline", options, dtype, autocast, count, size=30)
    rounding = torch.finfo(dtype).eps
    assert out.isfinite().all()
    assert grad.isfinite().all()
    assert (out - expected).abs().max() < 4 * rounding * expected.abs().max()
    assert (grad - expected_grad).norm() < 8 * rounding * expected_grad.norm()


@pytest.mark.parametrize("options", [options.values[1] for options in VARIANTS if options.values[0] == "inline"])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_common_offset_does_not_spoil_the_covariance(options, autocast):
    """Values of rounded weights are centred by their own mean: an offset of 30 leaves bf16 as good as without."""
    (out, _), (expected, _) = in_half_and_full_precision(
        "inline", options, torch.bfloat16, autocast, 197, size=1, dim=64, offset=30.0
    )
    assert (out - expected).norm() < 2 * torch.finfo(torch.bfloat16).eps * expected.norm()


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("count", [197, 65_536])
def test_every_mixer_is_finite_and_near_fp32_in_half_precision(name, options, dtype, autocast, count):
    if name == "softmax":
        count = min(count, 4096)  # quadratic
    (out, grad), (expected, _) = in_half_and_full_precision(name, options, dtype, autocast, count, size=1)
    assert out.isfinite().all()
    assert grad.isfinite().all()
    rounding = torch.finfo(dtype).eps
    assert (out - expected).norm() < 4 * rounding * expected.norm()


class OnPictures(torch.nn.Module):
    """(B, C, H, W) through a mixer, so that a graph can have a dynamic grid."""

    def __init__(self, mixer):
        super().__init__()
        self.mixer = mixer

    def forward(self, picture):
        return self.mixer(picture.flatten(2).mT, tuple(picture.shape[2:]))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_export_with_dynamic_batch_and_grid(name, options):
    model = OnPictures(build(name, dtype=torch.float32, **options))
    batch, height, width = (torch.export.Dim(side, min=1, max=4096) for side in ("batch", "height", "width"))
    exported = torch.export.export(
        model, (torch.randn(2, 8, 5, 6),), dynamic_shapes=({0: batch, 2: height, 3: width},)
    ).module()
    for shape in ((2, 8, 5, 6), (1, 8, 14, 9), (5, 8, 2, 31), (3, 8, 16, 16)):
        picture = torch.randn(shape)
        torch.testing.assert_close(exported(picture), model(picture), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_compiled_equals_eager(name, options):
    torch.compiler.reset()
    mixer = build(name, dtype=torch.float32, **options)
    compiled = torch.compile(mixer, fullgraph=True)
    x = torch.randn(2, 13, 8, requires_grad=True)
    call = {"num_prefix_tokens": 1, "mask": random_mask(2, 13)}
    ours, eager = compiled(x, (3, 4), **call), mixer(x, (3, 4), **call)
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients(ours, [x]), gradients(eager, [x]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_rows_of_chosen_queries_are_rows_of_all(name, options):
    mixer = build(name, **options)
    x = torch.randn(2, 13, 8, dtype=torch.float64)
    every = mixer.attention_rows(x, (3, 4), range(13), num_prefix_tokens=1)
    some = mixer.attention_rows(x, (3, 4), torch.tensor([7, 0]), num_prefix_tokens=1)
    torch.testing.assert_close(some.mixed, every.mixed[:, :, [7, 0]])
    assert (some.local is None) == (every.local is None) == (not mixer.local_parts())
    if some.local is not None:
        torch.testing.assert_close(some.local, every.local[:, :, [7, 0]])


class TestErrors:
    """Each says what was wrong, with which value."""

    @pytest.mark.parametrize("name", MIXERS)
    def test_heads_that_do_not_divide(self, name):
        with pytest.raises(ValueError, match="dim=10 cannot be divided into num_heads=4 heads of equal size"):
            MIXERS[name](10, 4)

    def test_unknown_mixer(self):
        with pytest.raises(
            ValueError, match="unknown mixer 'sigmoid'; known: inline, softmax, linear, efficient, hydra, angular"
        ):
            MIXERS["sigmoid"]

    @pytest.mark.parametrize("name", MIXERS)
    @pytest.mark.parametrize(
        ("shape", "call", "message"),
        [
            ((2, 12), {}, r"x must be \(batch, tokens, channels\), got \(2, 12\)"),
            ((2, 0, 8), {"grid": None}, r"x has no tokens: \(2, 0, 8\)"),
            ((2, 12, 6), {}, "x has 6 channels, the layer was built for 8"),
            ((2, 13, 8), {}, r"grid \(3, 4\) has 12 tokens, and with num_prefix_tokens=0 that is not the 13"),
            ((2, 12, 8), {"num_prefix_tokens": 2}, "with num_prefix_tokens=2 that is not the 12"),
            ((2, 12, 8), {"num_prefix_tokens": -1}, "num_prefix_tokens must not be negative, got -1"),
            ((2, 12, 8), {"grid": 12}, r"grid must be a tuple of 1, 2 or 3 whole numbers, such as \(H, W\), got 12"),
            ((2, 12, 8), {"grid": (3.0, 4.0)}, r"whole numbers, such as \(H, W\), got \(3.0, 4.0\)"),
            ((2, 12, 8), {"grid": (-3, -4)}, r"every side of the grid must be at least 1, got \(-3, -4\)"),
            ((2, 12, 8), {"grid": (12,)}, r"grid \(12,\) has 1 sides, the layer has grid_dims=2"),
            ((2, 12, 8), {"mask": torch.ones(2, 11, dtype=torch.bool)}, r"= \(2, 12\) over the keys, got \(2, 11\)"),
            ((2, 12, 8), {"mask": torch.ones(2, 12)}, r"mask must be a boolean tensor, .* got torch.float32"),
            ((2, 12, 8), {"mask": [True]}, r"mask must be a boolean tensor, .* got \[True\]"),
            ((2, 12, 8), {"context": torch.ones(3, 5, 8)}, "x has a batch of 2, context of 3"),
            ((2, 12, 8), {"context": torch.ones(2, 5, 7)}, "context has 7 channels, the layer was built for 8"),
        ],
    )
    def test_call(self, name, shape, call, message):
        call = {"grid": (3, 4), **call}
        with pytest.raises(ValueError, match=message):
            MIXERS[name](8, 2)(torch.zeros(shape), **call)

    @pytest.mark.parametrize(("name", "options"), VARIANTS)
    def test_a_local_part_needs_a_grid(self, name, options):
        mixer = build(name, dtype=torch.float32, **options)
        if mixer.local_parts():
            with pytest.raises(ValueError, match=r"has a local part: pass the grid, .* that its 12 tokens lie on"):
                mixer(torch.zeros(2, 12, 8))
        else:
            assert mixer(torch.zeros(2, 12, 8)).shape == (2, 12, 8)

    def test_a_context_layer_needs_a_context(self):
        with pytest.raises(ValueError, match="reads a context of 6 channels: pass context="):
            MIXERS["softmax"](8, 2, context_dim=6)(torch.zeros(2, 12, 8))

    @pytest.mark.parametrize(
        ("queries", "message"),
        [
            ([12], r"queries \[12\] are not all within the 12"),
            ([-1], "not all within"),
            ([], r"must be a list of token indices, got \[\]"),
            ([0.5], "must be a list of token indices"),
            ([True], "must be a list of token indices"),
        ],
    )
    def test_queries(self, queries, message):
        with pytest.raises(ValueError, match=message):
            MIXERS["inline"](8, 2).attention_rows(torch.zeros(2, 12, 8), (3, 4), queries)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"kernel": "cosine"}, "unknown kernel 'cosine'; known: identity, relu, relu_affine, leaky_relu, exp"),
            ({"kernel": None}, r"kernel must be a name \(identity, relu, .*\) or a function, got None"),
            ({"context_dim": 0}, "context_dim must be at least 1, got 0"),
            ({"form": "fast"}, "unknown form 'fast'; known: auto, folded, heads"),
            (
                {"form": "folded", "kernel": "relu"},
                "the folded form needs the identity kernel and no qk_norm, got kernel='relu'",
            ),
            ({"attn_drop": 1.0}, r"attn_drop must be in \[0, 1\), got 1.0"),
            ({"grid_dims": 4}, "grid_dims must be 1, 2 or 3, got 4"),
            ({"local_size": (3, 3, 3)}, r"kernel size \(3, 3, 3\) does not fit a grid of 2 sides"),
            ({"local_size": 0}, "kernel size 0 does not fit"),
        ],
    )
    def test_construction(self, options, message):
        with pytest.raises(ValueError, match=message):
            MIXERS["inline"](8, 2, **options)
