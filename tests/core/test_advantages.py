from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vgrpo_core.advantages import combine, soft_clip, standardise

NAN = math.nan
SHAPES = arrays.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6)
EIGHTHS = st.integers(-80, 80).map(lambda n: n / 8)
"""Scores that differ by more than rounding, or are equal."""


def scores(*, missing=True, shape=SHAPES):
    """Draw scores [P, G]."""
    return arrays.arrays(np.float64, shape, elements=st.one_of(EIGHTHS, st.just(NAN)) if missing else EIGHTHS)


def two(**options):
    return SHAPES.flatmap(lambda shape: st.tuples(scores(shape=shape, **options), scores(shape=shape, **options)))


def by_hand(table, scale="group"):
    """Standardise with plain loops over what was scored."""
    everything = [value for row in table for value in row if not math.isnan(value)]
    result = []
    for row in table:
        known = [value for value in row if not math.isnan(value)]
        mean = sum(known) / len(known) if known else NAN
        deviation = np.std(known if scale == "group" else everything) if known else NAN
        if len(known) < 2:
            result.append([NAN] * len(row))
        elif max(known) == min(known):
            result.append([NAN if math.isnan(value) else 0.0 for value in row])
        else:
            result.append([(value - mean) / deviation for value in row])
    return np.array(result)


def sum_by_hand(tables, weights, use, scale):
    """Combine with plain loops; NaN where no reward could judge."""
    if use == "sum_then_normalize":
        return by_hand(sum(weight * table for weight, table in zip(weights, tables, strict=True)), scale)
    parts = [weight * by_hand(table, scale) for weight, table in zip(weights, tables, strict=True)]
    result = np.full(tables[0].shape, NAN)
    for place in np.ndindex(*result.shape):
        known = [part[place] for part in parts if not math.isnan(part[place])]
        result[place] = sum(known) if known else NAN
    return result


def advantages(*tables, weights=None, **options):
    """Combine tables of scores labelled 0, 1, ... and return values as an array."""
    labelled = {str(index): torch.as_tensor(np.array(table)) for index, table in enumerate(tables)}
    return combine(labelled, dict(zip(labelled, weights or [1.0] * len(tables), strict=True)), **options)


def values(*tables, **options):
    return advantages(*tables, **options).values.numpy()


# Against plain loops


@pytest.mark.parametrize("scale", ["group", "batch"])
@given(table=scores())
def test_standardised_scores_are_those_of_plain_loops(scale, table):
    np.testing.assert_allclose(standardise(torch.from_numpy(table), scale=scale).numpy(), by_hand(table, scale), atol=1e-9)


@pytest.mark.parametrize("use", ["normalize_then_sum", "sum_then_normalize"])
@pytest.mark.parametrize("scale", ["group", "batch"])
@given(tables=two(), weights=st.tuples(st.sampled_from([0.5, 1.0, -2.0]), st.sampled_from([0.25, 3.0])))
def test_combined_advantages_are_those_of_plain_loops(use, scale, tables, weights):
    found = advantages(*tables, weights=weights, use=use, scale=scale)
    expected = sum_by_hand(tables, weights, use, scale)
    np.testing.assert_array_equal(found.valid.numpy(), ~np.isnan(expected))
    np.testing.assert_allclose(found.values.numpy(), np.nan_to_num(expected), atol=1e-9)


# Properties


@pytest.mark.parametrize("use", ["normalize_then_sum", "sum_then_normalize"])
@pytest.mark.parametrize("scale", ["group", "batch"])
@given(tables=two())
def test_advantages_are_finite_whatever_is_missing(use, scale, tables):
    found = advantages(*tables, use=use, scale=scale)
    assert found.values.isfinite().all()
    assert (found.values[~found.valid] == 0).all()


@given(tables=two(), factor=st.sampled_from([1e-3, 0.5, 3.0, 1e4]), offset=st.sampled_from([-50.0, 0.0, 7.0]))
def test_shift_and_positive_scale_of_a_reward_change_nothing(tables, factor, offset):
    first, second = tables
    np.testing.assert_allclose(values(factor * first + offset, second), values(first, second), atol=1e-7)


@given(table=scores(missing=False), offset=st.sampled_from([-3.0, 11.0]))
def test_a_constant_added_to_one_group_changes_nothing(table, offset):
    moved = table.copy()
    moved[0] += offset
    np.testing.assert_allclose(values(moved), values(table), atol=1e-9)


