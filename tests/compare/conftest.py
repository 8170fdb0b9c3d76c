from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from vgrpo_recipe.registry import Registry

TOY = Path(__file__).parents[1] / "core" / "loop" / "toy.py"

PLUGINS = '''
import os
import time
from typing import ClassVar

import torch

from vgrpo_core import Reward, Sampler, StochasticSampler, Trajectory
from vgrpo_core.vgrpo import VGRPO


class Red(Reward):
    """Mean red, after `DELAY` seconds; `down` is a server that does not answer."""

    name = "red"
    down: bool = False

    def load(self, device):
        def score(samples):
            time.sleep(float(os.environ.get("DELAY", "0")))
            if self.down:
                raise ConnectionError("no answer")
            return samples.images[:, 0].mean((1, 2))

        return score


class Noisy(StochasticSampler):
    """Euler's steps with noise in the first one."""

    name = "noisy"
    noise: float = 0.1

    @property
    def noisy_steps(self):
        return 1

    def sample(self, predict, noise, schedule):
        z = noise
        for t, after in zip(schedule.times[:-1], schedule.times[1:]):
            z = z + (after - t) * predict(z, t)
        return z

    def explore(self, predict, noise, schedule, draw, iteration):
        z = self.sample(predict, noise, schedule) + self.noise * draw(0)
        one = z[:, None]
        return Trajectory(z, one, one, one, torch.ones(1), schedule.times[None, :2], lambda output, z, k: z)


class Stepwise(VGRPO):
    """Asks for a noisy step, and names the sampler that gives it."""

    name = "stepwise"
    companion: ClassVar[str] = "./plugins.py:Noisy"

    @property
    def noisy_steps(self):
        return 1
'''

RECIPE = """\
[run]
iterations = 7

[backbone]
use = "./toy.py:ToyBackbone"

[sampler]
use = "./toy.py:ToySampler"
steps = 2

[prompts]
use = "./toy.py:ToyPrompts"

[batch]
prompts = 3
group = 4
micro = 64

[objective]
pairs = 2

[optimizer]
lr = 0.03

[[reward]]
use = "./plugins.py:Red"
label = "red"
weight = 2
offset = -0.25

[checkpoint]
every = 0

[eval]
samples = 8
watch = false
"""


TWO = ("--objectives", "vgrpo,few=vgrpo", "--set", "few:objective.pairs=1")
SMALL = (*TWO, "--seeds", "0,1", "--levels", "0.7,0.75,9", "--budget", "480")  # 5 iterations of vgrpo, 8 of few at 60


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def write(folder: Path) -> Path:
    """Write the recipe toy.toml and its plugins. An iteration costs 12 images x (2 + 2 + 2 x 2) = 96 evaluations."""
    (folder / "toy.py").write_text(TOY.read_text())
    (folder / "plugins.py").write_text(PLUGINS)
    (folder / "toy.toml").write_text(RECIPE)
    torch.set_num_threads(1)
    return folder


def call(*args: str) -> Result:
    """Call `vgrpo compare toy.toml` in this process."""
    from vgrpo_cli.app import main

    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["vgrpo", "compare", "toy.toml", *args])
        for name in ("OMP_WAIT_POLICY", "DIFFUSERS_VERBOSITY", "TRANSFORMERS_VERBOSITY"):  # which the command sets
            patch.setenv(name, os.environ.get(name, "passive" if name.startswith("OMP") else "error"))
        main()
    return Result(int(ended.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def discovered():
    """Look for plugins once: there are many recipes to read."""
    return Registry.discover()


@pytest.fixture(autouse=True)
def registry(discovered, monkeypatch):
    """What is found without looking again."""
    monkeypatch.setattr(Registry, "discover", classmethod(lambda cls: discovered))
    return discovered


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working folder with the toy in it."""
    monkeypatch.chdir(write(tmp_path))
    for name in ("FORCE_COLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE", "VGRPO_PLUGINS", "VGRPO_STRICT_PLUGINS", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def compare():
    """Call the command."""
    return call


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Return the folder in which a comparison of two entries on two seeds is done, and what it printed."""
    folder = write(tmp_path_factory.mktemp("finished"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder, call(*SMALL)


@pytest.fixture
def small():
    """The arguments of the comparison that is done."""
    return SMALL


@pytest.fixture
def started():
    """Start `vgrpo compare toy.toml` in a process of its own; whatever is still running at the end of the test is killed."""
    running: list[subprocess.Popen[str]] = []

    def start(*args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-u", "-m", "vgrpo_cli", "compare", "toy.toml", *args]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()
