"""Zero- and one-step calls are the pipeline: the same noise, outputs, latents, images and times."""

import diffusers
import pytest
import torch

from vgrpo_samplers import DDIM, Euler

PROMPTS = ["a red sign", "blue", "a red sign"]


def generators(rows=3):
    return [torch.Generator().manual_seed(row) for row in range(rows)]


def recorded(pipe, monkeypatch):
    """Keep what the pipeline hands to its scheduler: (output, timestep, latents) of each step."""
    kept, step = [], pipe.scheduler.step

    def recording(output, timestep, latents, **rest):
        kept.append((output.clone(), timestep, latents.clone()))
        return step(output, timestep, latents, **rest)

    monkeypatch.setattr(pipe.scheduler, "step", recording)
    return kept


def test_euler_makes_the_latents_and_images_of_a_flow_pipeline_bit_for_bit(flow):
    policy, pipe = flow.unchanged, flow.pipe()
    given = flow.call | flow.embeddings(pipe)
    assert torch.equal(flow.sample(policy), pipe(**given, generator=generators(), output_type="latent").images)
    assert torch.equal(flow.draw(policy), pipe(**given, generator=generators(), output_type="pt").images)


def test_ddim_makes_the_latents_and_images_of_stable_diffusion(sd15_tiny):
    policy, pipe = sd15_tiny.unchanged, sd15_tiny.pipe()
    given = sd15_tiny.call | sd15_tiny.embeddings(pipe)
    latents = pipe(**given, generator=generators(), output_type="latent").images
    torch.testing.assert_close(sd15_tiny.sample(policy), latents, rtol=1e-5, atol=1e-5)
    images = pipe(**given, generator=generators(), output_type="pt").images
    torch.testing.assert_close(sd15_tiny.draw(policy), images, rtol=1e-5, atol=1e-5)


def test_a_pipeline_that_encodes_the_prompts_in_one_batch_makes_the_same_images(tiny):
    images = tiny.pipe()(prompt=PROMPTS, **tiny.call, generator=generators(), output_type="pt").images
    assert images.std() > 0.05
    torch.testing.assert_close(tiny.draw(tiny.unchanged), images, rtol=0, atol=1e-5)


def test_diffusion_ends_at_clean_data_also_where_the_scheduler_stops_one_timestep_short(sd15_tiny):
    policy, pipe = sd15_tiny.policy(), sd15_tiny.pipe()
    pipe.scheduler = policy.pipe.scheduler = diffusers.DDIMScheduler.from_config(pipe.scheduler.config, set_alpha_to_one=False)
    given = sd15_tiny.call | sd15_tiny.embeddings(pipe) | {"output_type": "latent"}
    short = pipe(**given, generator=generators()).images
    pipe.scheduler = diffusers.DDIMScheduler.from_config(pipe.scheduler.config, set_alpha_to_one=True)
    clean = pipe(**given, generator=generators()).images
    ours = sd15_tiny.sample(policy)
    torch.testing.assert_close(ours, clean, rtol=1e-5, atol=1e-5)
    assert (ours - short).abs().max() > 1e-3


def test_predict_is_what_the_pipeline_computes_at_each_step(tiny, monkeypatch):
    policy, pipe = tiny.unchanged, tiny.pipe()
    kept = recorded(pipe, monkeypatch)
    pipe(**tiny.call, **tiny.embeddings(pipe), generator=generators(), output_type="latent")
    assert len(kept) == 4
    for (output, _, latents), t in zip(kept, policy.schedule(4).times, strict=False):
        with torch.no_grad():
            assert torch.equal(policy.predict(latents, t, PROMPTS), output)


def test_rows_with_times_of_their_own_are_predicted_as_if_alone(tiny):
    policy, times = tiny.unchanged, torch.tensor([0.9985, 0.5, 0.0625])
    z = policy.noise(PROMPTS, generators())
    with torch.no_grad():
        together = policy.predict(z, times, PROMPTS)
        alone = torch.cat([policy.predict(z[row : row + 1], times[row], PROMPTS[row : row + 1]) for row in range(3)])
        swapped = policy.predict(z, times.flip(0), PROMPTS)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    assert (together - swapped)[0].abs().max() > 1e-3


def test_predict_depends_on_the_prompt(tiny):
    policy = tiny.unchanged
    z = policy.noise(["x"], generators(1))
    with torch.no_grad():
        red, blue = (policy.predict(z, torch.tensor(0.5), [prompt]) for prompt in PROMPTS[:2])
    assert (red - blue).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("t", [torch.tensor(0.9985), torch.tensor([0.9985, 0.9985])])
