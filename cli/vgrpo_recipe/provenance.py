"""With what a recipe was read, for the manifest of its run."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from vgrpo_core.offers import Offer

PACKAGES = ("vgrpo", "torch", "diffusers", "transformers", "peft", "safetensors", "pluggy", "pydantic", "numpy", "pillow")


def provenance(offers: Iterable[Offer]) -> dict[str, Any]:
    """Return the command line, versions, and the plugins in use."""
    return {
        "argv": sys.argv,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "plugins": [{"kind": o.kind, "name": o.name, "distribution": o.distribution, "version": o.version} for o in offers],
    }
