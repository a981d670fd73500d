"""Matching of attention: the errors of each layer, the distillation loss, and the parameters that are trained."""

from copy import deepcopy

import pytest
import timm
import torch

from inline_attention import swap
from inline_attention.layers import InLineAttention, Mixer
from inline_attention.training.distillation import (
    attention_errors,
    distillation_loss,
    model_output,
    pair_attention,
    record_calls,
    relative_error,
    set_trainable,
)

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2, "num_classes": 5, "dynamic_img_size": True}


def vit(**more):
    from timm.models import VisionTransformer

    torch.manual_seed(0)
    return VisionTransformer(**{**VIT, **more}).eval()


def swin():
    from timm.models import SwinTransformer

    torch.manual_seed(0)
    return SwinTransformer(
        img_size=32, patch_size=2, embed_dim=16, depths=(2, 1), num_heads=(2, 2), window_size=4, num_classes=5
    ).eval()


def sam():
    """Windows of 3 on a map of 4 x 4, which are padded; the second block sees the whole map."""
    from timm.models import VisionTransformerSAM

    torch.manual_seed(0)
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2, "num_classes": 5, "neck_chans": 8}
    return VisionTransformerSAM(**size, window_size=3, global_attn_indexes=(1,), use_rel_pos=True).eval()


def ours(family="deit"):
    torch.manual_seed(0)
    return timm.create_model(f"inline_{family}_nano", img_size=32, num_classes=5, mixer="softmax").eval()


WINDOWED = {"swin": swin, "sam": sam}
TEACHERS = {"vit": vit, **WINDOWED, "deit": ours, "pvt": lambda: ours("pvt"), "cswin": lambda: ours("cswin")}


def student_of(teacher, **arguments):
    student = deepcopy(teacher)
    return student, list(swap(student, **arguments).changed)


def errors_of(teacher, student, names, images):
    pairs = pair_attention(teacher, student, names)
    with torch.no_grad(), record_calls(pairs) as calls:
        teacher(images)
    return attention_errors(student, pairs, calls, images)


@pytest.mark.parametrize("name", TEACHERS)
def test_a_copy_that_computes_the_same_has_no_error(name):
    """Softmax swapped for softmax, residuals and prefix tokens and windows included."""
    teacher = TEACHERS[name]()
    student = deepcopy(teacher)
    if name == "vit" or name in WINDOWED:
        names = list(swap(student, "softmax", local=False, keep_windows=True).changed)
    else:
        names = list(swap(deepcopy(teacher), "inline").changed)
    errors = errors_of(teacher, student, names, torch.randn(2, 3, 32, 32))
    assert errors.shape == (len(names),)
    assert float(errors.detach().max()) < 1e-9


@pytest.mark.parametrize("name", TEACHERS)
def test_the_error_is_that_of_the_attention_alone(name):
    """A student whose attention gives the teacher's output plus a constant has an error of constant^2 / variance."""
    teacher = TEACHERS[name]()
    student = deepcopy(teacher)
    if name in WINDOWED:
        names = list(swap(student, "softmax", local=False, keep_windows=True).changed)
    else:
        names = list(swap(student, "softmax", local=False).changed) if name == "vit" else list(swap(deepcopy(teacher)).changed)
    images = torch.randn(2, 3, 32, 32)
    module = pair_attention(teacher, student, names)[1].student
    variance = []

    def shifted(_, inputs, options, output):
        residual = options.get("residual", inputs[0] if name in WINDOWED else 0)
        attention = output - (0 if residual is None else residual)
        variance.append((attention - attention.flatten(0, -2).mean(0)).square().mean())
        return output + 0.25

    module.register_forward_hook(shifted, with_kwargs=True)
    errors = errors_of(teacher, student, names, images).detach()
    torch.testing.assert_close(errors[1], 0.0625 / variance[0], rtol=2e-4, atol=0)
    assert float(errors[0]) < 1e-9


def test_each_layer_gets_the_input_of_the_teachers_layer():
    """The second layer's error does not change with the first layer of the student."""
    teacher = vit()
    student, names = student_of(teacher)
    images = torch.randn(2, 3, 40, 56)  # not the size that it was made for, and not a square
    before = errors_of(teacher, student, names, images)
    with torch.no_grad():
        student.blocks[0].attn.mixer.proj.weight.zero_()
    after = errors_of(teacher, student, names, images)
    assert after[0] != before[0]
    assert torch.equal(after[1:], before[1:])


