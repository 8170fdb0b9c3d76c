"""Every family of both zoos, saved and loaded once a module.

A zoo is a file `zoo_*.py` with a dict FAMILIES, from a family's name to
- build: makes the tiny pipeline;
- size, call: what its recipe says;
- idle (optional): regular expressions of the weights that can have no gradient, whoever computes it;
- scheduler (optional): makes, of the pipeline's own scheduler, the one that takes our sampler's steps, for the comparison;
- rough (optional): how far a small change may be from its gradient, as a share of the gradient's norm;
- reference (optional): further arguments of the pipeline's call for which it does what the policy does;
- load (optional): loads exported adapters into a pipeline, where that is not just `load_lora_weights`;
- slow (optional): True where the contract takes more than a few seconds.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

from vgrpo_samplers import DDIM, Euler

STEPS = 4
PROMPTS = ["a red sign", "blue", "a longer prompt than both"]


def sibling(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MEASURE = sibling("measure")
FAMILIES = MEASURE.families()


def seeded(row: int) -> torch.Generator:
    return torch.Generator().manual_seed(row)


@dataclass
class Drawn:
    """What a pipeline did with each prompt by itself; `outputs`, `samples` [STEPS, B, *D] are what its scheduler was handed."""

    outputs: torch.Tensor
    samples: torch.Tensor
    latents: torch.Tensor
    images: torch.Tensor


class Family:
    """One saved family: loaded as a policy, as the backbone does it, or plainly as anybody would."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.entry = name, folder, FAMILIES[name]
        MEASURE.save(self.entry, folder)

    def policy(self, **options: Any) -> Any:
        torch.manual_seed(0)  # for fresh adapters
        return MEASURE.backbone(self.entry, self.folder, **options).load(torch.device("cpu"))

    @cached_property
    def unchanged(self) -> Any:
        """The policy without further options, for tests that only look at it."""
        return self.policy()

    @cached_property
    def drawn(self) -> Drawn:
        """What the pipeline itself does."""
        return self.draw(self.pipe())

    def pipe(self) -> Any:
        pipe = diffusers.DiffusionPipeline.from_pretrained(self.folder)
        pipe.set_progress_bar_config(disable=True)
        if "scheduler" in self.entry:
            pipe.scheduler = self.entry["scheduler"](pipe.scheduler)
        return pipe

    def draw(self, pipe: Any, **further: Any) -> Drawn:
        """Run a pipeline for each prompt by itself, so that none is padded to the others' length, and listen at its scheduler."""
        call = {**self.unchanged.call, **further, **self.entry.get("reference", {}), "num_inference_steps": STEPS}
        rows, images = [], []
        for row, prompt in enumerate(PROMPTS):
            kept = heard(pipe)
            lists = {name: [call[name]] for name in ("negative_prompt",) if name in call}  # new ones: Z-Image writes into them
            own = {"generator": [seeded(row)], "output_type": "pt", "return_dict": False}
            images.append(pipe(prompt=[prompt], **call | lists | own)[0])
            del pipe.scheduler.step
            rows.append(kept)
        outputs, samples, results = (
            torch.stack([torch.cat([row[step][part] for row in rows]) for step in range(STEPS)]) for part in range(3)
        )
        return Drawn(outputs, samples, results[-1], torch.cat(images))

    def sample(self, policy: Any) -> torch.Tensor:
        """Finished latents, drawn as training draws them."""
        sampler = Euler(steps=STEPS) if policy.process.alphas_cumprod is None else DDIM(steps=STEPS)
        with torch.no_grad():
            noise = policy.noise(PROMPTS, [seeded(row) for row in range(len(PROMPTS))])
            return sampler.sample(lambda z, t: policy.predict(z, t, PROMPTS), noise, policy.schedule(STEPS))

    def load(self, pipe: Any, folder: Path) -> None:
        """Load exported adapters as the pipeline's users would."""
        if "load" in self.entry:
            self.entry["load"](pipe, folder)
        else:
            pipe.load_lora_weights(folder, weight_name="pytorch_lora_weights.safetensors")

    def idle(self, name: str) -> bool:
        """Tell whether a weight can have no gradient."""
        return any(MEASURE.re.search(pattern, name) for pattern in self.entry.get("idle", ()))


def heard(pipe: Any) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Keep what a pipeline hands to its scheduler and gets back: (output, latents, next latents) of each step."""
    kept, step = [], pipe.scheduler.step

    def hearing(output, timestep, latents, *args, **rest):
        result = step(output, timestep, latents, *args, **rest)
        kept.append((output.clone(), latents.clone(), result[0].clone()))
        return result

    pipe.scheduler.step = hearing
    return kept


NAMES = [pytest.param(name, marks=[pytest.mark.slow] * bool(entry.get("slow"))) for name, entry in FAMILIES.items()]


@pytest.fixture(scope="module", params=NAMES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(request.param, tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="session")
def measure() -> Any:
    return MEASURE


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Family]:
    """Any family by its name, built once."""
    return cache(lambda name: Family(name, tmp_path_factory.mktemp("family")))
