"""A small run that the tests of several commands look at."""

import pytest

from ..training.small import small_recipe, write_images, write_recipe


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A small run of the command, and its images."""
    here = tmp_path_factory.mktemp("trained")
    data = write_images(here / "data", 20)
    plain = {"augment": {"auto": "", "mixup": 0.0, "cutmix": 0.0}, "model": {"drop_path": 0.0}, "schedule": {"epochs": 6}}
    recipe = write_recipe(here / "colours.toml", small_recipe(data, **plain))
    from inline_attention.cli.main import main

    main(["train", "--recipe", str(recipe), "--out", str(here / "run"), "--device", "cpu"])
    return here


@pytest.fixture(scope="session")
def trained_small(trained, tmp_path_factory):
    """The folder of a run of a model with one block, which is exported in seconds, on the same images."""
    run = tmp_path_factory.mktemp("small") / "run"
    from inline_attention.cli.main import main

    main([
        "train", "--recipe", str(trained / "colours.toml"), "--out", str(run), "--device", "cpu", "--model.name",
        "inline_deit_nano", "--model.args", "patch_size=4, depth=1, embed_dim=16, num_heads=2",
    ])  # fmt: skip
    return run