def test_the_network_is_told_the_exact_timestep_in_every_precision(tiny, dtype, t):
    policy, told = tiny.policy(dtype=dtype), []
    place = 1 if tiny.component == "unet" else "timestep"
    hook = lambda module, args, kwargs: told.append(args[place] if isinstance(place, int) else kwargs[place])  # noqa: E731
    policy.module.register_forward_pre_hook(hook, with_kwargs=True)
    policy.predict(policy.noise(PROMPTS[:2], generators(2)), t, PROMPTS[:2])
    assert told[0].dtype == torch.float32
    assert set(told[0].flatten().tolist()) == {998.5}


def test_half_precision_stays_near_full_precision_and_returns_float32(tiny):
    full, half = tiny.unchanged, tiny.policy(dtype="bfloat16")
    z = full.noise(PROMPTS, generators())
    with torch.no_grad():
        outputs = [policy.predict(z, torch.tensor(0.5), PROMPTS) for policy in (full, half)]
        images = [policy.decode(z) for policy in (full, half)]
    assert {value.dtype for value in (*outputs, *images, half.noise(PROMPTS, generators()))} == {torch.float32}
    exact, rounded = outputs
    assert 0 < (exact - rounded).abs().max() < 0.1 * exact.abs().max()
    assert torch.equal(*images)


def test_noise_is_the_initial_latents_of_the_pipeline(tiny, monkeypatch):
    policy, pipe = tiny.unchanged, tiny.pipe()
    kept = recorded(pipe, monkeypatch)
    pipe(**tiny.call, **tiny.embeddings(pipe), generator=generators(), output_type="latent")
    assert torch.equal(policy.noise(PROMPTS, generators()), kept[0][2])


def test_noise_follows_each_row_s_generator_and_nothing_else(tiny):
    policy = tiny.unchanged
    together = policy.noise(PROMPTS, generators())
    alone = torch.cat([policy.noise(["another"], [generator]) for generator in generators()])
    assert torch.equal(together, alone)
    assert not torch.equal(together[0], together[2])


def test_decode_is_what_the_pipeline_does_with_finished_latents(tiny):
    policy, pipe = tiny.unchanged, tiny.pipe()
    latents = tiny.sample(policy)
    with torch.no_grad():
        scaled = latents / pipe.vae.config.scaling_factor + (pipe.vae.config.shift_factor or 0)
        expected = (pipe.vae.decode(scaled).sample / 2 + 0.5).clamp(0, 1)
    images = policy.decode(latents)
    assert torch.equal(images, expected)
    assert images.shape == (3, 3, *tiny.size)


@pytest.mark.parametrize("steps", [1, 4, 10])
def test_the_schedule_is_what_the_pipeline_s_scheduler_holds_after_a_call(flow, steps):
    policy, pipe = flow.unchanged, flow.pipe()
    pipe(prompt=PROMPTS, **flow.call | {"num_inference_steps": steps}, output_type="latent")
    schedule = policy.schedule(steps)
    assert torch.equal(schedule.times, pipe.scheduler.sigmas)
    assert schedule.scheduler["shift"] == pipe.scheduler.config.shift


def test_the_shift_of_the_pipeline_is_in_the_times(sd3_tiny):
    """A shift of 3 maps s to 3 s / (1 + 2 s); the last of n steps starts at the shifted 1 / 1000."""
    smallest = 3 * 0.001 / (1 + 2 * 0.001)
    plain = torch.linspace(1, smallest, 4)
    expected = torch.cat([3 * plain / (1 + 2 * plain), torch.zeros(1)])
    torch.testing.assert_close(sd3_tiny.unchanged.schedule(4).times, expected)


def test_the_times_of_a_diffusion_are_its_timesteps_and_clean_data(sd15_tiny):
    times = sd15_tiny.unchanged.schedule(4).times
    assert times.dtype == torch.float32
    torch.testing.assert_close(times, torch.tensor([0.751, 0.501, 0.251, 0.001, -0.001]))


@pytest.mark.parametrize("steps", [1, 4, 1000])
def test_times_fall(tiny, steps):
    times = tiny.unchanged.schedule(steps).times
    assert times.shape == (steps + 1,)
    assert (times.diff() < 0).all()


def test_sampling_with_our_schedule_leaves_the_pipeline_s_scheduler_alone(tiny):
    policy = tiny.unchanged
    scheduler, before = policy.pipe.scheduler, dict(vars(policy.pipe.scheduler))
    tiny.draw(policy)
    assert policy.pipe.scheduler is scheduler
    assert vars(scheduler).keys() == before.keys()
    assert all(value is before[name] for name, value in vars(scheduler).items())


def test_euler_and_ddim_agree_on_a_diffusion(sd15_tiny):
    policy = sd15_tiny.unchanged
    noise = policy.noise(PROMPTS, generators())
    with torch.no_grad():
        first, second = (
            sampler(steps=4).sample(lambda z, t: policy.predict(z, t, PROMPTS), noise, policy.schedule(4))
            for sampler in (Euler, DDIM)
        )
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


def test_every_row_sent_through_the_network_is_counted(tiny):
    policy = tiny.policy()
    tiny.draw(policy)
    assert policy.evaluations == 3 * 4
