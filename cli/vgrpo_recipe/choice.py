"""Choose a plugin by the name that a recipe or a command gives: "name", "distribution/name" or "./file.py:Class"."""

from __future__ import annotations

import hashlib
import runpy
from pathlib import Path

from packaging.utils import canonicalize_name

from vgrpo_core import PluginError
from vgrpo_core.errors import nearest, reason
from vgrpo_core.hookspecs import HOOKS
from vgrpo_core.offers import Offer, offered

from .registry import Registry, strict


def choose(registry: Registry, kind: str, use: str, base: Path, *, here: bool = True) -> Offer:
    """Return what `use` names: "name", "distribution/name" or "./file.py:Class" (relative to `base`); else a PluginError.

    What is to run `here` has to have what it needs installed.
    """
    offer = _from_file(kind, use, base) if is_file(use) else _named(registry, kind, use)
    if here and offer.missing:
        extra = offer.plugin.extra or " ".join(offer.missing)
        install = f'"{extra}"' if "[" in extra else extra
        what = f'{kind} "{use}" needs {", ".join(offer.missing)}, which is not installed'
        raise PluginError(what, f"Run: pip install {install}")
    return offer


def _named(registry: Registry, kind: str, use: str) -> Offer:
    distribution, _, name = use.rpartition("/")
    wanted = canonicalize_name(distribution)
    same = [offer for offer in registry.offers if (offer.kind, offer.name) == (kind, name)]
    found = [offer for offer in same if not wanted or canonicalize_name(offer.distribution) == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        choices = " or ".join(f'"{o.distribution}/{name}" ({o.plugin.__module__}.{o.plugin.__qualname__})' for o in found)
        raise PluginError(f'{len(found)} plugins offer a {kind} named "{use}"; use {choices}')
    raise _unknown(registry, kind, use)


def _unknown(registry: Registry, kind: str, use: str) -> PluginError:
    names = registry.names(kind)
    others = sorted({offer.kind for offer in registry.offers if offer.name == use})
    hint = f"; it is the name of {' and '.join(others)}" if others else nearest(use, names)
    lines = [f"Installed {HOOKS[kind].removeprefix('vgrpo_')}: {', '.join(names) or 'none'}."]
    if registry.failures:
        lines.append(f"Not loaded: {', '.join(map(str, registry.failures))}.")
    if registry.blocked:
        lines.append(f"Kept out by VGRPO_PLUGINS: {', '.join(registry.blocked)}.")
    return PluginError(f'no {kind} named "{use}"{hint}', "\n  ".join(lines))


def is_file(use: str) -> bool:
    """Tell whether `use` names a Python file instead of an installed plugin."""
    return use.endswith(".py") or use.rpartition(":")[0].endswith(".py")


def _from_file(kind: str, use: str, base: Path) -> Offer:
    place, _, attribute = use.rpartition(":")
    if not place.endswith(".py"):
        raise PluginError(f'"{use}" names a file but no class in it', f'Write "{use}:Class".')
    path = (base / place).resolve()
    if not path.is_file():
        raise PluginError(f'no file "{path}"', f'"{place}" is looked for in the recipe\'s folder.')
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        found = runpy.run_path(str(path), run_name=f"vgrpo_file_{digest}")
        if attribute not in found:
            raise AttributeError(f'no class "{attribute}" in it{nearest(attribute, found)}')
        return offered(kind, found[attribute], (str(path), f"sha256:{digest}"))
    except Exception as error:
        if strict():
            raise
        raise PluginError(f'{kind} "{use}" can not be used', reason(error)) from error
