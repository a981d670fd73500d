"""Watching a model while it runs on an example: which modules call `scaled_dot_product_attention`, and with what."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

DEPTH = 3
"""How deep inside of a module a linear map may be."""


@dataclass
class Frame:
    """What one module did in one call."""

    name: str
    module: nn.Module
    inputs: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Arguments of `scaled_dot_product_attention`, and its result as `out`."""
    linears: list[tuple[nn.Linear, Tensor, Tensor]] = field(default_factory=list)
    """The linear maps in it, with input and output."""
    others: dict[str, tuple[nn.Module | None, Any, Any]] = field(default_factory=dict)
    """What else ran in it, by name: modules without children, with input and output; dropout that is no module."""
    returned: Any = None
    taller: "Frame | None" = None
    """What it did on images twice as high; None if the model takes no such images."""

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments by the names of its signature."""
        return {**dict(zip(argument_names(self.module, len(self.inputs)), self.inputs, strict=False)), **self.options}

    @property
    def tokens_name(self) -> str:
        """The name of the argument with its tokens: the first one, or the first tensor that it was given by name."""
        if self.inputs:
            return argument_names(self.module, 1)[0]
        return next((name for name, value in self.options.items() if isinstance(value, Tensor)), "")

    @property
    def x(self) -> Any:
        """Its tokens, if it was given any."""
        return self.arguments.get(self.tokens_name)

    @property
    def rest(self) -> dict[str, Any]:
        """Its other arguments, by name."""
        return {name: value for name, value in self.arguments.items() if name != self.tokens_name}

    def again(self, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with other tokens."""
        if self.inputs:
            return (x, *self.inputs[1:]), self.options
        return (), self.options | {self.tokens_name: x}

    def describe(self) -> str:
        """'it calls scaled_dot_product_attention with 6 heads of 64'."""
        query = self.calls[0]["query"]
        batch = len(self.x) if isinstance(self.x, Tensor) and self.x.ndim else 1
        heads = query.shape[1] if query.ndim == 4 else query.shape[0] // max(1, batch)
        return f"it calls scaled_dot_product_attention with {heads} heads of {query.shape[-1]}"


def argument_names(module: nn.Module, count: int) -> list[str]:
    """What `forward` calls its positional arguments; those beyond them, at least up to this many, have numbers."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, one in inspect.signature(module.forward).parameters.items() if one.kind in positional]
    return [*names, *(str(number) for number in range(len(names), count))]


class _Watcher(TorchFunctionMode):
    """Keeps a frame for each module that is running."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[Frame] = []
        self.found: dict[nn.Module, Frame] = {}

    def enter(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
            self.running.append(Frame(name, module, inputs, options))

        return hook

    def leave(self, module: nn.Module, _: Any, returned: Any) -> None:
        frame = self.running.pop()
        frame.returned = returned
        for around in self.running[-DEPTH:]:
            if type(module) is nn.Linear and frame.inputs:
                around.linears.append((module, frame.inputs[0], returned))
            elif next(module.children(), None) is None:
                name = frame.name.removeprefix(f"{around.name}.")
                around.others[name] = (module, frame.inputs[0] if frame.inputs else None, returned)
        if frame.calls or isinstance(module, nn.MultiheadAttention):
            self.found.setdefault(module, frame)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record the call if it is attention, or dropout, and execute it."""
        out = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention and self.running:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            self.running[-1].calls.append({**dict(zip(names, args, strict=False)), **(kwargs or {}), "out": out})
        if func is F.dropout and self.running and not isinstance(self.running[-1].module, nn.Dropout):
            given = {**dict(zip(("input", "p", "training"), args, strict=False)), **(kwargs or {})}
            if given.get("training", True) and given.get("p", 0.5):
                for around in self.running[-DEPTH:]:
                    around.others[f"dropout of {given.get('p', 0.5):g}"] = (None, None, None)
        return out


@contextmanager
def _watching(model: nn.Module, *, training: bool) -> Iterator[_Watcher]:
    """Watch all calls of a model's modules within the context, without gradients, in training mode or not."""
    watcher = _Watcher()
    with torch.no_grad(), ExitStack() as stack:
        stack.enter_context(in_mode(model, training=training))
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(watcher.enter(name), with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(watcher.leave).remove)
        stack.enter_context(watcher)
        yield watcher


def watch(model: nn.Module, example: Any) -> list[Frame]:
    """The modules that call `scaled_dot_product_attention`, or are `nn.MultiheadAttention`, when the model runs on an example.

    Args:
        example: images (B, C, H, W); or a mapping, whose values are passed by name.
    """
    with _watching(model, training=False) as watcher:
        model(**example) if isinstance(example, Mapping) else model(example)
    return list(watcher.found.values())


def watch_taller(model: nn.Module, example: Any, frames: list[Frame]) -> None:
    """Run the model on images twice as high, if it takes them, and record in `taller` what each module did."""
    named = dict(example) if isinstance(example, Mapping) else {"": example}
    images = next((name for name, value in named.items() if isinstance(value, Tensor) and value.ndim == 4), None)
    if images is None:
        return
    named[images] = named[images].repeat(1, 1, 2, 1)
    try:
        taller = watch(model, named if isinstance(example, Mapping) else named[""])
    except Exception:  # whatever it raises: it takes images of one size only
        return
    found = {frame.module: frame for frame in taller}
    for frame in frames:
        frame.taller = found.get(frame.module, Frame(frame.name, frame.module))


def watch_training(frame: Frame) -> Frame:
    """What the module does in training mode, called as in this frame. Random numbers and buffers stay what they were."""
    inputs, options = frame.again(frame.x)
    buffers = {name: buffer.clone() for name, buffer in frame.module.named_buffers()}
    with torch.random.fork_rng(devices=[]), _watching(frame.module, training=True) as watcher:
        functional_call(frame.module, buffers, inputs, options)
    return watcher.found[frame.module]


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put the model in training or eval mode within the context; afterwards each module is in its former mode."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode
