from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgrpo_compare.levels import Mean, Point, Spread, best, default_levels, late, reached, speeds

SCORE = st.floats(-2, 2).map(lambda value: round(value, 3))
SCORES = st.lists(SCORE, min_size=2, max_size=12)


def curve(scores, *, each=100.0, times=None):
    """Evaluations after every iteration, each of which costs the same and takes half a second."""
    times = times or [0.5 * at for at in range(len(scores))]
    return [Point(at, 0, 0, at * each, times[at], {}, score) for at, score in enumerate(scores)]


@given(SCORES, SCORE)
def test_a_level_is_reached_where_the_line_through_the_evaluations_first_gets_there(scores, level):
    found = reached(curve(scores), level, "cost")
    grid = np.linspace(0, 100 * (len(scores) - 1), 100 * (len(scores) - 1) + 1)
    at = np.interp(grid, 100.0 * np.arange(len(scores)), scores) >= level - 1e-12
    if not at.any():
        assert found is None or max(scores) == level
        assert (found is None) == (max(scores) < level)
    else:
        assert found == pytest.approx(grid[at.argmax()], abs=1.001)


@given(SCORES, SCORE, SCORE)
def test_a_higher_level_never_costs_less(scores, one, two):
    low, high = (reached(curve(scores), level, "cost") for level in sorted((one, two)))
    assert high is None or (low is not None and low <= high)


@given(SCORES, SCORE, st.floats(0.1, 100))
def test_cost_counted_in_another_unit_changes_costs_by_that_unit_and_seconds_not_at_all(scores, level, unit):
    one, other = curve(scores), curve(scores, each=100 * unit)
    costs = reached(one, level, "cost"), reached(other, level, "cost")
    assert costs == (None, None) or costs[1] == pytest.approx(unit * costs[0])
    assert reached(one, level, "seconds") == reached(other, level, "seconds")


def test_a_level_between_two_evaluations_is_reached_at_the_same_share_of_cost_and_of_seconds():
    found = curve([0.5, 0.5, 0.7, 0.6, 0.9], times=[0, 1, 5, 6, 7])
    assert reached(found, 0.55, "cost") == pytest.approx(125)
    assert reached(found, 0.55, "seconds") == pytest.approx(2)
    assert reached(found, 0.7, "cost") == 200
    assert reached(found, 0.95, "cost") is None
    assert reached(found, 0.4, "cost") == 0


def test_an_evaluation_that_nothing_could_judge_is_passed_over():
    assert reached(curve([0.5, None, 0.7]), 0.6, "cost") == pytest.approx(100)
    assert reached(curve([None, None]), 0.6, "cost") is None
    assert best(curve([None, 0.3, None])) == 0.3


@given(st.lists(SCORES, min_size=1, max_size=3))
def test_default_levels_are_few_even_and_between_the_starts_and_the_best(scores):
    found = default_levels([curve(each) for each in scores])
    assert len(found) <= 12
    assert all(max(each[0] for each in scores) < level <= max(map(max, scores)) + 1e-6 for level in found)
    if len(found) > 1:
        steps = np.diff(found)
        assert np.allclose(steps, steps[0]) and steps[0] >= 0.05 - 1e-9
        assert np.allclose(np.round(np.array(found) / steps[0]), np.array(found) / steps[0])


def test_default_levels_are_every_twentieth():
    assert default_levels([curve([0.553, 0.7]), curve([0.553, 0.65, 0.61])]) == (0.6, 0.65, 0.7)
    assert default_levels([curve([0.6, 0.61])]) == ()
    assert default_levels([curve([20.0, 26.0])]) == (21, 22, 23, 24, 25, 26)
    assert default_levels([curve([None, 0.61]), []]) == ()


@given(st.dictionaries(st.integers(0, 9), st.floats(1, 1e6), min_size=1), st.floats(0.1, 10))
def test_an_entry_that_takes_a_part_of_the_cost_is_as_many_times_faster(costs, times):
    assert speeds(costs, {seed: cost / times for seed, cost in costs.items()}) == pytest.approx([times] * len(costs))


def test_speeds_are_of_seeds_on_which_both_got_there():
    assert speeds({0: 100.0, 1: None, 2: 300.0, 3: 0.0, 5: 1.0}, {0: 50.0, 1: 20.0, 2: None, 3: 0.0, 4: 1.0}) == [2.0]


def test_spreads_and_means_are_of_what_is_known():
    assert Spread.of([3.0, None, 1.0, 8.0]) == Spread(3.0, 1.0, 8.0, 3)
    assert Spread.of([None]) is None
    values = [0.2, 0.4, 0.9]
    assert Mean.of([*values, None]) == Mean(pytest.approx(np.mean(values)), pytest.approx(np.std(values, ddof=1)), 3)
    assert Mean.of([0.5]) == Mean(0.5, None, 1)
    assert Mean.of([]) is None


def test_a_try_is_judged_by_the_last_third_of_its_evaluations():
    assert late(curve([9, 1, 2, 3, 4, 5, 6])) == pytest.approx(5.5)
    assert late(curve([9, 1, 2, 3, 4])) == pytest.approx(3.5)
    assert late(curve([9, 7])) == 7
    assert late(curve([9])) is None
    assert late(curve([9, 1, 2, None])) is None
