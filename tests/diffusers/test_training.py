"""What is trained: gradients reach it and nothing else, its state round trips, its export reproduces, a run moves it."""

import json

import pytest
import torch
from torch import nn

import vgrpo_recipe
from vgrpo_core.keys import generator
from vgrpo_core.prompts import load_prompts
from vgrpo_core.run import run

PROMPTS = ["a red sign", "blue", "a red sign"]
LORA = {"lora": {"rank": 2}}
IDLE = ("add_q_proj", "norm_added_q")  # in an SD3's last block no text row goes on, so that its queries do nothing


def generators(rows=3):
    return [torch.Generator().manual_seed(row) for row in range(rows)]


def perturb(policy):
    """Move the trained weights, so that adapters are not the identity."""
    generator = torch.Generator().manual_seed(5)
    moved = {name: p + 0.1 * torch.randn(p.shape, generator=generator) for name, p in policy.state().items()}
    policy.restore(moved)
    return moved


def backward(policy):
    z = policy.noise(PROMPTS, generators())
    policy.predict(z, torch.tensor([0.9, 0.5, 0.1]), PROMPTS).square().mean().backward()
    return z


def weightless(module, last):
    """Tell which parameters can have no gradient, whoever computes it."""
    names = [name for name, _ in module.named_parameters() if f"transformer_blocks.{last}." in name]
    return {name for name in names if any(part in name for part in IDLE)}


@pytest.mark.parametrize("options", [{}, LORA, {"dtype": "bfloat16"}, {"dtype": "bfloat16"} | LORA])
def test_gradients_reach_every_trained_parameter_and_no_frozen_one(tiny, options):
    policy = tiny.policy(**options)
    perturb(policy)
    backward(policy)
    idle = weightless(policy.module, policy.module.config.num_layers - 1) if tiny.component == "transformer" else set()
    for name, parameter in policy.trainable().items():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()) == (name not in idle), name
    components = [part for part in policy.pipe.components.values() if isinstance(part, nn.Module)]
    frozen = [p for part in components for p in part.parameters() if not p.requires_grad]
    assert frozen
    assert all(p.grad is None for p in frozen)


def test_gradients_are_those_of_a_direct_call_of_the_network(tiny):
    policy, pipe = tiny.policy(), tiny.pipe()
    z, t = backward(policy), torch.tensor([900.0, 500.0, 100.0])
    module, embeddings = getattr(pipe, tiny.component), tiny.embeddings(pipe, PROMPTS)
    if tiny.component == "unet":
        output = module(z, t, encoder_hidden_states=embeddings["prompt_embeds"]).sample
    else:
        output = module(z, embeddings["prompt_embeds"], embeddings["pooled_prompt_embeds"], t).sample
    output.square().mean().backward()
    for name, parameter in policy.trainable().items():
        torch.testing.assert_close(parameter.grad, module.get_parameter(name).grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", [{}, LORA])
def test_state_and_restore_round_trip_exactly(tiny, options):
    policy, other = tiny.policy(**options), tiny.policy(**options)
    perturb(policy)
    saved = {name: value.clone() for name, value in policy.state().items()}
    other.restore(saved)
    assert all(torch.equal(value, saved[name]) for name, value in other.state().items())
    assert torch.equal(tiny.sample(other), tiny.sample(policy))


@pytest.mark.parametrize("options", [{}, LORA])
def test_weights_of_other_names_or_shapes_are_refused(sd3_tiny, options):
    policy = sd3_tiny.policy(**options)
    state = dict(policy.state())
    first = min(state)
    fewer = {name: value for name, value in state.items() if name != first}
    for wrong in (fewer, state | {"extra": torch.zeros(1)}, state | {first: torch.zeros(7, 7)}):
        with pytest.raises(ValueError, match="do not fit this model"):
            policy.restore(wrong)


def test_an_exported_network_loads_with_its_own_class_and_makes_the_same_images(tiny, tmp_path):
    policy, pipe = tiny.policy(), tiny.pipe()
    before = tiny.draw(policy)
    perturb(policy)
    policy.export(tmp_path)
    cls = type(getattr(pipe, tiny.component))
    pipe.register_modules(**{tiny.component: cls.from_pretrained(tmp_path / tiny.component)})
    given = tiny.call | tiny.embeddings(pipe)
    images = pipe(**given, generator=generators(), output_type="pt").images
    torch.testing.assert_close(images, tiny.draw(policy), rtol=0, atol=1e-5)
    assert (images - before).abs().max() > 1e-2


BRIGHT = """
from vgrpo_core import Reward


class Brightness(Reward):
    name = "brightness"

    def load(self, device):
        return lambda samples: samples.images.mean(dim=(1, 2, 3))
"""

RECIPE = """
[run]
iterations = 3
device = "cpu"

[backbone]
use = "diffusers"
model = "{model}"
size = {size}
{options}

[sampler]
use = "{sampler}"
steps = 4

[prompts]
use = "words"

[batch]
prompts = 2
group = 6
micro = 12

[objective]
pairs = 2
steps = 2

[optimizer]
lr = 3e-3

[[reward]]
use = "./bright.py:Brightness"

[eval.prompts]
use = "words"
split = "test"
count = 4
"""

RUNS = {"sd3": "call = {max_sequence_length = 12}\nlora = {rank = 4}", "sd15": ""}


@pytest.fixture
def write(tmp_path):
    """Write a recipe that trains a tiny pipeline, with its reward beside it."""

    def write(tiny):
        (tmp_path / "bright.py").write_text(BRIGHT)
        options = {"size": list(tiny.size), "sampler": tiny.sampler.name, "options": RUNS[tiny.folder.name]}
        (tmp_path / "recipe.toml").write_text(RECIPE.format(model=tiny.folder, **options))
        return vgrpo_recipe.load(tmp_path / "recipe.toml")

    return write


def put(tiny, pipe, folder):
    """Give a plain pipeline the weights that a run exported."""
    if tiny.component == "transformer":
        pipe.load_lora_weights(folder)
    else:
        pipe.register_modules(unet=type(pipe.unet).from_pretrained(folder / "unet"))


@pytest.mark.parametrize("name", RUNS)
def test_three_iterations_change_what_the_exported_pipeline_draws_to_what_the_summary_says(saved, name, write, tmp_path):
    tiny = saved[name]
    trained = write(tiny)
    summary = run(trained, tmp_path / "run", lambda event: None)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 1, 2, 3]
    assert lines[-1]["evaluations"] == 3 * 2 * 6 * (4 + 2 * 2)
    assert not any(line["grad/refused"] for line in lines[1:])
    pipe = tiny.pipe()
    texts = [prompt.text for prompt in load_prompts(trained.eval.prompts)]
    for moment in ("start", "final"):
        if moment == "final":
            put(tiny, pipe, tmp_path / "run" / "model")
        given = tiny.call | {"generator": [generator(0, "eval", row, 0) for row in range(len(texts))], "output_type": "pt"}
        assert pipe(prompt=texts, **given).images.mean().item() == pytest.approx(summary[moment]["brightness"], abs=1e-6)
    assert abs(summary["final"]["brightness"] - summary["start"]["brightness"]) > 1e-5
