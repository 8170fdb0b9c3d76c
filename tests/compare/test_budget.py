from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vgrpo_compare.budget import Budget, per_iteration, spent
from vgrpo_compare.entries import Common, Entry, Override
from vgrpo_core.trainer import Trainer
from vgrpo_recipe.choice import choose
from vgrpo_recipe.plan import Plan
from vgrpo_recipe.registry import Registry

OBJECTIVES = sorted(offer.name for offer in Registry.discover().offers if offer.kind == "objective")
SETTINGS = [
    ["pairs=5"], ["steps=3", "clip=0.01"], ["steps=3", "split=true"], ["steps=2", "kl=0.1"], ["shared=false"],
    ["top=0.5", "steps=2"],
]  # fmt: skip


@pytest.mark.parametrize(("objective", "settings"), [("vgrpo", each) for each in SETTINGS] + [(name, []) for name in OBJECTIVES])
def test_a_real_iteration_costs_what_is_planned(objective, settings):
    registry = Registry.discover()
    sets = [Override(f"objective.{each}", "") for each in settings]
    if choose(registry, "objective", objective, Path()).plugin().noisy_steps:
        sets += [Override('sampler={use="flow_sde", steps=16}', "")]
    common = Common.read(Path("toy.toml"), [Override("run.device=cpu", "")], registry)
    overrides = common.entry(Entry("one", objective), sets).overrides
    plan = common.plan(overrides)
    trainer = Trainer(plan.recipe, torch.device("cpu"), lambda event: None)
    line = trainer.train()
    assert line["advantage/missing"] == 0 and line["group/zero_std_fraction"] == 0
    assert per_iteration(plan, "all") == line["evaluations"] + 2 * line["backwards"]
    assert per_iteration(plan, "forwards") == line["evaluations"]


def test_an_objective_that_counts_its_own_backward_rows_is_believed(monkeypatch):
    common = Common.read(Path("toy.toml"), [], Registry.discover())
    plan = common.plan(())
    monkeypatch.setattr(type(plan.recipe.objective), "backwards", 7, raising=False)
    assert per_iteration(plan, "all") == plan.evaluations + 2 * 7 * plan.images


def test_a_backward_counts_as_two():
    assert spent(100, 30, "all") == 160
    assert spent(100, 30, "forwards") == 100


@pytest.mark.parametrize(("amount", "each", "iterations"), [(1000, 100, 10), (1099, 100, 10), (99, 100, 1), (0.3, 0.1, 3)])
def test_a_budget_pays_for_whole_iterations_and_for_one_at_least(amount, each, iterations):
    assert Budget(amount, "evaluations", "all").iterations(each) == iterations


def test_the_plan_of_the_toy_is_what_the_tests_count_with():
    assert per_iteration(Plan.of(Common.read(Path("toy.toml"), [], Registry.discover()).base), "all") == 96
