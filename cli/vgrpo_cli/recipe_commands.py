"""`vgrpo recipes`: list, show and copy what comes with vgrpo."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer

from vgrpo_core import RecipeError

from . import shipped
from .pages import PLAIN, example

WIDTH = 80
Name = Annotated[str, typer.Argument(metavar="NAME", help="A shipped recipe.")]
recipes = typer.Typer(
    help="List, show and copy the recipes that come with vgrpo.",
    epilog=example("recipes copy words my.toml"),
    context_settings=PLAIN,
    rich_markup_mode=None,
)


@recipes.callback(invoke_without_command=True)
def _recipes(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_recipes()


@recipes.command("list", epilog=example("recipes list"))
def list_recipes() -> None:
    """List the shipped recipes, with what each does and needs."""
    from .needs import ASSUMED

    for name in shipped.names():
        typer.echo("\n".join([name, *_indented(shipped.about(name)), *_indented(needed(name))]))
    for line in ASSUMED:
        typer.echo("\n".join(wrap(line, WIDTH)))


def needed(name: str) -> str:
    """Say what a recipe needs; where it can't be read, for want of a package for instance, how to see why."""
    from vgrpo_recipe import load

    from .needs import said

    try:
        recipe = load(shipped.shipped(name))
    except RecipeError:
        return f"needs what is not here: `vgrpo check {name}` says it"
    return f"needs {'; '.join(said(name, recipe))}"


def _indented(text: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


@recipes.command(epilog=example("recipes show words"))
def show(name: Name) -> None:
    """Print a shipped recipe."""
    typer.echo(shipped.shipped(name).read_text(encoding="utf-8"), nl=False)


@recipes.command(epilog=example("recipes copy words my.toml"))
def copy(
    name: Name,
    to: Annotated[Path, typer.Argument(metavar="DEST", help="The file to write, or its folder.", show_default=False)] = Path(),
) -> None:
    """Copy a shipped recipe, to change it. Nothing is overwritten."""
    target = shipped.copy(name, to)
    typer.echo(f"wrote {target}; run it with: vgrpo run {target}")
