"""What a plugin offers to recipes: a class of one kind, checked, and where it comes from."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from .hookspecs import KINDS
from .plugin import Plugin

RESERVED = {"reward": {"use", "label", "weight", "scale", "offset", "gate", "on"}, "prompts": {"use", "share", "tag"}}
"""Keys that the recipe reads itself, so that no option may have their name; `use` alone for other kinds."""


@dataclass(frozen=True)
class Offer:
    """One class that a distribution, or a file, offers to recipes; a file's version is its hash."""

    kind: str
    name: str
    plugin: type[Plugin]
    distribution: str
    version: str

    @property
    def source(self) -> str:
        """Name distribution and version."""
        return f"{self.distribution} {self.version}"

    @property
    def missing(self) -> tuple[str, ...]:
        """List the modules that it needs and that are not installed."""
        tops = [module.partition(".")[0] for module in self.plugin.requires]
        return tuple(top for top in tops if sys.modules.get(top) is None and find_spec(top) is None)


def offered(kind: str, plugin: Any, source: tuple[str, str]) -> Offer:
    """Check what a hook or a file offers as a plugin of a kind; a TypeError says all that is wrong with it."""
    base = KINDS[kind]
    if not (isinstance(plugin, type) and issubclass(plugin, base)):
        raise TypeError(f"{getattr(plugin, '__qualname__', plugin)!r} is not a subclass of vgrpo_core.{base.__name__}")
    name = getattr(plugin, "name", None)
    reserved = RESERVED.get(kind, {"use"}) & plugin.model_fields.keys()
    faults = [
        ("it has no `name`", not isinstance(name, str) or not name),
        (f"it does not define {', '.join(sorted(plugin.__abstractmethods__))}", bool(plugin.__abstractmethods__)),
        ("its `requires` must be a tuple of module names", not isinstance(plugin.requires, tuple)),
        ('its model_config must keep extra="forbid"', plugin.model_config.get("extra") != "forbid"),
        (f"recipes use {', '.join(sorted(reserved))} themselves: rename the option", bool(reserved)),
    ]
    if found := [fault for fault, wrong in faults if wrong]:
        raise TypeError(f"{plugin.__qualname__}: {'; '.join(found)}")
    return Offer(kind, str(name), plugin, *source)
