"""The same recipe on 1, 2 and 3 ranks is the same run; a rank in trouble takes the others with it, and none waits for ever."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from vgrpo_core import RunError, checkpoint
from vgrpo_core.folder import Folder
from vgrpo_core.ranks import Ranks
from vgrpo_core.run import _failed


@pytest.fixture(params=[2, 3])
def several(request, two, three):
    """The whole run on two ranks, or on three."""
    return two["whole"] if request.param == 2 else three


def drawn(ended, what):
    """Return what all ranks drew, by key."""
    return {key: value for rank in ended.ranks for key, value in dict(rank[what]).items()}


def close(found, expected, **tolerance):
    """Compare tensors by name."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **tolerance)


def test_r105_every_image_is_drawn_once_and_is_the_same_on_any_number_of_ranks(alone, several):
    assert several.ends == ["done"] * len(several.ranks)
    keys = [key for rank in several.ranks for key in rank["latents"]]
    assert len(keys) == len(set(keys))
    close(drawn(several, "latents"), drawn(alone, "latents"), rtol=0, atol=1e-5)


def test_r090_a_group_that_spans_ranks_shares_its_pairs(alone, several):
    expected = dict(alone.ranks[0]["pairs"])
    made = [pair for rank in several.ranks for pair in rank["pairs"]]
    assert {key for key, _ in made} == set(expected)
    assert all(torch.equal(noise, expected[key]) for key, noise in made)


def test_rewards_and_advantages_are_the_same_on_any_number_of_ranks(alone, several):
    names = [
        name for name in alone.lines[-1] if name.startswith(("reward/", "advantage/", "group/", "eval/", "ratio", "surrogate"))
    ]
    assert len(several.lines) == len(alone.lines)
    for line, expected in zip(several.lines, alone.lines, strict=True):
        assert line.keys() == expected.keys()
        known = [name for name in names if name in expected]
        assert [line[name] for name in known] == pytest.approx([expected[name] for name in known], abs=1e-5)


def test_the_weights_are_the_same_on_any_number_of_ranks(alone, several):
    close(several.saved.weights, alone.saved.weights, rtol=0, atol=1e-5)
    close(several.saved.copies, alone.saved.copies, rtol=0, atol=1e-5)


def test_r101_the_main_rank_loads_models_before_the_others_so_that_it_alone_fetches_them(several):
    (_, end), *others = (rank["loaded"] for rank in several.ranks)
    assert others and all(start >= end for start, _ in others)


def test_evaluations_and_backwards_are_counted_over_all_ranks(alone, several):
    for what in ("evaluations", "backwards"):
        assert several.lines[-1][what] == alone.lines[-1][what] > 0


def test_noise_on_the_way_and_copies_of_the_weights_are_the_same_on_any_number_of_ranks(one, two):
    alone, pair = one["behind"], two["behind"]
    assert pair.ends == ["done", "done"]
    close(drawn(pair, "latents"), drawn(alone, "latents"), rtol=0, atol=1e-5)
    assert {name.rpartition("/")[2] for name in pair.saved.copies} == {"old", "first", "average"}
    close(pair.saved.copies, alone.saved.copies, rtol=0, atol=1e-5)
    close(pair.saved.weights, alone.saved.weights, rtol=0, atol=1e-5)
    main, other = (rank["copies"] for rank in pair.ranks)
    assert main.keys() == pair.saved.copies.keys()
    close(other, main, rtol=0, atol=0)


def test_a_rank_whose_scores_are_all_missing_holds_nobody_up(two):
    assert two["blind"].ends == ["done", "done"]
    assert [line["reward/red/missing"] for line in two["blind"].lines[1:]] == [4] * 5


def test_a_reward_that_fails_on_one_rank_stops_all_of_them_with_a_checkpoint(two):
    main, other = two["fail"].ends
    assert 'RunError: rank 1: reward "red"' in main and "failed on 1 samples" in main and "ConnectionError: no answer" in main
    assert other.startswith('RunError: reward "red"')
    assert "failed after iteration 0; iteration 0 is kept" in main


def test_when_one_rank_is_asked_to_stop_all_stop_after_the_same_iteration(two):
    assert two["stop"].ends == ["stopped after iteration 3 of 5"] * 2


def test_r096_weights_that_differ_between_ranks_stop_the_run_after_the_first_step(two):
    for end in two["drift"].ends:
        assert end.startswith("RankError: the trained weights of rank 1 are not those of rank 0")
        assert end.endswith("failed after iteration 1; nothing is kept")


def test_a_run_stopped_on_two_ranks_goes_on_alone(alone, two, resumed):
    close(resumed(two["stop"].folder).weights, alone.saved.weights, rtol=0, atol=1e-5)


def test_sharded_weights_train_as_whole_ones_do(alone, two):
    assert two["shard"].ends == ["done", "done"]
    close(two["shard"].saved.weights, alone.saved.weights, rtol=0, atol=1e-5)
    close(two["shard"].saved.copies, alone.saved.copies, rtol=0, atol=1e-5)


def test_a_reward_that_fails_on_a_sharded_rank_ends_it_without_waiting_for_the_others(monkeypatch, tmp_path):
    ranks = Ranks(1, 2)
    ranks.sharded = True
    monkeypatch.setattr(checkpoint, "save", lambda *_, **__: pytest.fail("it would wait for ranks that wait elsewhere"))
    trainer = SimpleNamespace(ranks=ranks, moved=False, done=3)
    failed = _failed(RunError('reward "red" failed'), trainer, Folder(tmp_path))
    assert str(failed) == 'reward "red" failed\n  failed after iteration 3; nothing is kept'


def test_a_sharded_run_exports_whole_weights(alone, two):
    exported = torch.load(two["shard"].folder / "model" / "weights.pt")
    close(exported, torch.load(alone.folder / "model" / "weights.pt"), rtol=0, atol=1e-5)
