"""`vgrpo plugins`: which there are; `vgrpo plugins show`: what one is, its options, and what it needs. Nothing is loaded."""

from __future__ import annotations

import difflib
import inspect
import itertools
import json
import sys
import types
import typing
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from vgrpo_core import Plugin, PluginError, VgrpoError
from vgrpo_core.errors import nearest
from vgrpo_core.hookspecs import KINDS
from vgrpo_core.offers import Offer
from vgrpo_recipe.registry import Registry
from vgrpo_recipe.tables import dump

from .listing import say_columns

WIDTH, LABEL = 80, 9
NAMES = {int: "integer", float: "number", str: "text", bool: "true or false", Path: "path"}


def list_all(*, as_json: bool = False) -> None:
    """Print all plugins; those that failed to load, or were kept out, go to stderr."""
    registry = Registry.discover()
    rows = sorted((_row(offer) for offer in registry.offers), key=lambda row: (row["kind"], row["name"]))
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        say_columns([list(row.values()) for row in rows])
    for distribution in registry.blocked:
        typer.echo(f"kept out by VGRPO_PLUGINS: {distribution}", err=True)
    for failure in registry.failures:
        typer.echo(f"not loaded: {failure}", err=True)


def _row(offer: Offer) -> dict[str, str]:
    about = (offer.plugin.__doc__ or "").strip().partition("\n")[0]
    if offer.missing:
        about += f" (not installed: {', '.join(offer.missing)})"
    return {"kind": offer.kind, "name": offer.name, "distribution": offer.distribution, "version": offer.version, "about": about}


def lines(name: str, kind: str | None = None, *, as_json: bool = False) -> list[str]:
    """Return what to print of all plugins called `name`, or "distribution/name"; an unknown name or kind is a VgrpoError."""
    found = [facts(offer) for offer in _named(Registry.discover(), name, kind)]
    if as_json:
        return [json.dumps(found, indent=2, default=str)]
    pages = [_page(each) for each in found]
    return pages[0] + [line for page in pages[1:] for line in ("", *page)]


def facts(offer: Offer) -> dict[str, Any]:
    """Collect what there is to know of a plugin; `assets` are those of its defaults, None where it takes more to know them."""
    plugin = offer.plugin
    return {
        "kind": offer.kind,
        "name": offer.name,
        "distribution": offer.distribution,
        "version": offer.version,
        "class": f"{plugin.__module__}.{plugin.__qualname__}",
        "file": getattr(sys.modules.get(plugin.__module__), "__file__", None),
        "about": inspect.cleandoc(plugin.__doc__ or "").partition("\n\n")[0].replace("\n", " "),
        "range": getattr(plugin, "range", "") or None,
        "text_limit": getattr(plugin, "text_limit", None),
        "options": [_option(name, field) for name, field in plugin.model_fields.items()],
        "assets": _assets(plugin),
        "modules": {module: module.partition(".")[0] not in offer.missing for module in plugin.requires},
        "install": [plugin.extra] if plugin.extra else list(offer.missing),
    }


def type_name(annotation: Any, mark: str = "") -> str:
    """Name the type of an option as people say it; words to be written as they are stand between two `mark`."""
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if annotation in NAMES:
        return NAMES[annotation]
    match get_origin(annotation):
        case typing.Literal:
            return " or ".join(f"{mark}{dump(part)}{mark}" for part in parts)
        case typing.Annotated:
            return type_name(parts[0], mark)
        case types.UnionType | typing.Union:
            return " or ".join(type_name(part, mark) for part in parts)
        case origin if origin in (tuple, list):
            names = [type_name(part, mark) for part in parts if part is not Ellipsis]
            return _several(names, fixed=origin is tuple and Ellipsis not in parts)
        case origin if origin is dict:
            return "table"
    if inner := getattr(annotation, "model_fields", None):
        return f"table: {', '.join(f'{mark}{name}{mark}' for name in inner)}"
    return str(getattr(annotation, "__name__", annotation))


def _several(names: Sequence[str], *, fixed: bool) -> str:
    if len(set(names)) > 1:
        return f"[{', '.join(names)}]"
    each = names[0] + ("s" if names[0] in ("integer", "number", "path") else "")
    return f"{len(names)} {each}" if fixed else f"list of {each}"


