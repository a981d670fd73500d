"""InLineAttention: injective linear attention with the paper's local residual, in two forms of one function.

The per-head form is the textbook one: project to queries, keys and values, split heads, attend. The folded form
(`ops/folded.py`) never makes queries or keys and never splits the token axis by head; what is left on it is

    with a local part     V = x W_v^T,  S = Cov(x, V),  x A + conv(V),  output projection      4 N C^2
    without               G = Cov(x, x),  x (A W_o^T), since S = G W_v^T                       2 N C^2

so with a local part attention needs as many products as its own projections would, and without it half of that.

Shapes: x (B, N, C).
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from ..ops.checks import Grid, check_name
from ..ops.folded import fold_attention
from ..ops.injective import injective_linear_attention
from ..ops.kernels import Kernel, identity
from ..ops.local import local_convolution, tokens_first
from ..ops.masking import mean_valid, zero_masked
from ..ops.precision import autocast_is_on, wide
from ..ops.reference import injective_weights
from .kernel import make_kernel
from .mixer import Mixer, MixerOptions

Form = Literal["auto", "folded", "heads"]


class InLineAttention(Mixer):
    """Injective linear attention, (B, N, C) -> (B, N, C): equation 5 of the paper with the factor s/N of its models.

    Args:
        dim, num_heads: channels, and heads that divide them.
        kernel: the feature map phi, a name from `KERNELS` or a function on (B, heads, N, d).
        scale: s; head_dim ** -0.5 if None.
        local: add the local residual; on by default, except in a layer with `context_dim`.
        form: "folded", "heads", or "auto", which takes the cheaper one by the rule of `folds`.
        options: as for every `Mixer`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        kernel: str | Kernel = "identity",
        scale: float | None = None,
        local: bool | None = None,
        form: Form = "auto",
        **options: Unpack[MixerOptions],
    ) -> None:
        local = options.get("context_dim") is None if local is None else local
        super().__init__(dim, num_heads, local=local, **options)
        check_name("form", form, get_args(Form))
        if form == "folded" and (kernel not in ("identity", identity) or options.get("qk_norm")):
            qk_norm = bool(options.get("qk_norm"))
            raise ValueError(f"the folded form needs the identity kernel and no qk_norm, got {kernel=}, {qk_norm=}")
        self.scale = float(self.head_dim) ** -0.5 if scale is None else scale
        self.kernel = make_kernel(kernel, num_heads, self.head_dim, device=options.get("device"), dtype=options.get("dtype"))
        self.form = form

    def folds(self, x: Tensor) -> bool:
        """Whether a forward pass over these tokens takes the folded form.

        In multiply-adds, with d = C / heads, the per-head form costs 4 N C^2 + 2 N C d, and the folded form
        4 N C^2 + 2 C^2 d with a local part, 2 N C^2 + 2 C^3 + 2 C^2 d without: either way they meet at N = C. With a local
        part the folded form also spares permutations, and measured times meet at about N = 3 C / 4. So "auto" folds from
        there on; `inline bench layer` times both forms and tells how far the choice is from the better one.

        Two exceptions. An exported graph with a dynamic grid has to serve every N: it is folded. In half precision on an
        accelerator, where an fp32 product is many times slower than a half-precision one, S is the dearer sum: it is not
        (reasoned, not measured).
        """
        if self.form == "heads" or not self._can_fold():
            return False
        if self.form == "folded" or (torch.compiler.is_exporting() and not isinstance(x.shape[1], int)):
            return True
        half = x.dtype in (torch.float16, torch.bfloat16) or autocast_is_on(x.device)
        enough = 3 * self.dim // 4 if self.local_parts() else self.dim
        return x.shape[1] >= enough and (x.is_cpu or not half)

    def _can_fold(self) -> bool:
        """Folding multiplies weights past the projections, which must be plain and unobserved; dropping keys needs keys."""
        if self.kernel is not identity or self.windows or self.reduction is not None or (self.training and self.attn_drop):
            return False
        return type(self.q_norm) is nn.Identity and all(map(_is_plain, (self.q, self.kv, self.proj)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """v_bar + s phi(q)^T Cov(phi(k), v)."""
        return injective_linear_attention(q, k, v, kernel=self.kernel, scale=self.scale, mask=mask)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Equation 5."""
        return injective_weights(self.kernel(q), self.kernel(k), scale=self.scale, mask=mask)

    def _mix(
        self,
        x: Tensor,
        grid: Grid | None,
        num_prefix_tokens: int,
        mask: Tensor | None,
        context: Tensor | None,
        local_input: Tensor,
    ) -> Tensor:
        if context is not None or not self.folds(x):
            return super()._mix(x, grid, num_prefix_tokens, mask, context, local_input)
        return self._mix_folded(x, grid, num_prefix_tokens, mask, local_input)

    def _mix_folded(
        self, x: Tensor, grid: Grid | None, num_prefix_tokens: int, mask: Tensor | None, local_input: Tensor
    ) -> Tensor:
        """y = (x A + c + conv(V)) W_o^T + b_o; all local parts are one convolution."""
        full = wide(x)  # once: gradients of what is subtracted from each other meet in full precision
        x_mean = mean_valid(full, mask)
        parts = self.local_parts()
        w_k, w_v = self.kv.weight.chunk(2)
        b_v = None if self.kv.bias is None else self.kv.bias[self.dim :]
        v = tokens_first(zero_masked(F.linear(x, w_v, b_v), mask)) if parts else None
        a, c = fold_attention(
            full, x_mean, v, mask,
            w_q=self.q.weight, b_q=self.q.bias, w_k=w_k, w_v=w_v, b_v=b_v,
            num_heads=self.num_heads, scale=self.scale,
        )  # fmt: skip
        if v is None or grid is None:
            w_o, b_o = self.proj.weight, self.proj.bias
            return torch.baddbmm(F.linear(c.to(x.dtype), w_o, b_o).unsqueeze(1), x, F.linear(a.to(x.dtype), w_o))
        summary = x_mean if local_input is x else mean_valid(local_input, mask)
        kernels = [part.kernels(summary.to(x.dtype)) for part in parts]
        taps = sum(kernels[1:], start=kernels[0]).to(v.dtype).expand(x.shape[0], *kernels[0].shape[1:])
        constants = [constant for constant in (part.constant() for part in parts) if constant is not None]
        around = local_convolution(v[:, num_prefix_tokens:], taps, grid, bias=sum(constants, start=c).to(v.dtype))
        if num_prefix_tokens:  # they have no neighbours
            mixed = torch.bmm(x.to(v.dtype), a.to(v.dtype))
            mixed[:, :num_prefix_tokens] += c.to(v.dtype).unsqueeze(1)
            mixed[:, num_prefix_tokens:] += around
        else:
            mixed = torch.baddbmm(around, x.to(v.dtype), a.to(v.dtype))
        projected: Tensor = self.proj(mixed)
        return projected

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"{super().extra_repr()}, scale={self.scale:.4g}, form={self.form}"


def _is_plain(module: nn.Module) -> bool:
    """Whether a linear map does nothing but multiply and add, and no one is watching."""
    return type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks
