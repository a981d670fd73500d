"""Injective linear attention, the paper's equation 5: the formula, and the state that it needs from the keys.

With k_bar and v_bar the means of phi(k) and v over the N valid tokens,

    Cov   = (1/N) sum_j phi(k_j) v_j^T - k_bar v_bar^T          (d, e)
    out_i = v_bar + s phi(q_i)^T Cov

is the same function as the dense rows of `reference.injective_weights` times v: docs/math.md derives it.

Shapes: q (B, heads, M, d), k (B, heads, N, d), v (B, heads, N, e), mask (B, N), True where a key is valid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from .checks import check_head_split, check_mask, check_tensor
from .collectives import reduce_together
from .fused import token_map, token_sums, uses_triton
from .kernels import Kernel, identity, resolve_kernel
from .sums import count_valid, to_fp32, without_autocast, zero_masked


def injective_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: str | Kernel = "identity",
    scale: float | Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Injective linear attention, called like `torch.nn.functional.scaled_dot_product_attention`.

    Computes `reference.injective_weights(phi(q), phi(k)) @ v` in time and memory linear in the number of tokens.

    Args:
        q: (B, heads, M, d). May come from another sequence than k and v.
        k: (B, heads, N, d).
        v: (B, heads, N, e).
        kernel: phi, a name from `KERNELS` or any function that keeps the first three sizes of (B, heads, N, d).
        scale: s; d ** -0.5 if None, with d the size of q's heads; a tensor (heads, 1, 1) for one of each head.
        mask: (B, N), True where a key is valid. An image with no valid key gets zeros.

    Returns:
        (B, heads, M, e) in q's dtype; inside, sums are in fp32 or better.
    """
    check_head_split(q, k, v)
    check_mask(mask, k.shape[0], k.shape[2])
    scale = float(q.shape[-1]) ** -0.5 if scale is None else scale
    with without_autocast(q.device):
        phi_q, phi_k = q, k
        if kernel is not identity and kernel != "identity":
            phi = resolve_kernel(kernel)
            phi_q, phi_k = phi(to_fp32(q)), phi(to_fp32(k))
        return InjectiveState.from_tokens(phi_k, v, mask).attend(phi_q, scale=scale).to(q.dtype)


@dataclass(frozen=True, eq=False)
class InjectiveState:
    """The sums over tokens that queries need from keys and values, in fp32 or better.

    States add. Tokens may be split in any way, over chunks of a stream, tiles of an image or devices, and the sum of
    the chunks' states is the state of the whole:

        state = sum(InjectiveState.from_tokens(k, v) for k, v in chunks)
        out = state.attend(q)

    Keys and queries are given after the feature map, if there is one: phi(k), phi(q).
    """

    count: Tensor
    """N, valid tokens: (B,)."""
    key_sum: Tensor
    """sum_j phi(k_j): (B, heads, d)."""
    value_sum: Tensor
    """sum_j v_j: (B, heads, e)."""
    outer_sum: Tensor
    """sum_j phi(k_j) v_j^T: (B, heads, d, e)."""

    @classmethod
    def from_tokens(cls, k: Tensor, v: Tensor, mask: Tensor | None = None) -> InjectiveState:
        """The state of these tokens: k (B, heads, N, d), v (B, heads, N, e), mask (B, N), True where valid."""
        check_head_split(k, k, v)
        check_mask(mask, k.shape[0], k.shape[2])
        if uses_triton(k, v):
            common = torch.promote_types(k.dtype, v.dtype)
            return cls(count_valid(k, mask), *token_sums(k.to(common), v.to(common), mask))
        k, v = zero_masked(to_fp32(k), mask), zero_masked(to_fp32(v), mask)
        with without_autocast(k.device):
            return cls(count_valid(k, mask), k.sum(2), v.sum(2), k.mT @ v)

    def __add__(self, other: InjectiveState) -> InjectiveState:
        """The state of both sets of tokens together."""
        if not isinstance(other, InjectiveState):
            return NotImplemented
        if self.outer_sum.shape != other.outer_sum.shape:
            raise ValueError(
                f"states of shapes {tuple(self.outer_sum.shape)} and {tuple(other.outer_sum.shape)} cannot be added; "
                "they are (batch, heads, key head_dim, value head_dim)"
            )
        return InjectiveState(
            self.count + other.count,
            self.key_sum + other.key_sum,
            self.value_sum + other.value_sum,
            self.outer_sum + other.outer_sum,
        )

    def __radd__(self, other: object) -> InjectiveState:
        """0 + state, so that `sum(states)` works."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def attend(self, q: Tensor, *, scale: float | Tensor | None = None) -> Tensor:
        """The output for queries (B, heads, M, d): v_bar + s phi(q)^T Cov, (B, heads, M, e), in q's dtype."""
        check_tensor("q", q)
        if q.ndim != 4 or q.shape[:2] != self.key_sum.shape[:2] or q.shape[3] != self.key_sum.shape[2]:
            raise ValueError(
                f"q {tuple(q.shape)} does not fit a state of (batch, heads, head_dim) = {tuple(self.key_sum.shape)}; "
                "it must be (batch, heads, tokens, head_dim)"
            )
        scale = float(q.shape[-1]) ** -0.5 if scale is None else scale
        with without_autocast(q.device):
            value_mean, covariance = self.moments()
            if uses_triton(q, covariance) and covariance.dtype is torch.float32:
                return token_map(q, scale * covariance, value_mean, None)
            out = value_mean.unsqueeze(-2) + q.to(covariance.dtype) @ (scale * covariance)
        return out.to(q.dtype)

    def moments(self) -> tuple[Tensor, Tensor]:
        """v_bar, (B, heads, e), and Cov, (B, heads, d, e); zeros where no token is valid."""
        count = self.count.clamp(min=1)[:, None, None]
        key_mean, value_mean = self.key_sum / count, self.value_sum / count
        return value_mean, torch.addcmul(
            self.outer_sum / count[..., None], key_mean[..., None], value_mean[:, :, None], value=-1
        )

    def all_reduce(self, group: dist.ProcessGroup | None = None) -> InjectiveState:
        """The sum of the states of all processes of a group, in one small message. Gradients flow back to all of them."""
        return InjectiveState(*reduce_together(self.tensors(), group))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four sums."""
        return self.count, self.key_sum, self.value_sum, self.outer_sum
