"""Measure what an iteration takes beyond the calls that it can't do without: `python benchmarks/overhead.py` writes docs/figures/overhead.json.

The calls are timed inside `Trainer.train` itself: the pipeline's encoding of new prompts, the network's forward and backward passes, the VAE, the rewards,
clipping and the optimizer's step. All else is overhead. Both are parts of the same seconds, so that a machine whose speed drifts
changes them alike. The recipe is `words`, on the model that comes with vgrpo and on the tests' tiny Stable Diffusion 3.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from vgrpo_cli.shipped import find
from vgrpo_core.trainer import Trainer
from vgrpo_recipe import load

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures" / "overhead.json"


class Clock:
    """Add up the seconds that functions take, by name; a call inside a timed call is not counted again."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.running = False

    def on(self, owner: Any, attribute: str, name: str, graded: str = "") -> None:
        """Time every call of a function that belongs to `owner`; calls that keep what a gradient needs may have a name of their own."""
        setattr(owner, attribute, self.timed(getattr(owner, attribute), name, graded or name))

    def timed(self, call: Callable[..., Any], name: str, graded: str) -> Callable[..., Any]:
        """Return a function that does the same and is timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self.running:
                return call(*args, **kwargs)
            self.running, start = True, time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.running = False
                self.seconds[graded if torch.is_grad_enabled() else name] += time.perf_counter() - start

        return timed


def watch(trainer: Trainer) -> Clock:
    """Time what a Stable Diffusion 3 pipeline, the rewards and the optimizer are asked to do."""
    clock, pipe, optimizer = Clock(), trainer.policy.pipe, trainer.optimizer
    clock.on(pipe.encode_prompt, "encode_prompt", "text encoders")  # the pipeline's own, behind the cache of embeddings
    clock.on(pipe.transformer, "forward", "rollout", "surrogate")
    clock.on(torch.Tensor, "backward", "backward")
    clock.on(pipe.vae, "decode", "decode")
    for judge in trainer.judges:
        clock.on(judge, "score", "rewards")
    clock.on(optimizer.adamw, "step", "optimizer")
    clock.on(torch.nn.utils, "clip_grad_norm_", "optimizer")
    return clock


def measure(recipe: str, overrides: list[str], rounds: int) -> dict[str, float]:
    """Return the median seconds of each part of an iteration, and the median share of what is none of them."""
    trainer = Trainer(load(find(recipe), overrides), torch.device("cpu"), lambda event: None)
    assert trainer.recipe.batch.micro >= trainer.recipe.batch.prompts * trainer.recipe.batch.group, "rewards would overlap with sampling"
    trainer.train()
    original, clock = torch.Tensor.backward, watch(trainer)
    parts, whole = [], []
    for _ in range(rounds):
        clock.seconds.clear()
        start = time.perf_counter()
        trainer.train()
        whole.append(time.perf_counter() - start)
        parts.append(dict(clock.seconds))
    torch.Tensor.backward = original
    beyond = [seconds / sum(part.values()) - 1 for seconds, part in zip(whole, parts, strict=True)]
    print(f"{min(beyond):+.2%} to {max(beyond):+.2%} in {rounds} rounds")
    medians = {name: statistics.median(part.get(name, 0.0) for part in parts) for name in clock.seconds}
    images = trainer.recipe.batch.prompts * trainer.recipe.batch.group
    whole_median = statistics.median(whole)
    return medians | {"iteration": whole_median, "1,000 images": 1000 * whole_median / images, "beyond": statistics.median(beyond)}


def tiny_sd3(folder: Path) -> str:
    """Save the tests' tiny Stable Diffusion 3 and return its folder."""
    spec = importlib.util.spec_from_file_location("zoo_image", ROOT / "tests" / "families" / "zoo_image.py")
    zoo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(zoo)
    torch.manual_seed(0)
    zoo.sd3().save_pretrained(folder)
    return str(folder)


def main() -> None:
    """Measure, print, and keep the figures for docs/performance.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tiny = [f"backbone.model={tiny_sd3(Path(folder))}", "backbone.call={}", "backbone.size=[64, 64]"]
        found = {"embedded model": measure("words", [], asked.rounds), "tiny SD3": measure("words", tiny, asked.rounds)}
    print(json.dumps(found, indent=1))
    rounded = {model: {name: float(f"{value:.4g}") for name, value in parts.items()} for model, parts in found.items()}
    FIGURES.write_text(json.dumps(rounded, indent=1) + "\n")


if __name__ == "__main__":
    main()
