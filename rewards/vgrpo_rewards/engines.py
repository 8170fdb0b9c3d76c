"""What the engines of the reward `ocr` share.

An engine is a function from images, uint8 RGB [B, H, W, 3], to what is written on each: its texts in reading order, each with a
confidence in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vgrpo_core import PluginError

if TYPE_CHECKING:
    import numpy as np

    Lines = list[tuple[str, float]]
    Read = Callable[[np.ndarray], list[Lines]]

Engine = Literal["rapidocr", "ppocrv4", "easyocr"]


def need(engine: Engine, module: str, install: str) -> Path:
    """Return the folder of a package that an engine needs, without importing it; a PluginError says how to get it."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise PluginError(
            f'reward "ocr" needs {module} for engine = "{engine}", which is not installed', f"Run: pip install {install}"
        )
    return Path(spec.origin).parent


def check_release(package: str, tested: str) -> None:
    """Raise a PluginError unless the installed release of a package is the one that its adapter was tested with."""
    installed = version(package)
    if not f"{installed}.".startswith(f"{tested}."):
        raise PluginError(
            f'reward "ocr" works with {package} {tested}, not {installed}', fix=f"pip install '{package}=={tested}.*'"
        )


def weights(engine: Engine, folder: Path, names: tuple[str, str]) -> tuple[Path, Path]:
    """Return the two files of an engine, detector and recogniser; a PluginError names one that is not in the folder."""
    detector, recogniser = paths = folder / names[0], folder / names[1]
    for path in paths:
        if not path.is_file():
            raise PluginError(f'reward "ocr": engine = "{engine}" finds no {path.absolute()}', f"it needs {' and '.join(names)}")
    return detector, recogniser
