"""Capture: record what every attention layer of a model does during a forward pass.

`capture` works with the models of this package, whatever their mixer, and with any model that calls torch's
`scaled_dot_product_attention`, as timm's vision transformers do. What is stored grows linearly with the number of tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..layers import Block, Mixer
from ..models.finite import check_outputs
from .attention import Attention, MixerAttention, SdpaAttention


class NoAttentionError(ValueError):
    """The model has no layer that attends over the image, as a ResNet."""


@dataclass
class Captured:
    """The attention of every layer in one forward pass, in the order of execution."""

    layers: list[Attention] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Names of layers whose attention cannot be laid over the image: in windows of other libraries, or of pooled tokens."""

    def __iter__(self) -> Iterator[Attention]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, which: int | str) -> Attention:
        """A layer by its index or its name."""
        if isinstance(which, int):
            return self.layers[which]
        found = [layer for layer in self.layers if layer.name == which]
        if not found:
            raise KeyError(f"no layer {which!r}; there are: {', '.join(layer.name for layer in self.layers)}")
        return found[0]


@contextmanager
def capture(model: nn.Module) -> Iterator[Captured]:
    """Record the attention of every forward pass of `model` within the context; hooks are removed at its end.

        with capture(model) as captured:
            model(images)
        captured[3].rows([0, 17]).mixed    # the weights of two tokens of the fourth layer

    A second pass replaces the record of the first. The inputs of the layers are stored, detached from the graph; so is a
    positional bias over all pairs of tokens, if a softmax model has one.
    """
    captured = Captured()
    recorder = _Recorder(model, captured)
    with ExitStack() as stack:

        def add(hook: Any) -> None:
            stack.callback(hook.remove)

        add(model.register_forward_pre_hook(recorder.begin, with_kwargs=True))
        add(model.register_forward_hook(recorder.end, always_call=True))
        ours = {inner for module in model.modules() if isinstance(module, Block | Mixer) for inner in module.modules()}
        for name, module in model.named_modules():
            if isinstance(module, Mixer):
                add(module.register_forward_pre_hook(_record_mixer(name, recorder), with_kwargs=True))
                recorder.mixers.add(name)
            if isinstance(module, Mixer) or (module not in ours and any(True for _ in module.children())):
                add(module.register_forward_pre_hook(recorder.enter(name)))
                add(module.register_forward_hook(recorder.leave, always_call=True))
            if module not in ours and getattr(module, "fused_attn", None) is False:
                stack.callback(setattr, module, "fused_attn", False)
                module.fused_attn = True  # timm's switch: the same formula through torch's function
        stack.enter_context(recorder)
        yield captured


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode within the context; afterwards each module is in its former mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def capture_pass(model: nn.Module, pixels: Tensor, names: Sequence[str] = ()) -> Captured:
    """The attention of one forward pass over (B, C, H, W), in eval mode without gradients; ValueError if there is none.

    Outputs that are not finite raise a FloatingPointError with the image's name, if `names` has it.
    """
    with torch.no_grad(), evaluating(model), capture(model) as captured:
        check_outputs(model(pixels), names, type(model).__name__)
    if not captured.layers:
        why = f": {len(captured.left_out)} layers attend within windows or pool" if captured.left_out else ""
        raise NoAttentionError(f"no attention over the image was found in {type(model).__name__}{why}")
    return captured


def _record_mixer(name: str, recorder: "_Recorder") -> Callable[..., None]:
    """A hook that records the input of a mixer."""

    def hook(mixer: Mixer, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        captured = recorder.record_of(name)
        x = inputs[0] if inputs else options["x"]
        grid = inputs[1] if len(inputs) > 1 else options.get("grid")
        if grid is None or len(grid) != 2 or options.get("context") is not None:
            captured.left_out.append(name)
            return
        detached = {key: value.detach() if isinstance(value, Tensor) else value for key, value in options.items()}
        kept = {key: detached[key] for key in ("mask", "local_input", "rotation") if detached.get(key) is not None}
        prefix = options.get("num_prefix_tokens", 0)
        kept["num_prefix_tokens"] = prefix
        captured.layers.append(MixerAttention(name, (grid[0], grid[1]), prefix, mixer, x.detach(), kept))

    return hook


class _Recorder(TorchFunctionMode):
    """Records calls of `scaled_dot_product_attention`, each with the module that made it."""

    def __init__(self, model: nn.Module, captured: Captured) -> None:
        super().__init__()
        self.prefix = int(getattr(model, "num_prefix_tokens", 0))
        self.captured = captured
        self.module_stack: list[str] = []
        """Names of the modules whose forward is running, the innermost last."""
        self.mixers: set[str] = set()
        """Names of mixers, which are recorded by their own hook."""
        self.image_shape: torch.Size | None = None
        self.in_model_pass = False

    def record_of(self, name: str) -> Captured:
        """The record to append to. Outside a pass of the whole model, a layer that comes again starts a new record."""
        done = (*self.captured.left_out, *(layer.name for layer in self.captured.layers))
        if not self.in_model_pass and name in done:
            self._clear()
        return self.captured

    def _clear(self) -> None:
        self.captured.layers.clear()
        self.captured.left_out.clear()

    def begin(self, _: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Hook at the start of a pass of the whole model: clears the record of the pass before."""
        pixels = [value for value in (*inputs, *options.values()) if isinstance(value, Tensor) and value.ndim == 4]
        self.image_shape = pixels[0].shape if pixels else None
        self.module_stack.clear()
        self.in_model_pass = True
        self._clear()

    def end(self, *_: Any) -> None:
        """Hook at its end."""
        self.in_model_pass = False

    def enter(self, name: str) -> Callable[..., None]:
        """A hook at the start of a module's forward; outside a pass of the whole model its input may be the images."""

        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            outermost = not self.module_stack and not self.in_model_pass
            if outermost and inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim == 4:
                self.image_shape = inputs[0].shape
            self.module_stack.append(name)

        return hook

    def leave(self, *_: Any) -> None:
        """Hook at the end of a module's forward."""
        self.module_stack.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record the call if it is attention outside our mixers, and execute it."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and self.module_stack and self.module_stack[-1] not in self.mixers:
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
        """Takes the arguments of `scaled_dot_product_attention`."""
        name, grid = self.module_stack[-1], self._grid(query)
        captured = self.record_of(name)
        if grid is None or is_causal or enable_gqa:
            captured.left_out.append(name)
            return
        bias = None if attn_mask is None else attn_mask.detach()
        if bias is not None and bias.dtype is torch.bool:
            bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill(~bias, float("-inf"))
        q, k, v = query.detach(), key.detach(), value.detach()
        captured.layers.append(SdpaAttention(name, grid, self.prefix, q, k, v, bias, scale))

    def _grid(self, query: Tensor) -> tuple[int, int] | None:
        """(H, W) of the queries; None if their number does not fit the shape of the images."""
        if self.image_shape is None or query.ndim != 4 or query.shape[0] != self.image_shape[0]:
            return None
        tokens, (height, width) = query.shape[2] - self.prefix, self.image_shape[2:]
        rows = round((tokens * height / width) ** 0.5) if tokens > 0 else 0
        return (rows, tokens // rows) if rows and tokens % rows == 0 and tokens > 1 else None
