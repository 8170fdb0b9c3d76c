"""What every sampler promises: its cost, fresh state, rows on their own, float32, and the times it is given."""

import os
import subprocess
import sys

import pluggy
import pytest
import torch

import vgrpo_samplers
from vgrpo_core import PluginError, Process, Schedule
from vgrpo_samplers import DDIM, Euler, Heun, Scheduler


def recorded(toy, sampler, times, noise):
    """Return the times at which a sampler evaluates the network."""
    visited = []

    def predict(z, t):
        visited.append(t)
        return toy.predict(z, t)

    sampler.sample(predict, noise, Schedule(times, toy.process))
    return visited


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_sampler_evaluates_the_network_as_often_as_it_says(case, noise, full, steps):
    sampler, toy = case
    assert len(recorded(toy, sampler(steps=steps), full(toy, steps), noise)) == sampler(steps=steps).evaluations


def test_heun_costs_two_evaluations_a_step_but_one_for_the_last():
    assert [Heun(steps=n).evaluations for n in (1, 2, 16)] == [1, 3, 31]


def test_a_sampler_visits_the_schedule_as_given_first_step_and_shift_included(case, noise, full):
    sampler, toy = case
    times = full(toy, 6)
    visited = recorded(toy, sampler(steps=6), times, noise)
    assert all(t.ndim == 0 for t in visited)
    once = [t for i, t in enumerate(visited) if i == 0 or t != visited[i - 1]]
    assert torch.equal(torch.stack(once), times[:-1])


def test_times_that_equal_each_other_are_steps_of_their_own(case, noise):
    sampler, toy = case
    twice = torch.tensor([0.9, 0.9, 0.5, 0.1])
    assert len(recorded(toy, sampler(steps=3), twice, noise)) == sampler(steps=3).evaluations
    once = torch.tensor([0.9, 0.5, 0.1])
    if sampler in (Euler, DDIM):
        assert toy.error(sampler(steps=3), twice, noise) == pytest.approx(toy.error(sampler(steps=2), once, noise), abs=1e-5)


def test_a_time_of_0_9985_reaches_the_network_as_timestep_998_5_even_with_bfloat16_latents(case, noise):
    sampler, toy = case
    first = recorded(toy, sampler(steps=2), torch.tensor([0.9985, 0.5, 0.1]), noise.bfloat16())[0]
    assert first.dtype == torch.float32
    assert float(first * 1000) == pytest.approx(998.5, abs=1e-3)


def test_two_calls_of_one_sampler_give_the_same_latents(case, noise, full):
    sampler, toy = case
    one, schedule = sampler(steps=6), Schedule(full(toy, 6), toy.process)
    first = one.sample(toy.predict, noise, schedule)
    one.sample(toy.predict, noise + 1, schedule)
    assert torch.equal(one.sample(toy.predict, noise, schedule), first)


def test_a_row_does_not_depend_on_the_rows_beside_it_and_the_noise_is_left_alone(case, noise, full):
    sampler, toy = case
    schedule, before = Schedule(full(toy, 6), toy.process), noise.clone()
    together = sampler(steps=6).sample(toy.predict, noise, schedule)
    alone = torch.cat([sampler(steps=6).sample(toy.predict, row[None], schedule) for row in noise])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    assert torch.equal(noise, before)


def test_arithmetic_is_float32_whatever_the_latents_and_the_network_come_in(case, noise, full):
    sampler, toy = case
    schedule, rough = Schedule(full(toy, 6), toy.process), noise.bfloat16()
    wide = sampler(steps=6).sample(toy.predict, rough.float(), schedule)
    assert torch.equal(sampler(steps=6).sample(toy.predict, rough, schedule), wide)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(sampler(steps=6).sample(toy.predict, rough, schedule), wide)
    assert sampler(steps=6).sample(lambda z, t: toy.predict(z, t).bfloat16(), rough, schedule).dtype == torch.float32


def test_ddim_on_a_flow_says_to_use_euler(noise):
    with pytest.raises(PluginError, match='use "euler"'):
        DDIM().sample(lambda z, t: z, noise, Schedule(torch.tensor([1.0, 0.0]), Process("flow")))


def test_the_hook_offers_the_samplers_by_name():
    manager = pluggy.PluginManager("vgrpo")
    manager.register(vgrpo_samplers)
    names = {"euler", "heun", "dpmsolver++", "ddim", "scheduler", "flow_sde", "dance_sde", "window_sde"}
    assert {sampler.name for sampler in vgrpo_samplers.vgrpo_samplers()} == names
    assert [call.name for call in manager.get_hookcallers(vgrpo_samplers) or []] == ["vgrpo_samplers"]


def test_listing_and_configuring_the_samplers_does_not_import_torch():
    code = (
        "import sys, vgrpo_samplers as s; [c.model_json_schema() for c in s.vgrpo_samplers()];"
        "s.Heun(steps=4).evaluations; s.Scheduler(scheduler='UniPCMultistepScheduler').evaluations;"
        "print(sorted({'torch', 'diffusers', 'numpy'} & sys.modules.keys()))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.strip() == "[]"


def test_a_scheduler_sampler_counts_second_order_schedulers_twice():
    counts = {name: Scheduler(scheduler=name, steps=8).evaluations for name in ("HeunDiscreteScheduler", "DDIMScheduler")}
    assert counts == {"HeunDiscreteScheduler": 15, "DDIMScheduler": 8}
