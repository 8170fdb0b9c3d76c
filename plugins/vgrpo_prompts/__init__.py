"""Sources of prompts."""

from __future__ import annotations

from vgrpo_core import Prompts, hookimpl

from .words import Words


@hookimpl
def vgrpo_prompts() -> list[type[Prompts]]:
    """Offer the prompt sources of this package."""
    return [Words]
