"""Samplers that draw noise on the way: their steps against the formulas, number by number, and what they leave of the marginals."""

import itertools
import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from vgrpo_core import PluginError, Process, Schedule
from vgrpo_core.testing import check_sampler
from vgrpo_samplers import DanceSDE, DPMSolver, Euler, FlowSDE, WindowSDE

SAMPLERS = [FlowSDE(steps=6), FlowSDE(steps=6, last=True), DanceSDE(steps=6), WindowSDE(steps=6, width=3, stay=2)]
NOISY = {0: range(5), 1: range(6), 2: range(5), 3: range(1, 4)}  # steps that draw noise in iteration 3, by place in SAMPLERS


@pytest.fixture(params=range(4), ids=["flow", "flow-last", "dance", "window"])
def which(request):
    return request.param


@pytest.fixture
def schedule(full, flow):
    return Schedule(full(flow, 6), flow.process)


@pytest.fixture
def flow(toy):
    return toy("flow", "flow")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drawn(step, shape=(3, 4, 2)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 + step))


def explored(sampler, flow, noise, schedule, iteration=3, draw=drawn):
    return sampler.explore(flow.predict, noise, schedule, draw, iteration)


# The steps, number by number


def flow_step(z, v, s, after, first, a=0.7):
    """Flow-GRPO's step as published: mean, and deviation of the noise."""
    sd = a * math.sqrt(s / (1 - (first if s == 1 else s)))
    dt = after - s
    return z * (1 + sd**2 * dt / (2 * s)) + v * (1 + sd**2 * (1 - s) / (2 * s)) * dt, sd * math.sqrt(-dt)


def dance_step(z, v, s, after, first, eta=0.3):
    """DanceGRPO's step as published."""
    dt, data = after - s, z - s * v
    score = -(z - (1 - s) * data) / s**2
    return z + dt * v - 0.5 * eta**2 * score * dt, eta * math.sqrt(-dt)


STEPS = [flow_step, flow_step, dance_step, flow_step]


def plain(which, flow, noise, times):
    """Walk each number by itself, in Python's floats; yield latents, and before, mean, std and after of each noisy step."""
    for place in np.ndindex(noise.shape):
        z, kept, times = noise[place].item(), [], [float(t) for t in times]
        for step, (s, after) in enumerate(itertools.pairwise(times)):
            v = flow.predict(z, s)
            if step not in NOISY[which]:
                z = z + (after - s) * v
                continue
            mean, std = STEPS[which](z, v, s, after, times[1])
            kept.append((z, mean, std, mean + std * drawn(step)[place].item()))
            z = kept[-1][3]
        yield place, z, kept


def test_every_number_follows_the_published_formulas(which, flow, noise, schedule):
    found = explored(SAMPLERS[which], flow, noise, schedule)
    for place, latents, kept in plain(which, flow, noise, schedule.times):
        assert found.latents[place].item() == pytest.approx(latents, rel=1e-4, abs=1e-5)
        for k, (before, mean, std, after) in enumerate(kept):
            row = (place[0], k, *place[1:])
            numbers = [found.before[row].item(), found.mean[row].item(), found.std[k].item(), found.after[row].item()]
            assert numbers == pytest.approx([before, mean, std, after], rel=1e-4, abs=1e-5)


def test_a_trajectory_keeps_the_noisy_steps_their_times_and_shapes(which, flow, noise, schedule):
    sampler, steps, times = SAMPLERS[which], list(NOISY[which]), schedule.times.tolist()
    found = explored(sampler, flow, noise, schedule)
    assert found.times.tolist() == [[times[step], times[step + 1]] for step in steps]
    assert sampler.noisy_steps == len(steps)
    assert found.latents.shape == noise.shape and found.std.shape == (len(steps),)
    assert {part.shape for part in (found.before, found.after, found.mean)} == {(3, len(steps), 4, 2)}
    assert {part.dtype for part in found[:6]} == {torch.float32}


def test_the_transition_gives_the_recorded_means_again_and_passes_gradients(which, flow, noise, schedule):
    found = explored(SAMPLERS[which], flow, noise, schedule)
    for k, t in enumerate(found.times[:, 0]):
        output = flow.predict(found.before[:, k], t).requires_grad_()
        mean = found.transition(output, found.before[:, k], k)
        assert mean.equal(found.mean[:, k])
        assert torch.autograd.grad(mean.sum(), output)[0].abs().min() > 0


