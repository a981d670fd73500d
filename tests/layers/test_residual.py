"""Sums that products make by themselves are the sums that they stand for, counted, differentiable, and invisible to hooks."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from inline_attention.layers import MIXERS, Block, InLineAttention
from inline_attention.layers import block as block_file
from inline_attention.ops.sums import add_linear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("strided", [True, False])
def test_outputs_and_gradients(bias, strided):
    linear = nn.Linear(6, 4, bias=bias).double()
    x, residual = torch.randn(2, 10, 6, dtype=torch.float64), torch.randn(2, 10, 4, dtype=torch.float64)
    if strided:
        x, residual = x[:, 1::2], residual.transpose(0, 1).contiguous().transpose(0, 1)[:, 1::2]
    x, residual = x.detach().requires_grad_(), residual.detach().requires_grad_()
    kept = residual.detach().clone()
    torch.testing.assert_close(add_linear(residual, x, linear), residual + linear(x))
    assert torch.equal(residual, kept)
    assert torch.autograd.gradcheck(lambda x, r, *p: add_linear(r, x, linear), (x, residual, *linear.parameters()))


def test_what_is_more_than_a_linear_map_is_called():
    class Twice(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    x, residual = torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    twice = Twice(4, 4)
    torch.testing.assert_close(add_linear(residual, x, twice), residual + twice(x))
    seen = []
    plain = nn.Linear(4, 4)
    plain.register_forward_hook(lambda module, given, out: seen.append(out))
    total = add_linear(residual, x, plain)
    torch.testing.assert_close(total, residual + seen[0])
    with torch.autocast("cpu", torch.bfloat16):
        assert add_linear(residual, x, nn.Linear(4, 4)).dtype is torch.float32


def test_products_in_place_are_counted():
    linear = nn.Linear(6, 4)
    x, residual = torch.randn(2, 5, 6), torch.randn(2, 5, 4)
    with FlopCounterMode(display=False) as counter:
        add_linear(residual, x, linear)
    assert counter.get_total_flops() == 2 * 2 * 5 * 6 * 4
    counts = []
    for prefix in (0, 1):  # with a prefix, the read-out x A adds itself to the convolution
        layer, x = InLineAttention(32, 2, form="folded").eval(), torch.randn(1, 36 + prefix, 32)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            layer(x, (6, 6), num_prefix_tokens=prefix)
        counts.append(counter.get_total_flops())
    assert counts[1] - counts[0] == 4 * 2 * 32 * 32  # one token more in each of four products


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("training", [True, False])
def test_a_block_is_the_same_watched_or_not(name, training):
    """Who hooks on to a branch sees the branch, not the stream that it is added to."""
    block = Block(MIXERS[name](24, 3)).double().train(training)
    x = torch.randn(2, 13, 24, dtype=torch.float64)
    plain = block(x, (3, 4), num_prefix_tokens=1)
    seen = {}
    for part in ("mixer", "mlp"):
        branch = getattr(block, part)
        branch.register_forward_hook(lambda module, given, out, part=part: seen.__setitem__(part, out))
        branch.register_forward_pre_hook(
            lambda module, given, options, part=part: seen.__setitem__(f"options of {part}", options), with_kwargs=True
        )
    torch.testing.assert_close(block(x, (3, 4), num_prefix_tokens=1), plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(x + seen["mixer"] + seen["mlp"], plain, rtol=1e-12, atol=1e-12)
    assert "residual" not in seen["options of mixer"]
    assert "residual" not in seen["options of mlp"]


def test_dropped_branches_add_themselves_to_the_stream_afterwards():
    torch.manual_seed(0)
    block = Block(InLineAttention(24, 3, proj_drop=0.5), drop=0.5).train()
    x = torch.randn(64, 12, 24)
    with torch.no_grad():
        change = block.mixer(block.norm1(x), (3, 4), residual=x) - x
    assert 0.4 < float((change.abs() < 1e-6).float().mean()) < 0.6
    with torch.no_grad():
        change = block.mlp(block.norm2(x), residual=x) - x
    assert 0.4 < float((change.abs() < 1e-6).float().mean()) < 0.6


def test_an_mlp_in_pieces_is_the_mlp(monkeypatch):
    part = block_file.Mlp(8, 32).double()
    x, residual = torch.randn(3, 7, 8, dtype=torch.float64), torch.randn(3, 7, 8, dtype=torch.float64)
    whole = residual + part(x)
    made = []
    handle = part.act.register_forward_hook(lambda module, given, out: made.append(tuple(out.shape)))
    monkeypatch.setattr(block_file, "MLP_CHUNK", 5 * 32)
    with torch.no_grad():
        torch.testing.assert_close(part(x, residual=residual), whole)
        assert made == [(3, 7, 32)]  # who looks sees all of it
    sizes = []
    monkeypatch.setattr(part.act, "forward", lambda x: (sizes.append(tuple(x.shape)), torch.nn.functional.gelu(x))[1])
    handle.remove()
    with torch.no_grad():
        torch.testing.assert_close(part(x, residual=residual), whole)
    assert sizes == [(5, 32)] * 4 + [(1, 32)]
    sizes.clear()
    torch.testing.assert_close(part(x, residual=residual), whole)  # gradients need it whole
    assert sizes == [(3 * 7, 32)]


@pytest.mark.parametrize("local", [True, False])
def test_the_stream_keeps_its_precision_under_autocast(local):
    block = Block(InLineAttention(24, 3, local=local, form="folded")).eval()
    x = torch.randn(2, 30, 24)
    with torch.no_grad():
        plain = block(x, (5, 6))
        with torch.autocast("cpu", torch.bfloat16):
            cast = block(x, (5, 6))
    assert cast.dtype is torch.float32
    assert 0 < float((cast - plain).abs().max()) < 0.05
    assert float(((cast - x) - (cast - x).bfloat16().float()).abs().max()) > 0  # the stream was not rounded


def test_parts_that_are_not_ours_are_called_as_they_are():
    block = Block(InLineAttention(24, 3)).eval()
    x = torch.randn(2, 30, 24)
    block.mlp = nn.Identity()
    with torch.no_grad():
        before = block(x, (5, 6))
        block.drop_path = nn.Identity()
        torch.testing.assert_close(block.train()(x, (5, 6)), before)


def test_dropout_that_was_turned_on_by_hand_drops():
    """Monte Carlo dropout: a model in evaluation mode whose dropouts are not."""
    block = Block(InLineAttention(24, 3, proj_drop=0.5), drop=0.5, drop_path=0.5).eval()
    x = torch.randn(2, 30, 24)
    with torch.no_grad():
        assert torch.equal(block(x, (5, 6)), block(x, (5, 6)))
        for kind in ("mixer.proj_drop", "mlp.drop1", "mlp.drop2", "drop_path"):
            block.eval().get_submodule(kind).train()
            draws = [block(x, (5, 6)) for _ in range(8)]
            assert any(not torch.equal(draws[0], draw) for draw in draws), kind


def test_backward_hooks_fire():
    block = Block(InLineAttention(24, 3))
    fired = []
    for part in (block.mixer.proj, block.mlp.fc2):
        part.register_full_backward_hook(lambda module, given, out: fired.append(module))
    block(torch.randn(2, 30, 24), (5, 6)).sum().backward()
    assert fired == [block.mlp.fc2, block.mixer.proj]
