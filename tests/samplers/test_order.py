"""Each integrator converges to the exact trajectory, at the order that it claims."""

import numpy as np
import pytest
import torch

from vgrpo_core import Process, Schedule
from vgrpo_samplers import DDIM, DPMSolver, Euler, Heun

ORDERS = {Euler: 1, DDIM: 1, Heun: 2, DPMSolver: 2}


def test_halving_the_steps_inside_an_interval_lowers_the_error_by_the_order_of_the_method(case, noise):
    sampler, toy = case
    counts = np.array([32, 64, 128, 256])
    errors = [
        toy.error(sampler(steps=n), torch.linspace(0.9, 0.3, n + 1, dtype=torch.float64), noise.double()) for n in counts.tolist()
    ]
    order = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert order == pytest.approx(ORDERS[sampler], abs=0.12), errors


def test_a_whole_run_from_noise_to_data_approaches_the_exact_latents(case, noise, full):
    sampler, toy = case
    few, many = (toy.error(sampler(steps=n), full(toy, n), noise) for n in (10, 80))
    assert many < few / 5
    assert many < 0.05


def test_second_order_samplers_beat_euler_at_equal_cost_on_a_whole_flow(toy, noise, full):
    flow = toy("flow", "flow")
    euler = flow.error(Euler(steps=31), full(flow, 31), noise)
    assert flow.error(DPMSolver(steps=31), full(flow, 31), noise) < euler / 3
    assert flow.error(Heun(steps=16), full(flow, 16), noise) < euler / 1.5


@pytest.mark.parametrize("last", [0.009, 0.003])
def test_dpmsolver_does_not_overshoot_where_a_pipeline_leaps_to_just_short_of_clean_data(toy, noise, last):
    flow = toy("flow", "flow")
    plain = torch.linspace(1, last / 3, 12)
    times = torch.cat([3 * plain / (1 + 2 * plain), torch.zeros(1)])
    assert flow.error(DPMSolver(steps=12), times, noise) < flow.error(Euler(steps=12), times, noise)


@pytest.mark.parametrize("steps", [1, 2, 3, 20])
def test_dpmsolver_is_finite_where_the_log_snr_is_infinite(toy, noise, full, steps):
    flow = toy("flow", "flow")
    assert torch.isfinite(DPMSolver(steps=steps).sample(flow.predict, noise, Schedule(full(flow, steps), flow.process))).all()


def zero_snr():
    """Return Stable Diffusion's alphas_cumprod moved to end without signal; diffusers makes the last one 2^-24."""
    root = np.cumprod(1 - np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2) ** 0.5
    moved = torch.tensor((root - root[-1]) * root[0] / (root[0] - root[-1]), dtype=torch.float32) ** 2
    moved[-1] = 2**-24
    return moved


@pytest.mark.parametrize("sampler", [Euler, Heun, DPMSolver, DDIM])
def test_a_diffusion_that_starts_at_almost_zero_signal_stays_finite_and_near_the_truth(noise, sampler):
    process = Process("sample", zero_snr())

    def predict(z, t):
        alpha, sigma = process.coefficients(t)
        return 1.5 + alpha * 0.36 / (alpha**2 * 0.36 + sigma**2) * (z - alpha * 1.5)

    times = torch.linspace(0.999, -0.001, 101)
    latents = sampler(steps=100).sample(predict, noise, Schedule(times, process))
    torch.testing.assert_close(latents, 1.5 + 0.6 * noise, rtol=0, atol=0.06)


PREDICTIONS = {"flow": ("flow", "epsilon", "sample"), "variance preserving": ("epsilon", "v", "sample")}


@pytest.mark.parametrize(("kind", "predictions"), PREDICTIONS.items())
def test_what_the_network_predicts_does_not_change_the_trajectory(toy, noise, kind, predictions):
    samplers = [Euler, Heun, DPMSolver, *([DDIM] if kind != "flow" else [])]
    times = torch.linspace(0.9, 0.1, 9, dtype=torch.float64)
    for sampler in samplers:
        first, *others = (
            sampler(steps=8).sample(same.predict, noise.double(), Schedule(times, same.process))
            for same in (toy(kind, prediction) for prediction in predictions)
        )
        for other in others:
            torch.testing.assert_close(other, first, rtol=1e-9, atol=1e-9)
