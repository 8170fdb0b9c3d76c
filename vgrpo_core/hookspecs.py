"""The hooks that a plugin module may implement; each returns classes, and the recipe chooses among them."""

from __future__ import annotations

import pluggy

from .plugin import Backbone, Objective, Prompts, Reward, Sampler

PROJECT = "vgrpo"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

KINDS = {"backbone": Backbone, "sampler": Sampler, "prompts": Prompts, "reward": Reward, "objective": Objective}
HOOKS = {kind: f"vgrpo_{kind.removesuffix('s')}s" for kind in KINDS}


@hookspec
def vgrpo_backbones() -> list[type[Backbone]]:
    """Offer models to train, such as `[Diffusers]`."""
    return []


@hookspec
def vgrpo_samplers() -> list[type[Sampler]]:
    """Offer ways from noise to latents, such as `[Euler, Heun]`."""
    return []


@hookspec
def vgrpo_prompts() -> list[type[Prompts]]:
    """Offer sources of prompts, such as `[Words]`."""
    return []


@hookspec
def vgrpo_rewards() -> list[type[Reward]]:
    """Offer judges of images, such as `[OCR, JpegSize]`."""
    return []


@hookspec
def vgrpo_objectives() -> list[type[Objective]]:
    """Offer losses of a gradient step, such as `[VGRPO]`."""
    return []
