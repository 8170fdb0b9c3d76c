"""What is particular to the variance-preserving families, to solvers of whole timesteps, and to video."""

import diffusers
import pytest
import torch

from vgrpo_diffusers import Diffusers
from vgrpo_diffusers.verify import verify
from vgrpo_samplers import Euler

STEPS = 4
PROMPTS = ["a red sign", "blue", "a longer prompt than both"]
MIXED = torch.tensor([0.9, 0.5, 0.9])
VIDEOS = {"Wan 2.1": (5, 32), "Wan 2.2 5B": (5, 32), "LTX-Video": (9, 32), "HunyuanVideo": (5, 32)}


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * max(1.0, float(expected.abs().max())))


def noise(policy):
    return policy.noise(PROMPTS, [torch.Generator().manual_seed(row) for row in range(3)])


def with_scheduler(family, scheduler):
    """The family's pipeline as it would be with another scheduler."""
    pipe = family.pipe()
    pipe.scheduler = scheduler
    return pipe


def listen(monkeypatch, module):
    """Keep what a network is given by name and what it returns, call by call."""
    calls, forward = [], module.forward

    def listening(*args, **given):
        result = forward(*args, **given)
        calls.append((given, result[0]))
        return result

    monkeypatch.setattr(module, "forward", listening)
    return calls


@torch.no_grad()
def test_euler_in_the_exploding_latents_of_sdxl_s_own_scheduler_is_ddim_in_ours(built):
    """Its latents are ours divided by alpha, and it scales them back before the network sees them."""
    family = built("Stable Diffusion XL")
    policy, own = family.unchanged, family.unchanged.pipe.scheduler
    assert isinstance(own, diffusers.EulerDiscreteScheduler)
    drawn = family.draw(with_scheduler(family, type(own).from_config(own.config)))
    schedule = policy.schedule(STEPS)
    alphas = own.alphas_cumprod[[751, 501, 251, 1]].sqrt()
    assert drawn.samples[0].std() > 2
    close(drawn.samples[0] * alphas[0], noise(policy))
    for step, alpha in enumerate(alphas):
        close(policy.predict(drawn.samples[step] * alpha, schedule.times[step], PROMPTS), drawn.outputs[step])
    latents = family.sample(policy)
    close(latents, drawn.latents)
    close(policy.decode(latents), drawn.images)


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction", "sample"])
def test_ddim_is_the_pipeline_s_whatever_the_network_predicts(built, kind, tmp_path):
    family = built("Stable Diffusion 1.5")
    pipe = family.pipe()
    pipe.scheduler = diffusers.DDIMScheduler.from_config(pipe.scheduler.config, prediction_type=kind)
    pipe.save_pretrained(tmp_path)
    policy = Diffusers(model=str(tmp_path), size=family.entry["size"]).load(torch.device("cpu"))
    close(family.sample(policy), family.draw(pipe).latents)


def test_a_time_that_stable_diffusion_s_own_scheduler_visits_twice_counts_once(built):
    policy = built("Stable Diffusion 1.5").unchanged
    own = diffusers.PNDMScheduler.from_config(policy.pipe.scheduler.config)
    own.set_timesteps(STEPS)
    assert own.timesteps.tolist() == [751, 501, 501, 251, 1]
    close(policy.schedule(STEPS).times, torch.tensor([0.751, 0.501, 0.251, 0.001, -0.001]))


@torch.no_grad()
def test_pixart_s_learned_variance_is_left_out(built, monkeypatch):
    policy = built("PixArt-Sigma").unchanged
    calls = listen(monkeypatch, policy.module)
    output = policy.predict(noise(policy), torch.tensor(0.5), PROMPTS[:1] * 3)
    raw = calls[0][1]
    assert raw.shape[1] == 2 * output.shape[1] == 8
    assert torch.equal(output, raw[:, :4])


FIRST_ORDER = {"Sana": {"solver_order": 1}, "Wan 2.1": {"solver_order": 1, "disable_corrector": list(range(STEPS))}}


@pytest.mark.parametrize("name", FIRST_ORDER)
@torch.no_grad()
def test_a_solver_of_whole_timesteps_differs_from_ours_in_what_the_network_is_told_alone(built, name):
    """Its sigmas are ours; the network hears floor(1000 sigma) from it, and 1000 sigma from us."""
    family = built(name)
    policy, own = family.unchanged, family.unchanged.pipe.scheduler
    own = type(own).from_config(own.config, **FIRST_ORDER[name])
    drawn, schedule = family.draw(with_scheduler(family, own)), policy.schedule(STEPS)
    assert not own.timesteps.is_floating_point()
    close(schedule.times, own.sigmas)
    assert (schedule.times[:-1] * 1000).floor().long().tolist() == own.timesteps.tolist()
    told = lambda z, t: policy.predict(z, (1000 * t).floor() / 1000, PROMPTS)  # noqa: E731
    close(Euler(steps=STEPS).sample(told, noise(policy), schedule), drawn.latents, 3e-5)
    assert 1e-4 < (family.sample(policy) - drawn.latents).abs().max() < 0.1


