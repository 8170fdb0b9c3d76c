"""Find plugins through entry points, with pluggy. One that breaks is remembered and named when it is missed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points, version

import pluggy
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vgrpo_core import PluginError, hookspecs
from vgrpo_core.errors import reason
from vgrpo_core.hookspecs import HOOKS, PROJECT
from vgrpo_core.offers import Offer, offered


@dataclass(frozen=True)
class Failure:
    """An entry point that could not be used, and why."""

    distribution: str
    version: str
    entry: str
    error: str

    def __str__(self) -> str:
        return f'{self.distribution} {self.version} "{self.entry}" ({self.error})'


@dataclass(frozen=True)
class Registry:
    """Hold what the installed plugins offer, what failed to load, and what `VGRPO_PLUGINS` keeps out."""

    offers: tuple[Offer, ...] = ()
    failures: tuple[Failure, ...] = ()
    blocked: tuple[str, ...] = ()

    @classmethod
    def discover(cls) -> Registry:
        """Load every entry point of group `vgrpo` by itself; with `VGRPO_STRICT_PLUGINS=1` the first failure is raised."""
        entries = sorted(entry_points(group=PROJECT), key=lambda entry: (_source(entry), entry.name))
        if not any(_is_own(entry) for entry in entries):
            fix = "Run `pip install -e .` again: entry points are written at install time."
            raise PluginError("no plugin found, not even vgrpo's own", fix=fix)
        offers, failures, blocked = list[Offer](), list[Failure](), list[str]()
        for entry in entries:
            if not _is_allowed(entry):
                blocked.append(" ".join(_source(entry)))
                continue
            try:
                offers += _offers(entry)
            except Exception as error:
                if strict():
                    raise
                failures.append(Failure(*_source(entry), entry.name, reason(error)))
        return cls(tuple(offers), tuple(failures), tuple(blocked))

    def names(self, kind: str) -> list[str]:
        """List what is installed of a kind."""
        return sorted({offer.name for offer in self.offers if offer.kind == kind})


def strict() -> bool:
    """Tell whether the first plugin that fails is to raise (VGRPO_STRICT_PLUGINS=1)."""
    return os.environ.get("VGRPO_STRICT_PLUGINS", "0") not in ("", "0")


def _source(entry: EntryPoint) -> tuple[str, str]:
    return (entry.dist.name, entry.dist.version) if entry.dist else (entry.module, "")


def _is_own(entry: EntryPoint) -> bool:
    return canonicalize_name(_source(entry)[0]) == PROJECT


def _is_allowed(entry: EntryPoint) -> bool:
    allowed = os.environ.get("VGRPO_PLUGINS")
    if allowed is None or _is_own(entry):
        return True
    names = {canonicalize_name(name.strip()) for name in allowed.split(",")}
    return not names.isdisjoint(map(canonicalize_name, (entry.name, _source(entry)[0])))


def _offers(entry: EntryPoint) -> list[Offer]:
    """Load one entry point with a plugin manager of its own and call each of its hooks."""
    _check_version(entry.dist.requires if entry.dist else None)
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    module = entry.load()
    manager.register(module, entry.name)
    manager.check_pending()
    if not manager.get_hookcallers(module):
        raise TypeError("it has no hook: nothing in it is marked @hookimpl")
    impls = [(kind, impl) for kind, hook in HOOKS.items() for impl in getattr(manager.hook, hook).get_hookimpls()]
    return [offered(kind, plugin, _source(entry)) for kind, impl in impls for plugin in impl.function()]


def _check_version(requires: Iterable[str] | None) -> None:
    for requirement in map(Requirement, requires or ()):
        applies = not requirement.marker or requirement.marker.evaluate({"extra": ""})
        if canonicalize_name(requirement.name) == PROJECT and applies:
            have = version(PROJECT)
            if not requirement.specifier.contains(have, prereleases=True):
                raise PluginError(f"it needs {requirement.name}{requirement.specifier}, and vgrpo {have} is installed")
