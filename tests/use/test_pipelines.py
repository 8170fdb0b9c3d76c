"""Pipelines that save and load adapters in ways of their own come back as they were trained."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from vgrpo_samplers import DPMSolver, Euler
from vgrpo_use import pipelines

SAMPLERS = {"PixArt-Sigma": DPMSolver(steps=2), "Wan 2.2": Euler(steps=2)}


@pytest.fixture(scope="module")
def measure():
    """How the tests of model families build a tiny pipeline."""
    spec = importlib.util.spec_from_file_location("measure", Path(__file__).parents[1] / "families" / "measure.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("family", SAMPLERS)
def test_adapters_and_whole_pipelines_come_back(measure, family, tmp_path):
    """PixArt-Sigma has no `load_lora_weights`; Wan 2.2 has two networks."""
    entry, sampler, device = measure.families()[family], SAMPLERS[family], torch.device("cpu")
    measure.save(entry, tmp_path / "base")
    options = measure.backbone(entry, tmp_path / "base", lora={"rank": 2, "alpha": 6.0})
    policy = options.load(device)
    before = pipelines.latents(policy, sampler)
    generator = torch.Generator().manual_seed(0)
    policy.restore({name: p + 0.3 * torch.randn(p.shape, generator=generator) for name, p in policy.state().items()})
    expected = pipelines.Expected.of(policy, sampler)
    assert (expected.latents - before).abs().max() > 1e-2
    assert {name.partition(".")[0] for name in expected.adapters} == set(policy.denoisers)
    policy.export(tmp_path / "adapters")
    pipelines.write_whole(policy, options, tmp_path / "whole")
    for folder, whole in (("adapters", False), ("whole", True)):
        found = pipelines.reloaded(options, tmp_path / folder, device, whole=whole)
        assert pipelines.check(expected, found, sampler, whole=whole) < 1e-4
