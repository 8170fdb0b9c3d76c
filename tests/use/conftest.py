"""A run of the toy and two of the embedded model, adapters and all weights, each made once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import typer

from vgrpo_core import VgrpoError
from vgrpo_core.events import Evaluated
from vgrpo_core.run import run
from vgrpo_recipe import load
from vgrpo_use import commands

TOY = Path(__file__).parents[1] / "core" / "loop" / "toy.py"

RECIPE = f"""\
[run]
name = "small"
iterations = 3
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
pairs = 3
[optimizer]
lr = 1e-1
ema = 0.5
[[reward]]
use = "{TOY}:ToyReward"
label = "red"
[eval]
every = 1
seed = 3
samples = 2
watch = false
[eval.prompts]
use = "{TOY}:ToyPrompts"
first = 4
count = 4
[[eval.reward]]
use = "{TOY}:ToyReward"
label = "gaps"
kind = "gaps"
[checkpoint]
every = 1
keep = 2
best = "red"
"""

GLYPHS = """\
[run]
name = "words"
iterations = 1
[backbone]
use = "diffusers"
model = "builtin:glyphs"
size = [24, 64]
call = { max_sequence_length = 1 }
[sampler]
use = "euler"
steps = 3
[prompts]
use = "file"
path = "prompts.txt"
[batch]
prompts = 2
group = 3
[objective]
pairs = 1
[optimizer]
lr = 1e-3
[[reward]]
use = "brightness"
label = "light"
[eval]
watch = false
"""

PROMPTS = ['a red sign that says "tree"', 'a blue sign that says "moon"', 'a green sign that says "river"']


class Made(NamedTuple):
    """A finished run, and the images of each of its evaluations by iteration."""

    folder: Path
    images: dict[int, torch.Tensor]


class Result(NamedTuple):
    code: int
    out: str
    err: str


def make(recipe: Path, folder: Path, *overrides: str) -> Made:
    images = {}

    def listen(event: Any) -> None:
        if isinstance(event, Evaluated):
            images[event.iteration] = event.images

    run(load(recipe, overrides), folder, listen)
    return Made(folder, images)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory) -> Made:
    """A run of 3 iterations that evaluates an average of its weights; checkpoints 2 and 3 are kept, and the best one."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "toy.toml").write_text(RECIPE)
    return make(folder / "toy.toml", folder / "runs" / "small")


@pytest.fixture(scope="session")
def glyphs_runs(tmp_path_factory) -> dict[str, Made]:
    """One iteration of the embedded model, with adapters of another alpha than their rank, and with all weights."""
    folder = tmp_path_factory.mktemp("glyphs")
    (folder / "glyphs.toml").write_text(GLYPHS)
    (folder / "prompts.txt").write_text("\n".join(PROMPTS))
    kinds = {"lora": ["backbone.lora.rank=2", "backbone.lora.alpha=8"], "full": []}
    return {kind: make(folder / "glyphs.toml", folder / "runs" / kind, *sets) for kind, sets in kinds.items()}


@pytest.fixture(params=["lora", "full"])
def glyphs_run(request, glyphs_runs) -> Made:
    return glyphs_runs[request.param]


@pytest.fixture
def vgrpo(monkeypatch, capsys, tmp_path) -> Callable[..., Result]:
    """Call a command in this process and an empty folder, with errors printed as `vgrpo` prints them."""
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    for name in ("sample", "evaluate", "export"):
        app.command(name)(getattr(commands, name))
    monkeypatch.chdir(tmp_path)

    def call(*args: Any) -> Result:
        capsys.readouterr()
        try:
            app([str(arg) for arg in args], standalone_mode=True)
        except SystemExit as ended:
            code = int(ended.code or 0)
        except VgrpoError as error:
            print(f"Error: {error}", file=sys.stderr)
            code = error.exit_code
        return Result(code, *capsys.readouterr())

    return call
