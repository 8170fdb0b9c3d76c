"""Plain text in columns, and in as many of them as a terminal has."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from textwrap import wrap

import typer

COMMAND = "go on with: "
NARROW = 24  # columns: too few to wrap text in


def columns(rows: Sequence[Sequence[str]], *, right: bool = False) -> list[str]:
    """Line up cells, two blanks apart; with `right`, all but the first column is pushed to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [f"{cell:{'>' if right else '<'}{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines


def say(lines: Iterable[str], *, hang: int = 2) -> None:
    """Print lines: wrapped at blanks on a terminal, whole elsewhere, where a line is one thing to search for."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in lines:
        for part in wrapped(line, width, hang) if width else [line]:
            typer.echo(part)


def say_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; on a terminal the last column is wrapped inside itself."""
    say(columns(rows), hang=sum(max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:-1]))


def wrapped(line: str, width: int, hang: int = 2) -> list[str]:
    """Wrap a line at blanks, its continuation `hang` to the right; a command at its end stays whole, so that it can be copied."""
    if len(line) <= width or width - hang < NARROW:
        return [line]
    text, found, command = line.partition(COMMAND)
    if found:
        return [*wrapped(f"{text}{found}".rstrip(), width, hang), " " * hang + command]
    return wrap(line, width, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False)
