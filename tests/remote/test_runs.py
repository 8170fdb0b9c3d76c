"""Whole runs whose reward is behind HTTP."""

import json
import runpy
from pathlib import Path

import pytest

from vgrpo_core import RunError
from vgrpo_core.offers import Offer
from vgrpo_core.run import run
from vgrpo_recipe import load
from vgrpo_recipe.registry import Registry
from vgrpo_remote import Remote

TOY = Path(__file__).parents[1] / "core" / "loop" / "toy.py"
REWARDS = Path(__file__).with_name("painted.py")
RECIPE = f"""\
[run]
iterations = 3
[backbone]
use = "{TOY}:ToyBackbone"
[sampler]
use = "{TOY}:ToySampler"
steps = 2
[prompts]
use = "{TOY}:ToyPrompts"
[batch]
prompts = 2
group = 4
[objective]
pairs = 2
[optimizer]
lr = 1e-2
[[reward]]
"""
HERE = f'use = "{REWARDS}:Level"\n'


@pytest.fixture
def level():
    """The reward that is served, made with options."""
    return runpy.run_path(str(REWARDS))["Level"]


@pytest.fixture
def trained(tmp_path):
    """Return `trained(name, reward, ...)`: the lines of metrics of a run, without its seconds and its memory."""

    def trained(name, reward, **options):
        path = tmp_path / "recipe.toml"
        path.write_text(RECIPE + reward)
        registry = Registry.discover()
        others = [offer for offer in registry.offers if offer.name != "remote"]
        recipe = load(path, (), Registry((*others, Offer("reward", "remote", Remote, "vgrpo", "0.1.0"))))
        run(recipe, tmp_path / name, lambda event: None, **options)
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if key.partition("/")[0] not in ("seconds", "memory")} for line in lines]

    return trained


def there(url, label="level", **options):
    """Write the lines of a recipe that use the served reward."""
    lines = {"use": "remote", "reward": "level", "url": url, "label": label, **options}
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in lines.items())


def test_r032_a_run_with_the_served_reward_is_the_run_with_the_reward_itself(serve, trained, level):
    own = trained("own", HERE + 'label = "level"\n')
    served = trained("served", there(serve(level()), batch=3))
    assert len(own) == 4
    assert own == served


@pytest.mark.filterwarnings("ignore:reward")
def test_r022_a_reward_that_goes_down_stops_the_run_at_a_checkpoint_from_which_it_goes_on(serve, trained, level, tmp_path, pauses):
    whole = trained("whole", there(serve(level())))
    with pytest.raises(RunError, match=r"is down since .*: 3 tries failed, .*the GPU is gone\n  failed after iteration 2;"):
        trained("broken", there(serve(level(fails_at=4)), retries=2, **{"options.fails_at": 4}))
    assert (tmp_path / "broken" / "checkpoints" / "000002").is_dir()
    assert trained("broken", there(serve(level())), resume=True) == whole


@pytest.mark.filterwarnings("ignore:reward")
def test_r021_a_watched_reward_that_is_down_leaves_gaps_and_the_run_ends_well(serve, trained, level, pauses):
    watched = "[[eval.reward]]\n" + there(serve(level(fails_at=2)), label="watched", retries=0, **{"options.fails_at": 2})
    lines = trained("watched", HERE + "[eval]\nevery = 1\n" + watched)
    seen = [line["eval/watched/mean"] for line in lines]
    assert seen[0] is not None and seen[1:] == [None] * 3
