"""Linear attention before InLine: rows divided by their sum."""

from torch import Tensor
from typing_extensions import Unpack

from ..ops.kernels import Kernel
from ..ops.linear import linear_attention, linear_sums, read_linear
from ..ops.reference import linear_weights
from ..ops.sums import zero_masked
from .kernel import make_kernel
from .mixer import MixerOptions
from .rope import Rotation
from .summary import Summaries
from .summed import BandInput, SummedMixer, Sums


class LinearAttention(SummedMixer):
    """out_i = phi(q_i).(sum_j phi(k_j) v_j^T) / phi(q_i).(sum_j phi(k_j)).

    Args:
        dim, num_heads: channels, and heads that divide them.
        kernel: the feature map phi, a name from `KERNELS` or a function on (B, heads, N, d). ReLU is the usual choice. With
            identity and leaky_relu the divisor can come near zero and training is expected to break: that is the paper's point.
        local: add the local residual.
        options: as for every `Mixer`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        kernel: str | Kernel = "relu",
        local: bool = False,
        **options: Unpack[MixerOptions],
    ) -> None:
        super().__init__(dim, num_heads, local=local, **options)
        self.kernel = make_kernel(kernel, num_heads, self.head_dim, device=options.get("device"), dtype=options.get("dtype"))

    rope_after_kernel = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rotation: Rotation | None = None) -> Tensor:
        """Keys and values first, then queries."""
        return linear_attention(self.kernel(q), self.kernel(k), v, mask=mask, rotation=rotation)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, rotation: Rotation | None = None) -> Tensor:
        """Rows divided by their sum."""
        return linear_weights(self.kernel(q), self.kernel(k), mask=mask, rotation=rotation)

    def sum_tokens(self, band: BandInput, before: Summaries) -> Sums:
        """The sums of keys, and of keys and values."""
        k = zero_masked(self.kernel(band.k), band.mask)
        return Sums(linear_sums(k, band.turned_keys(k), band.v))

    def read(self, band: BandInput, summaries: Summaries) -> Tensor:
        """Rows divided by their sum."""
        q = self.kernel(band.q)
        return read_linear(q, band.turned_queries(q), summaries[0].count, *summaries[0].sums)
