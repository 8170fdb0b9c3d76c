from __future__ import annotations

import pytest
import torch

from vgrpo_core import RunError
from vgrpo_core.events import Evaluated, Warned
from vgrpo_recipe.plan import Plan


def weights(trainer):
    return {name: value.clone() for name, value in trainer.policy.state().items()}


def same(first, second):
    return first.keys() == second.keys() and all(second[name].equal(value) for name, value in first.items())


def timeless(line):
    return {key: value for key, value in line.items() if key != "seconds"}


def watched(trainer):
    """Record the advantages of every iteration."""
    seen, compare = [], trainer.compare
    trainer.compare = lambda *asked: seen.append(compare(*asked)) or seen[-1]
    return seen


def test_a_line_has_what_readers_of_metrics_look_for(trainer):
    line = trainer("reward.red.scale=0.5").train()
    assert line.keys() >= {
        "iteration", "seconds", "evaluations", "backwards", "reward/red/mean", "reward/red/std", "reward/red/missing",
        "reward/red/scaled", "group/zero_std_fraction", "advantage/std", "advantage/max_abs", "advantage/missing", "ratio/mean",
        "ratio/min", "ratio/max", "ratio/clip_fraction", "surrogate/mean", "surrogate/cv_in_group", "grad/norm", "grad/refused",
    }  # fmt: skip
    assert "advantage/mean" not in line
    assert (line["iteration"], line["reward/red/missing"], line["group/zero_std_fraction"]) == (1, 0, 0)
    assert line["reward/red/scaled"] == pytest.approx(line["reward/red/mean"] / 2)


@pytest.mark.parametrize("options", [[], ["objective.split=true"], ["objective.steps=1", "objective.pairs=5"]], ids=str)
def test_evaluations_add_up_to_the_plan(trainer, options):
    made = trainer(*options)
    assert [made.train()["evaluations"] for _ in range(3)] == [n * Plan.of(made.recipe).evaluations for n in (1, 2, 3)]


def test_training_raises_the_reward(trainer):
    made = trainer("batch.group=16", "run.iterations=30")
    means = [made.train()["reward/red/mean"] for _ in range(30)]
    assert sum(means[-5:]) / 5 > sum(means[:5]) / 5 + 0.05


def test_a_negative_weight_lowers_the_score(trainer):
    made = trainer("batch.group=16", "run.iterations=30", "reward.red.weight=-1")
    means = [made.train()["reward/red/mean"] for _ in range(30)]
    assert sum(means[-5:]) / 5 < sum(means[:5]) / 5 - 0.05


@pytest.mark.parametrize("micro", [1, 3, 24])
def test_r013_the_size_of_micro_batches_changes_advantages_and_update_by_rounding_only(trainer, micro):
    found = {}
    for size in (8, micro):
        made = trainer(f"batch.micro={size}", "objective.kl=0.1")
        seen, lines = watched(made), [made.train() for _ in range(2)]
        found[size] = torch.stack([advantages.values for advantages, _ in seen]), weights(made), lines
    (whole, before, lines), (split, after, split_lines) = found[8], found[micro]
    torch.testing.assert_close(split, whole, atol=1e-4, rtol=1e-4)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, atol=1e-4, rtol=1e-4)
    for line, other in zip(lines, split_lines, strict=True):
        assert timeless(other) == pytest.approx(timeless(line), rel=1e-2, abs=1e-4)


def test_r083_a_run_depends_on_its_seed_and_not_on_the_global_generator(trainer):
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        made = trainer()
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        made.train()
        made.evaluate()
        assert torch.get_rng_state().equal(before)
        found.append(weights(made))
    assert same(*found)


def test_another_seed_draws_other_weights_and_other_images(trainer):
    first, second = trainer("prompts.count=1"), trainer("prompts.count=1", "run.seed=8")
    assert not same(weights(first), weights(second))
    second.policy.module.load_state_dict(first.policy.module.state_dict())
    assert first.train()["reward/red/mean"] != second.train()["reward/red/mean"]


def test_evaluation_changes_nothing(trainer):
    made, plain = trainer(monitor=True), trainer(monitor=True)
    for _ in range(3):
        before, evaluations = weights(made), made.evaluations
        made.evaluate()
        assert same(before, weights(made)) and made.evaluations == evaluations
        assert timeless(made.train()) == timeless(plain.train())
    assert same(weights(made), weights(plain)) and same(made.optimizer.state(), plain.optimizer.state())


def test_evaluation_draws_the_same_images_every_time(trainer):
    events = []
    made = trainer("eval.samples=2", "batch.micro=4", listener=events.append)
    first, before = made.evaluate(), weights(made)
    made.train()
    assert made.evaluate() != first
    made.policy.restore(before)
    assert made.evaluate() == first and first["eval/red/missing"] == 0
    assert [event.iteration for event in events] == [0, 1, 1]
    assert events[0].images.equal(events[2].images) and len(events[0].images) == 6
    assert [prompt.text for prompt in events[0].prompts] == [f"prompt {n}" for n in (5, 5, 6, 6, 7, 7)]
    assert events[0].scores["red"] == pytest.approx(events[0].images[:, 0].mean().item())
    assert trainer("eval.seed=1").evaluate() != first


