from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vgrpo_core.pairs import draw, positions, warp

SHIFT = 3.0
SPANS = st.tuples(st.floats(0, 0.5), st.floats(0.6, 1))


def shifted(steps=1000):
    sigma = torch.linspace(1, 0, steps + 1)
    return SHIFT * sigma / (1 + (SHIFT - 1) * sigma)


def made(keys, count=4, *, shape=(2, 3), stratified=True, span=(0.02, 1.0), times=None):
    return draw(keys, count, shape=shape, times=shifted() if times is None else times, stratified=stratified, span=span)


def group(iteration, prompt, samples, *, seed=0, shared=True):
    return [(seed, iteration, prompt) if shared else (seed, iteration, prompt, sample) for sample in range(samples)]


@given(seed=st.integers(0, 2**63 - 1), iteration=st.integers(1, 999), prompt=st.integers(0, 99))
def test_pairs_are_a_function_of_run_iteration_and_prompt_alone(seed, iteration, prompt):
    key = (seed, iteration, prompt)
    alone = made([key])
    torch.randn(3)
    among = made([(seed, iteration, prompt + 1), key, (seed, iteration + 1, prompt), (seed ^ 1, iteration, prompt)])
    assert among.times[1].equal(alone.times[0]) and among.noise[1].equal(alone.noise[0])
    for other in (0, 2, 3):
        assert not among.noise[other].equal(alone.noise[0])
        assert not among.times[other].equal(alone.times[0])


def test_a_group_shares_its_pairs():
    times, noise = made(group(1, 0, 5) + group(1, 1, 5))
    assert all(times[row].equal(times[0]) and noise[row].equal(noise[0]) for row in range(5))
    assert not times[5].equal(times[0]) and not noise[5].equal(noise[0])


def test_independent_pairs_differ_inside_a_group():
    times, noise = made(group(1, 0, 6, shared=False))
    assert len({tuple(row.tolist()) for row in times}) == 6
    assert len({tuple(row.flatten().tolist()) for row in noise}) == 6


def test_r108_groups_have_strata_of_their_own():
    times, _ = made([(0, 1, prompt) for prompt in range(20)])
    assert len({tuple(row.tolist()) for row in times}) == 20


def test_pairs_have_a_time_and_a_whole_latent_of_noise_each():
    times, noise = made(group(1, 0, 3), 4, shape=(5, 2, 2))
    assert (times.shape, noise.shape) == ((3, 4), (3, 4, 5, 2, 2))
    assert times.dtype == noise.dtype == torch.float32
    assert len({tuple(one.flatten().tolist()) for one in noise[0]}) == 4


def test_noise_is_standard_normal():
    _, noise = made([(0, 1, prompt) for prompt in range(500)], shape=(10,))
    values = noise.flatten().double().sort().values.numpy()
    normal = torch.distributions.Normal(0.0, 1.0).cdf(torch.from_numpy(values)).numpy()
    gap = np.abs(normal - (np.arange(len(values)) + 0.5) / len(values)).max()
    assert gap < 1.63 / len(values) ** 0.5  # Kolmogorov and Smirnov, 1 %


@given(count=st.integers(1, 12), span=SPANS, seed=st.integers(0, 999))
def test_one_position_falls_in_each_of_equal_segments_of_the_span(count, span, seed):
    found = positions(count, torch.Generator().manual_seed(seed), stratified=True, span=span).numpy()
    edges = np.linspace(span[0], span[1], count + 1)
    assert (edges[:-1] - 1e-12 <= found).all() and (found <= edges[1:] + 1e-12).all()


@given(count=st.integers(1, 12), span=SPANS, seed=st.integers(0, 999))
def test_positions_without_strata_stay_in_the_span(count, span, seed):
    found = positions(count, torch.Generator().manual_seed(seed), stratified=False, span=span)
    assert len(found) == count and (found >= span[0]).all() and (found <= span[1]).all()


def counts(stratified):
    """Share out 1000 times among four equal parts of the shifted schedule, by looking up each time among its own."""
    times, _ = made([(0, 1, prompt) for prompt in range(250)], stratified=stratified, span=(0.0, 1.0))
    rising = shifted().double().numpy()[::-1]
    place = np.interp(times.double().numpy().flatten(), rising, np.linspace(0, 1, len(rising)))
    return np.histogram(place, bins=4, range=(0, 1))[0].tolist()


def test_r127_a_thousand_draws_in_four_strata_are_250_each_on_the_shifted_axis():
    assert counts(stratified=True) == [250, 250, 250, 250]


def test_uniform_draws_are_not_counted_out_among_the_strata():
    found = counts(stratified=False)
    assert sum(found) == 1000 and found != [250, 250, 250, 250]
    assert all(abs(count - 250) < 60 for count in found)  # four deviations


def test_r127_the_shift_moves_the_times_towards_noise():
    straight, _ = made([(0, 1, prompt) for prompt in range(250)], times=torch.linspace(1, 0, 1001), span=(0.0, 1.0))
    warped, _ = made([(0, 1, prompt) for prompt in range(250)], span=(0.0, 1.0))
    torch.testing.assert_close(warped, SHIFT * straight / (1 + (SHIFT - 1) * straight), atol=1e-5, rtol=0)


@given(
    position=st.floats(0, 1),
    falls=st.lists(st.floats(0.001, 1), min_size=1, max_size=30),
    end=st.sampled_from([0.0, -0.001]),
)
def test_warping_is_linear_interpolation_between_the_times_of_the_schedule(position, falls, end):
    times = torch.tensor(np.cumsum([end, *falls])[::-1].copy(), dtype=torch.float32)
    expected = np.interp(1 - position, np.linspace(0, 1, len(times)), times.double().numpy())
    found = warp(torch.tensor([position], dtype=torch.float64), times)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected, abs=1e-6, rel=1e-6)


def test_the_ends_of_the_schedule_are_its_first_and_last_time():
    assert warp(torch.tensor([1.0, 0.0]).double(), shifted()).tolist() == [1.0, 0.0]


def test_the_span_keeps_times_from_the_ends():
    times, _ = made([(0, 1, prompt) for prompt in range(200)], times=torch.linspace(1, 0, 1001), span=(0.3, 0.6))
    assert times.min() >= 0.3 - 1e-6 and times.max() <= 0.6 + 1e-6
