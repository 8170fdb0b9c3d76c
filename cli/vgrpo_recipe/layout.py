"""Every table of a recipe: its own keys, and the kind of plugin whose fields are its options."""

from __future__ import annotations

import itertools
import math
from importlib.util import find_spec
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, create_model, model_validator

from vgrpo_core.errors import nearest
from vgrpo_core.schema import Batch, Checkpoint, Combine, EvalKeys, Gate, Optimizer, Run, Table

from .tables import At


class Use(Table):
    """A plugin to use."""

    use: str = Field(description='"name", "distribution/name" or "./file.py:Class"')


class UseObjective(Use):
    """What a gradient step minimises."""

    use: str = Field(default="vgrpo", description='"name", "distribution/name" or "./file.py:Class"')


class UseMonitor(Use):
    """A reward that is watched in evaluation, and never trained on."""

    label: str | None = Field(
        default=None, pattern=r"^[A-Za-z_][\w+-]*$", description="name in metrics, unique; without it, the plugin's name"
    )
    url: str | None = Field(default=None, description="where `vgrpo serve` runs it")
    token_env: str | None = Field(default=None, description="environment variable that holds the token of the server at `url`")
    python: str | None = Field(default=None, description="instead of `url`: interpreter of an environment to run it in")


Points = tuple[tuple[int, float], ...]


def _weight(value: Any) -> Any:
    """Check a weight before its type is known, so that a mistake is explained once."""
    if _is_number(value):
        if not math.isfinite(value):
            raise ValueError("input should be a finite number")
        return value
    if not (isinstance(value, list) and value and all(map(_is_point, value))):
        raise ValueError("write a number, or points [[iteration, weight], ...]")
    if any(first[0] >= second[0] for first, second in itertools.pairwise(value)):
        raise ValueError("the iterations of its points have to rise")
    return tuple(map(tuple, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_point(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], int) and _is_number(value[1])


class UsePrompts(Use):
    """A source of prompts."""

    share: float = Field(default=1.0, gt=0, description="share of each iteration, relative to the other `[[prompts]]`")
    tag: str | None = Field(default=None, description="mark of its prompts, for rewards with `on`")


class UseReward(UseMonitor):
    """A reward to train on, and to watch in evaluation."""

    weight: Annotated[float | Points, BeforeValidator(_weight)] = Field(
        default=1.0, description="weight in the sum; negative to lower the score; or points [[iteration, weight], ...]"
    )
    gate: Gate | None = Field(default=None, description="count only where another reward's score is `above` or `below` a value")
    on: tuple[str, ...] = Field(default=(), description="judge only prompts with one of these tags")
    scale: float = Field(default=1.0, description="factor on the native score, before rewards are combined")
    offset: float = Field(default=0.0, description="added after `scale`")


TrackerName = Literal["aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb"]
"""What accelerate has a class for; each is the name of the package that it takes."""


def _installed(name: str) -> str:
    spec = find_spec(name)
    if spec is None or spec.origin is None:  # a folder of that name: some trackers write one
        raise ValueError(f"it is not installed; run: pip install {name}")
    return name


class _Tracked(Table):
    """The keys of `[track]` whose names are no words of Python."""

    project: str = Field(default="vgrpo", min_length=1, description="what a tracker files the run under; its name is its folder's")
    options: dict[str, dict[str, Any]] | None = Field(
        default=None, description="`[track.options.wandb]`: what else accelerate's class for that tracker is called with"
    )

    @model_validator(mode="after")
    def _are_used(self) -> Self:
        used = getattr(self, "with")
        if unused := [f'"{name}"{nearest(name, used)}' for name in self.options or () if name not in used]:
            raise ValueError(f"options are for trackers that `with` names, not for {' or '.join(unused)}")
        return self


_WITH: dict[str, Any] = {
    "with": (
        tuple[Annotated[TrackerName, AfterValidator(_installed)], ...],
        Field(description="trackers to follow the run with, besides metrics.jsonl"),
    )
}

Track = create_model("Track", __base__=_Tracked, __doc__="Where a run can be followed.", **_WITH)


LAYOUT: dict[At, tuple[type[Table], str]] = {
    ("run",): (Run, ""),
    ("backbone",): (Use, "backbone"),
    ("sampler",): (Use, "sampler"),
    ("prompts",): (UsePrompts, "prompts"),
    ("batch",): (Batch, ""),
    ("objective",): (UseObjective, "objective"),
    ("optimizer",): (Optimizer, ""),
    ("reward",): (UseReward, "reward"),
    ("combine",): (Combine, ""),
    ("checkpoint",): (Checkpoint, ""),
    ("eval",): (EvalKeys, ""),
    ("eval", "prompts"): (UsePrompts, "prompts"),
    ("eval", "sampler"): (Use, "sampler"),
    ("eval", "reward"): (UseMonitor, "reward"),
    ("track",): (Track, ""),
}
"""Every table, with its own keys and the kind of plugin whose options it holds besides."""

WATCHED = ("brightness", "dark_fraction", "edge_density", "color_entropy")
"""Statistics of pixels that evaluations take besides: what no reward is about should not move while it rises."""

REMOTE = ("url", "token_env", "python")
"""Keys that take a reward to another process; a plugin that has one of them as an option keeps it."""

LISTS = {at for at in LAYOUT if at[-1] == "reward"}
SEVERAL = {at for at in LAYOUT if at[-1] == "prompts"}
"""Tables that may be written once, or several times in double brackets."""
OPTIONAL = {at for at in LAYOUT if len(at) == 2} | LISTS | {("track",)}


def inner(at: At) -> list[str]:
    """List the tables inside a table."""
    return [str(other[1]) for other in LAYOUT if len(other) == 2 and other[:1] == at]


def title(at: At) -> str:
    """Write a table's path as its header; entries of a list are counted from 1."""
    names = ".".join(str(key) for key in at if isinstance(key, str))
    return f"[[{names}]] {int(at[-1]) + 1}" if isinstance(at[-1], int) else f"[{names}]"


def fields(model: type[BaseModel], at: At = ()) -> list[str]:
    """List the keys that a model takes, or that a model nested in it at `at` takes."""
    for key in at:
        found = model.model_fields.get(str(key))
        models = _models(found.annotation) if found else []
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]
