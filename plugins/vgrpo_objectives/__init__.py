"""Objectives that V-GRPO is compared with, each by its authors' published definition."""

from __future__ import annotations

from vgrpo_core import Objective, hookimpl

from .awm import AWM
from .dancegrpo import DanceGRPO
from .diffusion_nft import DiffusionNFT
from .elbo_naive import ElboNaive
from .flow_grpo import FlowGRPO
from .mixgrpo import MixGRPO

__all__ = ["AWM", "DanceGRPO", "DiffusionNFT", "ElboNaive", "FlowGRPO", "MixGRPO", "vgrpo_objectives"]


@hookimpl
def vgrpo_objectives() -> list[type[Objective]]:
    """Offer the objectives of this package."""
    return [DiffusionNFT, AWM, ElboNaive, FlowGRPO, MixGRPO, DanceGRPO]
