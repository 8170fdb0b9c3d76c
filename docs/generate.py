"""Write the parts of the docs that follow from the code: `python docs/generate.py`."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo
from typer.testing import CliRunner
from vgrpo_cli.app import app

from vgrpo_core import hookspecs
from vgrpo_core.hookspecs import HOOKS, KINDS
from vgrpo_core.schema import LAYOUT, LISTS, Table, title
from vgrpo_core.tables import At, dump

DOCS = Path(__file__).parent
NAMES = {int: "integer", float: "number", str: "text", bool: "true or false"}


def keys() -> str:
    """Render the tables of a recipe with their keys."""
    return "\n\n".join(_table(at, model, kind) for at, (model, kind) in LAYOUT.items())


def _table(at: At, model: type[Table], kind: str) -> str:
    header = f"[{title(at)}]" if at in LISTS else title(at)
    about = f"{inspect.getdoc(model)} The other keys are options of the plugin." if kind else inspect.getdoc(model)
    fields = model.model_fields.items()
    rows = [f"| `{name}` | {_type(field)} | {_default(name, field)} | {field.description} |" for name, field in fields]
    return "\n".join([f"### `{header}`", "", f"{about}", "", "| key | type | default | meaning |", "|---|---|---|---|", *rows])


def hooks() -> str:
    """Render the hooks with what they return and what a class of that kind must define."""
    rows = [
        f"| `{hook}()` | {_sentence(getattr(hookspecs, hook))} | `{KINDS[kind].__name__}` | {', '.join(_must(KINDS[kind]))} |"
        for kind, hook in HOOKS.items()
    ]
    return "\n".join(["| hook | what it is for | base class | to define, besides `name` |", "|---|---|---|---|", *rows])


def commands() -> str:
    """Render what `--help` prints for the command and each of its parts."""
    parts = ["", "run", "check", "plugins", "recipes", "recipes list", "recipes show", "recipes copy"]
    pages = [(part, CliRunner().invoke(app, [*part.split(), "--help"], prog_name="vgrpo").output) for part in parts]
    return "\n\n".join(f"```console\n$ {' '.join(['vgrpo', *part.split(), '--help'])}\n{page}```" for part, page in pages)


PARTS = {"recipe.md": ("keys", keys), "plugins.md": ("hooks", hooks), "cli.md": ("help", commands)}


def rendered(page: str) -> str:
    """Return a page of the docs with its generated part brought up to date."""
    marker, render = PARTS[page]
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n\n{render()}\n\n{end}", text, flags=re.DOTALL)


def _type(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if annotation in NAMES:
        return NAMES[annotation]
    if all(isinstance(part, str) for part in parts):
        return " or ".join(f"`{dump(part)}`" for part in parts)
    return NAMES[parts[0]] if len(parts) == 1 else f"{len(parts)} numbers"


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "the file's name" if name == "name" else "**required**"
    return "" if field.default is None else f"`{dump(field.default)}`"


def _sentence(function: Any) -> str:
    return (inspect.getdoc(function) or "").split("\n")[0]


def _must(base: Any) -> list[str]:
    members = {name: inspect.getattr_static(base, name) for name in sorted(base.__abstractmethods__)}
    return [f"`{name}`" if isinstance(member, property) else f"`{name}{_arguments(member)}`" for name, member in members.items()]


def _arguments(function: Any) -> str:
    return f"({', '.join(name for name in inspect.signature(function).parameters if name != 'self')})"


if __name__ == "__main__":
    for page in PARTS:
        (DOCS / page).write_text(rendered(page), encoding="utf-8")
