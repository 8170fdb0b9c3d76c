"""Sources of prompts."""

from __future__ import annotations

from vgrpo_core import Prompts, hookimpl

from .file import File
from .geneval import GenEval
from .huggingface import HuggingFace
from .words import Words


@hookimpl
def vgrpo_prompts() -> list[type[Prompts]]:
    """Offer the prompt sources of this package."""
    return [File, GenEval, HuggingFace, Words]
