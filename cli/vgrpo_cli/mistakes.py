"""Mistakes on the command line and warnings of plugins, in the form of all others: what is wrong, and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from vgrpo_core.errors import nearest

UsageError: Any = typer.BadParameter.__base__  # click's, which typer has no public name for


def worded(error: Any, root: Any, words: Sequence[str]) -> str:
    """Say what a usage error of the parser of `root` is about in the words typed, with the nearest option where one is unknown."""
    command, path = _named(root, words)
    if hasattr(error, "possibilities"):
        known = [name for parameter in command.params for name in parameter.opts if name.startswith("--")]
        what = f"no option {error.option_name}{nearest(error.option_name, [*known, '--help'])}"
    else:
        found = " ".join(error.format_message().split()).removesuffix(".")
        what = found.replace(". Did you mean", "; did you mean").replace(": Value error, ", ": ")
    return f"Error: {path}: {what[:1].lower()}{what[1:]}\n  `{path} --help` shows what it takes."


def warn_in_words() -> None:
    """Print what vgrpo and its plugins warn of as words alone; a library's warning keeps its place in the code."""
    usual = warnings.formatwarning

    def written(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
        ours = category is UserWarning and any(part.startswith("vgrpo_") for part in Path(filename).parts)
        return f"warning: {message}\n" if ours else usual(message, category, filename, lineno, line)

    warnings.formatwarning = written


def _named(command: Any, words: Sequence[str]) -> tuple[Any, str]:
    """Find the command that words start with: the parser does not tell it with all of its errors."""
    path = ["vgrpo"]
    for word in words:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
        path.append(word)
    return command, " ".join(path)
