"""One run in one tracker, by accelerate's class for it."""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vgrpo_core import PluginError
from vgrpo_core.events import Evaluated, Metrics
from vgrpo_core.recipe import Recipe
from vgrpo_recipe.tables import dump, flat

from .pictures import log

FOLDER = "track"
CONTINUED = ("tensorboard", "wandb", "trackio")
"""Trackers whose runs go on when a run is resumed; the others get a new run, with all that was before."""


@dataclass
class Log:
    """A run in one tracker. `logged` is the last iteration that it has, -1 for none, and `key` names it where names may repeat."""

    name: str
    tracker: Any
    file: Path
    key: str
    logged: int = -1

    @classmethod
    def start(cls, name: str, recipe: Recipe, folder: Path) -> Log:
        """Start the tracker, or go on with what it has of this run; files go to `track/` in the run's folder where they can."""
        file = folder / FOLDER / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() and name in CONTINUED else {}
        key = before.get("key") or secrets.token_hex(4)
        track = recipe.table["track"]
        options = track.get("options", {}).get(name, {})
        tracker = _class(name)(**_arguments(name, track["project"], folder, key) | options)
        tracker.start()
        _describe(name, tracker, replace(recipe, table={at: table for at, table in recipe.table.items() if at != "track"}))
        return cls(name, tracker, file, key, before.get("logged", -1))

    def write(self, line: Metrics, pictures: Evaluated | None = None) -> None:
        """Log a line of metrics.jsonl and the pictures of its evaluation at its iteration, unless it is there already."""
        from vgrpo_core.checkpoint import write_json

        step = int(line["iteration"] or 0)
        if step <= self.logged:
            return
        values = {key: value for key, value in line.items() if value is not None and key != "iteration"}
        log(self.name, self.tracker, values, step, pictures)
        self.logged = step
        write_json(self.file, {"key": self.key, "logged": step})

    def close(self, failed: bool) -> None:
        """Close the tracker; Weights & Biases shows whether the run failed."""
        if failed and self.name == "wandb":
            self.tracker.tracker.finish(exit_code=1)
        else:
            self.tracker.finish()


def _class(name: str) -> Any:
    """Return accelerate's class for a tracker, once it can be used in this process."""
    import accelerate
    import torch
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    if name not in LOGGER_TYPE_TO_CLASS:
        raise PluginError(f"accelerate {accelerate.__version__} does not know it; run: pip install --upgrade accelerate")
    threads = torch.get_num_threads()
    with warnings.catch_warnings(action="ignore"):
        accelerate.PartialState(cpu=True)  # its trackers want it; so it leaves devices, and ranks that have met, as they are
    torch.set_num_threads(threads)  # which it sets where the environment does not
    return LOGGER_TYPE_TO_CLASS[name]


def _arguments(name: str, project: str, folder: Path, key: str) -> dict[str, Any]:
    """Return what accelerate's class is called with, named after the run's folder."""
    own, run = folder / FOLDER, folder.resolve().name
    known: Mapping[str, dict[str, Any]] = {
        "tensorboard": {"run_name": "tensorboard", "logging_dir": str(own)},
        "wandb": {"run_name": project, "name": run, "dir": str(own), "id": key, "resume": "allow"},
        "trackio": {"run_name": project, "name": f"{run}-{key}", "resume": "allow"},
        "aim": {"run_name": run, "experiment": project},
        "clearml": {"run_name": project, "task_name": run},
        "comet_ml": {"run_name": project},
        "dvclive": {"run_name": run, "dir": str(own / "dvclive")},
        "mlflow": {"experiment_name": project, "run_name": run},
        "swanlab": {"run_name": project, "experiment_name": run, "logdir": str(own / "swanlab")},
    }
    return known[name]


def _describe(name: str, tracker: Any, recipe: Recipe) -> None:
    """Keep the recipe as the run's configuration; TensorBoard, which would show it as another run, gets it as text."""
    if name == "tensorboard":
        tracker.log({"recipe": "\n".join(f"    {line}" for line in recipe.to_toml().splitlines())})
    else:
        tracker.store_init_configuration(dict(_scalars(flat(recipe.table))))


def _scalars(pairs: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, bool | int | float | str]]:
    return ((key, value if isinstance(value, bool | int | float | str) else dump(value)) for key, value in pairs)
