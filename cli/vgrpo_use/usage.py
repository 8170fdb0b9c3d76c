"""The base of an exported model, and the Python that loads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgrpo_core import Backbone

if TYPE_CHECKING:
    from .card import Facts

LICENCE = ("license", "license_name", "license_link")
WEIGHTS, SECOND = "pytorch_lora_weights.safetensors", "transformer_2"


@dataclass(frozen=True)
class Base:
    """The model that was trained: `named` for people, `hub` its id there, if it has one, `code` what gives its place in Python."""

    named: str
    code: str
    hub: str | None
    licence: Mapping[str, str]
    dtype: str


def base_model(backbone: Backbone) -> Base | None:
    """Say what a diffusers backbone has loaded; None for others."""
    from vgrpo_diffusers import Diffusers
    from vgrpo_diffusers.source import BUILTIN, find

    if not isinstance(backbone, Diffusers):
        return None
    model, folder, dtype = backbone.model, Path(find(backbone.model).name), backbone.dtype
    if model.startswith(BUILTIN):
        code = f'str(files("vgrpo_{model.removeprefix(BUILTIN)}") / "model")'
        return Base(f"`{model}`, a model that comes with vgrpo", code, None, licence(folder / "README.md"), dtype)
    if folder.is_dir():
        return Base(f"`{folder.name}`", f'"{folder.name}"', None, licence(folder / "README.md"), dtype)
    return Base(f"[{model}](https://huggingface.co/{model})", f'"{model}"', model, licence(_cached(model)), dtype)


def licence(card: Path | None) -> dict[str, str]:
    """Read the licence from a model's card, if there is one that names it."""
    from huggingface_hub import ModelCard

    if card is None or not card.is_file():
        return {}
    try:
        data = ModelCard.load(card, ignore_metadata_errors=True).data.to_dict()
    except Exception:  # a card that can't be read names none
        return {}
    return {key: str(data[key]) for key in LICENCE if data.get(key)}


def python(facts: Facts) -> str:
    """Return the Python that loads an exported model and draws with it as its run's evaluation does, scheduler apart."""
    expected, base, recipe = facts.expected, base_model(facts.recipe.backbone), facts.recipe
    assert expected is not None and base is not None
    place = f'"{facts.name}"' if facts.whole else base.code
    given = ", ".join([place, *(f"{name}=None" for name in expected.absent), f"dtype=torch.{base.dtype}"])
    imports = ["from importlib.resources import files", ""] if place.startswith("str(files") else []
    call: dict[str, Any] = {**expected.call, "num_inference_steps": recipe.eval.sampler.steps}
    arguments = ", ".join(['"a prompt"', *(f"{name}={value!r}" for name, value in call.items())])
    drawn = "frames" if expected.latents.ndim == 5 else "images"
    lines = [*imports, "import torch", "from diffusers import DiffusionPipeline", *_peft(facts), ""]
    lines += [f"pipe = DiffusionPipeline.from_pretrained({given})", *_adapters(facts)]
    return "\n".join([*lines, f"image = pipe({arguments}).{drawn}[0]"])


def _peft(facts: Facts) -> list[str]:
    return [] if facts.whole or (facts.expected and facts.expected.loader) else ["from peft import PeftModel"]


def _adapters(facts: Facts) -> list[str]:
    """Load adapters with the loader of the pipeline's class, where it has one."""
    assert facts.expected is not None
    if facts.whole:
        return []
    if not facts.expected.loader:
        return [f'PeftModel.from_pretrained(pipe.transformer, "{facts.name}")']
    loads = [f'pipe.load_lora_weights("{facts.name}", weight_name="{WEIGHTS}")']
    if any(name.startswith(f"{SECOND}.") for name in facts.expected.adapters):
        loads += [f'pipe.load_lora_weights("{facts.name}", weight_name="{SECOND}/{WEIGHTS}", load_into_transformer_2=True)']
    return loads


def _cached(model: str) -> Path | None:
    """Return the card of a model from the hub as far as it is on this machine."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "README.md")
    return Path(found) if isinstance(found, str) else None
