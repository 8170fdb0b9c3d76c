"""The minimal core of vgrpo: plugin classes, recipes, V-GRPO. It knows no model, no reward and no screen.

These names are what plugins are written with. Importing them does not import torch; `Samples`, `Scores`, `Process`, `Schedule` and
`Policy` do, when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import PluginError, RecipeError, RunError, VgrpoError
from .hookspecs import hookimpl
from .plugin import Asset, Backbone, Objective, Plugin, Prompt, Prompts, Reward, Sampler, StochasticSampler, Trajectory

if TYPE_CHECKING:
    from .policy import Policy
    from .process import Process, Schedule
    from .samples import Samples, Scores

_NEED_TORCH = {"Policy": "policy", "Process": "process", "Schedule": "process", "Samples": "samples", "Scores": "samples"}

__all__ = [  # noqa: RUF022
    "Asset", "Backbone", "Objective", "Plugin", "Policy", "Process", "Prompt", "Prompts", "Reward", "Sampler", "Samples",
    "Schedule", "Scores", "StochasticSampler", "Trajectory",
    "PluginError", "RecipeError", "RunError", "VgrpoError", "hookimpl",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what needs torch on first use (PEP 562)."""
    if name in _NEED_TORCH:
        return getattr(importlib.import_module(f"vgrpo_core.{_NEED_TORCH[name]}"), name)
    raise AttributeError(f"module 'vgrpo_core' has no attribute {name!r}")
