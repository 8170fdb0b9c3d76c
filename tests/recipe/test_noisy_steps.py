"""An objective that learns from single steps needs a sampler that draws noise in as many."""

from __future__ import annotations

import tomllib

import pytest
import tomli_w
from pydantic import Field

from vgrpo_core import Objective, RecipeError, Sampler, StochasticSampler
from vgrpo_core.offers import Offer
from vgrpo_recipe import load
from vgrpo_recipe.plan import Plan
from vgrpo_recipe.registry import Registry


class Drift(StochasticSampler):
    name = "drift"
    noisy: int | None = None
    more: float = 0.0

    @property
    def noisy_steps(self):
        return self.steps if self.noisy is None else self.noisy

    @property
    def rollout_evaluations(self):
        return self.steps + self.more

    def sample(self, predict, noise, schedule):
        raise AssertionError

    def explore(self, predict, noise, schedule, draw, iteration):
        raise AssertionError


class Amble(Drift):
    name = "amble"


class Steps(Objective):
    name = "steps"
    pairs: int = 4
    learn: int = Field(default=3, ge=0)

    @property
    def noisy_steps(self):
        return self.learn

    @property
    def evaluations(self):
        return self.learn * self.steps

    @property
    def rows_per_sample(self):
        return 1

    def start(self, policy, rollout, micro):
        raise AssertionError


@pytest.fixture
def read(tmp_path, registry, text):
    """Load the recipe, or a changed one, with the plugins of this file besides."""

    def from_text(*overrides, changed=text):
        added = {Drift: "sampler", Amble: "sampler", Steps: "objective"}
        offers = tuple(Offer(kind, plugin.name, plugin, "noisy", "1.0") for plugin, kind in added.items())
        path = tmp_path / "words.toml"
        path.write_text(changed)
        return load(path, overrides, Registry(registry.offers + offers))

    return from_text


@pytest.fixture
def mistakes(read, tmp_path):
    """Return what is wrong, without the folder's name."""

    def of(*overrides, **options):
        with pytest.raises(RecipeError) as caught:
            read(*overrides, **options)
        return [mistake.replace(f"{tmp_path}/", "") for mistake in caught.value.mistakes]

    return of


def test_a_sampler_without_noisy_steps_is_refused_and_those_that_have_some_are_named(mistakes, text):
    (mistake,) = mistakes("objective.use=steps")
    line = text[: text.index('use = "straight"')].count("\n") + 1
    assert mistake == (
        f'words.toml:{line}: [sampler] "straight" draws none on the way, '
        'and objective "steps" learns from 3 steps that draw noise; use amble or drift'
    )


def test_too_few_noisy_steps_are_refused_with_both_numbers(mistakes):
    (mistake,) = mistakes("objective.use=steps", "sampler.use=drift", "sampler.noisy=2")
    assert mistake.endswith('[sampler] "drift" draws noise in 2 steps, and objective "steps" learns from 3 steps that draw noise')
    (mistake,) = mistakes("objective.use=steps", "objective.learn=11", "sampler.use=drift")
    assert '"drift" draws noise in 10 steps' in mistake and "learns from 11 steps" in mistake


@pytest.mark.parametrize("noisy", [3, 10])
def test_enough_noisy_steps_are_taken(read, noisy):
    recipe = read("objective.use=steps", "sampler.use=drift", f"sampler.noisy={noisy}")
    assert recipe.sampler.noisy_steps == noisy and recipe.objective.noisy_steps == 3


@pytest.mark.parametrize("sampler", ["straight", "drift"])
def test_an_objective_that_learns_from_latents_alone_takes_any_sampler(read, sampler):
    assert read(f"sampler.use={sampler}").sampler.name == sampler
    assert read("objective.use=steps", "objective.learn=0", f"sampler.use={sampler}").sampler.name == sampler


def test_the_sampler_of_evaluation_needs_no_noisy_steps(read, text):
    changed = text.replace("[eval.prompts]", '[eval.sampler]\nuse = "straight"\n\n[eval.prompts]')
    recipe = read("objective.use=steps", "sampler.use=drift", changed=changed)
    assert isinstance(recipe.sampler, StochasticSampler) and not isinstance(recipe.eval.sampler, StochasticSampler)


def test_a_sampler_that_could_not_be_read_is_reported_for_what_is_wrong_with_it_alone(mistakes):
    (mistake,) = mistakes("objective.use=steps", "sampler.steps=0")
    assert "steps is 0" in mistake
    (mistake,) = mistakes("objective.use=steps", "objective.learn=-1")
    assert "learn is -1" in mistake


@pytest.mark.parametrize("table", ["sampler", "objective"])
def test_a_list_in_the_place_of_a_table_is_the_only_mistake(mistakes, text, table):
    others = {key: each for key, each in tomllib.loads(text).items() if key != table}
    (mistake,) = mistakes(changed=tomli_w.dumps({table: []} | others))
    assert mistake == f"words.toml:1: [{table}] is not a table; write [{table}]"


def test_the_plan_counts_the_evaluations_of_a_rollout_and_those_of_evaluation_apart(read):
    plan = Plan.of(read("objective.use=steps", "sampler.use=drift", "sampler.more=2.5"))
    assert plan.recipe.sampler.evaluations == 10
    assert plan.evaluations == 72 * (12.5 + 2 * 3)


def test_a_plain_sampler_spends_in_a_rollout_what_it_spends_anywhere(registry):
    samplers = [offer.plugin for offer in registry.offers if offer.kind == "sampler"]
    assert [each(steps=4).rollout_evaluations for each in samplers] == [4, 8] and all(issubclass(s, Sampler) for s in samplers)
