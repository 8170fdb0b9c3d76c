"""The parts of training the embedded model do what their formulas say."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from vgrpo_glyphs import build
from vgrpo_glyphs.fit import Average, Pool, descend, fit_autoencoder, fit_pipeline, pool, prompt_embeddings, rate
from vgrpo_glyphs.pretrain import Words
from vgrpo_glyphs.render import PALETTE, Sign
from vgrpo_recipe.registry import Registry


def silent(step, loss):
    pass


@pytest.fixture
def pictures():
    """Four clean signs."""
    return pool(4, np.random.default_rng(0), ["ship", "lamp"], held_out=frozenset(), noise=0.0)


@pytest.mark.parametrize(
    ("step", "factor"), [(0, 0.01), (49, 0.5), (99, 1.0), (100, 1.0), (600, 1.0), (800, 0.02 + 0.98 / 2), (1000, 0.02)]
)
def test_the_learning_rate_warms_up_stays_and_falls_along_a_cosine(step, factor):
    assert rate(step, 1000, warmup=100, flat=0.6) == pytest.approx(factor)


def test_the_learning_rate_never_rises_after_the_warm_up():
    factors = [rate(step, 500, warmup=20, flat=0.5) for step in range(20, 500)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors))
    assert factors[125 - 20] == 1.0
    assert factors[375 - 20] == pytest.approx(0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi / 2)))


def test_the_average_follows_its_recursion():
    module = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(3.0)
    average, expected = Average(module, decay=0.5), 3.0
    for step in range(1, 60):
        with torch.no_grad():
            module.weight.fill_(float(step))
        average.update()
        decay = min(0.5, step / (step + 20))
        expected = decay * expected + (1 - decay) * step
        assert average.average.weight.item() == pytest.approx(expected, rel=1e-5)
    assert module.weight.item() == 59.0


def test_descend_finds_a_minimum_returns_the_average_and_logs_each_step():
    module, target, lines = nn.Linear(3, 1, bias=False), torch.tensor([[0.3, -0.2, 0.1]]), []
    loss = lambda: (module.weight - target).square().sum()  # noqa: E731
    average = descend(module, loss, 400, lr=2e-2, flat=0.5, decay=0.9, log=lambda step, value: lines.append((step, value)))
    torch.testing.assert_close(average.weight, target, rtol=0, atol=5e-3)
    assert average is not module
    assert [step for step, _ in lines] == list(range(1, 401))
    assert lines[-1][1] < 0.1 * lines[0][1]


def test_a_pool_holds_the_asked_number_of_signs_and_no_held_out_word():
    words = ["ship", "lamp", "door"]
    made = pool(200, np.random.default_rng(0), words, held_out=frozenset({"lamp"}), noise=0.0)
    assert made.images.shape == (200, 3, build.HEIGHT, build.WIDTH)
    assert made.images.min() >= -1
    assert 0.9 < made.images.max() <= 1
    drawn = [sign.word for sign in made.signs]
    assert "lamp" not in drawn
    assert {len(word) for word in drawn} == {3, 4}
    assert {sign.colour for sign in made.signs} == set(PALETTE)
    assert np.mean([word in ("ship", "door") for word in drawn]) == pytest.approx(0.4, abs=0.12)


def test_a_pool_follows_from_its_generator():
    one, two = (pool(6, np.random.default_rng(3), ["ship"], held_out=frozenset(), noise=0.5) for _ in range(2))
    assert torch.equal(one.images, two.images)
    assert one.signs == two.signs


@pytest.mark.parametrize("padding", [1, 2])
def test_prompt_embeddings_are_those_of_the_pipeline(untrained, padding):
    texts = ['a red sign that says "cat"', 'a purple sign that says "ship"']
    ids = untrained.tokenizer(texts, padding="max_length", max_length=build.TOKENS, return_tensors="pt").input_ids
    encoders = nn.ModuleList([untrained.text_encoder, untrained.text_encoder_2])
    with torch.no_grad():
        expected = untrained.encode_prompt(texts, None, None, do_classifier_free_guidance=False, max_sequence_length=padding)
    hidden, pooled = prompt_embeddings(encoders, ids, padding)
    torch.testing.assert_close(hidden, expected[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(pooled, expected[2], rtol=0, atol=1e-6)
    assert hidden.requires_grad
    assert pooled.requires_grad


def test_the_autoencoder_s_latents_have_mean_0_and_deviation_1(pictures):
    torch.manual_seed(0)
    vae = fit_autoencoder(build.autoencoder(), pictures.images, 3, torch.Generator().manual_seed(0), silent)
    z = build.latents(vae, pictures.images)
    assert z.mean().item() == pytest.approx(0, abs=1e-4)
    assert z.std().item() == pytest.approx(1, abs=1e-4)
    assert not any(p.requires_grad for p in vae.parameters())


def test_the_pipeline_s_encoders_and_transformer_are_trained_and_its_autoencoder_is_not(pictures):
    torch.manual_seed(0)
    pipe, asked = build.pipeline(build.autoencoder().requires_grad_(False)), []
    before = {name: sum(p.double().abs().sum().item() for p in getattr(pipe, name).parameters()) for name in PARTS}

    def data(step: int) -> Pool:
        asked.append(step)
        return pictures

    fit_pipeline(pipe, data, 3, torch.Generator().manual_seed(0), silent, lambda sign: sign.word)
    after = {name: sum(p.double().abs().sum().item() for p in getattr(pipe, name).parameters()) for name in PARTS}
    assert asked == [0, 1, 2]
    assert {name for name in PARTS if after[name] != before[name]} == {"transformer", "text_encoder", "text_encoder_2"}


PARTS = ("transformer", "text_encoder", "text_encoder_2", "vae")


def test_captions_are_the_prompts_of_the_source_word_for_word(prompts):
    words = Words(Registry.discover())
    for prompt in prompts:
        assert words.prompt(Sign(prompt.metadata["text"], prompt.metadata["color"])) == prompt.text


def test_every_word_of_validation_and_test_is_held_out():
    words = Words(Registry.discover())
    expected = {prompt.metadata["text"] for split in ("validation", "test") for prompt in words.prompts(split)}
    assert words.held_out() == expected
    assert not expected & {prompt.metadata["text"] for prompt in words.prompts("train")}
