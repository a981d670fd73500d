"""MILA, Mamba-inspired linear attention (Han et al., "Demystify Mamba in Vision", NeurIPS 2024)."""

from collections.abc import Callable

from torch import Tensor, nn

from .divided import DividedMixer
from .mala import elu_plus_one


class MilaAttention(DividedMixer):
    """Linear attention with phi = ELU + 1 whose values are the input itself; there is no output projection.

    As it was published it has `lepe=3, rope="all"`, inside a block with projections, a convolution and a SiLU gate around it.
    """

    own_projections = True

    def make_projections(self, linear: Callable[..., nn.Linear], source_dim: int, bias: bool) -> None:
        """Queries and keys only."""
        if source_dim != self.dim:
            raise ValueError(
                f"MilaAttention has the context itself for values: context_dim must be dim={self.dim}, got {source_dim}"
            )
        self.q, self.k = linear(self.dim, self.dim, bias=bias), linear(self.dim, self.dim, bias=bias)

    def make_output(self, linear: Callable[..., nn.Linear], bias: bool) -> nn.Module:
        """None."""
        return nn.Identity()

    def project_keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Values are the source."""
        return self.k(source), source

    def map_queries(self, q: Tensor) -> Tensor:
        """ELU + 1."""
        return elu_plus_one(q)
