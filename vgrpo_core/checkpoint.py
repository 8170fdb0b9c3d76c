"""Checkpoints: safetensors and JSON in a folder that appears whole or not at all. Nothing is pickled."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .errors import RunError

FORMAT = 1


class Checkpoint(NamedTuple):
    """What a run needs to go on."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON whole or not at all; NaN is refused, missing values are null."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def save(root: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write a checkpoint under `root`, named after its iteration, then drop all but the newest `keep`."""
    target = root / f"{checkpoint.state['iteration']:06d}"
    if target in complete(root):  # an iteration has one state
        return target
    partial = root / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in checkpoint.weights.items()}, partial / "weights.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in checkpoint.optimizer.items()}, partial / "optimizer.safetensors")
    write_json(partial / "state.json", {"format": FORMAT, **checkpoint.state})
    _flush(partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)
    for old in complete(root)[:-keep]:
        shutil.rmtree(old)
    return target


def complete(root: Path) -> list[Path]:
    """List the finished checkpoints under `root`, oldest first."""
    return sorted(path for path in root.glob("[0-9]*") if (path / "state.json").is_file())


def load(path: Path) -> Checkpoint:
    """Read a checkpoint; what can't be read is a RunError that says which one."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            raise ValueError(f"format {state['format']}, this version reads {FORMAT}")
        return Checkpoint(load_file(path / "weights.safetensors"), load_file(path / "optimizer.safetensors"), state)
    except Exception as error:
        why = f"not a readable checkpoint ({type(error).__name__}: {error})"
        raise RunError(f"{path}: {why}; remove it to use an older one") from error


def pack(optimizer: torch.optim.Optimizer, names: list[str]) -> dict[str, Tensor]:
    """Name an optimizer's tensors after its parameters, in their order: `<parameter>/<what>`."""
    states = optimizer.state_dict()["state"]
    return {f"{names[index]}/{what}": value for index, state in states.items() for what, value in state.items()}


def unpack(optimizer: torch.optim.Optimizer, names: list[str], tensors: Mapping[str, Tensor]) -> None:
    """Put the tensors that `pack` named back into an optimizer."""
    places = {name: index for index, name in enumerate(names)}
    states: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, what = key.rpartition("/")
        states.setdefault(places[name], {})[what] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})


def _flush(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
