"""Blocks that keep their attention: what may be asked for, what is measured, and which are chosen."""

import re
from copy import deepcopy

import pytest
import torch
import transformers

from inline_attention import swap
from inline_attention.training import kept_cost
from inline_attention.training.distillation import distillation_loss, output_error, pair_attention
from inline_attention.training.kept_blocks import Keep, choose_kept, number_kept, only, parse_keep
from inline_attention.training.kept_cost import costs
from inline_attention.training.kept_errors import match_attention, output_errors, restored

from .test_distillation import TEACHERS, errors_of, student_of, vit

NAMES = [f"blocks.{index}.attn" for index in range(4)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("auto", Keep()),
        ("0", Keep(count=0)),
        ("2", Keep(count=2)),  # a number alone is how many
        ("3,", Keep(names=("blocks.2.attn",))),  # with a comma it is which, counted from 1
        ("4, 1", Keep(names=("blocks.0.attn", "blocks.3.attn"))),
        ("blocks.1.attn,4", Keep(names=("blocks.1.attn", "blocks.3.attn"))),
    ],
)
def test_how_many_or_which(text, found):
    assert parse_keep(text, NAMES, NAMES) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4", "keep '4': 4 of 4 blocks, which leaves none to be linear: keep fewer than 4"),
        ("1,2,3,4", "leaves none to be linear"),
        ("0,1", "there is no block 0, blocks are counted from 1 to 4"),
        ("1,5", "there is no block 5"),
        ("2,blocks.1.attn", "blocks.1.attn is given twice"),
        ("blocks.9.attn", r"no attention is called 'blocks.9.attn' \(did you mean blocks"),
        ("most", "give auto, how many"),
        ("1,,2", "no attention is called ''"),
    ],
)
def test_what_cannot_be_kept(text, said):
    with pytest.raises(ValueError, match=said):
        parse_keep(text, NAMES, NAMES)


def test_blocks_are_counted_over_all_attention_whatever_is_swapped():
    assert parse_keep("4,", NAMES, NAMES[2:]).names == ("blocks.3.attn",)
    with pytest.raises(ValueError, match=r"blocks\.0\.attn is not among those to swap, so it is kept already"):
        parse_keep("1,", NAMES, NAMES[2:])
    with pytest.raises(ValueError, match="2 of 2 blocks"):
        parse_keep("2", NAMES, NAMES[2:])


@pytest.mark.parametrize(
    ("curve", "blocks", "kept"),
    [
        ((1, 0.5, 0.2, 0), 12, 1),  # the first that halves it
        ((1, 0.6, 0.4, 0.3), 12, 2),
        ((1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4), 12, 4),  # at most a third of the blocks
        ((1, 0.9, 0.8, 0.7, 0.6, 0.55, 0.52), 24, 6),  # and no more than are measured
        ((1, 0.9, 0), 2, 1),
        ((1, 0), 1, 0),  # a model of one block keeps none
    ],
)
def test_auto_halves_the_error(curve, blocks, kept):
    assert number_kept(curve, blocks) == kept


ALONE = dict(zip(NAMES, (0.1, 0.4, 0.0, 0.3), strict=True))


def added(sets):
    """Errors that add up over the linear blocks."""
    return [sum(error for name, error in ALONE.items() if name not in kept) for kept in sets]


@pytest.mark.parametrize(
    ("keep", "kept"), [(Keep(), [1]), (Keep(count=2), [1, 3]), (Keep(count=0), []), (Keep(names=(NAMES[2],)), [2])]
)
def test_the_most_sensitive_are_kept(keep, kept):
    found = choose_kept(keep, NAMES, NAMES, added)
    assert found["kept"] == [NAMES[index] for index in kept]
    assert found["error"] == pytest.approx(added([set(found["kept"])])[0])
    assert found["curve"] == pytest.approx([0.8, 0.4, 0.1, 0, 0])
    assert [(row["block"], row["kept"]) for row in found["blocks"]] == [(i + 1, i in kept) for i in range(4)]
    assert [row["error"] for row in found["blocks"]] == pytest.approx(list(ALONE.values()))


@pytest.mark.parametrize("name", TEACHERS)
def test_kept_attention_is_the_teachers_and_the_rest_the_students(name):
    """The error of one linear block equals that of a model of which `swap` replaced that block only."""
    teacher = TEACHERS[name]().requires_grad_(False)
    for parameter in teacher.parameters():  # so that outputs differ by more than they are rounded
        parameter.mul_(5 if parameter.ndim == 2 else 1)
    student, names = student_of(teacher)
    images = torch.randn(4, 3, 32, 32)
    alone = deepcopy(teacher)
    swap(alone, only=only([names[-1]]))
    alone.load_state_dict(
        {key: value for key, value in student.state_dict().items() if key in alone.state_dict()}, strict=False
    )
    student.requires_grad_(False)
    alone.requires_grad_(False)
    kept = [names, names[:-1], []]
    none, last, all_linear = output_errors(teacher, student, names, kept, [images[:3], images[3:]])
    assert none == pytest.approx(0, abs=1e-9)
    parts = [float(distillation_loss(teacher, alone, part)) for part in (images[:3], images[3:])]
    assert last == pytest.approx((3 * parts[0] + parts[1]) / 4, rel=1e-4)
    assert last > 1e-6
    expected = [float(distillation_loss(teacher, student, part)) for part in (images[:3], images[3:])]
    assert all_linear == pytest.approx((3 * expected[0] + expected[1]) / 4, rel=1e-4)


