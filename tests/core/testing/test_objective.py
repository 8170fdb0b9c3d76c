"""A good objective passes its check, and one that breaks a single promise fails with the sentence about it."""

from __future__ import annotations

import importlib

import pytest
import torch

from vgrpo_core import PluginError
from vgrpo_core.testing import check_objective
from vgrpo_core.testing.sampler import toys
from vgrpo_core.testing.small import GROUP, Scene, Small
from vgrpo_core.vgrpo import VGRPO

FLOWS, DIFFUSION = ["flow/flow", "flow/sample"], ["diffusion/epsilon", "diffusion/v", "diffusion/sample"]


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads cost more than they save on tensors this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def update(good):
    """The update of the good objective, to be spoilt."""
    return importlib.import_module("good_update")


@pytest.mark.parametrize(
    "options",
    [{}, {"steps": 2, "clip": 1e-2, "kl": 0.1}, {"split": True, "steps": 2}, {"loss": "epsilon", "shared": False}],
    ids=str,
)
def test_v_grpo_passes_on_flows_and_diffusion(options):
    assert check_objective(VGRPO(**options)) == []


def test_good_objectives_pass_with_and_without_a_sampler(good):
    assert check_objective(good.Pull(steps=2)) == []
    assert check_objective(good.Pull(), good.Line(steps=3)) == []
    assert check_objective(good.Follow(steps=2), good.Jitter(steps=3)) == []


@pytest.mark.parametrize(("kind", "refused"), [("flow", FLOWS), ("diffusion", DIFFUSION)])
def test_what_an_objective_refuses_is_returned(good, monkeypatch, kind, refused):
    start = good.Pull.start

    def only(self, policy, *rest):
        if (policy.process.alphas_cumprod is None) == (kind == "flow"):
            raise PluginError("it does not fit this model")
        return start(self, policy, *rest)

    monkeypatch.setattr(good.Pull, "start", only)
    assert check_objective(good.Pull()) == refused


def refusing(*asked):
    raise PluginError("it fits no model")


# Faults of the class


def constant(value):
    return property(lambda objective: value)


FAULTS = {
    "evaluations": ("evaluations", constant(2.0), "spends 1 forward evaluations a sample, and `evaluations` is 2"),
    "refuses": ("start", refusing, 'objective "pull" refuses every process'),
    "unnamed": ("behaviour", "old", r'"old" is to draw rollouts, and is none of `copies\(0\)`'),
    "late": ("copies", lambda o, i: {"late": 1.0} if i else {}, r"`copies\(1\)` names late, which `copies\(0\)` does not"),
    "decay": ("copies", lambda o, i: {"old": 0.2 * i}, r"`copies\(10\)` has decays that are not from 0 to 1: old 2"),
    "noisy": ("noisy_steps", constant(3), "learns from 3 noisy steps, and `sampler` has 0"),
}


@pytest.mark.parametrize(("name", "value", "sentence"), FAULTS.values(), ids=FAULTS)
def test_an_objective_with_one_fault_fails(good, monkeypatch, fails, name, value, sentence):
    monkeypatch.setattr(good.Pull, name, value)
    fails(check_objective, good.Pull(), sentence)


def test_an_objective_that_learns_from_more_steps_than_draw_noise_fails(good, monkeypatch, fails):
    fails(check_objective, good.Follow(), "learns from 2 noisy steps, and `sampler` has 0", sampler=good.Line())
    monkeypatch.setattr(good.Jitter, "noisy_steps", constant(1))
    fails(check_objective, good.Follow(), "learns from 2 noisy steps, and `sampler` has 1", sampler=good.Jitter())


def test_an_objective_that_fills_more_rows_than_it_says_fails(good, monkeypatch, fails):
    monkeypatch.setattr(good.Follow, "rows_per_sample", constant(1))
    sentence = "loss of 8 samples sends 16 rows through the network with a gradient, and `rows_per_sample` says 8"
    fails(check_objective, good.Follow(), sentence, sampler=good.Jitter(steps=3))


def test_an_objective_whose_module_is_heavy_fails(heavy, fails):
    fails(check_objective, heavy.Pull(), 'importing "heavy_plugins" imports numpy')


# Faults of the update


def changed(loss=lambda value: value, found=lambda values: values):
    """Change what a good loss returns."""

    def make(good):
        def spoilt(self, rows, step):
            value, statistics = good(self, rows, step)
            return loss(value), {name: found(each) for name, each in statistics.items()}

        return spoilt

    return make


def mean_of_its_rows(good):
    def loss(self, rows, step):
        errors = self.errors(rows, step)
        return (self.rollout.advantages[rows] * errors).mean(), {"error": errors.detach()}

    return loss


def compared_with_its_batch(good):
    def errors(self, rows, step):
        found = good(self, rows, step)
        return found - found.detach().mean() * found

    return errors


def with_a_gradient(good):
    def loss(self, rows, step):
        errors = self.errors(rows, step)
        return (self.rollout.advantages[rows] * errors).sum() / self.rollout.valid.sum(), {"error": errors}

    return loss


def of_the_global_generator(good):
    return lambda self, row, step: torch.randn(self.rollout.latents.shape[1:])


def without_the_offset(good):
    """Take the latents of a rank for those of all."""

    def errors(self, rows, step):
        latents = self.rollout.latents[rows]
        return latents.square().flatten(1).mean(1) * good(self, rows, step)

    return errors


