"""What holds for every family: the policy is the pipeline, all of it is trained, and what was trained loads anywhere else."""

import inspect
import json
import math

import pytest
import tomli_w
import torch
from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict
from safetensors import safe_open
from torch import nn

import vgrpo_recipe
from vgrpo_core.run import run
from vgrpo_diffusers.verify import verify

STEPS = 4
PROMPTS = ["a red sign", "blue", "a longer prompt than both"]
LORA = {"rank": 2, "alpha": 5.0}
TIMES = torch.tensor([0.9, 0.5, 0.1])


def close(found, expected, tolerance=1e-5):
    """Compare to a share of the largest value: an untrained network's diffusion ends in the hundreds."""
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * max(1.0, float(expected.abs().max())))


def perturbed(policy, scale=0.1):
    """Move the trained weights, so that adapters are not the identity."""
    generator = torch.Generator().manual_seed(5)
    policy.restore({name: p + scale * torch.randn(p.shape, generator=generator) for name, p in policy.state().items()})
    return policy


def test_our_sampler_makes_the_latents_and_images_of_the_pipeline(family):
    latents = family.sample(family.unchanged)
    close(latents, family.drawn.latents)
    close(family.unchanged.frames(latents), family.drawn.images)
    assert family.drawn.images.std() > 0.02


def test_guidance_that_the_recipe_asks_for_is_the_pipeline_s(family):
    pipe = family.pipe()
    known = inspect.signature(type(pipe).__call__).parameters
    guided = {"guidance_scale": 3.0, "true_cfg_scale": 3.0, "negative_prompt": "bad"}
    call = {name: value for name, value in guided.items() if name in known}
    latents = family.sample(family.policy(call={**family.entry.get("call", {}), **call}))
    close(latents, family.draw(pipe, **call).latents)
    assert (latents - family.drawn.latents).abs().max() > 1e-4


def test_noise_is_the_initial_latents_of_the_pipeline(family):
    generators = [torch.Generator().manual_seed(row) for row in range(3)]
    assert torch.equal(family.unchanged.noise(PROMPTS, generators), family.drawn.samples[0])


@torch.no_grad()
def test_predict_is_the_output_of_the_network_at_every_step(family):
    policy, drawn = family.unchanged, family.drawn
    for t, z, output in zip(policy.schedule(STEPS).times, drawn.samples, drawn.outputs, strict=False):
        close(policy.predict(z, t, PROMPTS), output)
        assert output.std() > 0.01


@torch.no_grad()
def test_a_row_s_time_and_prompt_are_its_own(family):
    policy, drawn = family.unchanged, family.drawn
    steps, rows = [2, 0, 1], [0, 1, 2]
    found = policy.predict(drawn.samples[steps, rows], policy.schedule(STEPS).times[steps], PROMPTS)
    close(found, drawn.outputs[steps, rows])


@torch.no_grad()
def test_the_network_hears_its_prompt_and_its_time(family):
    policy, z = family.unchanged, family.drawn.samples[1]
    same = torch.stack([z[0], z[0]])
    prompts = policy.predict(same, TIMES[1], PROMPTS[:2])
    times = policy.predict(same, TIMES[:2], PROMPTS[:1] * 2)
    assert (prompts[0] - prompts[1]).abs().max() > 1e-4
    assert (times[0] - times[1]).abs().max() > 1e-4


@torch.no_grad()
def test_the_data_predicted_from_clean_latents_are_these_latents(family):
    policy, z = family.unchanged, family.drawn.latents
    t = policy.schedule(STEPS).times[-1] + 1e-5
    output = policy.predict(z, t, PROMPTS)
    close(policy.process.data_from(output, z, t), z, 0.02)


@torch.no_grad()
def test_predicted_data_and_noise_mix_to_the_latents_they_came_from(family):
    policy, z = family.unchanged, family.drawn.samples[1]
    output = policy.predict(z, TIMES, PROMPTS)
    data, noise = policy.process.data_from(output, z, TIMES), policy.process.noise_from(output, z, TIMES)
    close(policy.process.mix(data, noise, TIMES), z)


@pytest.mark.parametrize("options", [{}, {"lora": LORA}], ids=["weights", "lora"])
def test_gradients_reach_every_trained_parameter(family, options):
    policy = family.policy(**options)
    if options:
        perturbed(policy)
    policy.predict(family.drawn.samples[1], TIMES, PROMPTS).square().mean().backward()
    still = {name for name, p in policy.trainable().items() if p.grad is None or not p.grad.any()}
    assert still == {name for name in policy.trainable() if family.idle(name)}
    assert len(still) < len(policy.trainable()) / 4


def test_gradients_are_those_of_small_changes(family):
    policy, z, size = family.policy(), family.drawn.samples[1], 1e-4

    def loss():
        return policy.predict(z, TIMES, PROMPTS).double().square().mean()

    loss().backward()
    generator = torch.Generator().manual_seed(3)
    weights = dict(policy.state())
    change = {name: size * torch.randn(weight.shape, generator=generator) for name, weight in weights.items()}
    gradients = {name: p.grad.double() for name, p in policy.trainable().items() if p.grad is not None}
    expected = sum((gradient * change[name]).sum().item() for name, gradient in gradients.items())
    norm = sum(gradient.square().sum() for gradient in gradients.values()).sqrt().item()
    ahead, behind = (moved(policy, weights, change, sign, loss) for sign in (1, -1))
    assert (ahead - behind) / 2 == pytest.approx(expected, abs=family.entry.get("rough", 1e-3) * size * norm)


