"""The dense weights of the newer mixers are the printed formulas, evaluated literally with loops."""

from math import exp, sqrt

import pytest
import torch
import torch.nn.functional as F

from inline_attention.ops.blocks import block_of_token, from_blocks, to_blocks
from inline_attention.ops.pooling import window_sums
from inline_attention.ops.reference_rivals import agent_weights, block_weights, mala_weights, published_divisor, rala_weights
from inline_attention.ops.resampling import resample_grid, resample_rows

from .test_reference import dot, literally


@pytest.fixture
def qk():
    """Mapped queries and keys are positive."""
    return torch.rand(2, 3, 4, 5, dtype=torch.float64), torch.rand(2, 3, 6, 5, dtype=torch.float64)


def test_mala_weights(qk):
    def row(q_i, keys):
        n, s = len(keys), 1 / sqrt(len(q_i))
        z = s * dot(q_i, [sum(k_j[c] for k_j in keys) / n for c in range(len(q_i))])
        return [(1 + 1 / (z + 1e-6)) * s / n * dot(q_i, k_j) - z / n for k_j in keys]

    torch.testing.assert_close(mala_weights(*qk), literally(*qk, row), rtol=1e-12, atol=1e-12)


def test_rala_weights(qk):
    q, k = qk
    mean = q.mean(2, keepdim=True)
    found = rala_weights(q, k, mean)
    for b in range(2):
        for h in range(3):
            keys, g = k[b, h].tolist(), mean[b, h, 0].tolist()
            powers = [exp(dot(g, k_j) / sqrt(5)) for k_j in keys]
            a = [p / sum(powers) for p in powers]
            for i, q_i in enumerate(q[b, h].tolist()):
                divisor = sum(a_j * dot(q_i, k_j) for a_j, k_j in zip(a, keys, strict=True)) + 1e-6
                row = [a_j * dot(q_i, k_j) / divisor for a_j, k_j in zip(a, keys, strict=True)]
                torch.testing.assert_close(found[b, h, i], torch.tensor(row, dtype=torch.float64))


def test_block_weights_with_both_divisors(qk):
    q, k = torch.cat([qk[0], qk[0][:, :, :2] + 1], 2), qk[1]  # six tokens each, on a grid (2, 3)
    block, place = block_of_token((2, 3), (1, 2), q.device)
    assert block.tolist() == [0, 0, 1, 0, 0, 1]
    assert place.tolist() == [0, 1, 0, 2, 3, 2]
    p = torch.rand(2, 2, dtype=torch.float64)
    mixing = p[block][:, block]
    paper = block_weights(q, k, mixing)
    published = block_weights(q, k, mixing, divisor=published_divisor(q, k, mixing, block, place, mask=None))
    for b in range(2):
        for h in range(3):
            queries, keys = q[b, h].tolist(), k[b, h].tolist()
            sums = [[sum(keys[j][c] for j in range(6) if block[j] == n) for c in range(5)] for n in range(2)]
            for i in range(6):
                products = [float(p[block[i], block[j]]) * dot(queries[i], keys[j]) for j in range(6)]
                torch.testing.assert_close(
                    paper[b, h, i], torch.tensor([x / (sum(products) + 1e-6) for x in products], dtype=torch.float64)
                )
                divisor = 1e-6
                for n in range(2):
                    same = [t for t in range(6) if block[t] == n and place[t] == place[i]]
                    divisor += sum(float(p[block[i], n]) * dot(queries[t], sums[n]) for t in same)
                expected = torch.tensor([x / divisor for x in products], dtype=torch.float64)
                torch.testing.assert_close(published[b, h, i], expected)


def test_agent_weights(qk):
    q, k = qk
    agents, key_bias, query_bias = (torch.randn(*size, dtype=torch.float64) for size in ((2, 3, 2, 5), (3, 2, 6), (3, 4, 2)))
    found = agent_weights(q, k, agents, key_bias, query_bias)
    s = 1 / sqrt(5)

    def softmax(logits):
        powers = [exp(logit) for logit in logits]
        return [p / sum(powers) for p in powers]

    for b in range(2):
        for h in range(3):
            keys, those = k[b, h].tolist(), agents[b, h].tolist()
            reads = [softmax([s * dot(a, keys[j]) + float(key_bias[h, n, j]) for j in range(6)]) for n, a in enumerate(those)]
            for i, q_i in enumerate(q[b, h].tolist()):
                asks = softmax([s * dot(q_i, a) + float(query_bias[h, i, n]) for n, a in enumerate(those)])
                row = [sum(asks[n] * reads[n][j] for n in range(2)) for j in range(6)]
                torch.testing.assert_close(found[b, h, i], torch.tensor(row, dtype=torch.float64))


