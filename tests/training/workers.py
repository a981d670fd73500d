"""What runs in several processes at once, in one launch of torchrun: `python workers.py JOBS`.

JOBS is a JSON file with a list of jobs, each the name of a function below and its arguments.
"""

import copy
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.distributed.fsdp import fully_shard

from inline_attention.cli.main import main
from inline_attention.data.sources import open_source
from inline_attention.training.classify import Classify
from inline_attention.training.distributed import gather, gather_optimizer, restore, restore_optimizer
from inline_attention.training.engine import Engine
from inline_attention.training.model_factory import block_classes, build_model
from inline_attention.training.recipe import parse
from inline_attention.training.schedule import build_optimizer, make_plan
from inline_attention.training.task import evaluate_source


def command(*words: str) -> None:
    """`inline ...`."""
    main(list(words))


def score(folder: str) -> None:
    """Evaluate the recipe's untrained model."""
    accelerator = Accelerator(cpu=True)
    recipe = parse((Path(folder) / "recipe.toml").read_text(), "recipe")
    source, task = open_source(recipe.data), Classify(recipe)
    model, _ = build_model(task, source.classes)
    found = evaluate_source(model, task, source, accelerator, batch=2, workers=0)
    if accelerator.is_main_process:
        kept = {**found.metrics, **found.details, "images": found.images, "bad": found.bad}
        (Path(folder) / f"score{accelerator.num_processes}.json").write_text(json.dumps(kept))


def shard(folder: str) -> None:  # noqa: C901
    """Shard block by block as FSDP does, take a step, gather; then load the whole state into a fresh sharded model."""
    mesh = torch.distributed.init_device_mesh("cpu", (dist.get_world_size(),))
    recipe = parse((Path(folder) / "recipe.toml").read_text(), "recipe")
    recipe = replace(recipe, model=replace(recipe.model, drop_path=0.0))
    classes = ("blue", "green", "red")

    def made(sharded: bool):
        model, _ = build_model(Classify(recipe), classes)
        if sharded:
            for module in model.modules():
                if type(module).__name__ in block_classes(model):
                    fully_shard(module, mesh=mesh)
            fully_shard(model, mesh=mesh)
        return model, build_optimizer(model, recipe, make_plan(recipe, 48, 1))

    def step(model, optimizer):
        torch.manual_seed(0)
        model(torch.randn(4, 3, *recipe.data.size)).logsumexp(1).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    whole, sharded = made(False), made(True)
    pieces = sum(p.to_local().numel() for p in sharded[0].parameters())
    assert pieces < 0.7 * sum(p.numel() for p in whole[0].parameters()), "a process holds its share only"
    step(*whole)
    step(*sharded)
    weights, moments = gather(sharded[0]), gather_optimizer(*sharded)
    expected, expected_moments = gather(whole[0]), gather_optimizer(*whole)
    if dist.get_rank() == 0:
        assert weights.keys() == expected.keys()
        assert moments.tensors.keys() == expected_moments.tensors.keys()
        for name, value in expected.items():
            torch.testing.assert_close(weights[name], value, atol=1e-5, rtol=1e-4)
        for name, value in expected_moments.tensors.items():
            torch.testing.assert_close(moments.tensors[name], value, atol=1e-5, rtol=1e-3)
    saved = copy.deepcopy([expected, expected_moments])  # as every process would read it from the files
    dist.broadcast_object_list(saved)
    expected, expected_moments = saved
    fresh = made(True)
    restore(fresh[0], expected)
    restore_optimizer(*fresh, expected_moments)
    step(*fresh)
    step(*whole)
    after = gather(fresh[0])
    if dist.get_rank() == 0:
        for name, value in gather(whole[0]).items():
            torch.testing.assert_close(after[name], value, atol=1e-5, rtol=1e-4)
        (Path(folder) / "sharded").write_text("ok")


def nan(folder: str) -> None:
    """Train; in the sixth step a layer of the second process gives NaN."""
    step = Engine._step

    def planted(self, number, *rest):
        if number == 5 and os.environ["RANK"] == "1":
            norm = self.accelerator.unwrap_model(self.model).stages[1].blocks[0].norm2
            norm.register_forward_hook(lambda module, inputs, output: output * float("nan"))
        return step(self, number, *rest)

    Engine._step = planted
    main(["train", "--recipe", str(Path(folder) / "recipe.toml"), "--out", str(Path(folder) / "nan"), "--device", "cpu"])


if __name__ == "__main__":
    end_training, Accelerator.end_training = Accelerator.end_training, lambda self: None  # it ends the group of processes
    for name, *arguments in json.loads(Path(sys.argv[1]).read_text()):
        {"command": command, "score": score, "shard": shard, "nan": nan}[name](*arguments)
    end_training(Accelerator(cpu=True))  # a process that ends with its group open may be aborted
