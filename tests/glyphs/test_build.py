"""The untrained model has the real classes, made small, and a tokenizer that keeps every character."""

import diffusers
import torch

from vgrpo_glyphs import build


def test_every_default_prompt_is_one_token_a_character_between_start_and_end(prompts):
    tokenizer = build.tokenizer()
    for prompt in prompts:
        ids = tokenizer(prompt.text).input_ids
        assert len(ids) == 2 + len(prompt.text.replace(" ", ""))
        assert ids[0] == tokenizer.bos_token_id
        assert ids.index(tokenizer.eos_token_id) == len(ids) - 1


def test_every_default_prompt_fits(prompts):
    longest = max(len(ids) for ids in build.tokenizer()([prompt.text for prompt in prompts]).input_ids)
    assert longest <= build.TOKENS


def test_tokens_decode_to_the_prompt(prompts):
    tokenizer = build.tokenizer()
    for prompt in prompts:
        ids = tokenizer(prompt.text, padding="max_length", max_length=build.TOKENS).input_ids
        assert tokenizer.decode(ids, skip_special_tokens=True).replace(" ", "") == prompt.text.replace(" ", "")


def test_different_prompts_have_different_tokens(prompts):
    tokens = {tuple(ids) for ids in build.tokenizer()([prompt.text for prompt in prompts]).input_ids}
    assert len(tokens) == len(prompts)


def test_the_end_token_is_the_highest_so_that_pooling_finds_it():
    tokenizer = build.tokenizer()
    assert tokenizer.eos_token_id == len(tokenizer) - 1


def test_the_tokenizer_survives_saving(tmp_path, prompts):
    build.tokenizer().save_pretrained(tmp_path)
    texts = [prompt.text for prompt in prompts[:50]]
    assert type(build.tokenizer()).from_pretrained(tmp_path)(texts).input_ids == build.tokenizer()(texts).input_ids


def test_an_untrained_transformer_answers_the_same_whatever_it_is_given():
    hidden, pooled = torch.randn(2, 29, 128), torch.randn(2, 128)
    output = build.transformer()(torch.randn(2, 8, 6, 16), hidden, pooled, torch.tensor([10.0, 900.0])).sample
    assert torch.equal(output[0], output[1])


def test_latents_are_what_the_pipeline_decodes(untrained):
    """Encoded images go through the pipeline's own scaling: its VAE sees the encoder's means again."""
    untrained.vae.register_to_config(scaling_factor=0.7, shift_factor=0.3)
    images = torch.rand(2, 3, build.HEIGHT, build.WIDTH) * 2 - 1
    z = build.latents(untrained.vae, images)
    assert z.shape == (2, build.LATENT_CHANNELS, build.HEIGHT // 4, build.WIDTH // 4)
    drawn = untrained(
        ["", ""], latents=z, height=build.HEIGHT, width=build.WIDTH, num_inference_steps=1, sigmas=[0.0], guidance_scale=1.0,
        max_sequence_length=1, output_type="pt",
    ).images  # fmt: skip
    with torch.no_grad():
        expected = untrained.vae.decode(untrained.vae.encode(images).latent_dist.mean).sample / 2 + 0.5
    untrained.vae.register_to_config(scaling_factor=1.0, shift_factor=0.0)
    torch.testing.assert_close(drawn, expected.clamp(0, 1), rtol=0, atol=1e-5)


def test_the_pipeline_has_the_parts_of_stable_diffusion_3_without_t5(untrained):
    assert isinstance(untrained, diffusers.StableDiffusion3Pipeline)
    assert untrained.text_encoder_3 is untrained.tokenizer_3 is None
    assert untrained.text_encoder is not untrained.text_encoder_2
