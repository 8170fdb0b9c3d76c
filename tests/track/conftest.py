"""The toy's recipe with trackers, and a run of it that they follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vgrpo_core.events import Evaluated
from vgrpo_core.run import run
from vgrpo_recipe import load
from vgrpo_track import Tracks

TOY = Path(__file__).parents[1] / "core" / "loop" / "toy.py"

RECIPE = f"""\
[run]
iterations = 4
[backbone]
use = "{TOY}:ToyBackbone"
[sampler]
use = "{TOY}:ToySampler"
steps = 2
[prompts]
use = "{TOY}:ToyPrompts"
[batch]
prompts = 2
group = 3
[objective]
pairs = 1
[optimizer]
lr = 1e-2
[[reward]]
use = "{TOY}:ToyReward"
label = "red"
[checkpoint]
every = 2
[eval]
every = 2
watch = false
[[eval.reward]]
use = "{TOY}:ToyReward"
label = "blind"
kind = "blind"
[track]
with = ["tensorboard"]
"""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def recipe(tmp_path):
    """Read the recipe, `small.toml`, with overrides."""
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return lambda *overrides: load(path, overrides)


class Ran:
    """What was heard of a run: its events, by kind."""

    def __init__(self, folder):
        self.folder, self.events = folder, []

    @property
    def lines(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def heard(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def images(self):
        return {event.iteration: event.images for event in self.heard(Evaluated)}


@pytest.fixture
def follow(tmp_path):
    """Run a recipe in the folder `run` as `vgrpo run` does, with its trackers; `also` hears each event last."""

    def do(made, *, resume=False, stop=lambda: False, also=lambda event: None):
        ran = Ran(tmp_path / "run")

        def listen(event):
            ran.events.append(event)
            tracks(event)
            also(event)

        with Tracks(made, ran.folder, ran.events.append) as tracks:
            run(made, ran.folder, listen, resume=resume, stop=stop)
        return ran

    return do


@pytest.fixture
def board(tmp_path):
    """Read what TensorBoard has of the run, with everything that was written twice."""

    def read():
        reader = EventAccumulator(str(tmp_path / "run" / "track" / "tensorboard"), {"scalars": 0, "images": 0, "tensors": 0})
        return reader.Reload()

    return read
