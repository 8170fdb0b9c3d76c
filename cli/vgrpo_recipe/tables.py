"""A TOML file with the place of everything in it: read, override, write. Nothing here knows what the keys mean."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vgrpo_core import RecipeError
from vgrpo_core.errors import nearest

At = tuple[str | int, ...]
"""A path of keys and indices, such as ("reward", 0, "weight")."""


@dataclass
class Source:
    """A recipe file as nested tables, overrides applied; `mistakes` are those of the overrides."""

    path: Path
    text: str
    table: dict[str, Any]
    overridden: dict[At, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, overrides: Sequence[str] = ()) -> Source:
        """Read a file and apply overrides `key.path=value`; a RecipeError if it can't be read as TOML."""
        text = _text(path)
        try:
            source = cls(path, text, tomllib.loads(text))
        except (ValueError, RecursionError) as error:
            place = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
            where = f"{path}:{place[1]}:{place[2]}" if place else str(path)
            raise RecipeError([f"{where}: not TOML: {str(error).removesuffix(place[0] if place else '')}"]) from error
        for override in overrides:
            try:
                source.overridden[put(source.table, override)] = override
            except ValueError as error:
                source.mistakes.append(f"--set {override}: {error}")
        return source

    @cached_property
    def lines(self) -> dict[At, int]:
        """Map every table and key to its line, counted from 1."""
        return dict(_lines(self.text))

    def get(self, at: At) -> Any:
        """Return what stands at a path, or None."""
        node: Any = self.table
        for key in at:
            node = node.get(key) if isinstance(node, dict) else None
        return node

    def where(self, at: At) -> str:
        """Say where a path, or the nearest thing around it, was written."""
        for part in [at[:end] for end in range(len(at), 0, -1)]:
            for made, override in self.overridden.items():
                if made == part or (part not in self.lines and made[: len(part)] == part):
                    return f"--set {override}"
            if part in self.lines:
                return f"{self.path}:{self.lines[part]}"
        return str(self.path)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        message = f"{path}:{line}: byte 0x{error.object[error.start]:02x} is not UTF-8; save the file as UTF-8 text"
    except FileNotFoundError:
        message = f"{path}: no such file{nearest(path.name, [other.name for other in path.parent.glob('*.toml')])}"
    except IsADirectoryError:
        message = f"{path}: a folder, not a recipe file"
    except (OSError, ValueError) as error:
        message = f"{path}: can't be read: {error}"
    raise RecipeError([message])


def put(table: dict[str, Any], override: str) -> At:
    """Set one value in place and return its path."""
    name, equals, raw = override.partition("=")
    if not equals:
        raise ValueError('write it as key=value, such as "run.seed=1"')
    *parents, last = name.strip().split(".")
    node: Any = table
    at: At = ()
    for part in parents:
        key = _key(node, part)
        node = node.setdefault(key, {}) if isinstance(node, dict) else node[key]
        at = (*at, key)
    key = _key(node, last)
    node[key] = _value(raw)
    return (*at, key)


def _key(node: Any, part: str) -> str | int:
    if isinstance(node, dict):
        return part
    if not isinstance(node, list):
        raise ValueError(f'"{part}" can\'t be set inside {dump(node)}, which is no table')
    labels = [_label(entry) for entry in node]
    if part in labels:
        return labels.index(part)
    if part.isdecimal() and int(part) < len(node):
        return int(part)
    known = ", ".join(f"{index} ({label})" for index, label in enumerate(labels))
    raise ValueError(f'no entry "{part}"; there are {known or "none"}{nearest(part, labels)}')


def _label(entry: Any) -> str:
    table = entry if isinstance(entry, dict) else {}
    return str(table.get("label") or str(table.get("use", "")).rpartition("/")[2])


def _value(raw: str) -> Any:
    """Read a TOML value; what is none, such as a bare word, is text."""
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (ValueError, RecursionError):
        return raw
    return parsed["value"] if len(parsed) == 1 else raw


def _lines(text: str) -> Iterator[tuple[At, int]]:
    """Yield the paths of headers and of keys that start a line, with their lines; what is inside a value has none of its own."""
    table: At = ()
    counts = Counter[str]()
    for number, line in enumerate(text.split("\n"), 1):
        if header := re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line):
            name = header[2]
            counts[name] += header[1] == "[["
            table = tuple(_split(name)) + ((counts[name] - 1,) if counts[name] else ())
            yield table, number
        elif key := re.match(r"""\s*((?:[\w. -]|"[^"]*"|'[^']*')+?)\s*=""", line):
            yield from (((*table, *_split(key[1])[:end]), number) for end in range(1, len(_split(key[1])) + 1))


def _split(name: str) -> list[str]:
    return [part.strip(" \"'") for part in name.split(".")]


def flat(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values inside tables and lists of tables, with their keys as `--set` names them."""
    tables = isinstance(value, list) and any(isinstance(entry, dict) for entry in value)
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if tables else None
    if pairs is None:
        yield at, value
        return
    for key, inner in pairs:
        yield from flat(inner, f"{at}.{key}" if at else str(key))


def dump(value: Any) -> str:
    """Write one value for people, on one line, as TOML would but for tables."""
    return json.dumps(value, ensure_ascii=False, default=str)
