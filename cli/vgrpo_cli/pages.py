"""What the help pages of all commands have in common."""

from __future__ import annotations

PLAIN = {"help_option_names": ["-h", "--help"]}


def example(*commands: str) -> str:
    """Write commands for the end of a help page, each on a line of its own."""
    return "\n".join(["\b", *(f"Example: vgrpo {command}" for command in commands)])
