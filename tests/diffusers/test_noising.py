"""What a scheduler says of its process and its times is read in full, or refused."""

import diffusers
import pytest
import torch

from vgrpo_core import PluginError, Process
from vgrpo_diffusers.noising import process_of, schedule_of, timesteps_at

KINDS = [
    (diffusers.FlowMatchEulerDiscreteScheduler(), "flow"),
    (diffusers.DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True), "flow"),
    (diffusers.DDIMScheduler(), "epsilon"),
    (diffusers.DDIMScheduler(prediction_type="v_prediction"), "v"),
    (diffusers.DDIMScheduler(prediction_type="sample"), "sample"),
]


@pytest.mark.parametrize(("scheduler", "prediction"), KINDS)
def test_the_process_is_the_scheduler_s(scheduler, prediction):
    process = process_of(scheduler)
    assert process.prediction == prediction
    assert (process.alphas_cumprod is None) == (prediction == "flow")


def test_a_diffusion_noises_data_as_the_scheduler_does():
    scheduler = diffusers.DDIMScheduler()
    x, noise, timesteps = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4), torch.tensor([17, 900])
    mixed = process_of(scheduler).mix(x, noise, timesteps / 1000)
    torch.testing.assert_close(mixed.float(), scheduler.add_noise(x, noise, timesteps), rtol=1e-5, atol=1e-5)


def test_an_unknown_prediction_is_refused_with_the_nearest_name(sd15_tiny):
    pipe = sd15_tiny.pipe()
    scheduler = diffusers.DDIMScheduler.from_config(pipe.scheduler.config, prediction_type="epsilonn")
    with pytest.raises(PluginError, match=r'DDIMScheduler predicts "epsilonn"; did you mean "epsilon"\?\n.*known: flow matching'):
        process_of(scheduler)


def test_a_scheduler_without_a_table_of_noise_levels_is_refused():
    with pytest.raises(PluginError, match="EDMEulerScheduler"):
        process_of(diffusers.EDMEulerScheduler())


SECOND_ORDER = [
    (diffusers.PNDMScheduler(skip_prk_steps=True, steps_offset=1), diffusers.DDIMScheduler(steps_offset=1)),
    (diffusers.HeunDiscreteScheduler(), diffusers.EulerDiscreteScheduler()),
    (diffusers.FlowMatchHeunDiscreteScheduler(shift=3.0), None),
]


@pytest.mark.parametrize(("scheduler", "same"), SECOND_ORDER)
def test_a_time_visited_twice_in_a_row_counts_once(scheduler, same):
    scheduler.set_timesteps(4)
    times = schedule_of(scheduler, process_of(scheduler), 4).times
    if same is None:
        expected = torch.cat([scheduler.sigmas[:1], scheduler.sigmas[1::2]])
    else:
        same.set_timesteps(4)
        expected = torch.cat([torch.as_tensor(same.timesteps) / 1000, torch.tensor([-0.001])]).float()
    torch.testing.assert_close(times, expected)


def test_other_times_than_asked_for_are_refused_with_a_way_out():
    scheduler = diffusers.PNDMScheduler(skip_prk_steps=False)
    scheduler.set_timesteps(12)
    with pytest.raises(PluginError, match=r"PNDMScheduler was asked for 12 steps and makes \d+\n  save the pipeline with"):
        schedule_of(scheduler, process_of(scheduler), 12)


def test_a_grid_so_fine_that_rounding_merges_its_times_is_refused():
    scheduler = diffusers.DPMSolverMultistepScheduler()
    scheduler.set_timesteps(1000)
    with pytest.raises(PluginError, match=r"asked for 1000 steps and makes 999\n  save the pipeline with .*DDIMScheduler"):
        schedule_of(scheduler, process_of(scheduler), 1000)


def test_times_that_rise_are_refused():
    scheduler = diffusers.DDIMScheduler()
    scheduler.set_timesteps(4)
    scheduler.timesteps = scheduler.timesteps.flip(0)
    with pytest.raises(PluginError, match="do not fall"):
        schedule_of(scheduler, process_of(scheduler), 4)


def test_timesteps_that_are_not_the_sigmas_are_refused():
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(4)
    scheduler.timesteps = scheduler.timesteps / 2
    with pytest.raises(PluginError, match="not its sigmas times 1000"):
        schedule_of(scheduler, process_of(scheduler), 4)


def test_a_scheduler_that_ignores_the_number_of_steps_is_refused(sd3_tiny):
    policy = sd3_tiny.policy()
    policy.pipe.scheduler.set_timesteps = lambda num_inference_steps=None, device=None, sigmas=None, mu=None: None
    policy.pipe.scheduler.timesteps, policy.pipe.scheduler.sigmas = torch.tensor([1000.0, 500.0]), torch.tensor([1.0, 0.5, 0.0])
    assert len(policy.schedule(2).times) == 3
    with pytest.raises(PluginError, match="asked for 4 steps and makes 2"):
        policy.schedule(4)


@pytest.mark.parametrize("steps", [2, 7, 1000])
def test_whole_timesteps_of_a_diffusion_are_told_to_the_network_exactly(steps):
    scheduler = diffusers.DDIMScheduler()
    scheduler.set_timesteps(steps)
    process = process_of(scheduler)
    told = timesteps_at(schedule_of(scheduler, process, steps).times[:-1], process)
    assert torch.equal(told, scheduler.timesteps.float())


def test_times_between_timesteps_are_told_as_they_are():
    process = Process("epsilon", torch.linspace(0.999, 0.01, 1000))
    assert timesteps_at(torch.tensor(0.25025), process).item() == pytest.approx(250.25, abs=1e-4)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_timesteps_of_a_flow_are_the_scheduler_s_to_the_last_bit(shift):
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(1000)
    schedule = schedule_of(scheduler, Process("flow"), 1000)
    assert torch.equal(timesteps_at(schedule.times[:-1], schedule.process), scheduler.timesteps)
