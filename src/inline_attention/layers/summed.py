"""`SummedMixer`: the base of mixers whose keys enter through sums. They work in bands of an image.

A subclass gives its sums (`sum_tokens`) and what queries read from them (`read`), besides the formula of every `Mixer`.
Projections, rotary positions, masks and the local parts of a band are here.

Shapes, with n the tokens of a band without its halo: q, k, v (B, heads, n, d).
"""

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.checks import Grid
from ..ops.sums import autocast_is_on, count_valid, to_fp32, without_autocast, zero_masked
from .bands import WHOLE, Place
from .local_residual import add_local
from .mixer import Mixer
from .rope import Rotation
from .summary import Summaries, Summary


class Sums(NamedTuple):
    """What `SummedMixer.sum_tokens` returns: the fields of `Summary` that a mixer fills."""

    sums: tuple[Tensor, ...]
    maximum: Tensor | None = None


@dataclass(eq=False)
class BandInput:
    """The tokens of one call. Queries, keys and values are made when they are first asked for, in fp32 or better.

    They are of the tokens without the halo; `values` has the halo.
    """

    mixer: Mixer
    x: Tensor
    """(B, halo + n + halo, C), zero where masked."""
    grid: Grid | None
    """Of x; None for tokens on no grid, such as class tokens."""
    place: Place
    full_mask: Tensor | None
    """(B, halo + n + halo)."""

    def __post_init__(self) -> None:
        self.inner = self.place.inner(self.grid)
        self.autocast = autocast_is_on(self.x.device)

    @cached_property
    def mask(self) -> Tensor | None:
        """(B, n), True where valid."""
        return None if self.full_mask is None else self.full_mask[:, self.inner]

    @cached_property
    def tokens(self) -> Tensor:
        """(B, n, C), in the precision of x."""
        return self.x[:, self.inner]

    @cached_property
    def token_sum(self) -> Tensor:
        """(B, C)."""
        return to_fp32(self.tokens).sum(1)

    @cached_property
    def rotation(self) -> Rotation | None:
        """By the layer's own rotary positions, of these tokens; None without them."""
        rotation = self.mixer.own_rotation(self.x, self.grid, first_row=self.place.first_row)
        return None if rotation is None else rotation.part(self.inner)

    @cached_property
    def q(self) -> Tensor:
        """Queries, turned unless that is for after the kernel."""
        with self._precision():
            q = self.mixer.q_norm(self.mixer.split_heads(self.mixer.project_queries(self.tokens)))
        return to_fp32(q if self._turn is None else self._turn.of_queries(q))

    @cached_property
    def k(self) -> Tensor:
        """Keys, turned unless that is for after the kernel; zero where masked."""
        with self._precision():
            k = self.mixer.k_norm(self.mixer.split_heads(self._keys_and_values[0][:, self.inner]))
        return to_fp32(zero_masked(k if self._turn is None else self._turn.of_keys(k), self.mask))

    @cached_property
    def v(self) -> Tensor:
        """Values, zero where masked."""
        return to_fp32(self.mixer.split_heads(zero_masked(self._keys_and_values[1][:, self.inner], self.mask)))

    @property
    def has_given_values(self) -> bool:
        """Whether `v` has been set by someone who wants to know what depends on it: a mixer must then go by it."""
        return "v" in vars(self)

    @cached_property
    def values(self) -> Tensor:
        """(B, halo + n + halo, C): what local parts convolve, zero where masked."""
        return zero_masked(self._keys_and_values[1], self.full_mask)

    @cached_property
    def keys(self) -> Tensor:
        """(B, halo + n + halo, C): before their norm and turn, zero where masked."""
        return zero_masked(self._keys_and_values[0], self.full_mask)

    @cached_property
    def _keys_and_values(self) -> tuple[Tensor, Tensor]:
        with self._precision():
            return self.mixer.project_keys_values(self.x)

    def turned_queries(self, q: Tensor) -> Tensor:
        """What comes out of the mixer's kernel, turned if that is for after the kernel."""
        return q if self.rotation is None or not self.rotation.after_kernel else self.rotation.of_queries(q)

    def turned_keys(self, k: Tensor) -> Tensor:
        """The same for keys."""
        return k if self.rotation is None or not self.rotation.after_kernel else self.rotation.of_keys(k)

    def in_divisor(self, tokens: Tensor, turned: Tensor) -> Tensor:
        """Of queries or keys, those that the divisor is made of."""
        return turned if self.rotation is not None and self.rotation.in_divisor else tokens

    @property
    def _turn(self) -> Rotation | None:
        return None if self.rotation is None or self.rotation.after_kernel else self.rotation

    def _precision(self) -> AbstractContextManager[object]:
        """Projections are cast as in a usual forward pass, though sums are not."""
        return torch.autocast(self.x.device.type) if self.autocast else nullcontext()


class SummedMixer(Mixer):
    """A mixer that works in bands: it gives its sums, and what queries read from them."""

    @abstractmethod
    def sum_tokens(self, band: BandInput, before: Summaries) -> Sums:
        """The sums of one sweep over the valid tokens of a band, out of autocast.

        Their number is in `Summary.count` already. `before` has the summaries of the sweeps before, of the whole image.
        """

    @abstractmethod
    def read(self, band: BandInput, summaries: Summaries) -> Tensor:
        """What the queries of a band read from the summaries of the whole image: (B, heads, n, d), without local parts."""

    @property
    def works_in_bands(self) -> bool:
        """Over the whole map, with keys from the map itself, and local parts on the map."""
        whole = self.windowed is None and self.reduction is None and self.context_dim is None
        return whole and all(part.on_grid for part in self.local_parts())

    def summarize(
        self,
        x: Tensor,
        grid: Grid | None = None,
        *,
        place: Place = WHOLE,
        mask: Tensor | None = None,
        local_input: Tensor | None = None,
        before: Summaries = (),
    ) -> Summary:
        """See `InBands.summarize`."""
        band = BandInput(self, zero_masked(x, mask), grid, place, mask)
        with without_autocast(x.device):
            sums, maximum = self.sum_tokens(band, before)
        input_sum = band.token_sum if local_input is None else to_fp32(zero_masked(local_input, mask)[:, band.inner]).sum(1)
        return Summary(count_valid(band.tokens, band.mask).to(input_sum.dtype), input_sum, sums, maximum)

    def respond(
        self,
        x: Tensor,
        summaries: Summaries,
        grid: Grid | None = None,
        *,
        place: Place = WHOLE,
        mask: Tensor | None = None,
    ) -> Tensor:
        """See `InBands.respond`."""
        band = BandInput(self, zero_masked(x, mask), grid, place, mask)
        with without_autocast(x.device):
            mixed = self.merge_heads(self.read(band, summaries)).to(x.dtype)
        if grid is not None and (parts := self.local_parts()):
            x_mean = summaries[0].input_mean.to(x.dtype)
            local = add_local(x.new_zeros(()), parts, x_mean, band.values[..., : self.dim], grid)[:, band.inner]
            mixed = mixed + F.pad(local, (0, self.width - self.dim))
        projected: Tensor = self.proj_drop(self.output(mixed, band.tokens))
        return projected
