"""What people type to choose a reward outside of a recipe: its options, and a device; mistakes are told as those of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgrpo_core import RecipeError, Reward, VgrpoError
from vgrpo_core.errors import reason
from vgrpo_core.offers import Offer
from vgrpo_core.plugin import Plugin
from vgrpo_core.schema import Table
from vgrpo_recipe.reader import _Reader, _Section
from vgrpo_recipe.registry import Registry
from vgrpo_recipe.tables import Source, put

if TYPE_CHECKING:
    import torch

ANOTHER = "Choose another, such as cpu; auto takes a CUDA device where there is one."


class _Typed(Source):
    """Options of a command in place of a recipe's file."""

    def where(self, at: tuple[str | int, ...]) -> str:
        return super().where(at).replace("--set", "--option", 1)


def reward(offer: Offer, options: Sequence[str], registry: Registry) -> Reward:
    """Make a reward with options `KEY=VALUE`; a RecipeError holds all that is wrong with them."""
    source, values = _Typed(Path("--option"), "", {}), dict[str, Any]()
    for option in options:
        try:
            source.overridden[put(values, option)] = option
        except ValueError as error:
            source.mistakes.append(f"--option {option}: {error}")
    made = checked(offer, values, source, registry)
    assert isinstance(made, Reward)
    return made


def checked(offer: Offer, values: dict[str, Any], source: Source, registry: Registry) -> Plugin:
    """Check options as the recipe's reader does, in its words; a RecipeError holds all that is wrong with them."""
    reader, section = _Reader(source, registry), _Section((), Table, offer.kind, values, offer)
    reader.sections = [section]
    reader.check(section)
    if reader.mistakes:
        raise RecipeError(reader.mistakes)
    assert isinstance(section.plugin, Plugin)
    return section.plugin


def device(name: str, said: str = "", fix: str = ANOTHER) -> torch.device:
    """Return the device of a name, once it is known to be there; one that is not is a VgrpoError, which names it as `said`."""
    import torch

    from vgrpo_core.run import pick_device

    try:
        found = pick_device(name)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        raise VgrpoError(f"{said or f'--device {name}'}: {reason(error)}\n  {fix}") from error
    return found
