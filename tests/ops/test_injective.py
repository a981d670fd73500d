"""The op against the dense equation: outputs, gradients, masks, kernels, precision, and what makes it injective."""

from functools import partial

import pytest
import torch

from inline_attention import KERNELS, injective_linear_attention
from inline_attention.ops.kernels import relu_affine
from inline_attention.ops.reference import injective_weights, linear_weights

from ..dense_form import gradients


def tokens(batch=2, heads=3, queries=7, keys=7, dim=4, values=4, dtype=torch.float64):
    q, k, v = (torch.randn(batch, heads, n, size, dtype=dtype) for n, size in ((queries, dim), (keys, dim), (keys, values)))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def kernel_of(name):
    if name == "relu_affine":
        return partial(relu_affine, weight=torch.randn(3, 4, 4).double(), bias=torch.randn(3, 4).double())
    return name


def phi_of(kernel):
    return KERNELS[kernel] if isinstance(kernel, str) else kernel


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (2, 2), (7, 7), (197, 197), (3, 11), (5, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_dense_equation(kernel, queries, keys, masked):
    q, k, v = tokens(queries=queries, keys=keys, values=6)
    kernel = kernel_of(kernel)
    phi = phi_of(kernel)
    mask = (torch.rand(2, keys) > 0.5).index_fill(1, torch.tensor(0), True) if masked else None
    fast = injective_linear_attention(q, k, v, kernel=kernel, mask=mask)
    dense = injective_weights(phi(q), phi(k), mask=mask) @ v
    torch.testing.assert_close(fast, dense, rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(gradients(fast, [q, k, v]), gradients(dense, [q, k, v]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_scale_is_s():
    q, k, v = tokens()
    dense = injective_weights(q, k, scale=3.5) @ v
    torch.testing.assert_close(injective_linear_attention(q, k, v, scale=3.5), dense)


def test_gradcheck():
    q, k, v = tokens(batch=1, heads=2, queries=3, keys=4, dim=3, values=2)
    mask = torch.tensor([[True, False, True, True]])
    assert torch.autograd.gradcheck(partial(injective_linear_attention, mask=mask), (q, k, v))
    assert torch.autograd.gradgradcheck(partial(injective_linear_attention, mask=mask), (q, k, v))


def test_order_of_the_keys_does_not_matter():
    q, k, v = tokens()
    order = torch.randperm(7)
    torch.testing.assert_close(
        injective_linear_attention(q, k[:, :, order], v[:, :, order]), injective_linear_attention(q, k, v)
    )


def test_a_constant_added_to_every_key_changes_nothing():
    q, k, v = tokens()
    torch.testing.assert_close(injective_linear_attention(q, k + 5, v), injective_linear_attention(q, k, v))


@pytest.mark.parametrize("garbage", [1e6, float("nan"), float("inf")])
def test_masked_keys_have_no_influence(garbage):
    q, k, v = (t.detach() for t in tokens())
    mask = torch.ones(2, 7, dtype=torch.bool).index_fill(1, torch.tensor([2, 5]), False)
    mask[1, 1:] = False  # one valid token is left
    plain = injective_linear_attention(q, k, v, mask=mask)
    spoilt = ~mask[:, None, :, None]
    changed = injective_linear_attention(q, k.masked_fill(spoilt, garbage), v.masked_fill(spoilt, garbage), mask=mask)
    assert torch.equal(plain, changed)
    torch.testing.assert_close(plain[1], v[1, :, :1].expand(3, 7, 4), msg="one valid key: all weight is on it")


def test_an_image_without_valid_keys_gets_zeros():
    q, k, v = tokens()
    out = injective_linear_attention(q, k, v, mask=torch.zeros(2, 7, dtype=torch.bool))
    assert torch.equal(out, torch.zeros_like(out))
    assert all(g.isfinite().all() for g in gradients(out, [q, k, v]))


class TestInjectivity:
    """Different queries, different weights: the reason for subtracting the mean."""

    ray = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)

    def rows(self, weights, kernel, queries):
        k = torch.randn(1, 1, 9, 4, dtype=torch.float64)
        rows = weights(KERNELS[kernel](queries), KERNELS[kernel](k))[0, 0]
        return max(float((rows[0] - row).abs().max()) for row in rows[1:])

    def on_a_ray(self):
        return (self.ray[:, None] * torch.tensor([1.0, 0.5, 2.0, 0.3], dtype=torch.float64))[None, None]

    def test_linear_attention_confuses_queries_on_a_ray(self):
        no_eps = partial(linear_weights, eps=0.0)
        assert self.rows(no_eps, "relu", self.on_a_ray()) < 1e-12
        assert self.rows(no_eps, "identity", self.on_a_ray()) < 1e-12

    @pytest.mark.parametrize("kernel", ["identity", "relu", "leaky_relu"])
    def test_injective_attention_tells_them_apart(self, kernel):
        assert self.rows(injective_weights, kernel, self.on_a_ray()) > 0.05

    def test_keys_must_span_the_space_after_their_mean_is_taken(self):
        """Keys e_1 ... e_4 span four dimensions, but centred only three: queries that differ by a constant collide."""
        queries = torch.tensor([[1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0]], dtype=torch.float64)[None, None]
        corners = torch.eye(4, dtype=torch.float64)[None, None]
        rows = injective_weights(queries, corners)[0, 0]
        torch.testing.assert_close(rows[0], rows[1])
        origin = torch.cat([corners, torch.zeros(1, 1, 1, 4, dtype=torch.float64)], 2)
        rows = injective_weights(queries, origin)[0, 0]
        assert float((rows[0] - rows[1]).abs().max()) > 0.05

    def test_relu_collides_where_it_zeroes(self):
        """Queries that differ only in coordinates that are negative in all of them."""
        queries = torch.tensor([[1.0, 2.0, -0.5, -1.0], [1.0, 2.0, -3.0, -0.1]], dtype=torch.float64)[None, None]
        assert self.rows(injective_weights, "relu", queries) == 0
        assert self.rows(injective_weights, "identity", queries) > 0.01
        assert self.rows(injective_weights, "leaky_relu", queries) > 1e-4


class TestPrecision:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("count", [1, 197, 65_536])
    @pytest.mark.parametrize("autocast", [False, True])
    def test_half_is_within_its_rounding_of_fp32(self, dtype, count, autocast):
        q, k, v = (30 * torch.randn(1, 2, count, 8) + 10 for _ in range(3))
        low = [t.to(dtype).requires_grad_() for t in (q, k, v)]
        high = [t.detach().float().requires_grad_() for t in low]
        with torch.autocast("cpu", dtype, enabled=autocast):
            out = injective_linear_attention(*low)
        expected = injective_linear_attention(*high)
        assert out.dtype is dtype
        rounding = torch.finfo(dtype).eps
        torch.testing.assert_close(out.float(), expected, rtol=rounding, atol=rounding * float(expected.detach().abs().mean()))
        grad = torch.ones_like(expected) / count
        out.backward(grad.to(dtype))
        expected.backward(grad.to(dtype).float())
        for ours, theirs in zip(low, high, strict=True):
            assert ours.grad.isfinite().all()
            size = float(theirs.grad.abs().mean())
            tiny = torch.finfo(dtype).tiny * rounding  # the smallest step below one
            torch.testing.assert_close(ours.grad.float(), theirs.grad, rtol=rounding, atol=rounding * size + tiny)

    def test_autocast_does_not_touch_the_sums(self):
        q, k, v = (torch.randn(1, 2, 4096, 8) + 3 for _ in range(3))
        plain = injective_linear_attention(q, k, v)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(injective_linear_attention(q, k, v), plain)


class TestGraphs:
    def test_compiled_equals_eager(self):
        q, k, v = (t.detach().float() for t in tokens())
        mask = torch.rand(2, 7) > 0.3
        compiled = torch.compile(injective_linear_attention, fullgraph=True)
        torch.testing.assert_close(compiled(q, k, v, mask=mask), injective_linear_attention(q, k, v, mask=mask))


class TestErrors:
    def test_unknown_kernel_lists_the_known_ones(self):
        q, k, v = tokens()
        with pytest.raises(ValueError, match="unknown kernel 'cosine'; known: identity, relu, relu_affine, leaky_relu, exp"):
            injective_linear_attention(q, k, v, kernel="cosine")

    def test_a_kernel_with_parameters_must_bring_them(self):
        q, k, v = tokens()
        with pytest.raises(ValueError, match=r"'relu_affine' has learned parameters: pass functools.partial"):
            injective_linear_attention(q, k, v, kernel="relu_affine")

    def test_dimensions(self):
        q, k, v = tokens()
        with pytest.raises(ValueError, match=r"q must be \(batch, heads, tokens, head_dim\), got \(3, 7, 4\)"):
            injective_linear_attention(q[0], k, v)

    def test_empty(self):
        q, k, v = tokens()
        with pytest.raises(ValueError, match=r"k has no tokens: \(2, 3, 0, 4\)"):
            injective_linear_attention(q, k[:, :, :0], v[:, :, :0])

    def test_q_and_k_disagree(self):
        q, k, v = tokens()
        with pytest.raises(ValueError, match=r"q \(2, 3, 7, 3\) and k \(2, 3, 7, 4\) must agree"):
            injective_linear_attention(q[..., :3], k, v)

    def test_k_and_v_disagree(self):
        q, k, v = tokens()
        with pytest.raises(ValueError, match=r"k \(2, 3, 7, 4\) and v \(2, 3, 6, 4\) must agree"):
            injective_linear_attention(q, k, v[:, :, :6])

    def test_mask_shape(self):
        q, k, v = tokens()
        with pytest.raises(ValueError, match=r"mask must be \(batch, tokens\) = \(2, 7\) over the keys, got \(2, 8\)"):
            injective_linear_attention(q, k, v, mask=torch.ones(2, 8, dtype=torch.bool))

    def test_mask_dtype(self):
        q, k, v = tokens()
        with pytest.raises(ValueError, match=r"mask must be a boolean tensor, True where a token is valid, got torch.float32"):
            injective_linear_attention(q, k, v, mask=torch.ones(2, 7))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((None, 1, 1), TypeError, "q must be a tensor, got None"),
        ((1, 1, [1]), TypeError, r"v must be a tensor, got \[1\]"),
        ((1, torch.float64, 1), ValueError, "must agree in dtype, got torch.float32, torch.float64 and torch.float32"),
        ((1, torch.int64, 1), ValueError, "k must hold floating-point numbers, got torch.int64"),
        ((torch.complex64, 1, 1), ValueError, "q must hold floating-point numbers, got torch.complex64"),
        ((1, 1, "meta"), ValueError, "must be on one device, got cpu, cpu and meta"),
        ((1, "sparse", 1), ValueError, "k must be a dense tensor, got one of layout torch.sparse_coo"),
    ],
)
def test_wrong_tensors_are_named(given, error, message):
    plain = torch.zeros(1, 2, 3, 4)

    def made(what):
        if what == "sparse":
            return plain.to_sparse()
        return plain if what == 1 else plain.to(what) if isinstance(what, torch.dtype | str) else what

    with pytest.raises(error, match=message):
        injective_linear_attention(*map(made, given))
