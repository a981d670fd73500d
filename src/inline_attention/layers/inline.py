"""InLineAttention: injective linear attention with the paper's local residual, in two forms of one function.

The per-head form is the textbook one: project to queries, keys and values, split heads, attend. The folded form
(`ops/folded.py`) never makes queries or keys and never splits the token axis by head; its cost is

    with a local part     V = x W_v^T,  S = Cov(x, V),  x A + conv(V),  output projection      4 N C^2
    without               G = Cov(x, x),  x (A W_o^T), since S = G W_v^T                       2 N C^2

so with a local part attention needs as many products as its own projections would, and without it half of that.

Shapes: x (B, N, C).
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from ..ops.checks import Grid, check_name
from ..ops.folded import HeadWeights, fold_image, fold_read_out, fold_state
from ..ops.injective import InjectiveState, injective_linear_attention
from ..ops.kernels import Kernel, identity, relu
from ..ops.linear import linear_attention, linear_sums, read_linear
from ..ops.local_convolution import local_convolution, tokens_first
from ..ops.reference import injective_weights, linear_weights
from ..ops.sums import (
    autocast_is_on,
    can_accumulate,
    count_valid,
    is_one,
    is_plain,
    linear_rows,
    mean_valid,
    to_fp32,
    zero_masked,
)
from .bands import WHOLE, Place
from .kernel import make_kernel
from .mixer import MixerInput, MixerOptions
from .rope import Rotation
from .summary import Summaries
from .summed import BandInput, SummedMixer, Sums
from .weight_views import WeightViews

Form = Literal["auto", "folded", "heads"]
Base = Literal["mean", "linear"]
Scale = float | Literal["learned"] | None


class InLineAttention(SummedMixer):
    """Injective linear attention, (B, N, C) -> (B, N, C): equation 5 of the paper with the factor s/N of its models.

    Args:
        dim, num_heads: channels, and heads that divide them.
        kernel: the feature map phi, a name from `KERNELS` or a function on (B, heads, N, d).
        scale: s; head_dim ** -0.5 if None; "learned" for a parameter of each head, which costs nothing at run time.
        start_scale: what a learned scale starts as; head_dim ** -0.5 if None.
        base: what the covariance term is added to: the mean value, or "linear", the output of linear attention with the ReLU
            kernel, which docs/math.md puts in one family with MALA. It needs queries and keys, and so the per-head form.
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
        scale: Scale = None,
        start_scale: float | None = None,
        base: Base = "mean",
        local: bool | None = None,
        form: Form = "auto",
        **options: Unpack[MixerOptions],
    ) -> None:
        local = options.get("context_dim") is None if local is None else local
        super().__init__(dim, num_heads, local=local, **options)
        check_name("form", form, get_args(Form))
        check_name("base", base, get_args(Base))
        not_identity = kernel not in ("identity", identity) or options.get("qk_norm") or base != "mean"
        if form == "folded" and (not_identity or self.rope is not None):
            qk_norm, rope = bool(options.get("qk_norm")), options.get("rope")
            raise ValueError(
                "the folded form needs the identity kernel, base='mean', no qk_norm and no rope, got "
                f"{kernel=}, {base=}, {qk_norm=}, {rope=}"
            )
        self.base = base
        self.scale = self._make_scale(scale, start_scale, **options)
        self.kernel = make_kernel(kernel, num_heads, self.head_dim, device=options.get("device"), dtype=options.get("dtype"))
        self.form = form
        self._views = WeightViews(partial(HeadWeights.of, num_heads=num_heads))

    proj: nn.Linear

    def _make_scale(self, scale: Scale, start: float | None, **options: Unpack[MixerOptions]) -> float | nn.Parameter:
        """The number, or a parameter for each head, (heads,)."""
        self.start_scale = float(self.head_dim) ** -0.5 if start is None else start
        if scale != "learned":
            if start is not None or isinstance(scale, str):
                raise ValueError(
                    f"scale must be a number, 'learned' or None, and start_scale is for 'learned': {scale=}, {start=}"
                )
            return self.start_scale if scale is None else scale
        if len(self.windows) > 1:
            raise ValueError(f"scale='learned' is one number for each head: heads cannot share {len(self.windows)} windows")
        kind = {"device": options.get("device"), "dtype": options.get("dtype")}
        return nn.Parameter(torch.full((self.num_heads,), self.start_scale, **kind))  # type: ignore[arg-type]

    def reset_parameters(self) -> None:
        """A learned scale starts anew."""
        if isinstance(self.scale, nn.Parameter):
            nn.init.constant_(self.scale, self.start_scale)

    def factor(self) -> float | Tensor:
        """The scale as it multiplies (heads, ., .): a number, or (heads, 1, 1)."""
        return self.scale.view(-1, 1, 1) if isinstance(self.scale, Tensor) else self.scale

    def folds(self, x: Tensor) -> bool:
        """Whether a forward pass over these tokens takes the folded form.

        In multiply-adds, with d = C / heads, the per-head form costs 4 N C^2 + 2 N C d, and the folded form
        4 N C^2 + 2 C^2 d with a local part, 2 N C^2 + 2 C^3 + 2 C^2 d without: either way they meet at N = C. With a local
        part the folded form also saves permutations, and measured times meet at about N = 3 C / 4. So "auto" folds from
        there on; `inline bench layer` times both forms and reports how far the choice is from the better one.

        Two exceptions. An exported graph with a dynamic grid has to serve every N: it is folded. In half precision on an
        accelerator the per-head form is taken, because S is an fp32 product, many times slower there than one in half
        precision (reasoned, not measured).
        """
        if self.form == "heads" or not self._can_fold():
            return False
        if self.form == "folded" or (torch.compiler.is_exporting() and not isinstance(x.shape[1], int)):
            return True
        half = x.dtype in (torch.float16, torch.bfloat16) or autocast_is_on(x.device)
        enough = 3 * self.dim // 4 if self.local_parts() else self.dim
        return x.shape[1] >= enough and (x.is_cpu or not half)

    def _can_fold(self) -> bool:
        """Folding reads the weights and does not call the projections: they must be plain. Dropping keys needs keys."""
        if self.windowed is not None or self.reduction is not None or self.rope is not None:
            return False
        if self.kernel is not identity or self.base != "mean":
            return False
        if self.training and self.attn_drop:
            return False
        return type(self.q_norm) is nn.Identity and all(map(is_plain, (self.q, self.kv, self.proj)))

    @property
    def rope_after_kernel(self) -> bool:
        """A kernel sees queries and keys as they are; without one there is no difference."""
        return self.kernel is not identity or self.base != "mean"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rotation: Rotation | None = None) -> Tensor:
        """v_bar + s phi(q)^T Cov(phi(k), v), or the output of linear attention instead of v_bar."""
        phi_q, phi_k = self.kernel(q), self.kernel(k)
        turned = (phi_q, phi_k) if rotation is None else rotation(phi_q, phi_k)
        out = injective_linear_attention(*turned, v, scale=self.factor(), mask=mask)
        if self.base == "mean":
            return out
        v = zero_masked(v, mask)
        mean = v.sum(2, keepdim=True) / count_valid(v, mask)[:, None, None, None].clamp(min=1)
        return out - mean + linear_attention(relu(q), relu(k), v, mask=mask, rotation=rotation)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, rotation: Rotation | None = None) -> Tensor:
        """Equation 5; rows of linear attention instead of even ones."""
        phi_q, phi_k = self.kernel(q), self.kernel(k)
        turned = (phi_q, phi_k) if rotation is None else rotation(phi_q, phi_k)
        weights = injective_weights(*turned, scale=self.factor(), mask=mask)
        if self.base == "mean":
            return weights
        even = 1 / count_valid(k, mask)[:, None, None, None].clamp(min=1)
        even = even if mask is None else even * mask[:, None, None, :]
        return weights - even + linear_weights(relu(q), relu(k), mask=mask, rotation=rotation)

    def mix(self, given: MixerInput) -> Tensor:
        """The folded form where it is cheaper, otherwise head by head."""
        x, grid, prefix, mask, context, local_input, residual, rotation = given
        if rotation is not None and self.form == "folded":
            raise ValueError("the folded form makes no queries to turn: make the layer with form='auto', or leave rotation out")
        if context is not None or rotation is not None or not self.folds(x):
            return super().mix(given)
        v = self._values(x, mask) if self.local_parts() else None
        x_mean, a, c = self._fold(x, v, mask)
        if v is None or grid is None:
            if self.gate is None and self.out_norm is None:
                return self._project_folded(x, a, c, residual)
            return self.output(torch.baddbmm(c.to(x.dtype).unsqueeze(1), x, a.to(x.dtype)), x, residual)
        x_mean = x_mean if local_input is x else mean_valid(local_input, mask)
        around = self._around(v[:, prefix:], x_mean.to(x.dtype), grid, c)
        if prefix:  # prefix tokens have no neighbours
            alone = c.to(v.dtype).unsqueeze(1)
            alone = alone if prefix == 1 else alone.expand(-1, prefix, -1)
            mixed = torch.cat([alone, around], 1).baddbmm_(x.to(v.dtype), a.to(v.dtype))
        else:
            mixed = torch.baddbmm(around, x.to(v.dtype), a.to(v.dtype))
        return self.output(mixed, x, residual)

    # The same in two steps, for images that come in bands (see `SummedMixer`)

    def prefers_bands(self, x: Tensor) -> bool:
        """Where it works in bands: wherever it folds, and with rotary positions."""
        return self.works_in_bands and (self.folds(x) or self.rope is not None)

    def sum_tokens(self, band: BandInput, before: Summaries) -> Sums:
        """The state of keys and values, without its count; folded, neither is made."""
        if self._can_fold() and band.has_given_values:
            keys = self.split_heads(F.linear(band.tokens, self.kv.weight[: self.dim]))  # no bias, as folded: it cancels
            state = InjectiveState.from_tokens(to_fp32(keys), band.v, band.mask)
        elif self._can_fold():
            state = self._fold_state(to_fp32(band.tokens), band.token_sum, None, band.mask)
        else:
            state = InjectiveState.from_tokens(band.turned_keys(self.kernel(band.k)), band.v, band.mask)
        if self.base == "mean":
            return Sums(state.tensors()[1:])
        k = relu(band.k)  # zero where masked, as keys are
        turned = band.turned_keys(k)
        return Sums((*state.tensors()[1:], *linear_sums(band.in_divisor(k, turned), turned, band.v)))

    def read(self, band: BandInput, summaries: Summaries) -> Tensor:
        """Queries read from the state."""
        state = _state_of(summaries)
        out = state.attend(band.turned_queries(self.kernel(band.q)), scale=self.factor())
        if self.base == "mean":
            return out
        q = relu(band.q)
        turned = band.turned_queries(q)
        linear = read_linear(band.in_divisor(q, turned), turned, state.count, *summaries[0].sums[3:])
        return out - state.moments()[0].unsqueeze(2) + linear

    def respond(
        self,
        x: Tensor,
        summaries: Summaries,
        grid: Grid | None = None,
        *,
        place: Place = WHOLE,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Folded, no query is made, and one product adds what is read to the local parts."""
        if not self._can_fold():
            return super().respond(x, summaries, grid, place=place, mask=mask)
        x, inner = zero_masked(x, mask), place.inner(grid)
        a, c = self._read_out(_state_of(summaries))
        base = c.to(x.dtype).unsqueeze(1)
        if grid is not None and self.local_parts():
            x_mean = summaries[0].input_mean.to(x.dtype)
            base = self._around(self._values(x, mask), x_mean, grid, c)[:, inner]
        x = x[:, inner]
        mixed = torch.baddbmm(base, x, a.to(x.dtype))
        projected: Tensor = self.proj_drop(self.output(mixed, x))
        return projected

    def _values(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """V = x W_v^T + b_v, laid out for `grouped_convolution`."""
        weights = self._head_weights()
        return tokens_first(zero_masked(linear_rows(x, weights.values, weights.values_bias), mask))

    def _head_weights(self) -> HeadWeights:
        return self._views(self.q.weight, self.q.bias, self.kv.weight, self.kv.bias)

    def _fold(self, x: Tensor, v: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The mean of x, and A and c of the folded form."""
        if v is not None and mask is None and isinstance(x.shape[1], int) and v.dtype is x.dtype and to_fp32(x) is x:
            x_mean = x.mean(1)
            return x_mean, *fold_image(x, x_mean, v, self._head_weights(), scale=self.factor())
        full = to_fp32(x)  # once: gradients of what is subtracted from each other meet in full precision
        x_sum = full.sum(1)
        state = self._fold_state(full, x_sum, v, mask)
        return x_sum / state.count.clamp(min=1).unsqueeze(1), *self._read_out(state)

    def _fold_state(self, x: Tensor, x_sum: Tensor, v: Tensor | None, mask: Tensor | None) -> InjectiveState:
        w_k, w_v = self.kv.weight.chunk(2)
        b_v = None if self.kv.bias is None else self.kv.bias[self.dim :]
        return fold_state(x, x_sum, v, mask, w_k=w_k, w_v=w_v, b_v=b_v, num_heads=self.num_heads)

    def _read_out(self, state: InjectiveState) -> tuple[Tensor, Tensor]:
        return fold_read_out(state, w_q=self.q.weight, b_q=self.q.bias, scale=self.factor())

    def _around(self, v: Tensor, x_mean: Tensor, grid: Grid, bias: Tensor) -> Tensor:
        """The local parts, all as one convolution, (B, N, C), with the bias, (B, C), added."""
        parts = self.local_parts()
        kernels = [part.kernels(x_mean) for part in parts]
        if len(kernels) > 1:  # of different sizes, perhaps: zeros around the smaller ones
            largest = [max(sides) for sides in zip(*(kernel.shape[2:] for kernel in kernels), strict=True)]
            kernels = [F.pad(kernel, _around_centre(kernel.shape[2:], largest)) for kernel in kernels]
        total = sum(kernels[1:], start=kernels[0])
        taps = total.to(v.dtype)
        taps = taps if is_one(v.shape[0]) else taps.expand(v.shape[0], *taps.shape[1:])
        constants = [constant for constant in (part.constant() for part in parts) if constant is not None]
        return local_convolution(v, taps, grid, bias=sum(constants, start=bias).to(v.dtype))

    def _project_folded(self, x: Tensor, a: Tensor, c: Tensor, residual: Tensor | None) -> Tensor:
        """(x A + c) W_o^T + b_o = x (A W_o^T) + (c W_o^T + b_o): one product on the token axis instead of two."""
        w_o, b_o = self.proj.weight, self.proj.bias
        base = F.linear(c.to(x.dtype), w_o, b_o).unsqueeze(1)
        read_out = F.linear(a.to(x.dtype), w_o)
        if residual is None or not can_accumulate(residual, x):
            out = torch.baddbmm(base, x, read_out)
            return out if residual is None else residual + out
        return torch.baddbmm(residual + base, x, read_out)

    def extra_repr(self) -> str:
        """Printed by `print(model)`."""
        scale = "learned" if isinstance(self.scale, Tensor) else f"{self.scale:.4g}"
        base = "" if self.base == "mean" else f", base={self.base}"
        return f"{super().extra_repr()}, scale={scale}{base}, form={self.form}"


def _around_centre(size: Sequence[int], largest: Sequence[int]) -> list[int]:
    """Zeros before and after each side of a kernel that keep its centre, last side first, as `F.pad` takes them."""
    missing = [wanted - side for side, wanted in zip(size, largest, strict=True)]
    return [zeros for count in reversed(missing) for zeros in (count // 2, count // 2)]


def _state_of(summaries: Summaries) -> InjectiveState:
    """The state of the whole image."""
    (summary,) = summaries
    return InjectiveState(summary.count, *summary.sums[:3])
