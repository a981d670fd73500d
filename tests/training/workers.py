"""What runs in several processes at once. Started by torchrun: `python workers.py WHAT FOLDER`."""

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.distributed.fsdp import fully_shard

from inline_attention.training.build import block_classes, build_model, build_optimizer
from inline_attention.training.classify import Classify
from inline_attention.training.evaluate import evaluate
from inline_attention.training.loader import evaluation_batches
from inline_attention.training.plan import make_plan
from inline_attention.training.recipe import parse
from inline_attention.training.source import open_source
from inline_attention.training.states import gather, gather_optimizer, restore, restore_optimizer


def score(folder: Path) -> None:
    """Evaluate the recipe's untrained model, and its pictures' shares."""
    accelerator = Accelerator(cpu=True)
    recipe = parse((folder / "recipe.toml").read_text(), "recipe")
    source = open_source(recipe.data)
    model, _ = build_model(Classify(recipe), source.classes)
    rank, processes = accelerator.process_index, accelerator.num_processes
    task = Classify(recipe)
    batches = evaluation_batches(
        source.val, task.show(training=False), 2, rank=rank, processes=processes, channels=3, workers=0
    )
    found = evaluate(model, batches, task.meter(source, accelerator), accelerator, skip_bad=True)
    if accelerator.is_main_process:
        kept = {**found.numbers, **found.details, "pictures": found.pictures, "bad": found.bad}
        (folder / f"score{processes}.json").write_text(json.dumps(kept))
    accelerator.end_training()  # a process that ends with its group open may be aborted


def shard(folder: Path) -> None:  # noqa: C901
    """Shard block by block as FSDP does, take a step, gather; then lay the whole into a fresh sharded model."""
    dist.init_process_group("gloo")
    mesh = torch.distributed.init_device_mesh("cpu", (dist.get_world_size(),))
    recipe = parse((folder / "recipe.toml").read_text(), "recipe")
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
    told = copy.deepcopy([expected, expected_moments])  # as every process would read it from the files
    dist.broadcast_object_list(told)
    expected, expected_moments = told
    fresh = made(True)
    restore(fresh[0], expected)
    restore_optimizer(*fresh, expected_moments)
    step(*fresh)
    step(*whole)
    after = gather(fresh[0])
    if dist.get_rank() == 0:
        for name, value in gather(whole[0]).items():
            torch.testing.assert_close(after[name], value, atol=1e-5, rtol=1e-4)
        (folder / "sharded").write_text("ok")
    dist.destroy_process_group()


def nan(folder: Path) -> None:
    """Train; in the sixth step a layer of the second process gives NaN."""
    import os

    from inline_attention.cli.main import main
    from inline_attention.training.engine import Engine

    step = Engine._step

    def planted(self, number, *rest):
        if number == 5 and os.environ["RANK"] == "1":
            norm = self.accelerator.unwrap_model(self.model).stages[1].blocks[0].norm2
            norm.register_forward_hook(lambda module, inputs, output: output * float("nan"))
        return step(self, number, *rest)

    Engine._step = planted
    main(["train", "--recipe", str(folder / "recipe.toml"), "--out", str(folder / "nan"), "--device", "cpu"])


if __name__ == "__main__":
    {"score": score, "shard": shard, "nan": nan}[sys.argv[1]](Path(sys.argv[2]))