@given(table=scores(), data=st.data())
def test_permuting_the_samples_of_a_group_permutes_their_advantages(table, data):
    order = data.draw(st.permutations(range(table.shape[1])))
    np.testing.assert_allclose(values(table[:, order]), values(table)[:, order], atol=1e-12)


@given(value=st.floats(-1e6, 1e6), samples=st.integers(2, 9), scale=st.sampled_from(["group", "batch"]))
def test_equal_rewards_have_advantages_of_exactly_zero(value, samples, scale):
    found = advantages([[value] * samples, [1.0] * samples], scale=scale)
    assert (found.values == 0).all() and found.valid.all() and found.zero_std_fraction == 1


@given(value=st.sampled_from([0.1, 1 / 3, -7.7, 1e-4]), samples=st.integers(2, 50))
def test_scores_that_differ_by_rounding_count_as_equal(value, samples):
    row = np.full(samples, value, dtype=np.float32)
    row[0] = np.nextafter(row[0], np.float32(np.inf))
    assert (values([row]) == 0).all()


@given(table=scores(missing=False))
def test_r015_advantages_of_a_group_add_up_to_zero(table):
    assert np.abs(values(table).sum(1)).max() < 1e-9


@given(table=scores(missing=False))
def test_a_group_that_differs_has_advantages_of_deviation_one(table):
    for row, found in zip(table, values(table), strict=True):
        if len(row) > 1:
            assert np.std(found) == pytest.approx(float(row.max() > row.min()))


def test_a_weight_of_zero_only_watches():
    with_nan = advantages([[1.0, 2.0]], [[NAN, NAN]], weights=[1.0, 0.0], use="sum_then_normalize")
    assert with_nan.values.tolist() == [[-1, 1]] and with_nan.valid.all()


def test_a_negative_weight_turns_the_order_around():
    assert values([[1.0, 3.0]], weights=[-2.0]).tolist() == [[2, -2]]


def test_soft_clip_is_eta_times_the_tangent_of_the_share():
    given_values = torch.tensor([-9.0, -1.0, 0.0, 0.5, 30.0], dtype=torch.float64)
    expected = [3 * math.tanh(value / 3) for value in given_values.tolist()]
    assert soft_clip(given_values, 3.0).tolist() == pytest.approx(expected, abs=1e-12)
    assert soft_clip(given_values, None) is given_values


# K01: scaling and weighting

EASY, HARD = [0.0, 10.0, 20.0, 30.0], [1.0, 0.0, 1.0, 0.0]


def test_r001_an_easy_reward_does_not_drown_a_hard_one():
    found = values([EASY], [HARD])[0]
    assert [np.corrcoef(found, reward)[0, 1] for reward in (EASY, HARD)] == pytest.approx([0.53, 0.53], abs=0.005)


def test_r001_a_plain_sum_pushes_the_hard_reward_the_wrong_way():
    found = values([EASY], [HARD], use="sum_then_normalize")[0]
    assert np.corrcoef(found, HARD)[0, 1] == pytest.approx(-0.41, abs=0.005)


def test_r001_the_shares_of_the_variance_are_those_of_the_squared_weights():
    found = combine({"easy": torch.tensor([EASY]), "hard": torch.tensor([HARD])}, {"easy": 3.0, "hard": 1.0})
    assert found.shares == pytest.approx({"easy": 9 / 10, "hard": 1 / 10})


def test_r001_the_shares_show_which_reward_a_plain_sum_follows():
    rewards = {"easy": torch.tensor([EASY]), "hard": torch.tensor([HARD])}
    found = combine(rewards, {"easy": 1.0, "hard": 1.0}, use="sum_then_normalize")
    both = [np.var(EASY), np.var(HARD)]
    assert list(found.shares.values()) == pytest.approx([value / sum(both) for value in both])


def test_r003_a_reward_without_bounds_counts_as_much_as_one_of_zero_and_one():
    unbounded, binary = np.array([-3.0, 0.2, 7.5, 15.0]), np.array([0.0, 1.0, 1.0, 0.0])
    expected = sum((reward - reward.mean()) / reward.std() for reward in (unbounded, binary))
    np.testing.assert_allclose(values([unbounded], [binary])[0], expected)


def test_r005_the_unit_of_a_reward_does_not_matter():
    rewards = np.array([[0.2, 0.4, 0.9, 0.1]])
    np.testing.assert_allclose(values(100 * rewards + 7), values(rewards), atol=1e-6)


