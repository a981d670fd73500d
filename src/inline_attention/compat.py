"""What needs private parts of other packages, or changes their global state: each with its reason.

tests/test_compat.py fails when one of them breaks. Nothing heavy is imported until it is needed, since some commands run
without torch.
"""

from __future__ import annotations

import tarfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import nn
    from torch.export import ExportedProgram


def upernet_decoder(channels: Sequence[int], width: int) -> nn.Module:
    """UperNet's decoder of segmentation-models-pytorch for maps at strides 4, 8, 16 and 32.

    Its public `UPerNet` always creates an encoder of its own; the decoder alone has no public name. It takes six maps, of
    which it ignores the first two, and writes into the list that it is given.
    """
    from segmentation_models_pytorch.decoders.upernet.decoder import UPerNetDecoder

    decoder: nn.Module = UPerNetDecoder([0, 0, *channels], decoder_channels=width)
    return decoder


LOAD_COMPILED = "torch._inductor.aoti_load_package({path!r})"
"""How a user opens a file of `compile_ahead_of_time`."""


def compile_ahead_of_time(program: ExportedProgram, path: Path) -> None:
    """Compile an exported program into a library in a .pt2 file.

    PyTorch documents AOTInductor under these names and has no public ones.
    """
    import torch

    torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def load_compiled(path: Path) -> Callable[..., Any]:
    """Open a file of `compile_ahead_of_time`."""
    import torch

    package: Callable[..., Any] = torch._inductor.aoti_load_package(str(path))
    return package


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has forward or backward hooks.

    A fused form does not call its projections, so it is taken only where no hook waits for the call. torch has no public
    question for it.
    """
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def backward_is_running() -> bool:
    """Whether a backward pass is under way, in which gradient checkpointing runs parts of the forward pass again.

    torch has no public question for it. Not for compiled code.
    """
    import torch

    return bool(torch._C._current_graph_task_id() != -1)


@contextmanager
def separate_accelerate_state() -> Iterator[None]:
    """Let an `Accelerator` that is made in here neither see those made before, nor leave anything behind.

    accelerate keeps precision and device in dictionaries that all its objects share, for as long as the process lives: a
    second run with another precision would fail, and an evaluation would have the precision of the training before it.
    `AcceleratorState._reset_state` would also clear the state of an `Accelerator` of the caller's.
    """
    from accelerate.state import AcceleratorState, GradientState, PartialState

    shared = [kind._shared_state for kind in (AcceleratorState, GradientState, PartialState)]
    before = [dict(state) for state in shared]
    for state in shared:
        state.clear()
    try:
        yield
    finally:
        for state, values in zip(shared, before, strict=True):
            state.clear()
            state.update(values)


def dispatch_mode() -> type[Any]:
    """`TorchDispatchMode`, which sees every operation of torch; the base class of torch's own FLOP counter.

    It is documented but lives in a private module. The public `FlopCounterMode` counts no activations.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode


def flop_formulas() -> dict[Any, Callable[..., int]]:
    """torch's FLOP formulas by operation, called with the arguments and `out_val`. They have no public name."""
    from torch.utils.flop_counter import flop_registry

    return flop_registry


def configure_torch() -> None:
    """Change torch's global state, once, when the package is imported: a class name for checkpoints, two FLOP formulas."""
    _read_config_nodes()
    _count_products_in_place()


def _read_config_nodes() -> None:
    """Let torch's restricted unpickler read the class name in the authors' checkpoints, as a plain dictionary.

    `timm.create_model(..., checkpoint_path=FILE)` has no other place for it. It makes nothing loadable that could run code.
    """
    from collections import OrderedDict

    import torch

    torch.serialization.add_safe_globals([(OrderedDict, "yacs.config.CfgNode")])


def _count_products_in_place() -> None:
    """Register FLOP formulas for `addmm_` and `baddbmm_`: torch's counter knows `addmm` and `baddbmm` only."""
    import torch
    from torch.utils.flop_counter import register_flop_formula

    for product in (torch.ops.aten.addmm_, torch.ops.aten.baddbmm_):
        if product not in flop_formulas():
            register_flop_formula(product)(_product_flops)


def _product_flops(_: Any, left: Any, right: Any, *arguments: Any, **options: Any) -> int:
    batch = left[0] if len(left) == 3 else 1
    return int(2 * batch * left[-2] * left[-1] * right[-1])


def add_image_suffixes(suffixes: Sequence[str]) -> None:
    """Let timm's folder and tar readers list files with these endings too. They take .png, .jpg and .jpeg alone.

    `create_reader` has no argument for it, only this list of the whole process.
    """
    from timm.data import add_img_extensions

    add_img_extensions(tuple(suffixes))


MOST_MEMBER_BYTES = 2**32
"""Of a file in an archive of images."""


class _BoundedTar(tarfile.TarFile):
    """Python's reader of streams goes on for years to skip a file that claims to be as long: it is refused first."""

    def next(self) -> tarfile.TarInfo | None:
        member = super().next()
        if member is not None and member.size > MOST_MEMBER_BYTES:
            raise tarfile.ReadError(f"{member.name!r} claims {member.size:,} bytes, the most is {MOST_MEMBER_BYTES:,}")
        return member


def open_webdataset_images(opener: Callable[..., Any]) -> None:
    """Let timm's reader of webdataset open images by `opener`, with its formats and its limit of pixels, and no absurd archive.

    The reader decodes images itself, in a function of its module that takes no other way to open them. It logs and leaves out
    an image that is refused.
    """
    from importlib import import_module
    from types import SimpleNamespace

    reader: Any = import_module("timm.data.readers.reader_wds")
    reader.Image = SimpleNamespace(open=opener)
    if reader.wds is not None:  # webdataset is installed
        iterators: Any = import_module("webdataset.tariterators")
        iterators.tarfile = SimpleNamespace(open=_BoundedTar.open)


def disable_gradio_analytics() -> None:
    """Let gradio send nothing anywhere. It reads the variable when it is imported, so that an argument would come too late."""
    import os

    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"


def shorten_gradio_errors(report: Callable[[str], None]) -> None:
    """Let gradio report each request that it cannot answer in one line.

    It prints a traceback for a wrong number of values, or values of a wrong type, which any visitor can send. There is no
    option.
    """
    import sys
    from types import SimpleNamespace

    from gradio import queueing

    def print_exc() -> None:
        error = sys.exc_info()[1]
        report(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")

    vars(queueing)["traceback"] = SimpleNamespace(print_exc=print_exc)


def option_name(annotation: Any) -> str | None:
    """The name that `tyro.conf.arg(name=...)` gives an option; "" if it leaves the name out, None if it gives none.

    tyro reads it from an object of a private class, and has no public way to ask for it.
    """
    names = [getattr(note, "name", None) for note in getattr(annotation, "__metadata__", ())]
    return next((name for name in reversed(names) if name is not None), None)


def import_without_telemetry(name: str) -> Any:
    """Import openvino or nncf such that they report nothing to their makers.

    Importing openvino sends an event over the network, and writes an identifier into the home folder, unless the package
    `openvino_telemetry`, which comes with it, cannot be imported; the same holds for each use of nncf. There is no option but a
    file in the home folder, or `CI=true`, which other programs heed too.
    """
    import sys
    from importlib import import_module

    telemetry = "openvino_telemetry"
    before = {telemetry: sys.modules[telemetry]} if telemetry in sys.modules else {}
    sys.modules[telemetry] = None  # type: ignore[assignment]
    try:
        return import_module(name)
    finally:
        del sys.modules[telemetry]
        sys.modules.update(before)