def test_what_the_network_predicts_does_not_change_the_trajectory(which, toy, noise, schedule):
    one, other = (toy("flow", prediction) for prediction in ("flow", "sample"))
    first, second = (explored(SAMPLERS[which], same, noise, Schedule(schedule.times, same.process)) for same in (one, other))
    torch.testing.assert_close(second.latents, first.latents, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second.mean, first.mean, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("first", [1.0, 1 - 1e-7, 1 + 1e-7])
def test_a_rounding_error_in_the_first_time_does_not_matter(flow, noise, first):
    found = explored(FlowSDE(steps=3), flow, noise, Schedule(torch.tensor([first, 0.9, 0.5, 0.0]), flow.process))
    assert found.std[0].item() == pytest.approx(0.7 * math.sqrt(1 / (1 - 0.9)) * math.sqrt(1 - 0.9), rel=1e-5)


# Limits


@pytest.mark.parametrize("sampler", [FlowSDE, DanceSDE, WindowSDE])
def test_with_noise_zero_the_stochastic_steps_are_eulers_to_the_last_bit(flow, noise, schedule, sampler):
    found = explored(sampler(steps=6, noise=0.0), flow, noise, schedule)
    assert found.latents.equal(Euler(steps=6).sample(flow.predict, noise, schedule))
    assert sampler(steps=6, noise=0.0).noisy_steps == 0


def test_evaluation_takes_eulers_steps_without_noise(which, flow, noise, schedule):
    assert SAMPLERS[which].sample(flow.predict, noise, schedule).equal(Euler(steps=6).sample(flow.predict, noise, schedule))


@pytest.mark.parametrize("sampler", [FlowSDE, DanceSDE, lambda steps: DanceSDE(steps=steps, noise=1.0)], ids=["flow", "dance", "1"])
def test_many_fine_steps_keep_mean_and_variance_of_the_data(flow, sampler):
    many, steps = 20_000, 300
    source = torch.Generator().manual_seed(3)
    found = explored(
        sampler(steps=steps),
        flow,
        torch.randn(many, 1, generator=source),
        Schedule(torch.linspace(1, 0, steps + 1), flow.process),
        draw=lambda step: torch.randn(many, 1, generator=source),
    ).latents
    assert found.mean().item() == pytest.approx(1.5, abs=4 * 0.6 / many**0.5 + 0.01)  # four standard errors, and the steps' own
    assert found.var().item() == pytest.approx(0.36, rel=4 * (2 / many) ** 0.5 + 0.02)


def test_noise_in_the_last_step_stays_in_the_latents(flow, noise, full):
    schedule = Schedule(full(flow, 10), flow.process)
    quiet, loud = (explored(FlowSDE(steps=10, last=last), flow, noise, schedule) for last in (False, True))
    left = loud.after[:, -1] - loud.mean[:, -1]
    torch.testing.assert_close(left, loud.std[-1] * drawn(9))
    assert loud.std[-1] == pytest.approx(0.7 * math.sqrt(0.25 / 0.75 * 0.25))  # the last time is 0.25
    assert quiet.after[:, -1].equal(loud.after[:, -2])


# Keyed noise


def test_the_same_draws_give_the_same_trajectory(which, flow, noise, schedule):
    one, same, other = (explored(SAMPLERS[which], flow, noise, schedule, draw=draw) for draw in (drawn, drawn, lambda s: -drawn(s)))
    assert all(a.equal(b) for a, b in zip(one[:6], same[:6], strict=True))
    assert not one.latents.equal(other.latents)


def test_noise_is_drawn_once_for_each_noisy_step_by_its_place_in_the_schedule(which, flow, noise, schedule):
    asked = []
    explored(SAMPLERS[which], flow, noise, schedule, draw=lambda step: asked.append(step) or drawn(step))
    assert asked == list(NOISY[which])


def test_a_row_does_not_depend_on_the_rows_beside_it_and_the_start_is_left_alone(which, flow, noise, schedule):
    before, together = noise.clone(), explored(SAMPLERS[which], flow, noise, schedule)
    for row in range(3):
        alone = explored(SAMPLERS[which], flow, noise[[row]], schedule, draw=lambda step, row=row: drawn(step)[[row]])
        for one, all_rows in zip(alone[:4], together[:4], strict=True):
            torch.testing.assert_close(one[0], all_rows[row], rtol=0, atol=1e-6)
    assert noise.equal(before)


def test_arithmetic_is_float32_whatever_the_network_and_the_start_come_in(which, flow, noise, schedule):
    rough = explored(SAMPLERS[which], flow, noise.bfloat16(), schedule)
    assert rough.latents.equal(explored(SAMPLERS[which], flow, noise.bfloat16().float(), schedule).latents)
    narrow = SAMPLERS[which].explore(lambda z, t: flow.predict(z, t).bfloat16(), noise, schedule, drawn, 3)
    assert narrow.latents.dtype == narrow.mean.dtype == torch.float32


# The window


def slid(steps, width, stay, stride, iterations):
    """Follow the window by its description: it stays, moves, and goes back where it would cover the last step."""
    start = 0
    for iteration in range(1, iterations + 1):
        yield list(range(start, start + width))
        if iteration % stay == 0:
            start = start + stride if start + stride + width < steps else 0


@pytest.mark.parametrize(
    ("steps", "width", "stay", "stride"), [(6, 2, 3, 1), (7, 3, 1, 1), (9, 2, 2, 3), (8, 4, 2, 4), (5, 4, 2, 1), (6, 1, 1, 9)]
)
def test_the_window_visits_exactly_the_steps_scheduled(flow, noise, full, steps, width, stay, stride):
    sampler, schedule = WindowSDE(steps=steps, width=width, stay=stay, stride=stride), Schedule(full(flow, steps), flow.process)
    visited = []
    for iteration in range(1, 31):
        visited.append([])
        explored(sampler, flow, noise, schedule, iteration, lambda step: visited[-1].append(step) or drawn(step))
    assert visited == list(slid(steps, width, stay, stride, 30))
    assert not any(steps - 1 in window for window in visited)


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"compress": 0.4}, {"compress": 0.4, "after": "dpmsolver++"}], ids=str)
def test_rollout_evaluations_are_the_mean_over_a_cycle_of_windows(flow, noise, full, options):
    sampler, schedule, calls = WindowSDE(steps=11, width=2, stay=1, **options), Schedule(full(flow, 11), flow.process), []
    cycle = 5 if "stride" in options else 9  # windows from step 0 to step 8, so that the last ends before step 10
    for iteration in range(1, cycle + 1):
        sampler.explore(lambda z, t: calls.append(t) or flow.predict(z, t), noise, schedule, drawn, iteration)
    assert sampler.rollout_evaluations == pytest.approx(len(calls) / cycle)
    assert sampler.evaluations == 11


