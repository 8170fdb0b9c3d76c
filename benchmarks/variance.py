"""Measure how much the surrogate varies, with and without each variance reduction: `python benchmarks/variance.py` writes docs/figures/variance.json.

The coefficient of variation (deviation over mean) of L(theta | o) over all samples, and inside a group on average, for the images of
`words` under the model that comes with vgrpo: mean and deviation over iterations, each with other prompts, images and pairs. The same
images are measured by every variant. Images differ, so that even a perfect measurement varies: the rows of 64 pairs show how much.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from vgrpo_cli.shipped import find
from vgrpo_core.rollout import Rollout, draws, sample
from vgrpo_core.surrogate import SurrogateUpdate
from vgrpo_core.trainer import Trainer
from vgrpo_core.vgrpo import VGRPO
from vgrpo_recipe import load

FIGURES = Path(__file__).parent.parent / "docs" / "figures" / "variance.json"
ITERATIONS = 8
NAIVE = {"shared": False, "stratified": False, "adaptive": False}
VARIANTS = {
    "none of the three": NAIVE,
    "shared pairs only": NAIVE | {"shared": True},
    "stratified times only": NAIVE | {"stratified": True},
    "adaptive weight only": NAIVE | {"adaptive": True},
    "all but shared pairs": {"shared": False},
    "all but stratified times": {"stratified": False},
    "all but adaptive weight": {"adaptive": False},
    "all three": {},
    "all three, 2 pairs": {"pairs": 2},
    "all three, 8 pairs": {"pairs": 8},
    "all three, 64 pairs": {"pairs": 64},
    "all three, error of the velocity": {"loss": "v"},
    "all three, error of the noise": {"loss": "epsilon"},
}


def rollout(trainer: Trainer, iteration: int) -> Rollout:
    """Draw the images of an iteration; no reward is asked."""
    recipe, batch = trainer.recipe, trainer.recipe.batch
    chosen = trainer.prompts.draw(recipe.run.seed, iteration, batch.prompts)
    rows = draws(recipe.run.seed, "noise", chosen, batch.group, iteration)
    none = torch.zeros(len(rows))
    return Rollout(rows.seed, iteration, batch.group, rows.prompts, sample(trainer.policy, recipe.sampler, rows), none, none.bool())


def variation(values: torch.Tensor) -> float:
    """Return deviation over mean of values [N]."""
    return float(values.std(correction=0) / values.mean())


@torch.no_grad()
def measure(trainer: Trainer, drawn: Rollout, options: dict) -> tuple[float, float]:
    """Return the coefficient of variation over all samples, and the mean of it over groups."""
    update = SurrogateUpdate(VGRPO(**options), trainer.policy, drawn, 64)
    found = [update.measure(rows).surrogate for rows in torch.arange(len(drawn.prompts)).split(16 if options.get("pairs", 4) > 8 else 72)]
    values = torch.cat(found).double()
    return variation(values), statistics.mean(variation(group) for group in values.view(-1, drawn.group))


def main() -> None:
    trainer = Trainer(load(find("words")), torch.device("cpu"), lambda event: None)
    rollouts = [rollout(trainer, iteration) for iteration in range(1, ITERATIONS + 1)]
    found = {}
    for name, options in VARIANTS.items():
        overall, inside = zip(*(measure(trainer, drawn, options) for drawn in rollouts), strict=True)
        found[name] = {
            kind: {"mean": round(statistics.mean(values), 4), "deviation": round(statistics.stdev(values), 4)}
            for kind, values in (("overall", overall), ("in_group", inside))
        }
        print(f"{name:34} overall {found[name]['overall']['mean']:.3f}, in group {found[name]['in_group']['mean']:.3f}", flush=True)
    FIGURES.write_text(json.dumps({"iterations": ITERATIONS, "variants": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
