"""Schedulers of diffusers run where they fit, are verified after each hand-over, and are refused with a reason elsewhere."""

import re

import diffusers
import pytest
import torch

from vgrpo_core import PluginError, Process, Schedule
from vgrpo_samplers import Euler, Scheduler

SD1 = {
    "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "clip_sample": False, "timestep_spacing": "leading",
    "steps_offset": 1,
}  # fmt: skip
FLOW = ["FlowMatchEuler", "FlowMatchHeun", "DPMSolverMultistep", "DPMSolverSinglestep", "UniPCMultistep"]
DIFFUSION = ["DDIM", "EulerDiscrete", "HeunDiscrete", "DPMSolverMultistep", "DPMSolverSinglestep", "DEISMultistep"]


def class_name(short):
    return next(n for n in dir(diffusers.schedulers) if n in (f"{short}Scheduler", f"{short}DiscreteScheduler"))


@pytest.fixture
def flow(toy, full):
    """Return the toy flow and its schedule with shift 3 for a number of steps."""
    return lambda steps: (toy("flow", "flow"), Schedule(full(toy("flow", "flow"), steps), Process("flow"), {"shift": 3.0}))


@pytest.fixture
def diffusion(toy, full):
    """Return the toy diffusion and its schedule, with the configuration of Stable Diffusion 1."""

    def make(steps, prediction="epsilon"):
        one = toy("variance preserving", prediction)
        return one, Schedule(full(one, steps), one.process, SD1)

    return make


def distance(sampler, toy, noise, schedule):
    latents = sampler.sample(toy.predict, noise, schedule)
    return float((latents - toy.exact(noise, schedule.times[0], schedule.times[-1])).abs().max())


@pytest.mark.parametrize("steps", [1, 2, 16])
def test_flow_match_euler_equals_our_euler_to_the_last_bit(noise, flow, steps):
    toy, schedule = flow(steps)
    theirs = Scheduler(scheduler="FlowMatchEulerDiscreteScheduler", steps=steps).sample(toy.predict, noise, schedule)
    assert torch.equal(theirs, Euler(steps=steps).sample(toy.predict, noise, schedule))


@pytest.mark.parametrize("short", FLOW)
def test_schedulers_integrate_a_flow(noise, flow, short):
    toy, schedule = flow(40)
    assert distance(Scheduler(scheduler=class_name(short), steps=40), toy, noise, schedule) < 0.09


@pytest.mark.parametrize("short", DIFFUSION)
@pytest.mark.parametrize("prediction", ["epsilon", "v"])
def test_schedulers_integrate_a_diffusion(noise, diffusion, short, prediction):
    toy, schedule = diffusion(40, prediction)
    assert distance(Scheduler(scheduler=class_name(short), steps=40), toy, noise, schedule) < 0.09


