"""The tables of a recipe and their keys. Options of plugins are the plugins' own fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from .tables import At


def _has_baseline(group: int) -> int:
    if group < 2:
        raise ValueError("a group needs at least 2 samples: each is compared with the mean of its group, and one alone has none")
    return group


Share = Annotated[float, Field(ge=0, lt=1)]


class Table(BaseModel):
    """Hold the keys of one table; unknown keys and numbers that are not finite are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Run(Table):
    """The run as a whole."""

    name: str = Field(pattern=r"^[^/\\.][^/\\]*$", description="name of the run's folder")
    iterations: int = Field(ge=1, description="how often to draw images and learn from them")
    seed: int = Field(default=0, ge=0, lt=2**63, description="what all random numbers of training follow from")
    device: str = Field(default="auto", pattern=r"^[a-z]+(:\d+)?$", description="`auto`, `cpu`, `cuda`, `cuda:1`, `mps`, ...")


class Batch(Table):
    """What one iteration draws, over all ranks together."""

    prompts: int = Field(ge=1, description="prompts per iteration")
    group: Annotated[int, AfterValidator(_has_baseline)] = Field(description="images per prompt, 2 or more")
    micro: int = Field(default=8, ge=1, description="rows sent through the network at once: memory and speed, no result")


class Optimizer(Table):
    """AdamW."""

    lr: float = Field(gt=0, description="learning rate")
    betas: tuple[Share, Share] = Field(default=(0.9, 0.95), description="decay of the two moments")
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled weight decay")
    warmup: int = Field(default=0, ge=0, description="iterations in which the rate rises to `lr`")
    decay: Literal["none", "cosine", "linear"] = Field(default="none", description="how the rate falls to its tenth at the end")
    max_grad_norm: float = Field(default=1.0, gt=0, description="bound of the gradient's norm")


class Combine(Table):
    """How several rewards become one advantage."""

    use: Literal["normalize_then_sum", "sum_then_normalize"] = Field(
        default="normalize_then_sum", description="normalise each reward in its group and add, or add and then normalise"
    )
    scale: Literal["group", "batch"] = Field(default="group", description="whose deviation divides; the mean is the group's")


class Checkpoint(Table):
    """Where a stopped run goes on from."""

    every: int = Field(default=10, ge=0, description="iterations between checkpoints; 0 writes one at the end only")
    keep: int = Field(default=2, ge=1, description="how many to keep")


class EvalKeys(Table):
    """Judging held-out prompts, always with the same noise."""

    every: int = Field(default=0, ge=0, description="iterations between evaluations; 0 evaluates at start and end only")
    seed: int = Field(default=0, ge=0, lt=2**63, description="what the noise of evaluation follows from")
    samples: int = Field(default=1, ge=1, description="images per prompt")


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


class UseReward(UseMonitor):
    """A reward to train on, and to watch in evaluation."""

    weight: float = Field(default=1.0, description="weight in the sum; negative to lower the score")
    scale: float = Field(default=1.0, description="factor on the native score, before rewards are combined")
    offset: float = Field(default=0.0, description="added after `scale`")


LAYOUT: dict[At, tuple[type[Table], str]] = {
    ("run",): (Run, ""),
    ("backbone",): (Use, "backbone"),
    ("sampler",): (Use, "sampler"),
    ("prompts",): (Use, "prompts"),
    ("batch",): (Batch, ""),
    ("objective",): (UseObjective, "objective"),
    ("optimizer",): (Optimizer, ""),
    ("reward",): (UseReward, "reward"),
    ("combine",): (Combine, ""),
    ("checkpoint",): (Checkpoint, ""),
    ("eval",): (EvalKeys, ""),
    ("eval", "prompts"): (Use, "prompts"),
    ("eval", "sampler"): (Use, "sampler"),
    ("eval", "reward"): (UseMonitor, "reward"),
}
"""Every table, with its own keys and the kind of plugin whose options it holds besides."""

LISTS = {at for at in LAYOUT if at[-1] == "reward"}
OPTIONAL = {at for at in LAYOUT if len(at) == 2} | LISTS


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