def moving(good):
    def spoilt(self, *asked):
        next(self.policy.module.parameters()).data.add_(1e-3)
        return good(self, *asked)

    return spoilt


def moving_at_the_start(good):
    def spoilt(self, policy, rollout):
        good(self, policy, rollout)
        next(policy.module.parameters()).data.add_(1e-3)

    return spoilt


def overwriting(good):
    def spoilt(self, policy, rollout):
        good(self, policy, rollout)
        rollout.advantages.mul_(2)

    return spoilt


def rows(change):
    """Change the rows that a good update uses."""
    return lambda good: lambda self, step: change(self, good(self, step))


WRONG = {
    "mask": ("rows", rows(lambda u, r: u.rollout.valid), r"`rows\(0\)` is torch.bool \[8\], not int64 \[R\]"),
    "column": ("rows", rows(lambda u, r: r[:, None]), r"`rows\(0\)` is torch.int64 \[8, 1\], not int64"),
    "beyond": ("rows", rows(lambda u, r: r + 1), r"`rows\(0\)` has indices beyond the 8 samples"),
    "twice": ("rows", rows(lambda u, r: torch.cat([r, r[:1]])), r"`rows\(0\)` has a sample twice"),
    "unknown": ("rows", rows(lambda u, r: torch.arange(8)), r"`rows\(0\)` has samples that no reward could judge"),
    "vector": ("loss", changed(lambda value: value[None]), r"the loss has shape \[1\]; it has to be one number"),
    "infinite": ("loss", changed(lambda value: value / 0), "the loss is -?inf"),
    "detached": ("loss", changed(lambda value: value.detach()), "the loss carries no gradient"),
    "no gradient": ("loss", changed(lambda value: 0 * value), "the first step has no gradient, though all advantages differ"),
    "nan gradient": ("loss", changed(lambda value: value + (0 * value).sqrt()), "the gradient is not finite"),
    "absent": ("statistics", lambda good: ("error", "ratio"), "`loss` leaves out statistics that it announces: ratio"),
    "named twice": ("statistics", lambda good: ("error", "error"), "a name in `statistics` is there twice: error, error"),
    "shape": ("loss", changed(found=lambda each: each.mean()), r"statistic error has shape \[\] for 8 rows, not \[8\]"),
    "attached": ("loss", with_a_gradient, "statistic error carries a gradient: detach it"),
    "mean": ("loss", mean_of_its_rows, "micro-batches of 1 change the gradient"),
    "batch": ("errors", compared_with_its_batch, "micro-batches of 1 change the gradient"),
    "random": ("noise", of_the_global_generator, "a second update on the same rollout differs"),
    "offset": ("errors", without_the_offset, r"fails where two ranks share the rows \(IndexError: .*`rollout.own` alone"),
    "weights": ("errors", moving, "`loss` changes the weights"),
    "weights at the start": ("__init__", moving_at_the_start, "`start` changes the weights"),
    "rollout": ("__init__", overwriting, "changes the rollout that it is given"),
}


@pytest.mark.parametrize(("name", "make", "sentence"), WRONG.values(), ids=WRONG)
def test_an_update_with_one_fault_fails(good, update, monkeypatch, fails, name, make, sentence):
    monkeypatch.setattr(update.PullUpdate, name, make(getattr(update.PullUpdate, name)))
    fails(check_objective, good.Pull(), sentence)


def test_noise_of_a_rows_place_among_those_of_its_rank_fails_on_two_ranks(good, update, monkeypatch, fails):
    right = update.PullUpdate.noise
    monkeypatch.setattr(update.PullUpdate, "noise", lambda self, row, step: right(self, row - self.rollout.own.start, step))
    fails(check_objective, good.Pull(), "the gradients of two ranks do not add up to that of one")


# What it is tried on


@pytest.mark.parametrize("toy", toys(), ids=lambda toy: toy.name)
def test_the_small_model_is_the_same_every_time_and_leaves_the_global_generator_alone(toy):
    before = torch.get_rng_state()
    first, second = Small(toy), Small(toy)
    assert torch.get_rng_state().equal(before)
    assert all(a.equal(b) for a, b in zip(first.state().values(), second.state().values(), strict=True))


def test_a_scene_is_drawn_by_the_copy_that_the_objective_names(good):
    (toy, *_), objective = toys(), good.Follow()
    scene = Scene.of(objective, good.Jitter(steps=3), toy)
    kept, texts = scene.rollout.trajectory, [prompt.text for prompt in scene.rollout.prompts]
    z = kept.before[:, 0]
    with torch.no_grad():
        own = kept.transition(scene.policy.predict(z, kept.times[0, 0], texts), z, 0)
        with scene.rollout.copies.inside("old"):
            old = kept.transition(scene.policy.predict(z, kept.times[0, 0], texts), z, 0)
    torch.testing.assert_close(kept.mean[:, 0], old)
    assert not torch.allclose(own, old)


def test_the_ranks_of_a_scene_share_its_rows(good):
    scene = Scene.of(good.Follow(), good.Jitter(steps=3), toys()[0])
    parts = [scene.of_rank(rank, 2).rollout for rank in range(2)]
    assert torch.cat([part.latents for part in parts]).equal(scene.rollout.latents)
    assert torch.cat([part.trajectory.after for part in parts]).equal(scene.rollout.trajectory.after)
    assert [part.own for part in parts] == [range(GROUP), range(GROUP, 2 * GROUP)]
