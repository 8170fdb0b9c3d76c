"""One rank of runs of the toy, `worker.py FOLDER NAME=RECIPE ...`: how each ended and what it drew is in FOLDER/NAME/rank-N.pt."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Literal

import torch

import vgrpo_core.rollout
import vgrpo_core.run
import vgrpo_recipe
from vgrpo_core import Reward, pairs
from vgrpo_core.offers import Offer
from vgrpo_core.ranks import Ranks
from vgrpo_core.run import Stopped, run
from vgrpo_core.vgrpo import VGRPO
from vgrpo_recipe.registry import Registry


class Uneven(Reward):
    """Mean red; on rank 1 it knows nothing, or fails."""

    name = "uneven"
    kind: Literal["blind", "fail"] = "blind"

    def load(self, device):
        other = os.environ.get("RANK") == "1"

        def score(samples):
            if other and self.kind == "fail":
                raise ConnectionError("no answer")
            red = samples.images[:, 0].mean((1, 2))
            return torch.full_like(red, torch.nan) if other else red

        return score


def kept(function, into):
    """Note what `function` is called with and what it returns."""

    def call(*args, **options):
        found = function(*args, **options)
        into.append((args, found))
        return found

    return call


def timed(plugin, into):
    """Note when a plugin's `load` begins and ends."""
    load = plugin.load

    def timing(self, device):
        into.append(time.time())
        found = load(self, device)
        time.sleep(0.1)
        into.append(time.time())
        return found

    plugin.load = timing


def drifting(ranks):
    """Let the weights of rank 1 go astray after each of its gradient steps."""
    add = ranks.add_gradients

    def add_gradients(parameters):
        add(parameters)
        if ranks.rank == 1:
            parameters[0].data.add_(1e-3)

    ranks.add_gradients = add_gradients


def end(name, recipe, folder, ranks):
    """Run a recipe and say how it ended."""
    asked = iter(range(1, 99))
    stop = (lambda: next(asked) == 3 and ranks.rank == 1) if name == "stop" else (lambda: False)
    try:
        run(recipe, folder, lambda event: None, stop=stop, ranks=ranks)
    except Stopped as stopped:
        return str(stopped)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def main(folder, *runs):
    torch.set_num_threads(1)
    registry = Registry((Offer("objective", "vgrpo", VGRPO, "vgrpo", "0"),))
    samples, explored, drawn, trainers = [], [], [], []
    vgrpo_core.rollout.sample = kept(vgrpo_core.rollout.sample, samples)
    vgrpo_core.rollout.explore = kept(vgrpo_core.rollout.explore, explored)
    vgrpo_core.run.Trainer = kept(vgrpo_core.run.Trainer, trainers)
    pairs.draw = kept(pairs.draw, drawn)
    with Ranks.join() as ranks:
        for name, _, recipe in (each.partition("=") for each in runs):
            for each in (samples, explored, drawn):
                each.clear()
            ranks.sharded = ranks.agreed = False
            loaded, made = [], vgrpo_recipe.load(recipe, (), registry)
            timed(type(made.backbone), loaded)
            if name == "drift":
                drifting(ranks)
            ended = end(name, made, Path(folder) / name / "run", ranks)
            images = [*samples, *((asked, trajectory.latents) for asked, trajectory in explored)]
            latents = {(part.purpose, *key): row for (_, _, part), rows in images for key, row in zip(part.keys, rows, strict=True)}
            pairs_made = [(key, noise) for (keys, *_), found in drawn for key, noise in zip(keys, found.noise, strict=True)]
            kept_of = {"end": ended, "latents": latents, "pairs": pairs_made, "loaded": loaded}
            if name == "behind":
                kept_of["copies"] = trainers[-1][1].copies.state()
            torch.save(kept_of, Path(folder) / name / f"rank-{ranks.rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