def _named(registry: Registry, name: str, kind: str | None) -> Sequence[Offer]:
    if kind is not None and kind not in KINDS:
        raise VgrpoError(f'--kind: no kind "{kind}"{nearest(kind, KINDS)}\n  Kinds: {", ".join(KINDS)}.')
    found = [offer for offer in registry.offers if name in (offer.name, f"{offer.distribution}/{offer.name}")]
    fitting = [offer for offer in found if kind in (None, offer.kind)]
    if not fitting:
        raise _unknown(registry, name, kind or "plugin")
    return sorted(fitting, key=lambda offer: (offer.kind, offer.distribution))


def _unknown(registry: Registry, name: str, what: str) -> PluginError:
    close = difflib.get_close_matches(name, sorted({offer.name for offer in registry.offers}))
    near = [f'{offer.kind} "{offer.name}"' for each in close for offer in registry.offers if offer.name == each]
    hint = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    absent = [f"Not loaded: {failure}." for failure in registry.failures]
    absent += [f"Kept out by VGRPO_PLUGINS: {distribution}." for distribution in registry.blocked]
    return PluginError(f'no {what} named "{name}"{hint}', "\n  ".join(absent), "`vgrpo plugins` lists what there is.")


def _option(name: str, field: FieldInfo) -> dict[str, Any]:
    required = field.is_required()
    return {
        "name": name,
        "type": type_name(field.annotation),
        "required": required,
        "default": None if required else field.get_default(call_default_factory=True),
        "description": field.description,
    }


def _assets(plugin: type[Plugin]) -> list[dict[str, Any]] | None:
    """List the assets for the defaults, and for every choice of the options that have none; None if there is no such list."""
    if plugin.assets is Plugin.assets:
        return []
    fields = {name: field.annotation for name, field in plugin.model_fields.items() if field.is_required()}
    if any(get_origin(annotation) is not Literal for annotation in fields.values()):
        return None
    choices = [dict(zip(fields, values, strict=True)) for values in itertools.product(*map(get_args, fields.values()))]
    try:
        return [{"options": given, **asdict(asset)} for given in choices for asset in plugin(**given).assets()]
    except ValidationError:  # options that go together only in some ways
        return None


# The page


def _page(found: dict[str, Any]) -> list[str]:
    title, limit = f"{found['kind']} {found['name']}", found["text_limit"]
    modules = ", ".join(f"{name} ({'' if there else 'not '}installed)" for name, there in found["modules"].items())
    options = [line for option in found["options"] for line in _option_lines(option)]
    return [
        *(wrap(found["about"], WIDTH, initial_indent=f"{title}: ") or [title]),
        "",
        *_labelled("from", f"{found['distribution']} {found['version']}"),
        *_labelled("class", found["class"]),
        *_labelled("file", found["file"]),
        *_labelled("range", found["range"]),
        *_labelled("reads", limit and f"{limit} tokens of a prompt"),
        *_labelled("assets", *_asset_lines(found)),
        *_labelled("modules", modules),
        *_labelled("install", found["install"] and f"pip install {_quoted(found['install'])}"),
        *(["", "options", *options] if options else _labelled("options", "none")),
    ]


def _labelled(label: str, *texts: str | None) -> list[str]:
    """Write texts one below the other, with the label before the first; nothing where there is none."""
    blank, found = " " * LABEL, list[str]()
    for text in filter(None, texts):
        first = blank if found else label.ljust(LABEL)
        found += wrap(
            text, WIDTH, initial_indent=first, subsequent_indent=f"{blank}  ", break_long_words=False, break_on_hyphens=False
        )
    return found


def _asset_lines(found: dict[str, Any]) -> list[str]:
    if found["assets"] is None:
        return [f"as these options ask for: {', '.join(option['name'] for option in found['options'] if option['required'])}"]
    return [_asset(asset) for asset in found["assets"]]


def _asset(asset: dict[str, Any]) -> str:
    given = ", ".join(f"{name} {dump(value)}" for name, value in asset["options"].items())
    return f"{asset['name']}, {asset['size']:g} GB, {asset['licence']}{f' (for {given})' if given else ''}"


def _quoted(install: Sequence[str]) -> str:
    return " ".join(f'"{name}"' if "[" in name else name for name in install)


def _option_lines(option: dict[str, Any]) -> list[str]:
    default = "required" if option["required"] else "" if option["default"] is None else f"default {dump(option['default'])}"
    head = f"{option['name']}: {option['type']}{f'; {default}' if default else ''}"
    inner = " " * 6
    return [
        *wrap(head, WIDTH, initial_indent="  ", subsequent_indent=inner),
        *wrap(option["description"] or "", WIDTH, initial_indent=inner, subsequent_indent=inner),
    ]
