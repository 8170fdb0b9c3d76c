"""Intervals are scipy's, and where there is a closed form, that; images of one prompt count as one draw."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from vgrpo_use.interval import Clusters, compare, summarise

NAN = float("nan")


def data(prompts, samples, seed=0):
    """Scores whose prompts differ more than the images of one prompt."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(prompts, 1)) + 0.3 * generator.normal(size=(prompts, samples))
    return values.ravel(), np.repeat(np.arange(prompts), samples)


def test_the_interval_is_scipy_s_percentile_interval_over_prompts():
    values, prompts = data(25, 3)
    means = values.reshape(25, 3).mean(1)
    expected = stats.bootstrap((means,), np.mean, n_resamples=50_000, method="percentile", rng=1).confidence_interval
    assert Clusters.of(values, prompts).interval(0) == pytest.approx(expected, abs=0.02)


def test_with_unequal_numbers_of_images_it_is_scipy_s_of_the_ratio():
    values, prompts = data(25, 3)
    values[np.random.default_rng(2).random(75) < 0.3] = NAN
    rows = [values[prompts == prompt] for prompt in range(25)]
    sums, counts = np.array([np.nansum(row) for row in rows]), np.array([np.isfinite(row).sum() for row in rows])
    ratio = lambda s, c, axis: s.sum(axis) / c.sum(axis)  # noqa: E731
    found = stats.bootstrap((sums, counts), ratio, paired=True, n_resamples=50_000, method="percentile", rng=1).confidence_interval
    assert Clusters.of(values, prompts).interval(0) == pytest.approx(found, abs=0.02)
    assert Clusters.of(values, prompts).mean == pytest.approx(np.nanmean(values))


def test_for_many_prompts_it_is_the_mean_plus_and_minus_1_96_standard_errors():
    values, prompts = data(400, 1, seed=3)
    error = values.std() / 20
    expected = (values.mean() - 1.96 * error, values.mean() + 1.96 * error)
    assert Clusters.of(values, prompts).interval(0) == pytest.approx(expected, abs=0.1 * error)


def test_copies_of_the_images_make_nothing_surer():
    values, prompts = data(20, 1)
    once = Clusters.of(values, prompts).interval(0)
    assert Clusters.of(np.repeat(values, 8), np.repeat(prompts, 8)).interval(0) == pytest.approx(once)


def test_the_interval_follows_from_its_seed():
    found = Clusters.of(*data(10, 2))
    assert found.interval(5) == found.interval(5) != found.interval(6)


def test_pairs_with_a_missing_score_are_left_out_and_counted():
    before = np.array([0.0, 1.0, NAN, 4.0, 5.0, NAN])
    after = np.array([1.0, NAN, 2.0, 2.0, 5.5, NAN])
    found = compare(before, after, np.array([0, 0, 1, 1, 2, 3]), seed=0)
    assert (found.before, found.after, found.difference) == pytest.approx((3.0, 8.5 / 3, -0.5 / 3))  # of rows 0, 3 and 4
    assert (found.prompts, found.images, found.missing) == (3, 3, 3)
    assert (found.better, found.worse) == pytest.approx((2 / 3, 1 / 3))


def test_a_prompt_is_better_where_the_mean_of_its_images_is_and_equal_is_neither():
    before, after = np.zeros(6), np.array([2.0, -1.0, 1.0, -1.0, -1.0, -1.0])
    found = compare(before, after, np.array([0, 0, 1, 1, 2, 2]), seed=0)
    assert (found.better, found.worse) == (1 / 3, 1 / 3)


def test_where_lower_is_better_the_shares_change_places_and_nothing_else():
    before, prompts = data(9, 2)
    after, _ = data(9, 2, seed=1)
    up, down = (compare(before, after, prompts, seed=0, sign=sign) for sign in (1, -1))
    assert (up.better, up.worse) == (down.worse, down.better)
    assert up.better != up.worse
    assert (up.difference, up.interval) == (down.difference, down.interval)


@pytest.mark.parametrize("values", [[NAN, NAN, NAN], [0.5, 0.75, NAN]])
def test_with_fewer_than_two_prompts_nothing_is_known_of_the_spread(values):
    found = summarise(np.array(values), np.array([0, 0, 1]), seed=0)
    known = [value for value in values if value == value]
    assert found.mean == (sum(known) / 2 if known else None)
    assert (found.interval, found.images, found.missing) == (None, len(known), 3 - len(known))