@pytest.mark.parametrize("short", FLOW)
def test_a_scheduler_evaluates_the_network_as_planned_and_starts_fresh_each_time(noise, flow, short):
    toy, schedule = flow(7)
    sampler, calls = Scheduler(scheduler=class_name(short), steps=7), []

    def predict(z, t):
        calls.append(float(t))
        return toy.predict(z, t)

    first = sampler.sample(predict, noise, schedule)
    assert len(calls) == sampler.evaluations
    assert torch.equal(sampler.sample(predict, noise, schedule), first)
    assert calls[len(calls) // 2 :] == calls[: len(calls) // 2]


def test_a_flow_scheduler_tells_the_network_its_sigma_and_not_a_whole_timestep(noise, flow):
    toy, schedule = flow(8)
    visited = []
    sampler = Scheduler(scheduler="UniPCMultistepScheduler", steps=8)
    sampler.sample(lambda z, t: (visited.append(t), toy.predict(z, t))[1], noise, schedule)
    torch.testing.assert_close(torch.stack(visited), schedule.times[:-1], rtol=0, atol=2e-6)


def test_a_scheduler_computes_in_float32_inside_autocast(noise, flow):
    toy, schedule = flow(8)
    sampler = Scheduler(scheduler="UniPCMultistepScheduler", steps=8, options={"solver_order": 3})
    plain = sampler.sample(toy.predict, noise, schedule)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(sampler.sample(toy.predict, noise, schedule), plain)


def test_equal_times_are_not_skipped_by_looking_them_up(noise, toy):
    one = toy("flow", "flow")
    schedule = Schedule(torch.tensor([0.9, 0.9, 0.5, 0.0]), one.process, {"shift": 3.0})
    theirs = Scheduler(scheduler="FlowMatchEulerDiscreteScheduler", steps=3).sample(one.predict, noise, schedule)
    assert torch.equal(theirs, Euler(steps=3).sample(one.predict, noise, schedule))


def test_options_go_over_the_settings_of_the_pipeline(diffusion):
    schedule = diffusion(8)[1]
    sampler = Scheduler(scheduler="DPMSolverMultistepScheduler", steps=8, options={"solver_order": 3})
    made = sampler.build(schedule, torch.device("cpu"))
    assert (made.config.solver_order, made.config.beta_end, made.config.timestep_spacing) == (3, 0.012, "leading")
    assert schedule.scheduler == SD1


def test_what_the_pipeline_left_at_its_schedulers_default_stays_at_the_new_schedulers_default(diffusion):
    schedule = diffusion(8)[1]
    config = diffusers.DDIMScheduler(**{key: value for key, value in SD1.items() if key != "timestep_spacing"}).config
    ours = Scheduler(scheduler="DPMSolverMultistepScheduler", steps=8)
    made = ours.build(Schedule(schedule.times, schedule.process, config), torch.device("cpu"))
    assert made.config.timestep_spacing == diffusers.DPMSolverMultistepScheduler.from_config(config).config.timestep_spacing
    assert made.config.timestep_spacing != config["timestep_spacing"]


def test_a_scheduler_that_ignores_the_sigmas_it_is_given_is_refused(noise, flow, monkeypatch):
    cls = diffusers.FlowMatchEulerDiscreteScheduler
    real = cls.set_timesteps
    monkeypatch.setattr(cls, "set_timesteps", lambda self, sigmas=None, device=None: real(self, len(sigmas), device))
    toy, schedule = flow(8)
    with pytest.raises(PluginError, match=r"given the pipeline's sigmas, 1, 0\.9545, .* uses others, 1, 0\.8573"):
        Scheduler(scheduler="FlowMatchEulerDiscreteScheduler", steps=8).sample(toy.predict, noise, schedule)


REFUSED_ON_A_FLOW = {
    "DEISMultistepScheduler": "ends at sigma 0.3.*still be noisy",
    "SASolverScheduler": "ends at sigma 0.3.*still be noisy",
    "FlowMatchLCMScheduler": "draws new noise at each step",
    "DDIMScheduler": "noise levels are not those of this model's flow",
    "EulerDiscreteScheduler": "noise levels are not those of this model's flow",
}
REFUSED_ON_A_DIFFUSION = {
    "FlowMatchEulerDiscreteScheduler": "noise levels are not those of this model's variance-preserving process",
    "EulerAncestralDiscreteScheduler": "draws new noise at each step",
    "DDPMScheduler": "draws new noise at each step",
    "DDIMInverseScheduler": "do not fall from noise to data",
    "PNDMScheduler": "evaluations in 8 steps, not 8",
    "RePaintScheduler": "original_image, mask",
    "ScoreSdeVpScheduler": "no attribute 'step'",
}


@pytest.mark.parametrize(("name", "reason"), REFUSED_ON_A_FLOW.items())
def test_a_scheduler_that_does_not_fit_a_flow_is_refused_with_the_reason(noise, flow, name, reason):
    toy, schedule = flow(8)
    with pytest.raises(PluginError, match=re.compile(f"{name} does not fit here.*{reason}", re.DOTALL)):
        Scheduler(scheduler=name, steps=8).sample(toy.predict, noise, schedule)


@pytest.mark.parametrize(("name", "reason"), REFUSED_ON_A_DIFFUSION.items())
def test_a_scheduler_that_does_not_fit_a_diffusion_is_refused_with_the_reason(noise, diffusion, name, reason):
    toy, schedule = diffusion(8)
    with pytest.raises(PluginError, match=re.compile(f"{name} does not fit here.*{reason}", re.DOTALL)):
        Scheduler(scheduler=name, steps=8).sample(toy.predict, noise, schedule)


def test_other_betas_than_the_models_are_refused(noise, diffusion):
    toy, schedule = diffusion(8)
    with pytest.raises(PluginError, match="noise levels"):
        Scheduler(scheduler="DDIMScheduler", steps=8, options={"beta_end": 0.02}).sample(toy.predict, noise, schedule)


MISTAKES = [
    ("UniPCMultistepSchedular", {}, 'did you mean "UniPCMultistepScheduler"'),
    ("AutoencoderKL", {}, 'no scheduler named "AutoencoderKL"'),
    ("UniPCMultistepScheduler", {"solver_ordr": 3}, 'no option "solver_ordr"; did you mean "solver_order"'),
    ("UniPCMultistepScheduler", {"prediction_type": "epsilon"}, "the model decides it"),
    ("UniPCMultistepScheduler", {"solver_type": "bh7"}, "bh7"),
    ("FlowMatchEulerDiscreteScheduler", {"shift": 7.0}, "uses others"),
]


@pytest.mark.parametrize(("name", "options", "message"), MISTAKES)
def test_a_mistake_in_the_table_says_what_was_found_and_the_nearest_name(noise, flow, name, options, message):
    toy, schedule = flow(8)
    with pytest.raises(PluginError, match=re.escape(message)):
        Scheduler(scheduler=name, steps=8, options=options).sample(toy.predict, noise, schedule)


def test_a_schedule_of_another_length_than_the_sampler_is_refused(noise, flow):
    toy, schedule = flow(8)
    with pytest.raises(PluginError, match="8 evaluations in 9 steps, not 9"):
        Scheduler(scheduler="FlowMatchEulerDiscreteScheduler", steps=9).sample(toy.predict, noise, schedule)


def test_a_shift_that_depends_on_the_image_size_must_be_named_for_schedulers_that_take_no_sigmas(noise, flow):
    toy, schedule = flow(40)
    dynamic = Schedule(schedule.times, schedule.process, {"use_dynamic_shifting": True})
    with pytest.raises(PluginError, match="flow_shift"):
        Scheduler(scheduler="DPMSolverMultistepScheduler", steps=40).sample(toy.predict, noise, dynamic)
    named = Scheduler(scheduler="DPMSolverMultistepScheduler", steps=40, options={"flow_shift": 3.0})
    assert distance(named, toy, noise, dynamic) < 0.09
    given = Scheduler(scheduler="UniPCMultistepScheduler", steps=40)
    assert distance(given, toy, noise, dynamic) < 0.09
