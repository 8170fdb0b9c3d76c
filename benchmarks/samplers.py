"""Measure samplers on every tested family: `python benchmarks/samplers.py` writes docs/figures/samplers.json.

The error is that of the finished latents against the same model's own solution by `heun` in 256 steps, as a share of its size, for the
same noise and the same number of network evaluations. The models are tiny and random: what counts is how the errors compare.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from vgrpo_core import Policy, Sampler, Schedule
from vgrpo_samplers import DDIM, DPMSolver, Euler, Heun

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures" / "samplers.json"
EVALUATIONS = (7, 15, 31)
PROMPTS = ["a red sign", "a blue sign"]


def schedule(policy: Policy, steps: int) -> Schedule:
    """Return the family's own times; for diffusion, times that start at the same noise for every number of steps."""
    own = policy.schedule(steps)
    if policy.process.alphas_cumprod is None:
        return own
    return Schedule(torch.linspace(999, -1, steps + 1) / 1000, policy.process, own.scheduler)


@torch.no_grad()
def drawn(policy: Policy, sampler: Sampler) -> torch.Tensor:
    """Return finished latents."""
    noise = policy.noise(PROMPTS, [torch.Generator().manual_seed(row) for row in range(len(PROMPTS))])
    return sampler.sample(lambda z, t: policy.predict(z, t, PROMPTS), noise, schedule(policy, sampler.steps))


def errors(policy: Policy) -> dict[str, dict[int, float]]:
    """Return the error of each sampler at each number of evaluations."""
    reference = drawn(policy, Heun(steps=256))
    kinds = [Euler, DPMSolver, Heun] + [DDIM] * (policy.process.alphas_cumprod is not None)
    found: dict[str, dict[int, float]] = {}
    for kind in kinds:
        for count in EVALUATIONS:
            sampler = kind(steps=(count + 1) // 2 if kind is Heun else count)
            assert sampler.evaluations == count
            error = (drawn(policy, sampler) - reference).square().mean().sqrt() / reference.square().mean().sqrt()
            found.setdefault(kind.name, {})[count] = float(f"{error:.2e}")
    return found


def families() -> Any:
    """Load the zoo of the tests."""
    spec = importlib.util.spec_from_file_location("measure", ROOT / "tests" / "families" / "measure.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Measure every family."""
    zoo, rows = families(), {}
    for name, entry in zoo.families().items():
        with tempfile.TemporaryDirectory() as folder:
            zoo.save(entry, Path(folder))
            rows[name] = errors(zoo.backbone(entry, Path(folder)).load(torch.device("cpu")))
        print(name, rows[name], flush=True)
    FIGURES.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
