from __future__ import annotations

import pytest
import torch

from vgrpo_core import RunError, checkpoint
from vgrpo_core.copies import AVERAGE
from vgrpo_core.run import Stopped


def weights(policy):
    return {name: tensor.clone() for name, tensor in policy.state().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def newest(folder):
    return checkpoint.load(checkpoint.complete(folder / "checkpoints")[-1])


def begin_with(path):
    return f"run.init={str(path)!r}"


@pytest.mark.parametrize("named", ["", "checkpoints", "checkpoints/000006"])
def test_a_run_begins_with_the_last_weights_of_another_one(go, trainer, named):
    first = go("first")
    begun = trainer(begin_with(first / named))
    assert same(weights(begun.policy), newest(first).weights)
    assert not same(weights(begun.policy), weights(trainer().policy))


def test_it_begins_with_an_earlier_checkpoint_where_that_is_named(go, trainer):
    first = go("first")
    begun = trainer(begin_with(first / "checkpoints" / "000004"))
    assert same(weights(begun.policy), checkpoint.load(first / "checkpoints" / "000004").weights)
    assert not same(weights(begun.policy), newest(first).weights)


def test_it_begins_with_the_average_where_the_other_run_evaluates_that(go, trainer):
    first = go("first", "optimizer.ema=0.5")
    kept = newest(first)
    averages = {name: kept.copies[f"{name}/{AVERAGE}"] for name in kept.weights}
    assert same(weights(trainer(begin_with(first)).policy), averages) and not same(averages, kept.weights)


def test_counts_moments_and_the_average_start_anew(go, trainer):
    begun = trainer(begin_with(go("first", "optimizer.ema=0.5")), "optimizer.ema=0.5")
    assert (begun.done, begun.evaluations, begun.optimizer.state()) == (0, 0, {})
    assert same(begun.copies.kept[AVERAGE], weights(begun.policy))


def test_iteration_0_is_judged_with_the_weights_it_begins_with(go, lines):
    first = go("first")
    second = go("second", begin_with(first), "run.iterations=2")
    assert lines(second)[0]["eval/red/mean"] == lines(first)[-1]["eval/red/mean"]


def test_r082_a_resumed_run_does_not_begin_again(go, lines):
    first, options = go("first"), ("run.iterations=4",)
    whole = go("whole", begin_with(first), *options)
    with pytest.raises(Stopped):
        go("stopped", begin_with(first), *options, stop_after=2)
    resumed = go("stopped", begin_with(first), *options, resume=True)
    assert lines(whole) == lines(resumed) and same(newest(whole).weights, newest(resumed).weights)


def test_a_relative_path_means_the_working_folder_and_is_kept_whole(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe("run.init=runs/first").table["run"]["init"] == str(tmp_path / "runs" / "first")


def test_weights_of_another_model_are_refused_by_name(go, toy):
    first, other = go("first"), toy.ToyPolicy(prompts=3)
    with pytest.raises(RunError, match=r"first: the weights do not fit this model; first differences: embeddings\.weight"):
        checkpoint.begin(other, first)


def test_a_folder_without_a_checkpoint_is_refused(trainer, tmp_path):
    with pytest.raises(RunError, match="not a readable checkpoint"):
        trainer(begin_with(tmp_path))
