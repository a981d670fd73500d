"""A small run that the tests of several commands look at."""

import pytest

from ..training.small import small_recipe, write_pictures, write_recipe


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A small run of the command, and its pictures."""
    here = tmp_path_factory.mktemp("trained")
    data = write_pictures(here / "data", 20)
    plain = {"augment": {"auto": "", "mixup": 0.0, "cutmix": 0.0}, "model": {"drop_path": 0.0}, "schedule": {"epochs": 6}}
    recipe = write_recipe(here / "colours.toml", small_recipe(data, **plain))
    from inline_attention.cli.main import main

    main(["train", "--recipe", str(recipe), "--out", str(here / "run"), "--device", "cpu"])
    return here
