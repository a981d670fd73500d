"""Linear attention before InLine: rows divided by their sum."""

from torch import Tensor
from typing_extensions import Unpack

from ..ops.kernels import Kernel
from .divided import DividedMixer
from .kernel import make_kernel
from .mixer import MixerOptions


class LinearAttention(DividedMixer):
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

    def map_queries(self, q: Tensor) -> Tensor:
        """By the kernel."""
        return self.kernel(q)
