"""From rows of a table to prompts: one column is the text, the rest is metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vgrpo_core import PluginError, Prompt
from vgrpo_core.errors import nearest

SHOWN = 10


def prompts(source: str, rows: Iterable[tuple[str, Any]], column: str) -> list[Prompt]:
    """Make the prompts of rows with their places; all rows that can not be one are named together in one PluginError.

    A row that could not be read is given as the ValueError that says why; a row that is only text has no metadata.
    """
    made, mistakes = list[Prompt](), list[str]()
    for place, row in rows:
        table = {column: row} if isinstance(row, str) else row
        if mistake := _mistake(table, column):
            mistakes.append(f"{place}: {mistake}")
        else:
            made.append(Prompt(table[column], {key: value for key, value in table.items() if key != column}))
    if mistakes:
        raise PluginError(f"{source}: {len(mistakes)} mistake{'s'[: len(mistakes) > 1]}", _shortened(mistakes))
    if not made:
        raise PluginError(f"{source}: there is no prompt in it")
    return made


def absent(column: str, known: Iterable[str]) -> str:
    """Say that there is no such column, and which is most like it."""
    names = list(known)
    hint = nearest(column, names) or f"; there is {', '.join(names) or 'nothing'}"
    return f'no "{column}"{hint}'


def _mistake(table: Any, column: str) -> str:
    if isinstance(table, ValueError):
        return str(table)
    if not isinstance(table, Mapping):
        return f"it is of type {type(table).__name__}, neither a table nor a text"
    if column not in table:
        return absent(column, table)
    text = table[column]
    if text is not None and not isinstance(text, str):
        return f'"{column}" is of type {type(text).__name__}, not a text'
    return "" if text and text.strip() else f'"{column}" is empty'


def _shortened(mistakes: list[str]) -> str:
    more = [f"and {len(mistakes) - SHOWN} more"] if len(mistakes) > SHOWN else []
    return "\n  ".join([*mistakes[:SHOWN], *more])
