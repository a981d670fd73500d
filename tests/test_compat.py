"""Private parts of other packages that the package relies on: each test fails when a new release changes one."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec
from inspect import signature
from pathlib import Path
from typing import Annotated, get_type_hints

import pytest
import segmentation_models_pytorch as smp
import torch
import tyro
from accelerate import Accelerator
from PIL import Image
from timm.data import create_reader, get_img_extensions, set_img_extensions
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from inline_attention import compat


def test_upernet_decoder_is_that_of_the_public_model():
    """Same parameters as in `smp.UPerNet`, same output for the same weights; the first two maps are ignored."""
    whole = smp.UPerNet("resnet18", encoder_weights=None, decoder_channels=16).eval()
    decoder = compat.upernet_decoder([64, 64, 128, 256], 16).eval()
    own, theirs = decoder.state_dict(), whole.decoder.state_dict()
    assert own.keys() == theirs.keys()
    maps = [torch.randn(1, channels, 64 // 2**n, 64 // 2**n) for n, channels in enumerate((64, 64, 128, 256))]
    with torch.no_grad():
        outputs = [decoder([torch.zeros(0), torch.full((1,), value), *maps]) for value in (0.0, 1.0)]
    assert outputs[0].shape == (1, 16, 64, 64)
    assert torch.equal(*outputs)
    assert isinstance(decoder.psp, nn.Module), "a Segmenter looks for batch norms in its pyramid pooling"


def test_the_names_of_aot_inductor_take_these_arguments():
    """tests/deploy/test_export.py compiles a model with them (slow)."""
    signature(torch._inductor.aoti_compile_and_package).bind("program", package_path="model.pt2")
    signature(torch._inductor.aoti_load_package).bind("model.pt2")
    assert eval(compat.LOAD_COMPILED.partition("(")[0], {"torch": torch}) is torch._inductor.aoti_load_package


@pytest.fixture
def timms_suffixes():
    """Restores timm's list of the whole process."""
    before = get_img_extensions()
    yield
    set_img_extensions(before)


def test_timms_readers_list_files_with_more_suffixes(tmp_path, timms_suffixes):
    for name in ("a/one.png", "b/two.tiff"):
        (tmp_path / name).parent.mkdir()
        Image.new("L", (2, 2)).save(tmp_path / name)

    def listed():
        return [Path(name).name for name in create_reader("", root=str(tmp_path)).filenames(basename=True)]

    set_img_extensions((".png", ".jpg", ".jpeg"))
    assert listed() == ["one.png"]
    compat.add_image_suffixes([".tiff"])
    compat.add_image_suffixes([".tiff"])
    assert listed() == ["one.png", "two.tiff"]
    assert get_img_extensions() == (".png", ".jpg", ".jpeg", ".tiff")


def test_an_import_leaves_timms_list_unchanged(timms_suffixes):
    spec = find_spec("inline_attention.data.sources")
    set_img_extensions((".png",))
    spec.loader.exec_module(module_from_spec(spec))
    assert get_img_extensions() == (".png",)


def test_hooks_of_every_kind_are_found():
    linear = nn.Linear(2, 2)
    assert not compat.has_hooks(linear)
    for register in (
        linear.register_forward_hook,
        linear.register_forward_pre_hook,
        linear.register_full_backward_hook,
        linear.register_full_backward_pre_hook,
    ):
        handle = register(lambda *_: None)
        assert compat.has_hooks(linear), register.__name__
        handle.remove()
        assert not compat.has_hooks(linear)


def test_a_backward_pass_is_noticed():
    seen = []

    def step(x):
        seen.append(compat.backward_is_running())
        return x.square()

    checkpoint(step, torch.ones(1, requires_grad=True), use_reentrant=False).sum().backward()
    assert seen == [False, True]
    assert not compat.backward_is_running()


def test_accelerate_forgets_a_separate_state():
    own = Accelerator(cpu=True)
    with compat.separate_accelerate_state():
        assert Accelerator(cpu=True, mixed_precision="bf16").mixed_precision == "bf16"
    assert own.mixed_precision == Accelerator(cpu=True).mixed_precision == "no"
    with pytest.raises(ValueError, match="mixed_precision"):
        Accelerator(cpu=True, mixed_precision="bf16")  # why it is needed


