"""Checkpoints: safetensors and JSON in a folder that appears whole or not at all. Nothing is pickled."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

from .copies import AVERAGE
from .errors import RunError
from .ranks import Ranks

if TYPE_CHECKING:
    from .policy import Policy

FORMAT = 3
PARTS = ("weights", "optimizer", "copies")


class Checkpoint(NamedTuple):
    """What a run needs to go on; copies of the weights, such as their moving average, stay apart from them."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    copies: dict[str, Tensor]
    state: dict[str, Any]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON whole or not at all; NaN is refused, missing values are null."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def save(root: Path, checkpoint: Checkpoint, *, keep: int, ranks: Ranks | None = None) -> Path:
    """Write a checkpoint under `root`, named after its iteration, then drop all but the newest `keep`; called on all ranks."""
    ranks = ranks or Ranks()
    target = root / f"{checkpoint.state['iteration']:06d}"
    if ranks.told(target in complete(root)):  # an iteration has one state
        return target
    partial = root / f".{target.name}.partial"
    if ranks.main:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    ranks.wait()
    tensors = {f"{part}/{name}": tensor.contiguous() for part in PARTS for name, tensor in getattr(checkpoint, part).items()}
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # torch.distributed is disabled: so it is in most runs
        state_dict_saver.save(tensors, storage_writer=HuggingFaceStorageWriter(str(partial), save_distributed=True))
    if ranks.main:
        shapes = {key: list(tensor.shape) for key, tensor in tensors.items()}
        write_json(partial / "state.json", {"format": FORMAT, "tensors": shapes, **checkpoint.state})
        _flush(partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.replace(target)
        for old in complete(root)[:-keep]:
            shutil.rmtree(old)
    ranks.wait()
    return target


def complete(root: Path) -> list[Path]:
    """List the finished checkpoints under `root`, oldest first."""
    return sorted(path for path in root.glob("[0-9]*") if (path / "state.json").is_file())


def load(path: Path, parameters: Mapping[str, Tensor] | None = None) -> Checkpoint:
    """Read a checkpoint that any number of ranks wrote, split as the trained `parameters` are; what can't be read is a RunError."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            raise ValueError(f"format {state['format']}, this version reads {FORMAT}")
        tensors = _read(path, state.pop("tensors"), parameters or {})
        return Checkpoint(**{name: _part(tensors, name) for name in PARTS}, state=state)
    except Exception as error:
        why = f"not a readable checkpoint ({type(error).__name__}: {error})"
        raise RunError(f"{path}: {why}; remove it to use an older one") from error


def begin(policy: Policy, path: Path) -> None:
    """Give a policy what a run evaluates and exports: the weights of a checkpoint, or of the newest one in a folder or a run.

    Raises RunError where there is none or where its weights are those of another model.
    """
    found = load([path, *complete(path), *complete(path / "checkpoints")][-1], policy.trainable())
    try:
        policy.restore({name: found.copies.get(f"{name}/{AVERAGE}", value) for name, value in found.weights.items()})
    except ValueError as error:
        raise RunError(f"{path}: {error}") from error


def _part(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{part}/"): tensor for key, tensor in tensors.items() if key.startswith(f"{part}/")}


def _read(path: Path, shapes: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    reader = HuggingFaceStorageReader(str(path))
    tensors = {key: _room(key, found, parameters) for key, found in reader.read_metadata().state_dict_metadata.items()}
    if torn := [key for key, shape in shapes.items() if key not in tensors or list(tensors[key].shape) != shape]:
        raise ValueError(f"of {len(torn)} of its tensors some part is gone, such as {torn[0]}")
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        state_dict_loader.load(tensors, storage_reader=reader)
    return tensors


def _room(key: str, found: Any, parameters: Mapping[str, Tensor]) -> Tensor:
    """Make room for a tensor: split as its parameter is where they have one shape, on its device in any case."""
    name = key.partition("/")[2]
    like = parameters.get(name, parameters.get(name.rpartition("/")[0]))
    if like is not None and like.shape == found.size:
        return torch.empty_like(like, dtype=found.properties.dtype, requires_grad=False)
    return torch.empty(found.size, dtype=found.properties.dtype, device=None if like is None else like.device)


def _flush(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
