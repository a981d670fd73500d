"""The state is additive: over chunks in any order, and over processes."""

import random

import pytest
import torch

from inline_attention import InjectiveState, injective_linear_attention

from ..dense_form import gradients
from ..processes import run_in_processes


def tokens(count=50, dtype=torch.float64):
    return [torch.randn(2, 3, count, 4, dtype=dtype).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize("sizes", [[50], [1, 49], [7, 13, 30], [1] * 50])
@pytest.mark.parametrize("masked", [False, True])
def test_any_split_in_any_order_gives_the_whole(sizes, masked):
    q, k, v = tokens()
    mask = torch.rand(2, 50) > 0.4 if masked else None
    masks = [None] * len(sizes) if mask is None else mask.split(sizes, 1)
    chunks = list(zip(k.split(sizes, 2), v.split(sizes, 2), masks, strict=True))
    random.Random(0).shuffle(chunks)
    out = sum(InjectiveState.from_tokens(*chunk) for chunk in chunks).attend(q)
    whole = injective_linear_attention(q, k, v, mask=mask)
    torch.testing.assert_close(out, whole, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(gradients(out, [q, k, v]), gradients(whole, [q, k, v]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_running_state_is_causal_attention():
    q, k, v = (t.detach() for t in tokens(6))
    state, rows = 0, []
    for i in range(6):
        state = state + InjectiveState.from_tokens(k[:, :, i : i + 1], v[:, :, i : i + 1])
        rows.append(state.attend(q[:, :, i : i + 1]))
    for i, row in enumerate(rows):
        seen = injective_linear_attention(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1])
        torch.testing.assert_close(row, seen)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_sums_are_at_least_fp32_and_the_result_has_the_queries_dtype(dtype):
    q, k, v = tokens(dtype=dtype)
    state = InjectiveState.from_tokens(k, v)
    expected = torch.promote_types(dtype, torch.float32)
    assert {t.dtype for t in (state.count, state.key_sum, state.value_sum, state.outer_sum)} == {expected}
    assert state.attend(q).dtype is dtype


def test_states_that_do_not_fit():
    q, k, v = tokens()
    state = InjectiveState.from_tokens(k, v)
    with pytest.raises(ValueError, match=r"states of shapes \(2, 3, 4, 4\) and \(1, 3, 4, 4\) cannot be added"):
        state + InjectiveState.from_tokens(k[:1], v[:1])
    with pytest.raises(ValueError, match=r"q \(2, 2, 50, 4\) does not fit a state of \(batch, heads, head_dim\) = \(2, 3, 4\)"):
        state.attend(q[:, :2])
    with pytest.raises(TypeError):
        state + 1
    with pytest.raises(TypeError):
        torch.zeros(2) + state
    assert state != InjectiveState.from_tokens(k, v)


def test_all_reduce_needs_a_group():
    _, k, v = tokens()
    with pytest.raises(RuntimeError, match=r"call torch.distributed.init_process_group first"):
        InjectiveState.from_tokens(k, v).all_reduce()


def some_of_the_tokens(rank, processes):
    """Each process has some of the tokens and gets its rows of the whole, outputs and gradients."""
    torch.manual_seed(0)
    q, k, v = tokens(11)
    whole = injective_linear_attention(q, k, v)
    (whole**2).sum().backward()
    mine = slice(0, 4) if rank == 0 else slice(4, 11)
    parts = [t.detach()[:, :, mine].requires_grad_() for t in (q, k, v)]
    out = InjectiveState.from_tokens(*parts[1:]).all_reduce().attend(parts[0])
    (out**2).sum().backward()
    torch.testing.assert_close(out, whole[:, :, mine], rtol=1e-12, atol=1e-12)
    for part, all_tokens in zip(parts, (q, k, v), strict=True):
        torch.testing.assert_close(part.grad, all_tokens.grad[:, :, mine], rtol=1e-12, atol=1e-12)


def test_two_processes_with_some_of_the_tokens_each(tmp_path):
    run_in_processes(2, tmp_path / "rendezvous", some_of_the_tokens)
