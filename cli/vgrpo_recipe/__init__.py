"""A recipe: one TOML file that says what to train, on what and how. Every mistake in it is reported at once."""

from .reader import load

__all__ = ["load"]