@pytest.mark.parametrize(("compress", "left"), [(1.0, 10), (0.4, 4), (0.01, 1)])
def test_after_the_window_dpmsolver_takes_the_steps_left_evenly_spaced_in_the_schedule(flow, noise, full, compress, left):
    schedule, visited = Schedule(full(flow, 16), flow.process), []
    sampler = WindowSDE(steps=16, width=4, stay=1, compress=compress, after="dpmsolver++")
    found = sampler.explore(lambda z, t: visited.append(t.item()) or flow.predict(z, t), noise, schedule, drawn, 3)  # steps 2 to 5
    times = np.interp(np.linspace(6, 16, left + 1), np.arange(17), schedule.times.double().numpy())
    assert visited[6:] == pytest.approx(times[:-1], abs=1e-6)
    rest = Schedule(torch.tensor(times, dtype=torch.float32), flow.process)
    torch.testing.assert_close(found.latents, DPMSolver().sample(flow.predict, found.after[:, -1], rest), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("steps", "width"), [(4, 4), (3, 4), (1, 1)])
def test_a_window_that_would_cover_the_last_step_is_refused(steps, width):
    with pytest.raises(ValidationError, match=f"width must be less than steps.*found {width} of {steps}"):
        WindowSDE(steps=steps, width=width)


# What every sampler promises


@pytest.mark.parametrize("sampler", [FlowSDE(), DanceSDE(), WindowSDE(), WindowSDE(after="dpmsolver++", compress=0.4)])
def test_they_keep_a_samplers_contract_on_flows_and_refuse_diffusions(sampler):
    assert check_sampler(sampler) == ["diffusion/epsilon", "diffusion/v", "diffusion/sample"]


def test_a_diffusion_is_refused_with_what_to_use_instead(which, noise):
    process = Process("epsilon", torch.linspace(0.999, 0.01, 1000))
    schedule = Schedule(torch.linspace(0.999, -0.001, 7), process)
    for draw_images in (SAMPLERS[which].sample, lambda *given: SAMPLERS[which].explore(*given, drawn, 1)):
        with pytest.raises(PluginError, match=f'"{SAMPLERS[which].name}" does not fit this model\n.*diffusion\n  use "ddim"'):
            draw_images(lambda z, t: z, noise, schedule)


def test_all_samples_of_a_prompt_start_alike_in_dancegrpo_only():
    assert [sampler().same_start for sampler in (FlowSDE, DanceSDE, WindowSDE)] == [False, True, False]