def test_frozen_weights_stay_as_they_are(trainer):
    made = trainer()
    before = made.policy.module.frozen.clone()
    made.train()
    assert made.policy.module.frozen.equal(before)


# Missing scores


def test_scores_that_are_missing_are_counted_and_masked(trainer):
    made = trainer("reward.red.kind='gaps'")
    seen = watched(made)
    lines = [made.train() for _ in range(3)]
    for (advantages, _), line in zip(seen, lines, strict=True):
        assert line["reward/red/missing"] > 0 and line["advantage/missing"] == (~advantages.valid).sum()
        assert line["advantage/missing"] >= line["reward/red/missing"]
    assert any(advantages.valid.any() for advantages, _ in seen)
    assert all(value.isfinite().all() for value in weights(made).values())


def test_a_reward_that_judges_nothing_is_left_out_of_the_sum(trainer):
    one, two = trainer(), trainer("reward.second.kind='blind'", second=True)
    for _ in range(2):
        one.train()
        line = two.train()
    assert same(weights(one), weights(two))
    assert line["reward/second/mean"] is None and line["reward/second/missing"] == 8


def test_infinite_scores_are_missing_scores(trainer):
    made = trainer("reward.second.kind='infinite'", second=True)
    assert made.train()["reward/second/missing"] == 8


# Nothing to learn from


def test_groups_without_signal_take_no_step(trainer):
    made = trainer("reward.red.kind='constant'", "optimizer.weight_decay=0.1")
    before = weights(made)
    line = made.train()
    assert same(before, weights(made)) and made.optimizer.state() == {}
    assert line["group/zero_std_fraction"] == 1 and line["evaluations"] == 8 * 3
    assert "grad/norm" not in line


@pytest.mark.parametrize("kind", ["constant", "blind"])
def test_r016_five_iterations_without_any_advantage_stop_the_run_with_a_reason(trainer, kind):
    made = trainer(f"reward.red.kind='{kind}'")
    for _ in range(4):
        made.train()
    with pytest.raises(RunError, match=r"every advantage was 0 in 5 iterations.*reward/red/mean (0\.5|missing)") as caught:
        made.train()
    assert caught.value.exit_code == 1
    assert (made.done, made.moved) == (4, False)


def test_one_iteration_with_an_advantage_starts_the_count_again(trainer):
    made, red = trainer("reward.red.kind='constant'"), trainer()
    constant = made.judges
    for turn in range(12):
        made.judges = red.judges if turn % 4 == 3 else constant
        made.train()
    assert made.idle == 0


def test_gradients_that_are_not_finite_are_refused_and_three_in_a_row_stop(trainer):
    made = trainer()
    made.train()
    made.policy.module.outer.bias.register_hook(lambda slope: slope * torch.nan)
    before, state = weights(made), {name: value.clone() for name, value in made.optimizer.state().items()}
    line = made.train()
    assert (line["grad/norm"], line["grad/refused"]) == (None, 2)
    assert same(before, weights(made)) and same(state, made.optimizer.state())
    with pytest.raises(RunError, match="not finite 3 times in a row"):
        made.train()
    assert same(before, weights(made))


# Monitors and rewards that fail


def test_r021_a_monitor_that_fails_leaves_a_gap_and_one_warning_each_time(trainer):
    events = []
    made = trainer("eval.reward.watched.kind='fail'", monitor=True, listener=events.append)
    for turn in (1, 2):
        line = made.evaluate()
        assert line["eval/watched/mean"] is None and line["eval/watched/missing"] == 3 and line["eval/red/mean"] is not None
        warnings = [event.message for event in events if isinstance(event, Warned)]
        assert len(warnings) == turn and "watched" in warnings[-1] and f"no answer to call {turn}" in warnings[-1]
    assert [event.scores["watched"] for event in events if isinstance(event, Evaluated)] == [None, None]


def test_monitors_are_not_asked_in_training(trainer):
    made = trainer("eval.reward.watched.kind='fail'", monitor=True)
    assert not [key for key in made.train() if "watched" in key]


def test_r022_a_training_reward_that_fails_stops_the_iteration_before_the_weights_move(trainer):
    made = trainer("reward.red.kind='fail'", "reward.red.start=3")
    made.train()
    made.train()
    before = weights(made)
    with pytest.raises(RunError, match=r'reward "red" .* failed on 8 samples.*no answer to call 3'):
        made.train()
    assert same(before, weights(made)) and (made.done, made.moved) == (2, False)


# State


def test_a_restored_trainer_goes_on_bit_equal(trainer):
    whole, first, second = trainer(), trainer(), trainer("reward.red.start=9")
    for _ in range(3):
        whole.train()
        first.train()
    second.restore(first.state())
    assert same(weights(first), weights(second)) and second.done == 3 and second.evaluations == first.evaluations
    for _ in range(3):
        assert timeless(whole.train()) == timeless(second.train())
    assert same(weights(whole), weights(second)) and same(whole.optimizer.state(), second.optimizer.state())
    assert second.state().state["iteration"] == 6


def test_a_restored_trainer_remembers_how_long_nothing_was_learned(trainer):
    first, second = trainer("reward.red.kind='constant'"), trainer("reward.red.kind='constant'")
    for _ in range(3):
        first.train()
    second.restore(first.state())
    second.train()
    with pytest.raises(RunError, match="5 iterations"):
        second.train()
