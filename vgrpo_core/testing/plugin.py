"""What holds for plugins of every kind, before they are loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from ..offers import Offer, offered
from ..plugin import Plugin


def expect(holds: bool, sentence: str) -> None:
    """Raise an AssertionError with `sentence` unless it holds; unlike `assert` also under `python -O`."""
    if not holds:
        raise AssertionError(sentence)


def check_class(kind: str, plugin: type[Plugin]) -> None:
    """Check that recipes can use a class: the registry takes it, and it is documented, closed to unknown options and installed."""
    try:
        offer = offered(kind, plugin, ("", ""))
    except TypeError as error:
        raise AssertionError(f"recipes can not use {plugin.__qualname__}: {error}") from error
    who = f'{kind} "{offer.name}"'
    documented = bool((vars(plugin).get("__doc__") or "").strip())
    expect(documented, f"{who}: the class has no docstring; its first line is what `vgrpo plugins` shows")
    for options in models(plugin):
        expect(options.model_config.get("extra") == "forbid", f'{who}: {options.__qualname__} must set extra="forbid"')
    _check_installed(who, offer)


def _check_installed(who: str, offer: Offer) -> None:
    install = f'; pip install "{offer.plugin.extra}"' if offer.plugin.extra else ""
    expect(not offer.missing, f"{who} requires {', '.join(offer.missing)}, which is not installed{install}")


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the pydantic classes in an annotation and those in their fields."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models(field.annotation)
    for inner in get_args(annotation):
        yield from models(inner)


def home(plugin: Plugin) -> str:
    """Name the module that a plugin comes from; empty in a notebook or a script, which can't be imported."""
    module = type(plugin).__module__
    return module if module in sys.modules and module != "__main__" else ""
