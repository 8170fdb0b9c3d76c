from __future__ import annotations

import pytest
import torch

from vgrpo_core.vgrpo import VGRPO
from vgrpo_objectives import ElboNaive
from vgrpo_recipe.plan import Plan

OFF = {"shared": False, "stratified": False, "adaptive": False}


def updated(policy, rollout, objective):
    """The gradients of two steps, with the weights moved between them."""
    update, found = objective.start(policy, rollout, 99), []
    for step in range(2):
        policy.module.zero_grad()
        loss, _ = update.loss(update.rows(step), step)
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in policy.trainable().values())]
        with torch.no_grad():
            for p in policy.trainable().values():
                p -= p.grad
    return found


@pytest.mark.parametrize("options", [{}, {"pairs": 2, "clip": 1e-2, "kl": 0.1}], ids=str)
def test_its_update_is_that_of_vgrpo_without_the_three_reductions(latents_reference, toy, options):
    found = []
    for objective in (ElboNaive(steps=2, **options), VGRPO(steps=2, **options, **OFF), VGRPO(steps=2, **options)):
        torch.manual_seed(0)
        policy = toy.ToyPolicy()
        found.append(updated(policy, latents_reference.rollout(policy), objective))
    naive, plain, reduced = found
    assert all(a.equal(b) for a, b in zip(naive, plain, strict=True))
    assert not all(a.equal(b) for a, b in zip(naive, reduced, strict=True))


def test_its_options_are_vgrpos_with_three_other_defaults():
    naive, plain = ElboNaive(), VGRPO()
    assert ElboNaive.name != VGRPO.name
    assert naive.model_dump() == plain.model_dump() | OFF
    for name, field in VGRPO.model_fields.items():
        assert ElboNaive.model_fields[name].description == field.description


def test_training_raises_the_reward_and_costs_what_the_plan_says(trainer):
    made = trainer("elbo_naive", "batch.group=16", "run.iterations=30")
    lines = [made.train() for _ in range(30)]
    means = [line["reward/red/mean"] for line in lines]
    assert lines[0]["evaluations"] == Plan.of(made.recipe).evaluations
    assert sum(means[-5:]) / 5 > sum(means[:5]) / 5 + 0.05
