"""Write docs/figures/families.json, what is known of each tested family: `python tests/families/measure.py`."""

import importlib.util
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import diffusers
import torch

from vgrpo_diffusers import Diffusers
from vgrpo_diffusers.exceptions import exception
from vgrpo_diffusers.lora import attention

HERE = Path(__file__).parent
FIGURES = HERE.parent.parent / "docs" / "figures" / "families.json"


def families() -> dict[str, dict[str, Any]]:
    """Join the zoos: for each family how to `build` it, the `size` and `call` of its recipe, and what the contract must know."""
    return {name: entry for zoo in sorted(HERE.glob("zoo_*.py")) for name, entry in loaded(zoo).FAMILIES.items()}


def loaded(path: Path) -> Any:
    """Import a file of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def save(entry: dict[str, Any], folder: Path) -> None:
    """Build a family's tiny pipeline and save it; the same weights every time."""
    torch.manual_seed(0)
    entry["build"]().save_pretrained(folder)


def backbone(entry: dict[str, Any], folder: Path, **options: Any) -> Diffusers:
    """Return the backbone that a recipe of a family declares."""
    return Diffusers(**{"model": str(folder), "size": entry["size"], "call": entry.get("call", {}), **options})


def described(name: str, policy: Any) -> dict[str, Any]:
    """Say what the docs say of a family."""
    return {
        "family": name,
        "pipeline": type(policy.pipe).__name__,
        "scheduler": type(policy.pipe.scheduler).__name__,
        "process": policy.process.prediction,
        "latents": list(policy.noise([""], [torch.Generator()]).shape[1:]),
        "targets": targets(policy),
        "exceptions": list(exception(type(policy.pipe)).reasons),
    }


def targets(policy: Any) -> list[str]:
    """Return the default LoRA targets as a recipe would name them: what follows the number of the block."""
    names = [name for module in policy.denoisers.values() for name in attention(module)]
    return sorted({re.split(r"\.\d+\.", name)[-1] for name in names})


def measured() -> dict[str, Any]:
    """Build, load and describe every family."""
    rows = []
    for name, entry in families().items():
        with tempfile.TemporaryDirectory() as folder:
            save(entry, Path(folder))
            rows.append(described(name, backbone(entry, Path(folder)).load(torch.device("cpu"))))
    return {"diffusers": diffusers.__version__, "families": rows}


if __name__ == "__main__":
    FIGURES.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
