"""Two kernels in Triton: sums over tokens, and an affine map of tokens. They are each other's gradients.

    token_sums    sum_j k_j, sum_j v_j, sum_j k_j v_j^T      one pass over keys and values
    token_map     out_i = base + x_i M                       one pass over queries

Products of 16-bit numbers are exact in fp32, and all sums are in fp32. `ops/fused.py` decides when they run.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1024
"""As many at least, if there are tokens enough: several for each multiprocessor of a large card."""
SMALLEST_SPLIT = 256
"""Tokens that a program sums up at least."""


@triton.jit
def sums_kernel(
    k, v, mask, key_sum, value_sum, outer_sum,
    heads, tokens, split_tokens, d, e,
    k_batch, k_head, k_token, v_batch, v_head, v_token, mask_batch,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """One head of one image, one split of its tokens, one block of e. Sums are (splits, batch x heads, ...)."""
    pair, split = tl.program_id(0), tl.program_id(1)
    batch, head = (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)
    k += batch * k_batch + head * k_head
    v += batch * v_batch + head * v_head
    columns, values = tl.arange(0, BLOCK_D), tl.program_id(2) * BLOCK_E + tl.arange(0, BLOCK_E)
    outer = tl.zeros((BLOCK_D, BLOCK_E), tl.float32)
    keys_total, values_total = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_E,), tl.float32)
    first = split * split_tokens
    for start in range(first, tl.minimum(first + split_tokens, tokens), BLOCK_N):
        rows = start + tl.arange(0, BLOCK_N)
        valid = rows < tokens
        if HAS_MASK:
            valid = valid & (tl.load(mask + batch * mask_batch + rows, valid, 0) != 0)
        places = rows.to(tl.int64)[:, None]
        k_tile = tl.load(k + places * k_token + columns[None, :], valid[:, None] & (columns < d)[None, :], 0.0)
        v_tile = tl.load(v + places * v_token + values[None, :], valid[:, None] & (values < e)[None, :], 0.0)
        outer += tl.dot(tl.trans(k_tile), v_tile, input_precision=PRECISION)
        keys_total += tl.sum(k_tile.to(tl.float32), 0)
        values_total += tl.sum(v_tile.to(tl.float32), 0)
    place = (split * tl.num_programs(0) + pair).to(tl.int64)
    if tl.program_id(2) == 0:
        tl.store(key_sum + place * d + columns, keys_total, columns < d)
    tl.store(value_sum + place * e + values, values_total, values < e)
    inside = (columns < d)[:, None] & (values < e)[None, :]
    tl.store(outer_sum + place * d * e + columns[:, None] * e + values[None, :], outer, inside)


@triton.jit
def map_kernel(
    x, matrix, base, mask, out,
    heads, tokens, d, e,
    x_batch, x_head, x_token, out_batch, out_head, out_token, mask_batch,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """One block of tokens of one head of one image, one block of e."""
    pair = tl.program_id(0)
    batch, head = (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)
    rows = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns, values = tl.arange(0, BLOCK_D), tl.program_id(2) * BLOCK_E + tl.arange(0, BLOCK_E)
    there = rows < tokens
    valid = there
    if HAS_MASK:
        valid = valid & (tl.load(mask + batch * mask_batch + rows, there, 0) != 0)
    places = rows.to(tl.int64)[:, None]
    x_tile = tl.load(
        x + batch * x_batch + head * x_head + places * x_token + columns[None, :], valid[:, None] & (columns < d)[None, :], 0.0
    )
    inside = (columns < d)[:, None] & (values < e)[None, :]
    m_tile = tl.load(matrix + pair.to(tl.int64) * d * e + columns[:, None] * e + values[None, :], inside, 0.0)
    b_tile = tl.load(base + pair.to(tl.int64) * e + values, values < e, 0.0)
    result = tl.dot(x_tile.to(tl.float32), m_tile, input_precision=PRECISION) + b_tile[None, :]
    result = tl.where(valid[:, None], result, 0.0)
    out += batch * out_batch + head * out_head + places * out_token + values[None, :]
    tl.store(out, result.to(out.dtype.element_ty), there[:, None] & (values < e)[None, :])


def launch_sums(k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """`token_sums` of `ops/fused.py`."""
    (batch, heads, tokens, d), e = k.shape, v.shape[3]
    pairs = batch * heads
    splits = max(1, min(triton.cdiv(PROGRAMS, pairs), triton.cdiv(tokens, SMALLEST_SPLIT)))
    constants = constants_for(d, e, masked=mask is not None, fp32=k.dtype is torch.float32)
    block = constants["BLOCK_N"]
    split_tokens = triton.cdiv(triton.cdiv(tokens, splits), block) * block
    splits = max(1, triton.cdiv(tokens, split_tokens))
    sums = [k.new_empty(splits, batch, heads, *shape, dtype=torch.float32) for shape in ((d,), (e,), (d, e))]
    k, v, valid = _rows(k), _rows(v), _bytes(mask, k)
    sums_kernel[(pairs, splits, triton.cdiv(e, constants["BLOCK_E"]))](
        k, v, valid, *sums, heads, tokens, split_tokens, d, e, *k.stride()[:3], *v.stride()[:3], valid.stride(0),
        **constants,
    )  # fmt: skip
    key_sum, value_sum, outer_sum = (part[0] if splits == 1 else part.sum(0) for part in sums)
    return key_sum, value_sum, outer_sum


def launch_map(x: Tensor, matrix: Tensor, base: Tensor, mask: Tensor | None) -> Tensor:
    """`token_map` of `ops/fused.py`."""
    (batch, heads, tokens, d), e = x.shape, matrix.shape[3]
    out = x.new_empty(batch, tokens, heads, e).transpose(1, 2)  # so that heads join without a copy
    x, valid = _rows(x), _bytes(mask, x)
    constants = constants_for(d, e, masked=mask is not None, fp32=True)
    grid = (batch * heads, triton.cdiv(tokens, constants["BLOCK_N"]), triton.cdiv(e, constants["BLOCK_E"]))
    map_kernel[grid](
        x, matrix.contiguous(), base.contiguous(), valid, out, heads, tokens, d, e,
        *x.stride()[:3], *out.stride()[:3], valid.stride(0), **constants,
    )  # fmt: skip
    return out


def _rows(x: Tensor) -> Tensor:
    """With the channels of a token side by side."""
    return x if x.stride(3) == 1 else x.contiguous()


def _bytes(mask: Tensor | None, x: Tensor) -> Tensor:
    """Triton reads no booleans; without a mask, anything that is not read."""
    return x if mask is None else mask.contiguous().view(torch.uint8)


def constants_for(d: int, e: int, *, masked: bool, fp32: bool, backend: str | None = None) -> dict[str, Any]:
    """What a kernel is compiled for: heads of d and e channels, products of fp32 or of 16 bit, on "cuda" or "hip".

    Matrix products take 16 channels at least, and blocks are powers of two. Wide heads get fewer tokens at once, a part of e
    and no pipeline, so that tiles fit into registers and into the shared memory of small cards: docs/speed.md has the table.

    fp32 is multiplied as three products of tf32 where the hardware has it, which is as exact as fp32 within rounding.
    """
    block_d, block_e = (max(16, triton.next_power_of_2(size)) for size in (d, e))
    wide = max(block_d, block_e) > (32 if fp32 else 64)
    return {
        "HAS_MASK": masked,
        "PRECISION": "tf32x3" if (backend or ("hip" if torch.version.hip else "cuda")) == "cuda" else "ieee",
        "BLOCK_N": 32 if wide else 64,
        "BLOCK_D": block_d,
        "BLOCK_E": min(block_e, (2048 if fp32 else 4096) // block_d if wide else 64),
        "num_warps": 4,
        "num_stages": 1 if wide else 2,
    }