def test_r006_scores_below_zero_are_scores():
    rewards = np.array([-2.3, -0.1, 0.4, 1.5])
    np.testing.assert_allclose(values([rewards])[0], (rewards - rewards.mean()) / rewards.std())


def test_r010_a_reward_that_does_not_apply_is_absent_and_not_zero():
    common, ocr = [[1.0, 2.0, 3.0], [4.0, 6.0, 5.0]], [[0.0, 1.0, 0.5], [NAN, NAN, NAN]]
    geneval = [[NAN, NAN, NAN], [1.0, 0.0, 0.0]]
    found = advantages(common, ocr, geneval)
    assert found.valid.all()
    np.testing.assert_allclose(found.values.numpy()[:1], by_hand(common[:1]) + by_hand(ocr[:1]))
    np.testing.assert_allclose(found.values.numpy()[1:], by_hand(common[1:]) + by_hand(geneval[1:]))


# K02: degenerate groups


def test_r011_groups_without_a_difference_are_counted_and_are_exactly_zero():
    found = advantages([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    assert found.zero_std_fraction == pytest.approx(2 / 3)
    assert found.values.tolist() == [[0, 0], [-1, 1], [0, 0]]


def test_a_sample_at_the_mean_of_its_group_does_not_make_the_group_one_without_a_difference():
    assert advantages([[1.0, 2.0, 3.0]]).zero_std_fraction == 0


def test_r014_the_deviation_is_the_groups_or_the_batchs_as_told():
    rewards = [[1.0, 3.0], [11.0, 13.0]]
    assert values(rewards).tolist() == [[-1, 1], [-1, 1]]
    share = 1 / np.std([1, 3, 11, 13])
    np.testing.assert_allclose(values(rewards, scale="batch"), [[-share, share], [-share, share]])


def test_r015_every_sample_counts_in_the_mean():
    assert values([[1.0, 2.0, 3.0, 6.0]])[0] == pytest.approx(np.array([-2, -1, 0, 3]) / np.std([1, 2, 3, 6]))


# K03: missing scores

FIRST, SECOND = [0.3, 0.9, 0.1, 0.4], [0.2, 0.25, 0.9, 0.7]


@pytest.mark.parametrize("use", ["normalize_then_sum", "sum_then_normalize"])
def test_r019_a_missing_score_in_one_group_leaves_the_other_group_bit_equal(use):
    other = [[2.0, 1.0, NAN, 5.0], [3.0, 1.0, 4.0, 1.5]]
    both = values([FIRST, SECOND], other, use=use)
    assert np.isfinite(both).all()
    assert both[1].tolist() == values([SECOND], other[1:], use=use)[0].tolist()


def test_r019_the_statistics_are_those_of_the_scores_there_are():
    found = advantages([[1.0, NAN, 3.0, 5.0]])
    known = np.array([1.0, 3.0, 5.0])
    np.testing.assert_allclose(found.values[0, [0, 2, 3]], (known - 3) / known.std())
    assert found.valid.tolist() == [[True, False, True, True]]
    assert found.values[0, 1] == 0


def test_r019_a_reward_with_one_score_in_a_group_has_no_part_in_it():
    alone = advantages([[1.0, 2.0, 4.0]], [[NAN, 7.0, NAN]])
    assert alone.values.tolist() == values([[1.0, 2.0, 4.0]]).tolist()
    nothing = advantages([[NAN, 7.0, NAN]])
    assert not nothing.valid.any() and (nothing.values == 0).all()


def test_a_sum_of_rewards_needs_all_of_them():
    found = advantages([[1.0, 2.0, 4.0]], [[1.0, NAN, 1.0]], use="sum_then_normalize")
    assert found.valid.tolist() == [[True, False, True]]
    assert found.values.tolist() == [[-1, 0, 1]]


def test_the_correlation_of_a_reward_with_the_advantages_is_pearsons():
    generator = torch.Generator().manual_seed(0)
    scores = {"a": torch.randn(5, 4, generator=generator), "b": torch.randn(5, 4, generator=generator)}
    scores["b"][0, 1] = torch.nan
    found = combine(scores, {"a": 1.0, "b": 2.0})
    part = standardise(scores["b"])
    both = part.isfinite()
    expected = np.corrcoef(part[both].numpy(), found.values[both].numpy())[0, 1]
    assert found.correlations["b"] == pytest.approx(expected)
    assert np.isnan(combine({"a": torch.ones(2, 3)}, {"a": 1.0}).correlations["a"])
