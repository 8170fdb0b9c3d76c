"""Compare an iteration with the bare calls that it can't do without: `python benchmarks/overhead.py [RECIPE] [--set KEY=VALUE ...]`.

Both run in one process, in turn, on the same numbers of rows: the text encoders on its prompts (new ones in every iteration of
`words`), the transformer's forward and backward passes, the VAE's decoding, the rewards and the optimizer's steps, called directly; and
`Trainer.train`. What an iteration takes beyond the bare calls is overhead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from vgrpo_cli.shipped import find
from vgrpo_core import Samples
from vgrpo_core.trainer import Trainer
from vgrpo_recipe import load

FIGURES = Path(__file__).parent.parent / "docs" / "figures" / "overhead.json"


class Bare:
    """The calls of one iteration on a Stable Diffusion 3 pipeline, without anything of vgrpo between them."""

    def __init__(self, trainer: Trainer) -> None:
        recipe = trainer.recipe
        self.trainer, self.pipe, self.recipe = trainer, trainer.policy.pipe, recipe
        self.count, self.pairs = recipe.batch.prompts * recipe.batch.group, recipe.objective.rows_per_sample
        self.prompts = tuple(
            prompt for prompt in trainer.prompts.draw(recipe.run.seed, 1, recipe.batch.prompts) for _ in range(recipe.batch.group)
        )
        texts = [prompt.text for prompt in self.prompts]
        self.hidden, self.pooled = (part.repeat_interleave(recipe.batch.group, 0) for part in self.encode())
        self.noise = trainer.policy.noise(texts, [torch.Generator().manual_seed(row) for row in range(self.count)])

    @torch.no_grad()
    def encode(self) -> list[torch.Tensor]:
        """Encode the prompts of an iteration together, and keep nothing for the next."""
        texts = [prompt.text for prompt in self.prompts[:: self.recipe.batch.group]]
        still = {"prompt_2": None, "prompt_3": None, "do_classifier_free_guidance": False}
        tokens = {"max_sequence_length": self.recipe.backbone.call.get("max_sequence_length", 256)}
        return self.pipe.encode_prompt.encode_prompt(prompt=texts, **still, **tokens)[::2]

    def forward(self, rows: slice, repeat: int = 1) -> torch.Tensor:
        """Evaluate the transformer on some samples, each `repeat` times."""
        inputs = [value[rows].repeat_interleave(repeat, 0) for value in (self.noise, self.hidden, self.pooled)]
        times = torch.full((len(inputs[0]),), 500.0)
        return self.pipe.transformer(*inputs, times, return_dict=False)[0]

    @torch.no_grad()
    def rollout(self) -> torch.Tensor:
        """Draw: as many forward passes as the sampler takes."""
        micro = self.recipe.batch.micro
        for _ in range(self.recipe.sampler.evaluations):
            for start in range(0, self.count, micro):
                self.forward(slice(start, start + micro))
        return self.noise

    @torch.no_grad()
    def decode(self) -> torch.Tensor:
        """Decode, as the pipeline does."""
        scale, shift, micro = self.pipe.vae.config.scaling_factor, self.pipe.vae.config.shift_factor, self.recipe.batch.micro
        parts = [self.pipe.vae.decode(part / scale + shift, return_dict=False)[0] for part in self.noise.split(micro)]
        return (torch.cat(parts) / 2 + 0.5).clamp(0, 1)

    def rewards(self, images: torch.Tensor) -> None:
        """Score."""
        for part in range(0, self.count, self.recipe.batch.micro):
            rows = slice(part, part + self.recipe.batch.micro)
            for judge in self.trainer.judges:
                judge.score(Samples(self.prompts[rows], images[rows]))

    def update(self) -> None:
        """Take the gradient steps: forward and backward on all pairs, clip, AdamW."""
        samples = max(1, self.recipe.batch.micro // self.pairs)
        optimizer = self.trainer.optimizer
        for _ in range(self.recipe.objective.steps):
            for start in range(0, self.count, samples):
                self.forward(slice(start, start + samples), self.pairs).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(optimizer.parameters, 1.0)
            optimizer.adamw.param_groups[0]["lr"] = 0.0
            optimizer.adamw.step()
            optimizer.adamw.zero_grad(set_to_none=True)

    def iterate(self) -> dict[str, float]:
        """Do all of it and return the seconds of each part."""
        seconds = {}
        seconds["text encoders"], _ = timed(self.encode)
        seconds["rollout"], _ = timed(self.rollout)
        seconds["decode"], images = timed(self.decode)
        seconds["rewards"], _ = timed(lambda: self.rewards(images))
        seconds["update"], _ = timed(self.update)
        return seconds


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """Return how long a call took, and what it returned."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="words")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", action="store_true", help="keep the figures for docs/performance.md")
    asked = parser.parse_args()
    trainer = Trainer(load(find(asked.recipe), asked.set), torch.device("cpu"), lambda event: None)
    bare = Bare(trainer)
    trainer.train()
    bare.iterate()
    parts, whole = [], []
    for _ in range(asked.rounds):
        parts.append(bare.iterate())
        whole.append(timed(trainer.train)[0])
    medians = {name: statistics.median(part[name] for part in parts) for name in parts[0]}
    medians |= {"all bare calls": sum(medians.values()), "iteration": statistics.median(whole)}
    for name, seconds in medians.items():
        print(f"{name:16} {seconds:8.3f} s")
    # The machine's speed drifts: a round's iteration is compared with the bare calls right before it.
    beyond = sorted(seconds / sum(part.values()) - 1 for part, seconds in zip(parts, whole, strict=True))
    print(f"{statistics.median(beyond):+.1%} (rounds: {', '.join(f'{share:+.1%}' for share in beyond)})")
    medians["beyond"] = statistics.median(beyond)
    if asked.save:
        FIGURES.write_text(json.dumps({name: round(seconds, 4) for name, seconds in medians.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
