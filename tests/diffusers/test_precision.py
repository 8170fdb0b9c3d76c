"""What is trained is float32, what is frozen as asked, images are decoded in float32, and only `predict` rounds."""

import pytest
import torch

from vgrpo_diffusers import Diffusers
from vgrpo_diffusers.verify import verify

PROMPTS = ["a red sign", "blue", "a red sign"]
LORA = {"lora": {"rank": 2}}
HALF = {"dtype": "bfloat16"}
TIMES = torch.tensor([0.9, 0.5, 0.1])


def generators(rows=3):
    return [torch.Generator().manual_seed(row) for row in range(rows)]


def gradient(policy, scale=1.0):
    """Return the gradient of a mean square, times `scale`, as one vector."""
    z = policy.noise(PROMPTS, generators())
    (policy.predict(z, TIMES, PROMPTS).square().mean() * scale).backward()
    return torch.cat([p.grad.flatten() for p in policy.trainable().values() if p.grad is not None])


def kinds(parameters):
    return {p.dtype for p in parameters}


FULL, HALVED = {torch.float32}, {torch.bfloat16}
TABLE = [  # options, then the precision of what is trained, of the denoiser's frozen weights, of text encoders, of the VAE
    ({}, FULL, set(), FULL, FULL),
    (LORA, FULL, FULL, FULL, FULL),
    (HALF, FULL, set(), HALVED, FULL),
    (HALF | LORA, FULL, HALVED, HALVED, FULL),
]


@pytest.mark.parametrize(("options", "trained", "frozen", "encoders", "vae"), TABLE)
def test_each_part_has_the_precision_of_the_table(tiny, options, trained, frozen, encoders, vae):
    policy = tiny.policy(**options)
    names = [name for name in policy.pipe.components if name.startswith("text_encoder")]
    encoder_weights = [p for name in names if (part := getattr(policy.pipe, name)) is not None for p in part.parameters()]
    assert kinds(policy.trainable().values()) == trained
    assert kinds(p for p in policy.module.parameters() if not p.requires_grad) == frozen
    assert kinds(encoder_weights) == encoders
    assert kinds(policy.pipe.vae.parameters()) == vae


def test_float32_weights_are_those_of_the_files_and_not_rounded_on_the_way(tiny):
    policy, pipe = tiny.policy(dtype="bfloat16"), tiny.pipe()
    for ours, theirs in ((policy.module, getattr(pipe, tiny.component)), (policy.pipe.vae, pipe.vae)):
        expected = theirs.state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in ours.state_dict().items())


@pytest.mark.parametrize("options", [HALF, HALF | LORA])
@torch.no_grad()
def test_images_are_decoded_by_the_vae_in_float32_from_unrounded_latents(tiny, options):
    vae = tiny.pipe().vae
    z = tiny.unchanged.noise(PROMPTS, generators())

    def decoded(latents):
        shift = vae.config.shift_factor or 0.0
        return (vae.decode(latents / vae.config.scaling_factor + shift).sample / 2 + 0.5).clamp(0, 1)

    images = tiny.policy(**options).decode(z)
    torch.testing.assert_close(images, decoded(z), rtol=0, atol=1e-6)
    assert (images - decoded(z.bfloat16().float())).abs().max() > 1e-4


@torch.no_grad()
def test_the_pipeline_itself_can_decode_latents_of_half_precision_with_its_float32_vae(tiny):
    policy = tiny.policy(**HALF)
    z = policy.pipe.vae.config.scaling_factor * torch.randn(1, policy.pipe.vae.config.latent_channels, 4, 4).bfloat16()
    expected = tiny.pipe().vae.decode(z.float()).sample
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(policy.pipe.vae.decode(z).sample, expected)


@pytest.mark.parametrize("options", [HALF, HALF | LORA])
def test_the_pipeline_agrees_with_the_policy_in_half_precision(tiny, options):
    assert sum(line.startswith("pass: ") for line in verify(tiny.policy(**options))) == 6


def test_noise_does_not_depend_on_the_precision(tiny):
    noise = tiny.policy(**HALF).noise(PROMPTS, generators())
    assert torch.equal(noise, tiny.unchanged.noise(PROMPTS, generators()))
    assert not torch.equal(noise, noise.bfloat16().float())


def test_autocast_reaches_the_denoiser_and_nothing_else(tiny):
    policy = tiny.policy(**HALF)
    seen = {name: set() for name in ("text_encoder", "vae", tiny.component)}
    for name, found in seen.items():
        module = policy.pipe.vae.decoder if name == "vae" else getattr(policy.pipe, name)
        module.register_forward_hook(lambda *_, found=found: found.add(torch.is_autocast_enabled("cpu")))
    policy.predict(torch.randn(1, *tiny.unchanged.noise(["a"], generators(1)).shape[1:]), torch.tensor(0.5), ["new"])
    policy.decode(policy.noise(["another"], generators(1)))
    assert seen == {"text_encoder": {False}, "vae": {False}, tiny.component: {True}}


def test_embeddings_made_inside_a_prediction_are_those_of_the_pipeline_in_that_precision(tiny):
    policy, pipe = tiny.policy(**HALF), tiny.pipe().to(torch.bfloat16)
    policy.predict(policy.noise(["new"], generators(1)), torch.tensor(0.5), ["new"])
    rows = next(row for (prompt, _), row in policy.pipe.encode_prompt.rows.items() if prompt == "new")
    expected = tiny.embeddings(pipe, ["new"]).values()
    assert all(any(part is not None and torch.equal(part, given) for part in rows) for given in expected)
    assert {given.dtype for given in expected} == HALVED


@pytest.mark.parametrize("options", [{}, LORA])
def test_gradients_of_half_precision_are_near_those_of_full_precision(tiny, options):
    full, half = (gradient(tiny.perturbed(**options, **precision)) for precision in ({}, HALF))
    assert half.dtype == torch.float32
    assert 0 < (half - full).norm() < 0.1 * full.norm()


@pytest.mark.parametrize("options", [HALF, HALF | LORA])
def test_three_steps_keep_weights_and_moments_in_float32_and_lose_no_small_step(tiny, options):
    policy = tiny.perturbed(**options)
    before = {name: value.clone() for name, value in policy.state().items()}
    optimizer = torch.optim.AdamW(policy.trainable().values(), lr=1e-6, weight_decay=0.0)
    for _ in range(3):
        gradient(policy)
        optimizer.step()
        optimizer.zero_grad()
    after = policy.state()
    assert kinds(after.values()) == FULL
    assert {value.dtype for state in optimizer.state.values() for value in state.values()} == FULL
    moved = torch.cat([(after[name] - before[name]).abs().flatten() for name in before])
    assert 2e-6 < moved.max() < 4e-6
    changed = [name for name in before if not torch.equal(after[name], before[name])]
    assert len(changed) > 0.8 * len(before)


def test_float16_is_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"float16 can't hold the gradients of a real batch.*use bfloat16 or float32"):
        Diffusers(model="builtin:glyphs", dtype="float16")


@pytest.mark.parametrize(("dtype", "lost"), [(torch.float16, True), (torch.bfloat16, False)])
def test_the_gradients_of_a_real_batch_round_to_zero_in_float16_only(sd3_tiny, dtype, lost):
    policy = sd3_tiny.perturbed(**LORA)
    policy.dtype = dtype  # of autocast
    values, samples, pairs = 16 * 64 * 64, 1152, 4  # latents of 512 px, 48 groups of 24
    share = policy.noise(PROMPTS, generators()).numel() / (values * samples * pairs)
    assert bool((gradient(policy, share) == 0).all()) == lost
