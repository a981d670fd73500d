"""An optimized model gives what the model gives, and says what was done to it."""

import re

import pytest
import torch
from timm.models import create_model

from inline_attention import optimize
from inline_attention.models import optimized


def made(**options):
    torch.manual_seed(0)
    return create_model("inline_deit_nano", num_classes=5, depth=1, **options)


def test_the_same_outputs_compiled_or_not_at_every_size(monkeypatch):
    """With frozen weights alone, since compiling takes most of the time."""
    monkeypatch.setattr(optimized, "FORMS", {"Compiled with frozen weights": {"freezing": True}})
    model = made()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fast = optimize(model, (48, 40), batch=2)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert re.match("(Not compiled|Compiled|Compiled with frozen weights): ", fast.report)
    assert "2 images of 48 x 40" in fast.report
    model.eval()
    for shape in ((2, 3, 48, 40), (1, 3, 48, 40), (3, 3, 32, 32)):
        images = torch.randn(shape)
        given, plain = fast(images), model(images).detach()
        assert not given.requires_grad
        assert float((given - plain).abs().max()) < 1e-5 * float(plain.abs().max())


def test_a_module_like_any_other(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    model = made(drop_rate=0.5)
    fast = optimize(model).train()
    assert set(fast.state_dict()) == {f"model.{name}" for name in model.state_dict()}
    assert not any(module.training for module in fast.model.modules())
    assert (fast.num_classes, fast.pretrained_cfg) == (5, model.pretrained_cfg)
    with pytest.raises(ValueError, match="optimize needs a model that gives one tensor, got a list"):
        optimize(create_model("inline_pvt_nano", features_only=True), 32)
    assert "1 image of 64 x 64" in optimize(create_model("vit_tiny_patch16_224", img_size=64, depth=1), 64).report


def other(replacement):
    return lambda model, **_: lambda x: replacement(model, x)


def failing(model, x):
    raise RuntimeError("no compiler found\nand a long tale of it")


def off(model, x):
    return model(x) * (1 + 1e-4)


def slow(model, x):
    return model(x) + 0 * sum(model(x) for _ in range(3))


def not_a_number(model, x):
    return model(x) * float("nan")


@pytest.mark.parametrize(
    ("replacement", "said"),
    [
        (failing, r"Not compiled: torch.compile failed \(no compiler found\)."),
        (off, r"Not compiled: outputs would differ by 1.0e-04 of the largest."),
        (not_a_number, r"Not compiled: outputs would differ by nan of the largest."),
        (slow, r"Not compiled: it would take [\d.]+ ms instead of [\d.]+ ms for 1 image of 32 x 32."),
    ],
)
def test_what_is_not_better_is_not_used(replacement, said, monkeypatch):
    monkeypatch.setattr(torch, "compile", other(replacement))
    model = made().eval()
    fast = optimize(model)
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(fast(images), model(images), rtol=0, atol=0)
    assert re.fullmatch(said, fast.report)
    assert fast.report in repr(fast)


def test_what_is_better_is_used(monkeypatch):
    calls = []

    def compiled(model, x):
        calls.append(x.shape)
        return answers[x.shape] if x.shape in answers else answers.setdefault(x.shape, model(x))

    answers = {}
    monkeypatch.setattr(torch, "compile", other(compiled))
    fast = optimize(made(), batch=4)
    assert fast.report.startswith("Compiled")
    assert fast.report.endswith("outputs differ by 0.0e+00 of the largest.")
    before = len(calls)
    fast(torch.randn(4, 3, 32, 32))
    fast(torch.randn(3, 3, 32, 32))
    fast(torch.randn(4, 3, 32, 32).to(memory_format=torch.channels_last))
    with torch.autocast("cpu", torch.bfloat16, enabled=True):
        fast(torch.randn(4, 3, 32, 32))
    assert calls[before:] == [(4, 3, 32, 32)]


def compiling(monkeypatch, plain, frozen):
    """In place of the compiler: what a model becomes as it is, and with frozen weights."""

    def compile_model(model, *, dynamic, options):
        assert dynamic is False
        replacement = frozen if options == {"freezing": True} else plain
        return lambda x: replacement(model, x)

    monkeypatch.setattr(torch, "compile", compile_model)


def test_the_faster_of_frozen_weights_and_others_is_used(monkeypatch):
    answers, images = {}, torch.randn(1, 3, 32, 32)

    def fast(model, x):
        return answers[x.shape] if x.shape in answers else answers.setdefault(x.shape, model(x))

    report = r"%s: [\d.]+ ms instead of [\d.]+ ms for 1 image of 32 x 32 \(%s\); outputs differ by 0.0e\+00 of the largest."
    compiling(monkeypatch, slow, fast)
    found = optimize(made())
    assert re.fullmatch(report % ("Compiled with frozen weights", r"compiled: [\d.]+ ms"), found.report)
    assert found(images) is answers[images.shape]
    compiling(monkeypatch, fast, slow)
    found = optimize(made())
    assert re.fullmatch(report % ("Compiled", r"compiled with frozen weights: [\d.]+ ms"), found.report)
    assert found(images) is answers[images.shape]
    compiling(monkeypatch, fast, off)
    found = optimize(made())
    said = r"compiled with frozen weights: outputs would differ by 1.0e-04 of the largest"
    assert re.fullmatch(report % ("Compiled", said), found.report)
    compiling(monkeypatch, failing, off)
    assert optimize(made()).report == (
        "Not compiled: torch.compile failed (no compiler found); outputs would differ by 1.0e-04 of the largest."
    )


def test_errors():
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        optimize(made(), batch=0)
    with pytest.raises(ValueError, match="images must be at least 8 x 8 pixels for patches of 2, got 4 x 40"):
        optimize(made(), (4, 40))
