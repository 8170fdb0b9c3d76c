"""The pipeline's class looks up less in every call, and is in all else the class that it extends."""

import json

import diffusers
import pytest
import torch
from torch import nn

from vgrpo_diffusers.exceptions import EXCEPTIONS, Exceptional, exception


def own(policy):
    """The class that diffusers gave the pipeline."""
    return type(policy.pipe).__mro__[1]


def test_a_pipeline_computes_where_its_denoiser_is(tiny):
    policy = tiny.policy()
    assert policy.pipe._execution_device == torch.device("cpu") == own(policy)._execution_device.fget(policy.pipe)
    policy.module.to("meta")
    assert policy.pipe._execution_device == torch.device("meta")


def test_a_call_looks_for_no_hooks(tiny, monkeypatch):
    """diffusers itself walks all modules of all components, in every call."""
    policy, walks, modules = tiny.policy(), [], nn.Module.modules
    z = policy.noise(["a"], [torch.Generator()])
    policy.predict(z, torch.tensor(0.5), ["a"])
    monkeypatch.setattr(nn.Module, "modules", lambda module: walks.append(module) or modules(module))
    policy.predict(z, torch.tensor(0.5), ["a"])
    assert walks == []
    own(policy)._execution_device.fget(policy.pipe)
    assert len(walks) >= 3


def test_the_class_has_the_name_of_the_pipeline_s_own_and_is_one(tiny):
    policy, plain = tiny.policy(), type(tiny.pipe())
    cls = type(policy.pipe)
    assert own(policy) is plain
    assert (cls.__name__, cls.__qualname__, cls.__module__) == (plain.__name__, plain.__qualname__, plain.__module__)
    assert cls.__call__.__wrapped__ is plain.__call__.__wrapped__
    assert list(policy.pipe.components) == list(tiny.pipe().components)


def test_what_a_pipeline_needs_of_its_own_is_found_for_its_class(sd3_tiny, monkeypatch):
    special = Exceptional(("a reason",))
    monkeypatch.setitem(EXCEPTIONS, "StableDiffusion3Pipeline", special)
    assert exception(type(sd3_tiny.policy().pipe)) is special


def test_a_saved_pipeline_names_the_class_and_parts_of_diffusers(tiny, tmp_path):
    policy = tiny.policy()
    images = tiny.draw(policy)
    policy.pipe.save_pretrained(tmp_path)
    index = json.loads((tmp_path / "model_index.json").read_text())
    assert index["_class_name"] == own(policy).__name__
    first = json.loads((tiny.folder / "model_index.json").read_text())
    assert {**index, "_name_or_path": ""} == {**first, "_name_or_path": ""}
    absent = {name: None for name, value in index.items() if value == [None, None]}
    again = diffusers.DiffusionPipeline.from_pretrained(tmp_path, **absent)
    assert type(again) is own(policy)
    again.set_progress_bar_config(disable=True)
    given = tiny.call | tiny.embeddings(again) | {"generator": [torch.Generator().manual_seed(row) for row in range(3)]}
    torch.testing.assert_close(again(**given, output_type="pt").images, images, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["sd3", "sd15"])
def test_adapters_load_into_a_policy_s_pipeline(saved, name, tmp_path):
    trained, policy = saved[name].perturbed(lora={"rank": 2}), saved[name].policy()
    trained.export(tmp_path)
    before = saved[name].draw(policy)
    policy.pipe.load_lora_weights(tmp_path)
    after = saved[name].draw(policy)
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(after, saved[name].draw(trained), rtol=0, atol=1e-5)


def test_a_call_leaves_the_pipeline_s_configuration_alone(tiny):
    policy, seen = tiny.policy(), []
    before = dict(policy.pipe.config)
    policy.module.register_forward_pre_hook(lambda *_: seen.append(dict(policy.pipe.config)))
    tiny.draw(policy)
    assert seen == [before] * 4
    assert dict(policy.pipe.config) == before