def test_a_dispatch_mode_sees_operations():
    class Watch(compat.dispatch_mode()):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(str(func.overloadpacket))
            return func(*args, **(kwargs or {}))

    names: list[str] = []
    with Watch():
        torch.ones(2, 3) @ torch.ones(3, 4)
    assert "aten.mm" in names


def test_formulas_count_products():
    formula = compat.flop_formulas()[torch.ops.aten.mm]
    left, right = torch.ones(2, 3), torch.ones(3, 4)
    assert formula(left, right, out_val=left @ right) == 2 * 2 * 3 * 4


def test_torchs_counter_knows_products_in_place():
    with FlopCounterMode(display=False) as counter:
        torch.zeros(2, 4).addmm_(torch.ones(2, 3), torch.ones(3, 4))
        torch.zeros(5, 2, 4).baddbmm_(torch.ones(5, 2, 3), torch.ones(5, 3, 4))
    assert counter.get_total_flops() == 6 * 2 * 2 * 3 * 4


def test_the_authors_configuration_is_read_as_a_dictionary(tmp_path):
    from yacs.config import CfgNode

    torch.save({"model": {"w": torch.ones(1)}, "config": CfgNode({"MODEL": {"TYPE": "swin"}})}, tmp_path / "file.pth")
    loaded = torch.load(tmp_path / "file.pth", weights_only=True)
    assert type(loaded["config"]) is not CfgNode
    assert dict(loaded["config"])["MODEL"]["TYPE"] == "swin"


@dataclass
class Options:
    """Options with names by tyro."""

    plain: int = 1
    source: Annotated[int, tyro.conf.arg(name="from")] = 2
    part: Annotated[int, tyro.conf.Positional, tyro.conf.arg(name="")] = 3
    described: Annotated[int, tyro.conf.arg(help="text")] = 4


def test_names_of_options_are_those_that_tyro_uses():
    hints = get_type_hints(Options, include_extras=True)
    assert {name: compat.option_name(hint) for name, hint in hints.items()} == {
        "plain": None, "source": "from", "part": "", "described": None
    }  # fmt: skip
    assert tyro.cli(Options, args=["--from", "5"]).source == 5


def test_openvino_and_nncf_report_nothing():
    """In a process of their own, since they are imported once: what reports is never there, and they work without."""
    code = """
import sys
from inline_attention.lite.openvino_runtime import import_openvino
from inline_attention.compat import import_without_telemetry
openvino = import_openvino()
assert openvino.tools.ovc.telemetry.__class__.__module__ == "openvino.tools.ovc.telemetry_stub"
import_without_telemetry("nncf")
from nncf.telemetry.wrapper import NNCFTelemetryStub, telemetry
assert isinstance(telemetry, NNCFTelemetryStub)
assert "openvino_telemetry" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_was_imported_before_stays():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "openvino_telemetry", os)
        assert compat.import_without_telemetry("json") is json
        assert sys.modules["openvino_telemetry"] is os
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        compat.import_without_telemetry("no_such_package")
    assert sys.modules.get("openvino_telemetry", os) is not None


def test_gradio_reads_that_it_sends_nothing(monkeypatch):
    """The variable is set before gradio is imported, and gradio's own question for it is answered with no."""
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "True")
    compat.disable_gradio_analytics()
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    from gradio.analytics import analytics_enabled

    assert not analytics_enabled()


def test_gradio_reports_what_it_cannot_answer_in_one_line(monkeypatch):
    """tests/explorer/test_server.py asks a server what it cannot answer."""
    from gradio import queueing

    used = set(re.findall(r"traceback\.(\w+)", Path(queueing.__file__).read_text()))
    assert used == {"print_exc"}
    monkeypatch.setattr(queueing, "traceback", queueing.traceback)  # restored after the test
    said = []
    compat.shorten_gradio_errors(said.append)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        queueing.traceback.print_exc()
    assert said == ["ValueError: two"]
