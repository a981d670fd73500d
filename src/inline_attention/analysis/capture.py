"""Record attention while a model runs: queries, keys, values, and the weights of any query on demand.

`capture` takes our own models, whatever their mixer, and any model that attends through torch's
`scaled_dot_product_attention`, which timm's vision transformers do. What is kept is linear in the number of tokens: weights
are made row by row when they are asked for.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..layers import MIXERS, AttentionRows, Block, Mixer
from ..ops.masking import mean_valid
from ..ops.reference import softmax_weights

Queries = Sequence[int] | Tensor


@dataclass(frozen=True)
class Attention(ABC):
    """What one layer did with a batch of pictures: M queries looked at N keys."""

    name: str
    """The layer's place in the model."""
    grid: tuple[int, int]
    """(H, W) of the queries, which come after the prefix tokens."""
    num_prefix_tokens: int

    @property
    @abstractmethod
    def kind(self) -> str:
        """Which attention: a name from `MIXERS`."""

    @abstractmethod
    def project(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, heads, M, d), keys and values (B, heads, N, d), as the formula gets them."""

    @abstractmethod
    def rows(self, queries: Queries) -> AttentionRows:
        """Dense weights of chosen queries, prefix tokens counted."""

    @abstractmethod
    def weigh(self, queries: Tensor, keys: Tensor, hidden: Tensor | None = None, *, place: int | None = None) -> Tensor:
        """Weights of any queries, (B, heads, M, d), over keys, (B, heads, N, d); True in hidden, (B, N), takes a key away.

        A bias that belongs to places is that of the token at `place`, and left out without one. Attention in windows cannot
        be asked this way.
        """

    @property
    def tokens(self) -> int:
        """M."""
        return self.num_prefix_tokens + self.grid[0] * self.grid[1]

    @property
    def whole(self) -> bool:
        """Whether the keys are the same tokens as the queries, and not those of a smaller map."""
        return True

    @property
    def windowed(self) -> bool:
        """Whether queries look at a window of the picture only."""
        return False

    def weights(self) -> Tensor:
        """The weights of all queries, (B, heads, M, N), without local parts: memory is quadratic in the number of tokens."""
        return self.rows(range(self.tokens)).mixed

    def local_kernels(self) -> Tensor | None:
        """(B, C, h, w): the kernels that the local residual made for these pictures; None without one, or within windows."""
        return None

    def place(self, point: tuple[float, float]) -> tuple[int, int]:
        """(row, column) of the token at a point of the picture, given as shares of its height and width."""
        inside = [min(side - 1, max(0, int(share * side))) for share, side in zip(point, self.grid, strict=True)]
        return inside[0], inside[1]

    def index(self, place: tuple[int, int]) -> int:
        """Where the token at (row, column) is on the token axis."""
        return self.num_prefix_tokens + place[0] * self.grid[1] + place[1]


@dataclass(frozen=True)
class MixerAttention(Attention):
    """A mixer of ours and what it was given."""

    mixer: Mixer = field(repr=False)
    x: Tensor = field(repr=False)
    options: dict[str, Any] = field(repr=False)

    @property
    def kind(self) -> str:
        """The mixer's name, or its class for one that is not registered."""
        return next((name for name, made in MIXERS.items() if made is type(self.mixer)), type(self.mixer).__name__)

    @property
    def whole(self) -> bool:
        """Spatial reduction makes fewer keys."""
        return self.mixer.reduction is None

    @property
    def windowed(self) -> bool:
        """As the mixer was made."""
        return bool(self.mixer.windows)

    @torch.no_grad()
    def project(self) -> tuple[Tensor, Tensor, Tensor]:
        """From the mixer's own projections."""
        options = {key: value for key, value in self.options.items() if key != "local_input"}
        return self.mixer.project(self.x, self.grid, **options)

    @torch.no_grad()
    def rows(self, queries: Queries) -> AttentionRows:
        """By `Mixer.attention_rows`."""
        return self.mixer.attention_rows(self.x, self.grid, torch.as_tensor(queries), **self.options)

    @torch.no_grad()
    def weigh(self, queries: Tensor, keys: Tensor, hidden: Tensor | None = None, *, place: int | None = None) -> Tensor:
        """By `Mixer.weights`."""
        if self.windowed or self.options.get("mask") is not None:
            raise ValueError(f"{self.name} attends in windows or has a mask: its weights are had by rows()")
        return self.mixer.weights(queries, keys, None if hidden is None else ~hidden)

    @torch.no_grad()
    def local_kernels(self) -> Tensor | None:
        """From the mean of the input."""
        if self.mixer.local is None or self.windowed:
            return None
        given = self.options.get("local_input")
        return self.mixer.local.kernels(mean_valid(self.x if given is None else given, self.options.get("mask")))