def test_the_student_is_as_before_after_its_attention_was_restored():
    teacher = vit()
    student, names = student_of(teacher)
    pairs = pair_attention(teacher, student, names)
    modules = dict(student.named_modules())
    with restored(student, pairs[:2]):
        assert student.blocks[0].attn is teacher.blocks[0].attn
        assert student.blocks[2].attn is not teacher.blocks[2].attn
    assert dict(student.named_modules()) == modules


def test_a_model_of_transformers_is_measured():
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 32}
    torch.manual_seed(0)
    config = transformers.ViTConfig(**size, patch_size=8, num_labels=3, initializer_range=0.5)
    for teacher in (transformers.ViTForImageClassification(config), transformers.ViTModel(config)):
        teacher.eval().requires_grad_(False)
        student, names = student_of(teacher)
        found = output_errors(teacher, student, names, [names, names[:1], []], [torch.randn(2, 3, 32, 32)])
        assert found[0] == pytest.approx(0, abs=1e-9)
        assert found[1] > 0
        assert found[2] > 0


def test_a_copy_whose_numbers_overflow_is_an_error_and_no_choice():
    teacher = vit().requires_grad_(False)
    student, names = student_of(teacher)
    student.requires_grad_(False)
    student.blocks[1].attn.mixer.proj.weight.fill_(float("nan"))
    images = [torch.randn(2, 3, 32, 32)]
    said = r"the linear copy .* \(error nan\) with blocks\.1\.attn linear: lower the second of --rates"
    with pytest.raises(FloatingPointError, match=said):
        output_errors(teacher, student, names, [{names[1]}, {names[0], names[2]}], images)
    student.blocks[1].attn.mixer.proj.weight.fill_(1e30)  # finite outputs after the last norm, or not: never a silent NaN
    found = output_errors(teacher, student, names, [{names[1]}], images)
    assert 0 < found[0] < 100


def test_matching_leaves_the_teacher_and_all_but_the_attention_as_they_are():
    teacher = vit().requires_grad_(False)
    student, names = student_of(teacher)
    before, images = deepcopy(teacher.state_dict()), torch.randn(8, 3, 32, 32)
    error = errors_of(teacher, student, names, images).mean()
    match_attention(teacher, student, names, [images] * 10, 1e-3)
    assert errors_of(teacher, student, names, images).mean() < 0.9 * error
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert torch.equal(student.blocks[0].mlp.fc1.weight, teacher.blocks[0].mlp.fc1.weight)
    assert not any(parameter.requires_grad for parameter in student.parameters())


def test_only_matches_the_names_and_nothing_else():
    model = vit()
    assert list(swap(model, only=only(["blocks.1.attn"])).changed) == ["blocks.1.attn"]
    for other in ("blocksx1.attn", "blocks.11.attn", "blocks.1.attn.qkv"):
        assert not re.fullmatch(only(["blocks.1.attn", "blocks.3.attn"]), other)


def test_features_are_compared_where_there_are_no_classes():
    target, output = torch.randn(2, 5, 4), torch.randn(2, 5, 4)
    assert output_error(torch.nn.Identity(), target, target) == 0
    assert output_error(torch.nn.Identity(), output, target) > 1


def test_the_cost_of_an_image(monkeypatch):
    teacher = vit().requires_grad_(False)
    linear, _ = student_of(teacher)
    found = costs({"linear": linear, "teacher": teacher}, 256, 3, torch.device("cpu"))
    assert found["side"] == 256
    rows = found["models"]
    assert rows["linear"]["flops"] < rows["teacher"]["flops"]
    assert all(0 < row["seconds"] < 60 for row in rows.values())
    monkeypatch.setattr(kept_cost, "LONGEST", 0.0)
    late = costs({"linear": linear, "teacher": teacher}, 256, 3, torch.device("cpu"))["models"]
    assert late["linear"]["seconds"] is not None
    assert late["teacher"]["seconds"] is None
    assert late["teacher"]["reason"].startswith("not timed: it would take about")
    fixed = costs({"linear": vit(dynamic_img_size=False)}, 256, 3, torch.device("cpu"))["models"]["linear"]
    assert fixed["flops"] is fixed["seconds"] is None
    assert fixed["reason"].startswith("not measured: ")
    assert "256" in fixed["reason"]


def test_what_failed_is_told_as_it_was_and_mistakes_are_not_hidden(monkeypatch):
    def failing(error):
        def count(*_):
            raise error

        monkeypatch.setattr(kept_cost, "count", count)
        return costs({"linear": vit()}, 256, 3, torch.device("cpu"))["models"]["linear"]["reason"]

    full = "DefaultCPUAllocator: not enough memory: you tried to allocate 4294967296 bytes."
    assert failing(RuntimeError(f"{full}\nat alloc_cpu.cpp:117")) == f"not measured: {full}"
    assert failing(MemoryError()) == "not measured: MemoryError"
    with pytest.raises(IndexError):
        failing(IndexError("list index out of range"))
