"""The prompt source `file`: text, JSON lines, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from vgrpo_core import PluginError, Prompt, Prompts
from vgrpo_core.errors import nearest

from .rows import absent, prompts

Rows = Iterator[tuple[str, Any]]


def text_lines(text: str, column: str) -> Rows:
    """Yield every line that is not blank, without the spaces around it."""
    return ((place, line.strip()) for place, line in _lines(text))


def json_lines(text: str, column: str) -> Rows:
    """Yield the value of every line that is not blank."""
    for place, line in _lines(text):
        try:
            yield place, json.loads(line)
        except json.JSONDecodeError as error:
            yield place, ValueError(f"no JSON: {error.msg} at column {error.colno}")


def json_list(text: str, column: str) -> Rows:
    """Yield the items of one list."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        yield f":{error.lineno}", ValueError(f"no JSON: {error.msg} at column {error.colno}")
    else:
        items = found if isinstance(found, list) else [ValueError("the file is no list; a file with a table a line ends in .jsonl")]
        yield from ((f", item {number}", item) for number, item in enumerate(items, 1))


def comma_separated(text: str, column: str) -> Rows:
    """Yield the rows below the header; an empty cell of the metadata is left out, as it has no value."""
    table = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        header = next(table, [])
        if mistake := _header_mistake(header, column):
            yield ":1", ValueError(mistake)
            return
        for cells in table:
            line, begin = table.line_num, line + 1
            if cells:
                yield f":{begin}", _table(header, cells, column)
    except csv.Error as error:
        yield f":{table.line_num}", ValueError(f"no CSV: {error}")


FORMATS = {".txt": text_lines, ".jsonl": json_lines, ".json": json_list, ".csv": comma_separated}


class File(Prompts):
    """Read prompts from a file: .txt holds one a line, .jsonl a table a line, .json a list of tables, .csv a header and rows.

    All but the column of the text becomes the metadata. Equal prompts are kept. The mistakes of a file are reported together.
    """

    name = "file"
    path: Path = Field(description="the file; its ending says what it is: .txt, .jsonl, .json or .csv")
    column: str = Field(default="prompt", description="what holds the text, except in .txt; the rest is metadata")
    shuffle: int | None = Field(default=None, description="seed of a fixed random order, made before `skip`; the file's without it")
    skip: int = Field(default=0, ge=0, description="how many to leave out at the start")
    limit: int | None = Field(default=None, ge=1, description="how many to take at most; all without it")

    @field_validator("path")
    @classmethod
    def _known_ending(cls, path: Path) -> Path:
        ending = path.suffix.lower()
        if ending not in FORMATS:
            raise ValueError(f'the ending "{ending}" is unknown{nearest(ending, FORMATS)}; known: {", ".join(FORMATS)}')
        return path

    def load(self) -> Sequence[Prompt]:
        """Return the prompts in the file's order or shuffled; a file with mistakes is a PluginError with file and line of each."""
        rows = FORMATS[self.path.suffix.lower()](self._text(), self.column)
        found = prompts('prompts "file"', ((f"{self.path}{place}", row) for place, row in rows), self.column)
        if self.skip >= len(found):
            raise PluginError(f'prompts "file": skip is {self.skip}, but {self.path} has {len(found)} prompts', fix="lower skip")
        if self.shuffle is not None:
            found = [found[place] for place in sorted(range(len(found)), key=self._key)]
        return found[self.skip :][: self.limit]

    def _text(self) -> str:
        path = self.path
        try:
            return path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise PluginError(f'prompts "file": {path} is not UTF-8', f"byte {error.start}: {error.reason}") from error
        except OSError as error:
            what = f'prompts "file": {path} can not be read: {error.strerror}'
            raise PluginError(what, f"looked for at {path.absolute()}") from error

    def _key(self, place: int) -> bytes:
        return blake2b(f"{self.shuffle} {place}".encode(), digest_size=8).digest()


def _lines(text: str) -> Rows:
    # Not splitlines(): U+2028 and its like may stand inside a prompt.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return ((f":{number}", line) for number, line in enumerate(lines, 1) if line.strip())


def _header_mistake(header: list[str], column: str) -> str:
    if column not in header:
        return absent(column, header)
    return "two columns have the same name" if len(set(header)) < len(header) else ""


def _table(header: list[str], cells: list[str], column: str) -> dict[str, str] | ValueError:
    if len(cells) != len(header):
        return ValueError(f"it has {len(cells)} cells, the header {len(header)}")
    return {name: cell for name, cell in zip(header, cells, strict=True) if cell or name == column}
