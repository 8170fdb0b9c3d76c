"""The model card of an exported model: what it is, what it was trained for, how well, how to load it and how to make it again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from vgrpo_cli.planned import weight
from vgrpo_cli.screen import number
from vgrpo_core.offers import Offer
from vgrpo_core.recipe import Recipe
from vgrpo_recipe.choice import is_file

from .restore import Weights
from .usage import base_model, python

if TYPE_CHECKING:
    from .pipelines import Expected

PICTURE = "before-after.png"


@dataclass(frozen=True)
class Facts:
    """What a card is written from; `name` is what the model is loaded by, `expected` how its pipeline is called, if it is one."""

    weights: Weights
    name: str
    whole: bool
    expected: Expected | None

    @property
    def recipe(self) -> Recipe:
        """Return the recipe of the run."""
        return self.weights.recipe

    @property
    def run(self) -> Path:
        """Return the run's folder."""
        assert self.weights.run is not None
        return self.weights.run

    @property
    def finished(self) -> bool:
        """Tell whether these are the weights at the run's end, which its picture shows."""
        summary = self.run / "summary.json"
        done = json.loads(summary.read_text(encoding="utf-8"))["iterations"] if summary.is_file() else None
        return done == self.weights.iteration


def write(folder: Path, facts: Facts) -> None:
    """Write README.md and recipe.toml, and copy the picture of before and after, if it shows these weights."""
    recipe = tomli_w.dumps(portable(facts.recipe.table))
    picture = facts.run / PICTURE
    shown = facts.finished and picture.is_file()
    if shown:
        shutil.copyfile(picture, folder / PICTURE)
    (folder / "recipe.toml").write_text(recipe, encoding="utf-8")
    sections = [front(facts), *_body(facts, recipe, shown)]
    (folder / "README.md").write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def front(facts: Facts) -> str:
    """Return what the hub reads of a card, between lines of dashes."""
    from huggingface_hub import ModelCardData

    adapters, base = facts.expected is not None and not facts.whole, base_model(facts.recipe.backbone)
    about: dict[str, Any] = dict(base.licence) if base else {}
    if facts.expected:
        about["library_name"] = "diffusers"
    if base and base.hub:
        about |= {"base_model": base.hub, "base_model_relation": "adapter" if adapters else "finetune"}
    tags = ["text-to-image", *(["diffusers"] if facts.expected else []), *(["lora"] if adapters else []), "vgrpo"]
    return f"---\n{ModelCardData(pipeline_tag='text-to-image', tags=tags, **about).to_yaml()}\n---"


def portable(value: Any) -> Any:
    """Return a recipe's values with files named without their folders, which are nobody else's business."""
    if isinstance(value, Mapping):
        return {key: portable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [portable(inner) for inner in value]
    if not isinstance(value, str) or not Path(value).is_absolute():
        return value
    return f"./{Path(value).name}" if is_file(value) else Path(value).name


def _body(facts: Facts, recipe: str, shown: bool) -> Iterator[str]:
    run, iteration = facts.recipe.run, facts.weights.iteration
    yield f"# {facts.name.rpartition('/')[2]}"
    yield f"{_what(facts)}, trained with rewards by vgrpo for {_iterations(iteration)}."
    if shown:
        yield f"![Held-out prompts before and after training, with the same noise]({PICTURE})"
    if facts.expected:
        yield f"## Load it\n\n```python\n{python(facts)}\n```"
    yield f"## What it was trained for\n\n{_rewards(facts.recipe)}"
    prompts = ", ".join(dict.fromkeys(f"`{each.plugin.name}`" for each in facts.recipe.prompts))
    batch = facts.recipe.batch
    yield f"Each iteration drew {batch.group} images of each of {batch.prompts} prompts from {prompts}; see the recipe below."
    yield f"## Held-out prompts\n\n{_figures(facts)}"
    yield f"## Make it again\n\n{_again(run.seed)}\n\n```toml\n{recipe.rstrip()}\n```"
    yield f"Versions: {_versions(facts.run)}."


def _what(facts: Facts) -> str:
    base = base_model(facts.recipe.backbone)
    if base is None:
        return f"Weights of a model ({facts.recipe.backbone.describe()})"
    kind = "LoRA adapters for" if not facts.whole else "A pipeline from"
    return f"{kind} {base.named}"


def _iterations(number: int) -> str:
    return f"{number} iteration{'s' if number > 1 else ''}"


def _rewards(recipe: Recipe) -> str:
    rows = [f"| `{each.label}` | {weight(each)} | `{each.offer.name}` ({_source(each.offer)}) |" for each in recipe.rewards]
    return "\n".join(["| reward | weight | plugin |", "| --- | --- | --- |", *rows])


def _source(offer: Offer) -> str:
    return f"{portable(offer.distribution)} {offer.version}"


def _figures(facts: Facts) -> str:
    """Compare the evaluations at the start and at these weights, from the run's own lines."""
    from vgrpo_core.folder import Folder, evaluated

    found = {line["iteration"]: evaluated(line) for line in Folder(facts.run).lines()}
    before, after = found.get(0, {}), found.get(facts.weights.iteration, {})
    if not before or not after:
        return "They were not judged at this iteration."
    rows = [f"| `{label}` | {number(before[label])} | {number(after.get(label))} |" for label in before]
    head = [f"| mean of | before | after {_iterations(facts.weights.iteration)} |", "| --- | --- | --- |"]
    return "\n".join([*head, *rows])


def _again(seed: int) -> str:
    here = "Save this recipe as `recipe.toml`, with the files that it names beside it, and run `vgrpo run recipe.toml`."
    return f"{here} All random numbers follow from its seeds (`run.seed = {seed}`)."


def _versions(run: Path) -> str:
    manifest = run / "manifest.json"
    if not manifest.is_file():
        return f"vgrpo {version('vgrpo')}"
    made = json.loads(manifest.read_text(encoding="utf-8"))
    return ", ".join(f"{name} {number}" for name, number in {"Python": made["python"], **made["versions"]}.items())