@dataclass(frozen=True)
class SoftmaxCall(Attention):
    """A call of torch's `scaled_dot_product_attention`."""

    q: Tensor = field(repr=False)
    k: Tensor = field(repr=False)
    v: Tensor = field(repr=False)
    bias: Tensor | None = field(repr=False)
    scale: float | None = None

    @property
    def kind(self) -> str:
        """Always softmax."""
        return "softmax"

    @property
    def whole(self) -> bool:
        """As many keys as queries."""
        return self.q.shape[2] == self.k.shape[2]

    def project(self) -> tuple[Tensor, Tensor, Tensor]:
        """As they were given."""
        return self.q, self.k, self.v

    def rows(self, queries: Queries) -> AttentionRows:
        """By the formula."""
        chosen = torch.as_tensor(queries, device=self.q.device)
        if chosen.ndim != 1 or not chosen.numel() or chosen.is_floating_point():
            raise ValueError(f"queries must be a list of token indices, got {queries!r}")
        if int(chosen.min()) < 0 or int(chosen.max()) >= self.tokens:
            raise ValueError(f"queries {chosen.tolist()} are not all within the {self.tokens} tokens of {self.name}")
        bias = None if self.bias is None else self._biases()[..., chosen, :]
        return AttentionRows(softmax_weights(self.q[:, :, chosen], self.k, scale=self.scale, bias=bias), None)

    def weigh(self, queries: Tensor, keys: Tensor, hidden: Tensor | None = None, *, place: int | None = None) -> Tensor:
        """By the formula."""
        bias = None if self.bias is None or place is None else self._biases()[..., place : place + 1, :]
        if bias is not None and bias.shape[0] != queries.shape[0]:
            bias = bias[:1]
        return softmax_weights(queries, keys, scale=self.scale, mask=None if hidden is None else ~hidden, bias=bias)

    def _biases(self) -> Tensor:
        """The bias of all pairs, broadcast to (1 or B, 1 or heads, M, N)."""
        assert self.bias is not None
        shape = (self.q.shape[2], self.k.shape[2])
        return self.bias.expand(*self.bias.shape[:-2], *shape).view(*(1,) * (4 - self.bias.ndim), *self.bias.shape[:-2], *shape)


@dataclass
class Captured:
    """What a model did, layer by layer, in the order of its layers."""

    layers: list[Attention] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Attention that is not over the tokens of one picture: within the windows of other libraries, or of pooled tokens."""

    def __iter__(self) -> Iterator[Attention]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, which: int | str) -> Attention:
        """A layer by its number or its name."""
        if isinstance(which, int):
            return self.layers[which]
        found = [layer for layer in self.layers if layer.name == which]
        if not found:
            raise KeyError(f"no layer {which!r}; there are: {', '.join(layer.name for layer in self.layers)}")
        return found[0]


@contextmanager
def capture(model: nn.Module) -> Iterator[Captured]:
    """Record the attention of every pass of `model` within the context, and leave the model as it was.

        with capture(model) as seen:
            model(pictures)
        seen[3].rows([0, 17]).mixed    # what two tokens of the fourth layer look at

    A second pass replaces the first one's record. Records keep the layers' inputs, and not the gradient's graph; a bias that
    a softmax model lays on all pairs of places is kept as the model made it.
    """
    seen = Captured()
    calls = _Calls(model, seen)
    with ExitStack() as stack:

        def keep(hook: Any) -> None:
            stack.callback(hook.remove)

        keep(model.register_forward_pre_hook(calls.begin, with_kwargs=True))
        keep(model.register_forward_hook(calls.end, always_call=True))
        ours = {inner for module in model.modules() if isinstance(module, Block | Mixer) for inner in module.modules()}
        for name, module in model.named_modules():
            if isinstance(module, Mixer):
                keep(module.register_forward_pre_hook(_watch(name, calls), with_kwargs=True))
                calls.ours.add(name)
            if isinstance(module, Mixer) or (module not in ours and any(True for _ in module.children())):
                keep(module.register_forward_pre_hook(calls.enter(name)))
                keep(module.register_forward_hook(calls.leave, always_call=True))
            if module not in ours and getattr(module, "fused_attn", None) is False:
                stack.callback(setattr, module, "fused_attn", False)
                module.fused_attn = True  # timm's switch: the same formula, by torch's function
        stack.enter_context(calls)
        yield seen


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within the context the model is in eval mode; afterwards each part is in the mode it was in."""
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def seen_by(model: nn.Module, pixels: Tensor) -> Captured:
    """The attention of one pass over (B, C, H, W), in eval mode and without gradients; an error if there is none to see."""
    with torch.no_grad(), evaluating(model), capture(model) as seen:
        model(pixels)
    if not seen.layers:
        why = f": {len(seen.left_out)} layers attend within windows or pool" if seen.left_out else ""
        raise ValueError(f"no attention over the picture was seen in {type(model).__name__}{why}")
    return seen


