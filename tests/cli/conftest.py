from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

TOY = '''
import time

import torch
from torch import nn
from vgrpo_core import Backbone, Policy, Process, Prompt, Prompts, Reward, Schedule


class ToyPolicy(Policy):
    """A flow whose data is one learned colour."""

    def __init__(self):
        self.process = Process("flow")
        self.module = nn.ParameterDict({"colour": nn.Parameter(torch.zeros(3))})

    def output(self, z, t, prompts):
        data = 0.5 * z + self.module["colour"].view(3, 1, 1)
        return (z - data) / t.view(-1, 1, 1, 1).clamp(min=0.1)

    def noise(self, prompts, generators):
        return torch.stack([torch.randn(3, 4, 8, generator=generator) for generator in generators])

    def decode(self, latents):
        return latents.sigmoid()

    def schedule(self, steps):
        return Schedule(torch.linspace(1, 0, steps + 1), self.process)

    def export(self, folder):
        folder.mkdir(exist_ok=True)
        (folder / "colour.txt").write_text(str(self.module["colour"].tolist()))


class Model(Backbone):
    """A colour to learn."""

    name = "toy"
    loading: float = 0.0

    def load(self, device):
        time.sleep(self.loading)
        return ToyPolicy()

    def describe(self):
        return "toy [bold]colour[/bold] model"


class Names(Prompts):
    """A few names."""

    name = "names"
    count: int = 6

    def load(self):
        return [Prompt(f"name {index}") for index in range(self.count)]


class Bright(Reward):
    """Mean brightness."""

    name = "bright"
    delay: float = 0.0
    fail_at: int = 0
    stall_at: int = 0

    def load(self, device):
        calls = iter(range(1, 10**9))

        def score(samples):
            call = next(calls)
            time.sleep(60 if call == self.stall_at else self.delay)
            if call == self.fail_at:
                raise ValueError("out of [red]paint[/red]")
            return samples.images.mean(dim=(1, 2, 3))

        return score


class Worse(Reward):
    """Nothing can be judged."""

    name = "worse"

    def load(self, device):
        return lambda samples: samples.images.mean(dim=(1, 2, 3)) * float("nan")
'''

RECIPE = """\
[run]
iterations = 4

[backbone]
use = "./toy.py:Model"

[sampler]
use = "euler"
steps = 2

[prompts]
use = "./toy.py:Names"

[batch]
prompts = 4
group = 4
micro = 64

[optimizer]
lr = 0.1

[[reward]]
use = "./toy.py:Bright"
label = "light"

[checkpoint]
every = 1

[eval]
every = 2
"""


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return self.out.splitlines()[-1]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a small recipe in it, toy.toml, whose plugins are in toy.py."""
    (tmp_path / "toy.py").write_text(textwrap.dedent(TOY))
    (tmp_path / "toy.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    for name in ("OMP_WAIT_POLICY", "DIFFUSERS_VERBOSITY", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(name, os.environ.get(name, "passive" if name.startswith("OMP") else "error"))
    for name in ("FORCE_COLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE", "VGRPO_PLUGINS", "VGRPO_STRICT_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def vgrpo(monkeypatch, capsys):
    """Call the command in this process."""
    from vgrpo_cli.app import main

    def call(*args: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["vgrpo", *args])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Result(int(ended.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def started():
    """Start the command in a process of its own; whatever is still running at the end of the test is killed."""
    running: list[subprocess.Popen[str]] = []

    def start(*args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "vgrpo_cli", *args]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()
