from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import vgrpo_recipe
from vgrpo_core import checkpoint
from vgrpo_core.offers import Offer
from vgrpo_core.run import run
from vgrpo_core.vgrpo import VGRPO
from vgrpo_recipe.registry import Registry

HERE = Path(__file__).parent
TOY, WORKER = HERE.parent / "loop" / "toy.py", HERE / "worker.py"

RECIPE = f"""\
[run]
iterations = 5
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
micro = 3
[objective]
pairs = 3
steps = 2
clip = 1e-2
[optimizer]
lr = 1e-3
ema = 0.9
[[reward]]
use = "{TOY}:ToyReward"
label = "red"
[eval]
every = 2
[eval.prompts]
use = "{TOY}:ToyPrompts"
first = 5
count = 2
[checkpoint]
every = 2
"""


def recipe(folder, name, **changes):
    """Write the recipe with other values for some lines."""
    lines = [f"{key} = {changes[key]}" if (key := line.partition(" = ")[0]) in changes else line for line in RECIPE.splitlines()]
    path = folder / f"{name}.toml"
    path.write_text("\n".join(lines))
    return path


def behind(folder):
    """Write the recipe with a sampler that draws noise on the way, and with rollouts drawn by a copy of the weights."""
    path = folder / "behind.toml"
    changed = RECIPE.replace(":ToySampler", ":ToyWalk").replace("[objective]", f'[objective]\nuse = "{TOY}:ToyBehind"')
    path.write_text(changed)
    return path


class Ended(NamedTuple):
    """What a run on some ranks left."""

    folder: Path
    ranks: list[dict[str, Any]]

    @property
    def ends(self):
        return [rank["end"] for rank in self.ranks]

    @property
    def saved(self):
        return checkpoint.load(checkpoint.complete(self.folder / "checkpoints")[-1])

    @property
    def lines(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]


def launch(folder, count, runs):
    """Do some runs in `count` processes, one after the other, and return how each ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for name in runs:
        (folder / name).mkdir()
    arguments = [str(folder), *(f"{name}={path}" for name, path in runs.items())]
    shared = os.environ | {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(WORKER), *arguments], env=shared | {"RANK": str(rank)}, text=True, stderr=subprocess.PIPE
        )
        for rank in range(count)
    ]
    errors = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0] * count, errors
    found = {name: [torch.load(folder / name / f"rank-{rank}.pt") for rank in range(count)] for name in runs}
    return {name: Ended(folder / name / "run", ranks) for name, ranks in found.items()}


@pytest.fixture(scope="session")
def one(tmp_path_factory):
    """Runs in one process."""
    folder = tmp_path_factory.mktemp("one")
    return launch(folder, 1, {"whole": recipe(folder, "whole"), "behind": behind(folder)})


@pytest.fixture(scope="session")
def alone(one):
    """The run in one process."""
    return one["whole"]


@pytest.fixture(scope="session")
def two(tmp_path_factory):
    """Runs on two ranks."""
    folder = tmp_path_factory.mktemp("two")
    uneven = f'"{WORKER}:Uneven"'
    plain, shard = recipe(folder, "plain"), recipe(folder, "shard", seed="7\nshard = true")
    blind = RECIPE.replace(f'use = "{TOY}:ToyReward"', f"use = {uneven}")
    (folder / "blind.toml").write_text(blind)
    (folder / "fail.toml").write_text(blind.replace('label = "red"', 'label = "red"\nkind = "fail"'))
    runs = {
        "whole": plain,
        "stop": plain,
        "blind": folder / "blind.toml",
        "fail": folder / "fail.toml",
        "shard": shard,
        "behind": behind(folder),
        "drift": plain,
    }
    return launch(folder, 2, runs)


@pytest.fixture(scope="session")
def three(tmp_path_factory):
    """The run on three ranks: of 8 images in groups of 4 they draw 2, 3 and 3."""
    folder = tmp_path_factory.mktemp("three")
    return launch(folder, 3, {"whole": recipe(folder, "whole")})["whole"]


@pytest.fixture
def resumed(tmp_path):
    """Go on alone, in a copy, with a run that others began, and return what it saved."""

    def resume(folder):
        copy = shutil.copytree(folder, tmp_path / "run")
        registry = Registry((Offer("objective", "vgrpo", VGRPO, "vgrpo", "0"),))
        run(vgrpo_recipe.load(copy / "recipe.toml", (), registry), copy, lambda event: None, resume=True)
        return checkpoint.load(checkpoint.complete(copy / "checkpoints")[-1])

    return resume
