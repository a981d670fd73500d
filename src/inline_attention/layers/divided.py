"""`DividedMixer`: linear attention after feature maps of queries and keys, its rows divided by their sum."""

from abc import abstractmethod

from torch import Tensor

from ..ops.linear import linear_attention, linear_sums, read_linear
from ..ops.reference import linear_weights
from ..ops.sums import zero_masked
from .rope import Rotation
from .summary import Summaries
from .summed import BandInput, SummedMixer, Sums


class DividedMixer(SummedMixer):
    """out_i = phi_q(q_i).(sum_j phi_k(k_j) v_j^T) / phi_q(q_i).(sum_j phi_k(k_j)). A subclass gives the maps.

    Rotary positions turn what comes out of the maps, in the numerator only unless `rope_in_divisor` is chosen.
    """

    rope_after_kernel = True
    divides = True

    @abstractmethod
    def map_queries(self, q: Tensor) -> Tensor:
        """phi_q, (B, heads, M, d) -> (B, heads, M, its channels)."""

    def map_keys(self, k: Tensor) -> Tensor:
        """phi_k, the same as phi_q if a subclass does not have another."""
        return self.map_queries(k)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rotation: Rotation | None = None) -> Tensor:
        """Keys and values first, then queries."""
        return linear_attention(self.map_queries(q), self.map_keys(k), v, mask=mask, rotation=rotation)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, rotation: Rotation | None = None) -> Tensor:
        """Rows divided by their sum."""
        return linear_weights(self.map_queries(q), self.map_keys(k), mask=mask, rotation=rotation)

    def sum_tokens(self, band: BandInput, before: Summaries) -> Sums:
        """The sums of keys, and of keys and values."""
        k = zero_masked(self.map_keys(band.k), band.mask)
        turned = band.turned_keys(k)
        return Sums(linear_sums(band.in_divisor(k, turned), turned, band.v))

    def read(self, band: BandInput, summaries: Summaries) -> Tensor:
        """Rows divided by their sum."""
        q = self.map_queries(band.q)
        turned = band.turned_queries(q)
        return read_linear(band.in_divisor(q, turned), turned, summaries[0].count, *summaries[0].sums)
