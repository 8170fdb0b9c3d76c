"""Copies of the weights: how they follow, where they act, and what becomes of them in a run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from vgrpo_core import RunError, checkpoint
from vgrpo_core.copies import AVERAGE, Copies
from vgrpo_core.run import Stopped

BEHIND = f"objective.use='{Path(__file__).with_name('toy.py')}:ToyBehind'"


@pytest.fixture
def copies():
    """Two small parameters that have moved away from their copy "old"."""
    found = Copies({"first": nn.Parameter(torch.tensor([1.0, -2.0])), "inner.second": nn.Parameter(torch.ones(2, 2))})
    found.add("old")
    shift(found, 0.3)
    return found


@torch.no_grad()
def shift(copies, by):
    for parameter in copies.parameters.values():
        parameter += by


def weights(copies):
    return {name: parameter.detach().clone() for name, parameter in copies.parameters.items()}


def kept(copies, copy="old"):
    return {name: value.clone() for name, value in copies.kept[copy].items()}


def same(first, second):
    return first.keys() == second.keys() and all(second[name].equal(value) for name, value in first.items())


# Copies alone


def test_a_copy_begins_as_what_the_weights_are_and_stays_while_they_move(copies):
    before = weights(copies)
    copies.add("new")
    shift(copies, 1.0)
    assert same(kept(copies, "new"), before) and not same(weights(copies), before)


@given(decay=st.floats(0, 1), moves=st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=6))
def test_a_copy_that_follows_is_the_closed_form_of_an_exponential_moving_average(decay, moves):
    copies = Copies({"a": nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))})
    copies.add("old")
    seen = [copies.parameters["a"].detach().clone()]
    for move in moves:
        shift(copies, move)
        copies.follow("old", decay)
        seen.append(copies.parameters["a"].detach().clone())
    steps = len(moves)
    expected = decay**steps * seen[0] + sum((1 - decay) * decay ** (steps - at) * seen[at] for at in range(1, steps + 1))
    torch.testing.assert_close(copies.kept["old"]["a"], expected, rtol=0, atol=1e-9)


def test_a_decay_of_one_leaves_a_copy_as_it_is_and_zero_makes_it_the_weights(copies):
    before = kept(copies)
    copies.follow("old", 1.0)
    assert same(kept(copies), before)
    copies.follow("old", 0.0)
    assert same(kept(copies), weights(copies))


def test_a_copy_that_follows_leaves_the_weights_and_other_copies_alone(copies):
    copies.add("other")
    shift(copies, 0.7)
    before, other = weights(copies), kept(copies, "other")
    copies.follow("old", 0.5)
    assert same(weights(copies), before) and same(kept(copies, "other"), other)


@pytest.mark.parametrize("fails", [False, True])
def test_r084_inside_a_copy_the_weights_are_its_own_and_afterwards_theirs_to_the_last_bit(copies, fails):
    before, copy = weights(copies), kept(copies)
    with suppress(KeyError), copies.inside("old"):
        assert same(weights(copies), copy)
        if fails:
            raise KeyError
    assert same(weights(copies), before) and same(kept(copies), copy)


@pytest.mark.parametrize("name", [None, "unknown"])
def test_inside_no_copy_or_an_unknown_one_nothing_changes(copies, name):
    before, copy = weights(copies), kept(copies)
    with copies.inside(name):
        assert same(weights(copies), before) and same(kept(copies), copy)
    assert same(weights(copies), before) and same(kept(copies), copy)


def test_r085_copies_are_named_after_parameter_and_copy_and_come_back_bit_equal(copies):
    copies.add("other")
    state = {name: value.clone() for name, value in copies.state().items()}
    assert state.keys() == {"first/old", "first/other", "inner.second/old", "inner.second/other"}
    assert not same(kept(copies), weights(copies))
    before, olds, others = weights(copies), kept(copies), kept(copies, "other")
    copies.follow("old", 0.2)
    copies.kept["other"]["first"].zero_()
    copies.restore(state)
    assert same(kept(copies), olds) and same(kept(copies, "other"), others) and same(weights(copies), before)


def test_a_copy_that_a_checkpoint_has_not_starts_from_the_weights(copies):
    state = {name: value.clone() for name, value in copies.state().items()}
    copies.add("other")
    shift(copies, 1.0)
    copies.restore(state)
    assert same(kept(copies, "other"), weights(copies)) and copies.state()["first/old"].equal(state["first/old"])


def test_a_copy_that_only_the_checkpoint_has_is_left_out(copies):
    copies.restore(copies.state() | {"first/gone": torch.zeros(2)})
    assert copies.kept.keys() == {"old"}


# Copies in training


def drawing(made):
    """Note the weights that each call of the network has while images are drawn."""
    seen, collect = [], made.collect

    def noted(*asked, **options):
        seen.append(weights(made.copies))
        return collect(*asked, **options)

    made.collect = noted
    return seen


def test_rollouts_are_drawn_by_the_copy_that_the_objective_names_and_not_by_the_weights(trainer):
    made = trainer(BEHIND)
    seen = drawing(made)
    for iteration in range(3):
        olds, own = kept(made.copies), weights(made.copies)
        made.train()
        assert same(seen[-1], olds) and (iteration == 0) == same(seen[-1], own)


def test_the_images_of_a_rollout_are_those_of_the_copy(trainer):
    behind, plain = trainer(BEHIND), trainer()
    behind.train()
    plain.policy.restore(behind.copies.kept["old"])
    plain.done = 1
    score = behind.train()["reward/red/mean"]
    assert plain.train()["reward/red/mean"] == score
    plain.policy.restore(behind.policy.state())
    plain.done = 1
    assert plain.train()["reward/red/mean"] != score


def test_gradient_steps_move_the_weights_and_not_the_copy_that_drew(trainer):
    made, seen = trainer(BEHIND, "objective.decays=[1.0]"), []
    step = made.step
    made.step = lambda *asked: seen.append((weights(made.copies), kept(made.copies))) or step(*asked)
    before = weights(made.copies)
    made.train()
    assert [same(copy, before) for _, copy in seen] == [True, True]
    assert [same(own, before) for own, _ in seen] == [True, False]


def test_copies_follow_after_the_gradient_steps_with_the_decay_of_each_iteration(trainer):
    made = trainer(BEHIND, "objective.decays=[0.25, 0.9]")
    first = expected = weights(made.copies)
    for decay in (0.25, 0.9, 0.25):
        made.train()
        pairs = zip(expected.items(), weights(made.copies).values(), strict=True)
        expected = {name: decay * value + (1 - decay) * own for (name, value), own in pairs}
        for name, value in made.copies.kept["old"].items():
            torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-7)
    assert same(kept(made.copies, "first"), first) and not same(weights(made.copies), first)


def test_the_objective_gets_the_copies_and_a_plain_one_keeps_none(trainer):
    made, given_copies = trainer(BEHIND), []
    step = made.step
    made.step = lambda update, rollout, *rest: given_copies.append(rollout.copies) or step(update, rollout, *rest)
    made.train()
    assert all(each is made.copies for each in given_copies) and made.copies.kept.keys() == {"old", "first"}
    assert trainer().copies.kept == {}


@pytest.mark.parametrize("average", [False, True])
def test_evaluation_takes_the_average_or_the_weights_and_never_the_copy_that_draws(trainer, average):
    made = trainer(BEHIND, "objective.decays=[0.9]", *["optimizer.ema=0.5"] * average)
    made.train()
    seen = drawing(made)
    made.evaluate()
    own, olds = weights(made.copies), kept(made.copies)
    assert same(seen[0], kept(made.copies, AVERAGE) if average else own) and not same(seen[0], olds)
    if average:
        assert not same(seen[0], own)


def test_a_rollout_that_fails_gives_the_weights_back(trainer):
    made = trainer(BEHIND, "reward.red.kind='fail'", "reward.red.start=2")
    made.train()
    before, copy = weights(made.copies), kept(made.copies)
    with pytest.raises(RunError, match="no answer to call 2"):
        made.train()
    assert same(weights(made.copies), before) and same(kept(made.copies), copy)


@pytest.mark.parametrize("at", [1, 4])
def test_r082_a_run_with_copies_that_was_stopped_ends_as_if_it_was_not(go, lines, at):
    options = (BEHIND, "optimizer.ema=0.8")
    whole = go("whole", *options)
    with pytest.raises(Stopped):
        go("stopped", *options, stop_after=at)
    resumed = go("stopped", *options, resume=True)
    first, second = (checkpoint.load(checkpoint.complete(folder / "checkpoints")[-1]) for folder in (whole, resumed))
    assert {name.rpartition("/")[2] for name in first.copies} == {"old", "first", AVERAGE}
    assert all(same(getattr(first, part), getattr(second, part)) for part in ("weights", "optimizer", "copies"))
    assert lines(whole) == lines(resumed)


def test_the_exported_weights_are_the_average_where_there_is_one(go):
    folder = go("run", BEHIND, "optimizer.ema=0.8")
    exported, saved = torch.load(folder / "model" / "weights.pt"), checkpoint.load(checkpoint.complete(folder / "checkpoints")[-1])
    assert same(exported, {name.removesuffix("/average"): v for name, v in saved.copies.items() if name.endswith("/average")})
    assert not same(exported, saved.weights)
