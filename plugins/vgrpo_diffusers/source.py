"""Where a pipeline comes from: a folder on this machine, a model shipped in a package, or the hub."""

from __future__ import annotations

import importlib.util
import json
import pkgutil
from pathlib import Path
from typing import NamedTuple

from vgrpo_core import PluginError
from vgrpo_core.errors import nearest

BUILTIN = "builtin:"
INDEX = "model_index.json"


class Source(NamedTuple):
    """What `from_pretrained` is given, and how to say it."""

    name: str
    described: str


def find(model: str) -> Source:
    """Resolve `builtin:NAME`, a local folder or a hub id; what looks like a folder and is none is a PluginError."""
    if model.startswith(BUILTIN):
        return local(builtin(model.removeprefix(BUILTIN)), model)
    if Path(model).is_dir():
        return local(Path(model), model)
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise PluginError(f'model "{model}": no such folder', "a hub id has the form owner/name")
    return Source(model, f"{model} from the hub")


def local(folder: Path, model: str) -> Source:
    """Check that a folder holds a pipeline and name its class."""
    index = folder / INDEX
    if not index.is_file():
        what = f'model "{model}": the folder holds no {INDEX}'
        raise PluginError(what, fix="name a folder that a pipeline's save_pretrained wrote")
    try:
        pipeline = json.loads(index.read_text(encoding="utf-8"))["_class_name"]
    except (ValueError, TypeError, KeyError) as error:
        raise PluginError(f'model "{model}": its {INDEX} is damaged', f"{type(error).__name__}: {error}") from error
    return Source(str(folder), f"{model} ({pipeline})")


def builtin(name: str) -> Path:
    """Return the folder `model` inside the package `vgrpo_NAME`."""
    spec = importlib.util.find_spec(f"vgrpo_{name}") if name.isidentifier() else None
    if spec is None or spec.origin is None or not (folder := Path(spec.origin).parent / "model").is_dir():
        known = [found for found in _builtins() if found != name]
        what = f'model "{BUILTIN}{name}" is not installed{nearest(name, known)}'
        raise PluginError(what, f"installed: {', '.join(known) or 'none'}")
    return folder


def _builtins() -> list[str]:
    packages = [module for module in pkgutil.iter_modules() if module.ispkg and module.name.startswith("vgrpo_")]
    specs = {module.name.removeprefix("vgrpo_"): importlib.util.find_spec(module.name) for module in packages}
    return [name for name, spec in specs.items() if spec and spec.origin and (Path(spec.origin).parent / "model" / INDEX).is_file()]
