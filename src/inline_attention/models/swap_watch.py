"""Watching a model while it runs on an example: which modules call `scaled_dot_product_attention`, and with what."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DEPTH = 3
"""How deep inside of a module a linear map may be."""


@dataclass
class Frame:
    """What one module did while it ran."""

    name: str
    module: nn.Module
    inputs: tuple[Any, ...]
    options: dict[str, Any]
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Arguments of `scaled_dot_product_attention`, and its result as `out`."""
    linears: list[tuple[nn.Linear, Tensor, Tensor]] = field(default_factory=list)
    """The linear maps in it, with input and output."""
    returned: Any = None

    @property
    def keyword(self) -> str | None:
        """The name by which it was given its tokens; None if they came first."""
        return None if self.inputs else next((name for name, value in self.options.items() if isinstance(value, Tensor)), None)

    @property
    def x(self) -> Any:
        """Its tokens, if it was given any."""
        return self.inputs[0] if self.inputs else self.options.get(self.keyword or "")

    def rest(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its other arguments."""
        return self.inputs[1:], {name: value for name, value in self.options.items() if name != self.keyword}

    def describe(self) -> str:
        """'it calls scaled_dot_product_attention with 6 heads of 64'."""
        query = self.calls[0]["query"]
        batch = len(self.x) if isinstance(self.x, Tensor) and self.x.ndim else 1
        heads = query.shape[1] if query.ndim == 4 else query.shape[0] // max(1, batch)
        return f"it calls scaled_dot_product_attention with {heads} heads of {query.shape[-1]}"


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
        if type(module) is nn.Linear and frame.inputs:
            for around in self.running[-DEPTH:]:
                around.linears.append((module, frame.inputs[0], returned))
        if frame.calls:
            self.found.setdefault(module, frame)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record the call if it is attention, and execute it."""
        out = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention and self.running:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            self.running[-1].calls.append({**dict(zip(names, args, strict=False)), **(kwargs or {}), "out": out})
        return out


def watch(model: nn.Module, example: Any) -> list[Frame]:
    """The modules that call `scaled_dot_product_attention` when the model runs on an example, without gradients.

    Args:
        example: images (B, C, H, W); or a mapping, whose values are passed by name.
    """
    watcher = _Watcher()
    with torch.no_grad(), ExitStack() as stack:
        stack.enter_context(evaluating(model))
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(watcher.enter(name), with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(watcher.leave).remove)
        stack.enter_context(watcher)
        model(**example) if isinstance(example, Mapping) else model(example)
    return list(watcher.found.values())


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
