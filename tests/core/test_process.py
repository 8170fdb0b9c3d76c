from __future__ import annotations

import diffusers
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vgrpo_core.process import Process

DDPM = {
    "linear": {"beta_schedule": "linear"},
    "stable diffusion": {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012},
    "cosine": {"beta_schedule": "squaredcos_cap_v2"},
}
ZERO_SNR = DDPM["stable diffusion"] | {"rescale_betas_zero_snr": True}
TIMESTEPS = torch.tensor([0, 1, 17, 254, 500, 997, 998, 999])
INSIDE = st.floats(0.01, 0.99)
PREDICTIONS = ["flow", "epsilon", "v", "sample"]


def diffusion(prediction="epsilon", **options):
    scheduler = diffusers.DDPMScheduler(**options or DDPM["linear"])
    return scheduler, Process(prediction, scheduler.alphas_cumprod)


def process_of(prediction):
    return Process("flow") if prediction == "flow" else diffusion(prediction)[1]


def latents(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(prediction, x, noise, alpha, sigma):
    """What a perfect network would answer, by the definition of each kind of prediction."""
    return {"flow": noise - x, "epsilon": noise, "v": alpha * noise - sigma * x, "sample": x}[prediction]


@given(t=st.floats(0, 1, width=32))
def test_flow_keeps_one_minus_t_of_the_data_and_t_of_the_noise(t):
    alpha, sigma = Process("flow").coefficients(torch.tensor(t))
    assert alpha.item() == np.float32(1) - np.float32(t)
    assert sigma.item() == np.float32(t)


@pytest.mark.parametrize("options", DDPM.values(), ids=DDPM)
def test_diffusion_noises_as_the_schedulers_of_diffusers_do(options):
    scheduler, process = diffusion(**options)
    x, noise = latents(8, 4, 2, 2), latents(8, 4, 2, 2, seed=1)
    mixed = process.mix(x, noise, TIMESTEPS / 1000)
    ddim = diffusers.DDIMScheduler(**options)
    torch.testing.assert_close(mixed, scheduler.add_noise(x, noise, TIMESTEPS), atol=2e-5, rtol=0)
    torch.testing.assert_close(mixed, ddim.add_noise(x, noise, TIMESTEPS), atol=2e-5, rtol=0)


def test_flow_noises_as_the_flow_matching_scheduler_of_diffusers_does():
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    at = torch.tensor([0, 10, 500, 999])
    x, noise = latents(4, 5), latents(4, 5, seed=1)
    expected = scheduler.scale_noise(x, scheduler.timesteps[at], noise)
    torch.testing.assert_close(Process("flow").mix(x, noise, scheduler.sigmas[at]), expected)


@given(t=st.floats(-0.001, 0.999))
def test_diffusion_keeps_the_variance_at_every_time(t):
    alpha, sigma = diffusion()[1].coefficients(torch.tensor(t))
    assert alpha.square().item() + sigma.square().item() == pytest.approx(1, abs=1e-6)
    assert 0 <= alpha <= 1 and 0 <= sigma <= 1


@given(position=st.floats(0, 998, width=32))
def test_between_timesteps_the_logarithm_of_alpha_squared_is_linear(position):
    scheduler, process = diffusion(**DDPM["stable diffusion"])
    expected = np.interp(position, np.arange(1000), scheduler.alphas_cumprod.double().log().numpy())
    alpha, _ = process.coefficients(torch.tensor(position, dtype=torch.float64) / 1000)
    assert 2 * alpha.log().item() == pytest.approx(expected, abs=1e-5)


def test_clean_data_lie_one_timestep_before_the_first():
    alpha, sigma = diffusion()[1].coefficients(torch.tensor([-1 / 1000, -5.0]))
    assert alpha.tolist() == [1, 1] and sigma.tolist() == [0, 0]


def test_times_past_the_last_timestep_are_the_last_timestep():
    scheduler, process = diffusion()
    alpha, _ = process.coefficients(torch.tensor([0.999, 1.0]))
    torch.testing.assert_close(alpha, scheduler.alphas_cumprod[-1:].sqrt().expand(2), rtol=1e-4, atol=0)


def test_a_process_that_ends_in_nothing_but_noise_has_finite_coefficients():
    scheduler = diffusers.DDIMScheduler(**ZERO_SNR)
    assert scheduler.alphas_cumprod[-1] == 0
    process = Process("v", scheduler.alphas_cumprod)
    at = torch.tensor([900, 997, 998, 999])
    alpha, sigma = process.coefficients(at / 1000)
    torch.testing.assert_close(alpha, scheduler.alphas_cumprod[at].sqrt(), atol=1e-3, rtol=0)
    assert alpha[-1] < 1e-6 and sigma[-1] == 1
    assert process.coefficients(torch.tensor(0.9985))[0].isfinite()


@pytest.mark.parametrize("prediction", PREDICTIONS)
@given(times=st.lists(INSIDE, min_size=3, max_size=3))
def test_data_and_noise_come_back_from_a_perfect_network(prediction, times):
    process, t = process_of(prediction), torch.tensor(times, dtype=torch.float64)
    x, noise = latents(3, 2, 4).double(), latents(3, 2, 4, seed=1).double()
    z = process.mix(x, noise, t)
    alpha, sigma = (value.view(3, 1, 1) for value in process.coefficients(t))
    output = network(prediction, x, noise, alpha, sigma)
    torch.testing.assert_close(process.data_from(output, z, t), x, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(process.noise_from(output, z, t), noise, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_data_and_noise_of_any_output_mix_to_the_latents_they_came_from(prediction):
    process, t = process_of(prediction), torch.tensor([0.02, 0.5, 0.9])
    output, z = latents(3, 5), latents(3, 5, seed=1)
    back = process.mix(process.data_from(output, z, t), process.noise_from(output, z, t), t)
    torch.testing.assert_close(back, z, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_predictions_of_data_agree_with_the_ddim_scheduler(prediction):
    scheduler = diffusers.DDIMScheduler(prediction_type=prediction, clip_sample=False, **DDPM["stable diffusion"])
    scheduler.set_timesteps(1000)
    process = Process({"v_prediction": "v"}.get(prediction, prediction), scheduler.alphas_cumprod)
    output, z = latents(1, 6), latents(1, 6, seed=1)
    for timestep in (1, 500, 900):
        expected = scheduler.step(output, timestep, z).pred_original_sample
        torch.testing.assert_close(process.data_from(output, z, torch.tensor(timestep / 1000)), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("prediction", ["flow", "epsilon", "v"])
def test_without_noise_the_predicted_data_are_the_latents_themselves(prediction):
    clean = torch.tensor(0.0 if prediction == "flow" else -1 / 1000)
    output, z = latents(2, 3), latents(2, 3, seed=1)
    assert process_of(prediction).data_from(output, z, clean).equal(z)


def test_a_time_for_each_row_equals_a_scalar_time_for_each_row_alone():
    process, t = process_of("v"), torch.tensor([0.1, 0.6])
    x, noise = latents(2, 3, 4), latents(2, 3, 4, seed=1)
    both = process.mix(x, noise, t)
    for row in range(2):
        assert both[row].equal(process.mix(x[row : row + 1], noise[row : row + 1], t[row])[0])


def test_r128_a_time_in_float32_keeps_half_a_timestep():
    t = torch.tensor(0.9985)
    assert (1000 * t).item() == pytest.approx(998.5, abs=1e-4)
    assert (1000 * t.bfloat16()).item() == 1000  # what rounding would make of it
    alpha, sigma = Process("flow").coefficients(t)
    assert alpha.dtype == sigma.dtype == torch.float32
    alpha, _ = diffusion()[1].coefficients(t)
    assert alpha.dtype == torch.float32
