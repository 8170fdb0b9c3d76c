"""Our integrators make the latents that diffusers' own schedulers make."""

import pytest
import torch
from diffusers import DDIMScheduler, DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler, FlowMatchHeunDiscreteScheduler

from vgrpo_core import Process, Schedule
from vgrpo_samplers import DDIM, DPMSolver, Euler, Heun

CLEAN = torch.tensor([-0.001])
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
NAMES = {"epsilon": "epsilon", "v": "v_prediction", "sample": "sample"}


def network(z, t):
    return torch.tanh(0.7 * z) + t * z.flip(-1)


def loop(scheduler, noise, times):
    """Sample as a pipeline does, the network being told `times`."""
    z = noise
    for timestep, t in zip(scheduler.timesteps, times, strict=True):
        z = scheduler.step(network(z, t), timestep, z, return_dict=False)[0]
    return z


GRIDS = [{}, {"shift": 3.0}, {"use_dynamic_shifting": True}, {"shift": 3.0, "use_karras_sigmas": True}]


@pytest.mark.parametrize("settings", GRIDS)
@pytest.mark.parametrize("steps", [1, 2, 16, 28])
def test_euler_equals_flow_match_euler_to_the_last_bit(noise, settings, steps):
    scheduler = FlowMatchEulerDiscreteScheduler(**settings)
    scheduler.set_timesteps(steps, mu=0.8)
    times = scheduler.sigmas.clone()
    ours = Euler(steps=steps).sample(network, noise, Schedule(times, Process("flow")))
    assert torch.equal(ours, loop(scheduler, noise, times[:-1]))


def test_heun_equals_flow_match_heun(noise):
    scheduler = FlowMatchHeunDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(10)
    visited = scheduler.sigmas[:-1].clone()
    times = torch.cat([visited[:1], visited[1::2], torch.zeros(1)])
    ours = Heun(steps=10).sample(network, noise, Schedule(times, Process("flow")))
    torch.testing.assert_close(ours, loop(scheduler, noise, visited), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prediction", NAMES)
@pytest.mark.parametrize("sampler", [DDIM, Euler])
def test_ddim_and_euler_on_a_diffusion_equal_the_ddim_scheduler(noise, prediction, sampler):
    scheduler = DDIMScheduler(**BETAS, clip_sample=False, prediction_type=NAMES[prediction], timestep_spacing="leading")
    scheduler.set_timesteps(20)
    times = torch.cat([scheduler.timesteps / 1000, CLEAN])
    schedule = Schedule(times, Process(prediction, scheduler.alphas_cumprod))
    ours = sampler(steps=20).sample(network, noise, schedule)
    torch.testing.assert_close(ours, loop(scheduler, noise, times[:-1]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps", [8, 20])
@pytest.mark.parametrize("prediction", NAMES)
def test_dpmsolver_equals_the_multistep_scheduler_on_its_own_grid_of_a_diffusion(noise, prediction, steps):
    scheduler = DPMSolverMultistepScheduler(**BETAS, prediction_type=NAMES[prediction])
    scheduler.set_timesteps(steps)
    times = torch.cat([scheduler.timesteps / 1000, CLEAN])
    schedule = Schedule(times, Process(prediction, scheduler.alphas_cumprod))
    ours = DPMSolver(steps=steps).sample(network, noise, schedule)
    torch.testing.assert_close(ours, loop(scheduler, noise, times[:-1]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("steps", [8, 20])
def test_dpmsolver_equals_the_multistep_scheduler_on_its_own_grid_of_a_flow(noise, shift, steps):
    scheduler = DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)
    scheduler.set_timesteps(steps)
    times = scheduler.sigmas.clone()
    ours = DPMSolver(steps=steps).sample(network, noise, Schedule(times, Process("flow")))
    torch.testing.assert_close(ours, loop(scheduler, noise, times[:-1]), rtol=1e-4, atol=1e-5)