@torch.no_grad()
def moved(policy, weights, change, sign, loss):
    policy.restore({name: weight + sign * change[name] for name, weight in weights.items()})
    value = loss().item()
    policy.restore({name: weight - sign * change[name] for name, weight in weights.items()})
    return value


@torch.no_grad()
def test_half_precision_stays_near_full_precision(family):
    full, half, z = family.unchanged, family.policy(dtype="bfloat16"), family.drawn.samples[1]
    found, expected = half.predict(z, TIMES, PROMPTS), full.predict(z, TIMES, PROMPTS)
    assert found.dtype == torch.float32
    assert told(half, z) == told(full, z)
    assert 0 < (found - expected).abs().max() < 0.1 * expected.abs().max()
    assert (half.frames(z) - full.frames(z)).abs().max() < 0.1


def told(policy, z):
    """Return the times that the network hears, by name and type."""
    heard, module = [], next(iter(policy.denoisers.values()))

    def hearing(module, args, kwargs):
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        heard.extend((name, value.dtype, value.tolist()) for name, value in given.items() if name in ("t", "timestep", "timesteps"))

    with module.register_forward_pre_hook(hearing, with_kwargs=True):
        policy.predict(z, torch.full((3,), 0.9985), PROMPTS)
    assert heard
    return heard


def test_default_adapters_are_on_every_linear_layer_of_every_attention_block(family):
    adapted, expected = set(), set()
    for component, module in family.policy(lora=LORA).denoisers.items():
        adapted |= {(component, name.rpartition(".lora_A")[0]) for name, _ in module.named_modules() if name.endswith(".lora_A")}
        plain = getattr(family.unchanged.pipe, component)
        blocks = [(name, part) for name, part in plain.named_modules() if "Attention" in type(part).__name__]
        inner = {f"{name}.{own}" for name, part in blocks for own, layer in part.named_modules() if isinstance(layer, nn.Linear)}
        expected |= {(component, name) for name in inner}
    assert adapted == expected
    assert len(expected) >= 8


@pytest.fixture(scope="module")
def trained(family, tmp_path_factory):
    """Adapters that are not the identity: where they were exported, and the images that they make."""
    policy = perturbed(family.policy(lora=LORA))
    folder = tmp_path_factory.mktemp("trained")
    policy.export(folder)
    images = policy.frames(family.sample(policy))
    assert (images - family.drawn.images).abs().max() > 1e-2
    return folder, images


def test_exported_adapters_load_with_the_pipeline_s_own_loader(family, trained):
    folder, images = trained
    pipe = family.pipe()
    if not hasattr(pipe, "load_lora_weights") and "load" not in family.entry:
        pytest.skip(f"{type(pipe).__name__} has no loader of adapters")
    family.load(pipe, folder)
    close(family.draw(pipe).images, images)


def test_exported_adapters_load_with_peft_alone(family, trained):
    folder, images = trained
    pipe = family.pipe()
    if (folder / "adapter_config.json").exists():
        pytest.skip("exported for peft's own loader, which the test above uses")
    for component in family.unchanged.denoisers:
        inject(getattr(pipe, component), folder / component if (folder / component).exists() else folder)
    close(family.draw(pipe).images, images)


def inject(module, folder):
    """Build the adapters that a file describes, with peft's own functions."""
    with safe_open(folder / "pytorch_lora_weights.safetensors", "pt") as file:
        tensors = {name.partition(".")[2]: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = json.loads(file.metadata()["lora_adapter_metadata"])
    config = LoraConfig(**{name.partition(".")[2]: value for name, value in metadata.items()})
    inject_adapter_in_model(config, module)
    assert not set_peft_model_state_dict(module, tensors).unexpected_keys


RECIPE = {
    "run": {"iterations": 3, "device": "cpu"},
    "prompts": {"use": "words"},
    "batch": {"prompts": 1, "group": 4, "micro": 4},
    "objective": {"pairs": 1, "steps": 2},
    "optimizer": {"lr": 1e-3},
    "reward": [{"use": "./bright.py:Brightness"}],
    "eval": {"every": 0, "prompts": {"use": "words", "split": "test", "count": 2}},
}
BRIGHT = """
from vgrpo_core import Reward


class Brightness(Reward):
    name = "brightness"

    def load(self, device):
        return lambda samples: samples.images.mean(dim=(1, 2, 3))
"""


def test_three_iterations_move_the_adapters_and_what_they_draw(family, tmp_path):
    (tmp_path / "bright.py").write_text(BRIGHT)
    flow = family.unchanged.process.alphas_cumprod is None
    model = {"use": "diffusers", "model": str(family.folder), "size": list(family.entry["size"]), "lora": LORA}
    own = {"backbone": {**model, "call": family.entry.get("call", {})}, "sampler": {"use": "euler" if flow else "ddim", "steps": 2}}
    whole = {**RECIPE, **own}
    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(whole))
    summary = run(vgrpo_recipe.load(tmp_path / "recipe.toml"), tmp_path / "run", lambda event: None)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 1, 2, 3]
    assert not any(line["grad/refused"] for line in lines[1:])
    assert all(math.isfinite(value) for line in lines for value in line.values() if isinstance(value, float))
    assert summary["final"]["brightness"] != summary["start"]["brightness"]


def test_the_docs_say_what_is_so(family, measure):
    known = {row["family"]: row for row in json.loads(measure.FIGURES.read_text(encoding="utf-8"))["families"]}
    found = json.loads(json.dumps(measure.described(family.name, family.unchanged)))
    assert known[family.name] == found, "run python tests/families/measure.py and python docs/generate.py"


def test_the_deep_check_passes(family):
    assert all(line.startswith(("pass: ", "not compared: ")) for line in verify(family.unchanged))
