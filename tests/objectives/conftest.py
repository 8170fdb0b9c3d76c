"""Whole runs of an objective on the toy of tests/core/loop, in milliseconds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import vgrpo_recipe as recipes
from vgrpo_core.offers import Offer
from vgrpo_core.run import run
from vgrpo_core.trainer import Trainer
from vgrpo_core.vgrpo import VGRPO
from vgrpo_objectives import vgrpo_objectives
from vgrpo_recipe.registry import Registry

TOY = Path(__file__).parents[1] / "core" / "loop" / "toy.py"

RECIPE = f"""\
[run]
iterations = 6
seed = 7
[backbone]
use = "{TOY}:ToyBackbone"
[sampler]
use = "{TOY}:ToySampler"
steps = 3
[prompts]
use = "{TOY}:ToyPrompts"
[batch]
prompts = 2
group = 4
[objective]
use = "OBJECTIVE"
[optimizer]
lr = 1e-2
[[reward]]
use = "{TOY}:ToyReward"
label = "red"
[eval.prompts]
use = "{TOY}:ToyPrompts"
first = 5
count = 3
"""


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads cost more than they save on tensors this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="session")
def toy():
    """The module toy.py."""
    return module(TOY)


@pytest.fixture(scope="session")
def latents_reference():
    """The module latents_reference.py."""
    return module(Path(__file__).with_name("latents_reference.py"))


@pytest.fixture
def recipe(tmp_path):
    """Load the toy's recipe with an objective, named as recipes name it, and overrides."""
    offers = [Offer("objective", each.name, each, "vgrpo", "0") for each in [VGRPO, *vgrpo_objectives()]]

    def load(objective, *overrides):
        path = tmp_path / "toy.toml"
        path.write_text(RECIPE.replace("OBJECTIVE", objective))
        return recipes.load(path, overrides, Registry(tuple(offers)))

    return load


@pytest.fixture
def trainer(recipe):
    """Make a trainer of the toy's recipe."""

    def make(objective, *overrides):
        return Trainer(recipe(objective, *overrides), torch.device("cpu"), lambda event: None)

    return make


@pytest.fixture
def go(recipe, tmp_path):
    """Run the toy's recipe in a folder of tmp_path and return the folder."""

    def start(name, objective, *overrides, resume=False, stop_after=None):
        asked = iter(range(1, 99))
        stop = (lambda: next(asked) == stop_after) if stop_after else (lambda: False)
        run(recipe(objective, *overrides), tmp_path / name, lambda event: None, resume=resume, stop=stop)
        return tmp_path / name

    return start
