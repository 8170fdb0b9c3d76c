"""What a recipe needs: memory and hours, from what is known of its model without loading anything."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from vgrpo_compare.budget import per_iteration
from vgrpo_recipe.plan import Plan

from .shipped import FOLDER

if TYPE_CHECKING:
    from vgrpo_core.recipe import Recipe

FLOAT = 4  # bytes
MOMENTS = 2
RATE = 0.4 * 989e12
"""Operations a second: 40 % of what one H100 does in bfloat16 at most, without sparsity."""
PIXELS, FRAMES = 8, 4
"""Sides of a latent in pixels, and frames that it stands for after the first one: those of all models in the table."""

ASSUMED = (
    "Memory: weights, gradients and moments on one GPU; activations come on top, and rewards, whose files are named apart.",
    "Hours: the network's arithmetic alone, on one H100 at 40 % of 989 TFLOP/s; text encoders, decoding, rewards and "
    "evaluation come on top.",
)


@cache
def table() -> dict[str, Any]:
    """Read what `benchmarks/sizes.py` has counted."""
    found: dict[str, Any] = json.loads((FOLDER / "sizes.json").read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Memory:
    """Bytes on a GPU."""

    stays: int
    """While the denoiser works."""
    visits: int
    """More, for the moment in which text encoders that wait on the CPU encode prompts."""
    divided: int
    """Of `stays`, what `run.shard` splits over the ranks; 0 without it."""


def memory(recipe: Recipe) -> Memory | None:
    """Add up weights, gradients and moments, as `vgrpo check --memory` does; None for a model that is not in the table."""
    options: Any = recipe.backbone
    known = table()["models"].get(getattr(options, "model", None))
    if known is None:
        return None
    parts = {name: size["float32" if "vae" in name else options.dtype] for name, size in known["components"].items()}
    trained, denoiser = _trained(known, options.lora), known["components"][known["denoiser"]]
    moments = MOMENTS * trained * (FLOAT if recipe.optimizer.bits == 32 else 1)
    learning = FLOAT * trained + moments  # gradients first
    whole = denoiser[options.dtype] + FLOAT * trained if options.lora else denoiser["float32"]
    encoders = sum(size for name, size in parts.items() if name.startswith("text_encoder"))
    idle = encoders + sum(size for name, size in parts.items() if "vae" in name)
    return Memory(
        stays=whole + learning + (0 if options.offload else idle),
        visits=encoders if options.offload else 0,
        divided=whole + learning if recipe.run.shard else 0,
    )


def _trained(known: Mapping[str, Any], lora: Any) -> int:
    if lora is None:
        return int(known["components"][known["denoiser"]]["weights"])
    return int(lora.rank * known["adapters"][" ".join(sorted(lora.targets))]["weights"])


def operations(recipe: Recipe) -> float | None:
    """Return the operations of one forward pass of one image or video; None where they are not known.

    A parabola in the number of latents: weights cost each of them the same, attention each pair of them.
    """
    options: Any = recipe.backbone
    known = table()["models"].get(getattr(options, "model", None), {})
    if "operations" not in known or options.size is None:
        return None
    height, width = options.size
    frames = (options.call.get("num_frames", 1) - 1) // FRAMES + 1
    latents = (height // PIXELS) * (width // PIXELS) * frames
    return float(sum(factor * latents**power for power, factor in enumerate(known["operations"])))


def passes(recipe: Recipe) -> float:
    """Count what an iteration sends through the network, in forward passes.

    A backward pass counts as two, with LoRA as one, for frozen weights have no gradients; gradient checkpointing adds one.
    """
    options: Any = recipe.backbone
    plan = Plan(recipe, ranks=1, prompts=0, held_out=0)
    forwards = per_iteration(plan, "forwards")
    gradients = (per_iteration(plan, "all") - forwards) / 2
    each = (1 if options.lora else 2) + (1 if options.gradient_checkpointing else 0)
    return forwards + gradients * each


def hours(recipe: Recipe) -> float | None:
    """Return GPU hours of training: operations x passes x iterations / `RATE`; None where operations are not known."""
    each = operations(recipe)
    return None if each is None else each * passes(recipe) * recipe.run.iterations / RATE / 3600


def fetched(recipe: Recipe) -> float:
    """Add up the files of its rewards that no package brings, in GB; those of unknown size are left out."""
    rewards = [entry.plugin for entry in (*recipe.rewards, *recipe.eval.rewards)]
    sizes = {asset.name: asset.size for reward in rewards for asset in reward.assets()}
    return sum(size for size in sizes.values() if not math.isnan(size))


def said(name: str, recipe: Recipe) -> list[str]:
    """Say what a shipped recipe needs: memory, then hours, then files of rewards."""
    parts = [_memory(memory(recipe)), _hours(name, recipe), f"{gigabytes(fetched(recipe) * 1e9)} of reward models"]
    return [part for part in parts if part and part != "0 GB of reward models"]


def _memory(found: Memory | None) -> str:
    if found is None:
        return ""
    if found.divided:
        return f"{gigabytes(found.stays - found.divided)} on each GPU and {gigabytes(found.divided)} over all of them"
    more = f", {gigabytes(found.stays + found.visits)} while prompts are encoded" if found.visits else ""
    return gigabytes(found.stays) + more


def _hours(name: str, recipe: Recipe) -> str:
    if run := table()["measured"].get(name):
        return f"{run['seconds'] / 60:.1f} minutes for {run['iterations']} iterations, measured on {run['cores']} CPU cores"
    found = hours(recipe)
    return "" if found is None else f"{found:.2g} GPU hours" if found < 10 else f"{found:.0f} GPU hours"


def gigabytes(size: float) -> str:
    """Write bytes in GB of 10^9 bytes, rounded to what matters: two digits below ten, whole ones above."""
    return f"{size / 1e9:.2g} GB" if size < 9.95e9 else f"{size / 1e9:.0f} GB"
