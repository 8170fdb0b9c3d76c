from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

import vgrpo_recipe as recipes
from vgrpo_core.offers import Offer
from vgrpo_core.run import run
from vgrpo_core.trainer import Trainer
from vgrpo_core.vgrpo import VGRPO
from vgrpo_recipe.registry import Registry

FILE = Path(__file__).with_name("toy.py")

RECIPE = f"""\
[run]
iterations = 6
seed = 7
[backbone]
use = "{FILE}:ToyBackbone"
[sampler]
use = "{FILE}:ToySampler"
steps = 3
[prompts]
use = "{FILE}:ToyPrompts"
[batch]
prompts = 2
group = 4
[objective]
pairs = 3
steps = 2
clip = 1e-2
[optimizer]
lr = 1e-2
[[reward]]
use = "{FILE}:ToyReward"
label = "red"
[eval]
every = 2
[eval.prompts]
use = "{FILE}:ToyPrompts"
first = 5
count = 3
[checkpoint]
every = 2
"""

MONITOR = f"""
[[eval.reward]]
use = "{FILE}:ToyReward"
label = "watched"
"""

SECOND = f"""
[[reward]]
use = "{FILE}:ToyReward"
label = "second"
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
    return module(FILE)


@pytest.fixture(scope="session")
def ref():
    """The module reference.py."""
    return module(FILE.with_name("reference.py"))


@pytest.fixture
def policy(toy):
    """A toy with the same weights every time."""
    torch.manual_seed(0)
    return toy.ToyPolicy()


@pytest.fixture
def recipe(tmp_path):
    """Load the toy's recipe with overrides; `monitor` and `second` add rewards."""

    def load(*overrides, monitor=False, second=False):
        path = tmp_path / "toy.toml"
        path.write_text(RECIPE + MONITOR * monitor + SECOND * second)
        return recipes.load(path, overrides, Registry((Offer("objective", "vgrpo", VGRPO, "vgrpo", "0"),)))

    return load


@pytest.fixture
def trainer(recipe):
    """Make a trainer of the toy's recipe."""

    def make(*overrides, listener=lambda event: None, **rewards):
        return Trainer(recipe(*overrides, **rewards), torch.device("cpu"), listener)

    return make


@pytest.fixture
def go(recipe, tmp_path):
    """Run the toy's recipe in a folder of tmp_path and return the folder."""

    def start(name, *overrides, resume=False, stop_after=None, listener=lambda event: None, **rewards):
        asked = iter(range(1, 99))
        stop = (lambda: next(asked) == stop_after) if stop_after else (lambda: False)
        run(recipe(*overrides, **rewards), tmp_path / name, listener, resume=resume, stop=stop)
        return tmp_path / name

    return start


@pytest.fixture
def lines():
    """Read a run's metrics.jsonl, without what depends on the clock."""

    def read(folder):
        found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if key not in ("seconds", "memory/peak_gb")} for line in found]

    return read
