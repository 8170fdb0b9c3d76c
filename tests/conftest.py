from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from vgrpo_core import Backbone, Objective, Prompt, Prompts, Reward, Sampler
from vgrpo_core.offers import Offer
from vgrpo_recipe import load
from vgrpo_recipe.plan import Plan
from vgrpo_recipe.registry import Registry


class Adapter(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    rank: int = Field(ge=1)
    alpha: float = 1.0


class Painter(Backbone):
    name = "painter"
    model: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    lora: Adapter | None = None

    def load(self, device):
        raise AssertionError("nothing may be loaded")

    def describe(self):
        return f"painting of {self.model}"


class Straight(Sampler):
    name = "straight"
    size: tuple[int, int] = (24, 64)

    def sample(self, predict, noise, schedule):
        raise AssertionError


class Twice(Straight):
    name = "twice"

    @property
    def evaluations(self):
        return 2 * self.steps


class Numbers(Prompts):
    name = "numbers"
    count: int = Field(default=40, ge=0)

    def load(self):
        return [Prompt(str(index)) for index in range(self.count)]


class Blank(Reward):
    name = "blank"

    def load(self, device):
        raise AssertionError


class Bright(Blank):
    name = "bright"
    target: float = 1.0
    strict: bool = False


class Fussy(Blank):
    name = "fussy"
    limit: int = 0

    def model_post_init(self, context):
        raise KeyError("surprise")


class Pairs(Objective):
    name = "vgrpo"
    pairs: int = Field(default=4, ge=1)
    clip: float | None = Field(default=None, gt=0)

    @property
    def evaluations(self):
        return self.pairs * self.steps

    @property
    def rows_per_sample(self):
        return self.pairs

    def start(self, policy, rollout, micro):
        raise AssertionError


KINDS = {
    Painter: "backbone",
    Straight: "sampler",
    Twice: "sampler",
    Numbers: "prompts",
    Blank: "reward",
    Bright: "reward",
    Fussy: "reward",
    Pairs: "objective",
}

RECIPE = """\
[run]
iterations = 20

[backbone]
use = "painter"
model = "somewhere"
lora = { rank = 8 }

[sampler]
use = "straight"
steps = 10

[prompts]
use = "numbers"

[batch]
prompts = 12
group = 6
micro = 18

[objective]
steps = 2
pairs = 4

[optimizer]
lr = 3e-4
decay = "cosine"

[[reward]]
use = "blank"
weight = 2

[[reward]]
use = "bright"
label = "light"
target = 0.5

[eval]
every = 6
samples = 3

[eval.prompts]
use = "numbers"
count = 7

[[eval.reward]]
use = "bright"
"""


@pytest.fixture
def text() -> str:
    """A valid recipe."""
    return RECIPE


@pytest.fixture(scope="session")
def registry() -> Registry:
    """One small plugin of each kind."""
    return Registry(tuple(Offer(kind, plugin.name, plugin, "small", "1.0") for plugin, kind in KINDS.items()))


@pytest.fixture
def plan(tmp_path, registry, text):
    """Plan the recipe with overrides."""

    def of(*overrides, ranks=1):
        path = tmp_path / "words.toml"
        path.write_text(text)
        return Plan.of(load(path, overrides, registry), ranks)

    return of


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a distribution as pip would: a module, METADATA and entry_points.txt on sys.path."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def put(distribution: str, code: str, *, requires: str = "", version: str = "0.3", entry: str = "") -> str:
        module = f"{distribution.replace('-', '_')}_{tmp_path.name.replace('-', '_')}"
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{needs}")
        (info / "entry_points.txt").write_text(f"[vgrpo]\n{entry or distribution.removeprefix('vgrpo-')} = {module}\n")
        (site / f"{module}.py").write_text(textwrap.dedent(code))
        return module

    before = set(sys.modules)
    yield put
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").is_relative_to(tmp_path):
            del sys.modules[name]
