"""An image that is split over several processes gives the logits and the gradients that it gives in one."""

import pytest
import timm
import torch
import torch.distributed as dist
from torch import nn

from inline_attention.large.parallelize import parallelize

from ..processes import run_in_processes
from . import parallel_checks as checks


def test_two_processes(tmp_path):
    run_in_processes(
        2,
        tmp_path / "rendezvous",
        checks.forward,
        checks.other_sizes,
        checks.split,
        checks.gradients,
        checks.newer_mixers,
        checks.dense_gradients,
        checks.partly_frozen,
        checks.checkpointed,
        checks.training,
        checks.traffic,
        checks.far_looking,
        checks.streamed_gradients,
    )


def test_four_processes(tmp_path):
    run_in_processes(
        4,
        tmp_path / "rendezvous",
        checks.forward,
        checks.split,
        checks.gradients,
        checks.traffic,
        checks.some_of_the_processes,
    )


@pytest.mark.slow
def test_four_processes_at_other_sizes_and_in_training(tmp_path):
    run_in_processes(4, tmp_path / "rendezvous", checks.other_sizes, checks.training, checks.streamed_gradients)


@pytest.fixture
def alone():
    """A group of this process only."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_one_process_is_enough(alone):
    model = checks.model_of("inline_deit_nano")
    parallel = parallelize(model)
    x = checks.images()
    torch.testing.assert_close(parallel(x), model(x))
    assert parallel.model is model
    assert parallel.rows(29) == (0, 8)
    assert [name for name, _ in parallel.named_parameters()] == [f"model.{name}" for name, _ in model.named_parameters()]
    assert parallel.traffic.halo == 0


def test_it_needs_a_process_group():
    with pytest.raises(RuntimeError, match=r"^parallelize needs a process group: call torch.distributed.init_process_group"):
        parallelize(timm.create_model("inline_deit_nano"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Linear(2, 2), r"^parallelize needs one of this package's models, .*, got Linear$"),
        (lambda: timm.create_model("inline_swin_nano"), r"blocks are all linear .* of this one is \w+ in windows$"),
        (
            lambda: timm.create_model("inline_cswin_nano", depths=(1, 1, 1, 1), inline_depths=1),
            r"^parallelize needs patches that do not overlap, such as inline_pvt_tiny has; stages.0.embed overlaps$",
        ),
    ],
)
def test_unsuitable_models_are_refused(alone, model, message):
    with pytest.raises(ValueError, match=message):
        parallelize(model())


def test_unsuitable_options_and_images_are_refused(alone):
    model = checks.model_of("inline_deit_nano", global_pool="max")
    with pytest.raises(ValueError, match=r"^parallelize needs global_pool='avg' or 'token', got 'max'$"):
        parallelize(model)(checks.images())
    assert parallelize(model).forward_features(checks.images()).shape == (2, 41, 16)
    with pytest.raises(ValueError, match=r"^images must be \(batch, 3, height, width\), got \(2, 1, 29, 19\)$"):
        parallelize(model).forward_features(checks.images()[:, :1])


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"drop_rate": 0.1}, "head_drop drops 0.1"),
        ({"attn_drop_rate": 0.2}, "stages.0.blocks.0.mixer drops 0.2"),
        ({"proj_drop_rate": 0.3}, r"stages.0.blocks.0.mixer.proj_drop drops 0.3"),
    ],
)
def test_dropout_is_refused_while_training(alone, options, where):
    parallel = parallelize(checks.model_of("inline_deit_nano", **options))
    parallel(checks.images())
    parallel.train()
    with pytest.raises(ValueError, match=rf"^parallelize cannot train with dropout, other than drop path: {where}$"):
        parallel(checks.images())