def test_gradients_stay_within_the_layer():
    teacher = vit()
    student, names = student_of(teacher)
    errors_of(teacher, student, names, torch.randn(2, 3, 32, 32))[1].backward()
    touched = {
        name for name, parameter in student.named_parameters() if parameter.grad is not None and bool(parameter.grad.any())
    }
    assert touched
    assert all(name.startswith("blocks.1.attn.") for name in touched)
    assert all(parameter.grad is None for parameter in teacher.parameters())


@pytest.mark.parametrize("name", TEACHERS)
def test_parameters_trained_in_each_phase(name):
    teacher = TEACHERS[name]()
    student, names = student_of(teacher)
    counts = {phase: set_trainable(teacher, student, names, phase) for phase in ("new", "all", "distil")}
    whole = sum(parameter.numel() for parameter in student.parameters())
    mixers = [module for module in student.modules() if isinstance(module, InLineAttention)]
    assert counts["distil"] == whole
    assert counts["all"] == sum(parameter.numel() for mixer in mixers for parameter in mixer.parameters())
    assert counts["new"] == sum(parameter.numel() for mixer in mixers for parameter in mixer.local.parameters())
    set_trainable(teacher, student, names, "new")
    for module in student.modules():
        if isinstance(module, Mixer):
            assert not module.q.weight.requires_grad
            assert all(parameter.requires_grad for parameter in module.local.parameters())


def test_attention_without_local_part_has_no_new_parameters():
    teacher = vit()
    student, names = student_of(teacher, mixer="inline", local=False)
    assert set_trainable(teacher, student, names, "new") == 0


def test_relative_error_by_hand():
    wanted = torch.tensor([[[1.0, 10.0], [3.0, 10.0]]])  # variances 1 and 0: their mean is a half
    assert float(relative_error(wanted + 1, wanted)) == pytest.approx(1 / 0.5)
    assert float(relative_error(torch.tensor([2.0, 10.0]).expand(1, 2, 2), wanted)) == pytest.approx(1.0)


def test_distillation_by_hand():
    teacher, student = Fixed(torch.tensor([[2.0, 0.0]])), Fixed(torch.tensor([[0.0, 0.0]]))
    images = torch.zeros(1, 3, 8, 8)
    share = torch.tensor([2.0 / 2, 0.0]).softmax(0)
    expected = 4 * (share * (share / 0.5).log()).sum()
    torch.testing.assert_close(distillation_loss(teacher, student, images), expected)
    assert float(distillation_loss(teacher, teacher, images)) == 0


class Fixed(torch.nn.Module):
    """The same logits for every image."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, images):
        return self.logits.expand(len(images), -1)


@pytest.mark.parametrize("name", ["vit", "swin", "deit"])
def test_models_without_classes_are_compared_by_their_features(name):
    teacher = TEACHERS[name]()
    teacher.reset_classifier(0)
    student, _ = student_of(teacher)
    images = torch.randn(2, 3, 32, 32)
    assert model_output(teacher, images).shape[-1] == teacher.num_features
    assert float(distillation_loss(teacher, teacher, images).detach()) < 1e-9
    torch.testing.assert_close(
        distillation_loss(teacher, student, images),
        relative_error(model_output(student, images), model_output(teacher, images)),
    )


def test_matching_reduces_the_error_of_attention():
    """A hundred steps on noise, layer by layer, take most of the error away."""
    teacher = vit().requires_grad_(False)
    with torch.no_grad():  # attention that is not uniform
        for block in teacher.blocks:
            block.attn.qkv.weight.mul_(3)
    student, names = student_of(teacher)
    set_trainable(teacher, student, names, "all")
    optimizer = torch.optim.AdamW([p for p in student.parameters() if p.requires_grad], lr=3e-3, weight_decay=0)
    first = None
    for _ in range(100):
        error = errors_of(teacher, student, names, torch.randn(8, 3, 32, 32)).mean()
        first = float(error.detach()) if first is None else first
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
    assert float(error.detach()) < 0.5 * first


def test_layers_are_matched_without_drop_path():
    """A Swin block that is swapped for itself answers as it did, in training too; what it drops, it drops again after."""
    from timm.layers import DropPath

    teacher = swin()
    student, names = student_of(teacher, mixer="softmax", keep_windows=True)
    student.train()
    dropping = [module for module in student.modules() if isinstance(module, DropPath)]
    assert dropping
    torch.manual_seed(0)
    assert float(errors_of(teacher, student, names, torch.randn(4, 3, 32, 32)).detach().max()) < 1e-6
    assert all(module.training for module in dropping)