@pytest.mark.parametrize("name", VIDEOS)
def test_rewards_see_the_middle_frame_of_a_video(built, name):
    policy, (frames, width) = built(name).unchanged, VIDEOS[name]
    latents = noise(policy)
    video, images = policy.frames(latents), policy.decode(latents)
    assert video.shape == (3, frames, 3, policy.call["height"], width)
    assert torch.equal(images, video[:, frames // 2])
    assert all((images - video[:, other]).abs().max() > 1e-2 for other in range(frames) if other != frames // 2)


def test_an_image_is_its_own_only_frame(built):
    policy = built("Sana").unchanged
    latents = noise(policy)
    assert policy.frames(latents).shape == (3, 3, 32, 32)
    assert torch.equal(policy.frames(latents), policy.decode(latents))


@pytest.mark.parametrize("name", ["Wan 2.1", "LTX-Video", "HunyuanVideo"])
def test_the_number_of_frames_is_an_argument_of_the_call(built, name):
    family = built(name)
    policy = family.policy(call=family.entry["call"] | {"num_frames": 17})
    assert policy.frames(policy.noise(["a"], [torch.Generator()])).shape[1] == 17


def test_a_longer_video_shifts_the_times_of_ltx_more(built):
    family = built("LTX-Video")
    call = family.entry["call"] | {"num_frames": 257}
    long, pipe = family.policy(call=call), family.pipe()
    pipe(prompt="a", num_inference_steps=STEPS, output_type="latent", **long.call)
    assert torch.equal(long.schedule(STEPS).times, pipe.scheduler.sigmas)
    assert (long.schedule(STEPS).times[1:-2] > family.unchanged.schedule(STEPS).times[1:-2] + 0.01).all()


@torch.no_grad()
def test_hunyuan_video_is_told_the_guidance_of_the_call(built, monkeypatch):
    policy = built("HunyuanVideo").unchanged
    calls = listen(monkeypatch, policy.module)
    policy.predict(noise(policy), MIXED, PROMPTS)
    assert calls[0][0]["guidance"].tolist() == [6000.0] * 3


@torch.no_grad()
def test_each_network_of_wan_2_2_predicts_on_its_side_of_the_boundary(built, monkeypatch):
    policy = built("Wan 2.2").unchanged
    z = torch.cat([noise(policy), noise(policy)[:2]])
    times, prompts = torch.tensor([0.5, 0.9, 0.875, 0.5, 0.8749]), PROMPTS + PROMPTS[:2]
    high, low = (listen(monkeypatch, policy.denoisers[name]) for name in ("transformer", "transformer_2"))
    before = policy.evaluations
    together = policy.predict(z, times, prompts)
    assert policy.evaluations == before + 5
    heard = [sorted(t for given, _ in calls for t in given["timestep"].tolist()) for calls in (high, low)]
    assert heard == [[875.0, 900.0], [500.0, 500.0, pytest.approx(874.9, abs=1e-3)]]
    alone = [policy.predict(z[row : row + 1], times[row], [prompts[row]]) for row in range(5)]
    close(together, torch.cat(alone))


@pytest.mark.parametrize(("t", "component"), [(0.95, "transformer"), (0.3, "transformer_2")])
def test_a_time_trains_the_network_of_its_side_of_the_boundary(built, t, component):
    policy = built("Wan 2.2").policy(lora={"rank": 2})
    policy.predict(noise(policy), torch.full((3,), t), PROMPTS).square().mean().backward()
    reached = {name.partition(".")[0] for name, parameter in policy.trainable().items() if parameter.grad is not None}
    assert {name.partition(".")[0] for name in policy.trainable()} == {"transformer", "transformer_2"}
    assert reached == {component}


def test_both_networks_of_wan_2_2_are_exported(built, tmp_path):
    family = built("Wan 2.2")
    policy, pipe = family.policy(), family.pipe()
    policy.restore({name: p + 0.01 * (1 + index % 3) for index, (name, p) in enumerate(policy.state().items())})
    policy.export(tmp_path)
    networks = {name: diffusers.WanTransformer3DModel.from_pretrained(tmp_path / name) for name in ("transformer", "transformer_2")}
    pipe.register_modules(**networks)
    latents = family.draw(pipe).latents
    close(latents, family.sample(policy))
    assert (latents - family.drawn.latents).abs().max() > 1e-2


@torch.no_grad()
def test_wan_2_2_5b_hears_a_time_for_every_token_and_rows_of_equal_time_go_together(built, monkeypatch):
    policy = built("Wan 2.2 5B").unchanged
    calls = listen(monkeypatch, policy.module)
    policy.predict(noise(policy), MIXED, PROMPTS)
    heard = {len(given["timestep"]): given["timestep"] for given, _ in calls}
    tokens = 2 * (2 // 2) * (4 // 2)  # latents are 2 frames of 2 x 4, patches 1 x 2 x 2
    assert {rows: tuple(t.shape) for rows, t in heard.items()} == {2: (2, tokens), 1: (1, tokens)}
    assert heard[2].eq(900).all()
    assert heard[1].eq(500).all()


@pytest.mark.parametrize("name", ["Stable Diffusion 1.5", "Stable Diffusion XL", "PixArt-Sigma", "Sana", *VIDEOS, "Wan 2.2"])
def test_the_deep_check_passes(built, name):
    lines = verify(built(name).policy(lora={"rank": 2}))
    own_steps = name in ("Stable Diffusion XL", "LTX-Video", "HunyuanVideo")
    assert [line.startswith("pass: ") for line in lines] == [True, True, True, own_steps, True, True]
    assert "latents" in lines[3]