def _watch(name: str, calls: "_Calls") -> Callable[..., None]:
    def hook(mixer: Mixer, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        seen = calls.record_of(name)
        x = inputs[0] if inputs else options["x"]
        grid = inputs[1] if len(inputs) > 1 else options.get("grid")
        if grid is None or len(grid) != 2 or options.get("context") is not None:
            seen.left_out.append(name)
            return
        given = {key: value.detach() if isinstance(value, Tensor) else value for key, value in options.items()}
        kept = {key: given[key] for key in ("mask", "local_input") if given.get(key) is not None}
        prefix = options.get("num_prefix_tokens", 0)
        kept["num_prefix_tokens"] = prefix
        seen.layers.append(MixerAttention(name, (grid[0], grid[1]), prefix, mixer, x.detach(), kept))

    return hook


class _Calls(TorchFunctionMode):
    """Sees every call of torch's function and knows which module made it."""

    def __init__(self, model: nn.Module, seen: Captured) -> None:
        super().__init__()
        self.prefix = int(getattr(model, "num_prefix_tokens", 0))
        self.seen = seen
        self.inside: list[str] = []
        self.ours: set[str] = set()
        """Names of mixers, which are recorded by themselves."""
        self.pictures: torch.Size | None = None
        self.within = False

    def record_of(self, name: str) -> Captured:
        """Where to write; outside of a pass of the whole model, a layer that comes again begins a new record."""
        if not self.within and (name in self.seen.left_out or any(layer.name == name for layer in self.seen.layers)):
            self._forget()
        return self.seen

    def _forget(self) -> None:
        self.seen.layers.clear()
        self.seen.left_out.clear()

    def begin(self, _: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        """The hook of the model itself: a pass begins, and the one before is forgotten."""
        pixels = [value for value in (*inputs, *options.values()) if isinstance(value, Tensor) and value.ndim == 4]
        self.pictures = pixels[0].shape if pixels else None
        self.inside.clear()
        self.within = True
        self._forget()

    def end(self, *_: Any) -> None:
        """The hook of its end."""
        self.within = False

    def enter(self, name: str) -> Callable[..., None]:
        """A hook that notes where the pass is, and outside of a pass of the whole model what the pictures are."""

        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            if not self.inside and not self.within and inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim == 4:
                self.pictures = inputs[0].shape
            self.inside.append(name)

        return hook

    def leave(self, *_: Any) -> None:
        """The hook that notes the way back."""
        self.inside.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record, and go on."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and self.inside and self.inside[-1] not in self.ours:
            self._record(*args, **kwargs)
        return func(*args, **kwargs)

    def _record(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """The arguments are those of torch's function."""
        name, grid = self.inside[-1], self._grid(query)
        seen = self.record_of(name)
        if grid is None or is_causal or enable_gqa:
            seen.left_out.append(name)
            return
        bias = None if attn_mask is None else attn_mask.detach()
        if bias is not None and bias.dtype is torch.bool:
            bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill(~bias, float("-inf"))
        q, k, v = query.detach(), key.detach(), value.detach()
        seen.layers.append(SoftmaxCall(name, grid, self.prefix, q, k, v, bias, scale))

    def _grid(self, query: Tensor) -> tuple[int, int] | None:
        """(H, W) of the queries, if they are the tokens of the pictures: as many as fit their shape."""
        if self.pictures is None or query.ndim != 4 or query.shape[0] != self.pictures[0]:
            return None
        tokens, (height, width) = query.shape[2] - self.prefix, self.pictures[2:]
        rows = round((tokens * height / width) ** 0.5) if tokens > 0 else 0
        return (rows, tokens // rows) if rows and tokens % rows == 0 and tokens > 1 else None


def in_words(layer: str) -> str:
    """'stages.0.blocks.3.mixer' -> 'stage 0, block 3'; a plain transformer has no stages worth naming."""
    parts = layer.removesuffix(".mixer").removesuffix(".attn").split(".")
    numbers = [
        f"{name.rstrip('s')} {number}" for name, number in zip(parts[::2], parts[1::2], strict=False) if number.isdigit()
    ]
    return ", ".join(numbers) or layer
