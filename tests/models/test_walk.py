"""How many files of the package a reader opens to follow one image through a model."""

import sys
from pathlib import Path

import timm
import torch

import inline_attention

PACKAGE = Path(inline_attention.__file__).parent


def files_run(call) -> set[str]:
    """Files of the package that have a function executed during the call."""
    found = set()

    def trace(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            found.add(str(path.relative_to(PACKAGE)))

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return found


@torch.no_grad()
def test_one_forward_pass_runs_few_files():
    model = timm.create_model("inline_swin_tiny").eval()
    images = torch.randn(1, 3, 224, 224)
    found = files_run(lambda: model(images))
    assert {"models/backbone.py", "layers/mixer.py", "layers/inline.py", "ops/folded.py"} <= found
    assert len(found) <= 18, sorted(found)