def test_a_mask_is_the_same_as_leaving_the_tokens_out(qk):
    q, k = qk
    mask = torch.tensor([[True, True, False, True, False, True]]).expand(2, -1)
    mean, mixing = q.mean(2, keepdim=True), torch.rand(4, 6, dtype=torch.float64)
    agents, biases = torch.randn(2, 3, 2, 5, dtype=torch.float64), torch.randn(3, 2, 6, dtype=torch.float64)
    to_agents = torch.randn(3, 4, 2, dtype=torch.float64)
    kept = k[:, :, mask[0]]
    for masked, expected in (
        (mala_weights(q, k, mask=mask), mala_weights(q, kept)),
        (rala_weights(q, k, mean, mask=mask), rala_weights(q, kept, mean)),
        (block_weights(q, k, mixing, mask=mask), block_weights(q, kept, mixing[:, mask[0]])),
        (
            agent_weights(q, k, agents, biases, to_agents, mask=mask),
            agent_weights(q, kept, agents, biases[..., mask[0]], to_agents),
        ),
    ):
        torch.testing.assert_close(masked[..., mask[0]], expected)
        assert masked[..., ~mask[0]].abs().max() == 0


@pytest.mark.parametrize(("grid", "counts"), [((9,), (4,)), ((5, 7), (2, 3)), ((1, 2), (4, 4)), ((2, 3, 5), (2, 2, 2))])
def test_blocks_are_cut_and_put_back(grid, counts):
    tokens = torch.randn(2, 3, torch.Size(grid).numel(), 4)
    blocks = to_blocks(tokens, grid, counts)
    assert torch.equal(from_blocks(blocks, grid, counts), tokens)
    block, place = block_of_token(grid, counts, tokens.device)
    assert torch.equal(blocks[:, :, block, place], tokens)
    assert torch.allclose(blocks.sum(), tokens.sum(), atol=1e-4)  # the rest is zero


@pytest.mark.parametrize(("grid", "counts"), [((14, 9), (7, 7)), ((2, 3), (4, 4)), ((9,), (4,)), ((3, 4, 5), (2, 2, 2))])
def test_windows_are_those_of_adaptive_pooling(grid, counts):
    tokens = torch.randn(2, 3, torch.Size(grid).numel(), 4, dtype=torch.float64)
    image = tokens.flatten(0, 1).mT.unflatten(2, grid)
    pooled = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}[len(grid)](image, counts)
    sums, sizes = (window_sums(each, grid, counts) for each in (tokens, torch.ones_like(tokens)))
    torch.testing.assert_close(sums / sizes, pooled.flatten(2).mT.unflatten(0, (2, 3)))
    rows = [tokens.unflatten(2, grid)[:, :, row].reshape(2, 3, -1, 4) for row in range(grid[0])]
    banded = [window_sums(row, (1, *grid[1:]), counts, first_row=number, height=grid[0]) for number, row in enumerate(rows)]
    torch.testing.assert_close(sum(banded), sums)


@pytest.mark.parametrize("grid", [(9,), (5, 8), (3, 4, 7)])
def test_rows_are_resampled_without_the_others(grid):
    values = torch.randn(2, 3, *(4,) * len(grid), dtype=torch.float64)
    whole = resample_grid(values, grid)
    for start, stop in ((0, 1), (1, 3), (grid[0] - 1, grid[0]), (0, grid[0])):
        torch.testing.assert_close(resample_rows(values, grid, start, stop), whole[:, :, start:stop])


def test_a_line_stays_a_line_on_any_grid():
    line = torch.arange(4.0).view(1, 1, 4)
    assert resample_grid(line, (4,)) is line
    assert resample_grid(line, (8,)).flatten().tolist() == [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3]
    plane = line.view(1, 1, 4, 1) + line.view(1, 1, 1, 4)
    torch.testing.assert_close(resample_grid(plane, (8, 4)), resample_grid(line, (8,)).view(1, 1, 8, 1) + line)
