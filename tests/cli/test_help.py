from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import typer

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.skipif(not typer.__version__.startswith("0.29."), reason="the page is as typer 0.29 lays help out")
def test_the_page_shows_the_help_of_today():
    rendered = runpy.run_path(str(DOCS / "generate.py"))["rendered"]
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == rendered("cli.md"), "run python docs/generate.py"


def test_every_command_and_option_is_on_the_page():
    from vgrpo_cli.app import app

    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    helps = dict(re.findall(r"^\$ (vgrpo[^\n]*?) --help\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    commands = dict(_commands(typer.main.get_command(app), "vgrpo"))
    assert helps.keys() == commands.keys()
    for path, command in commands.items():
        shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
        options = {option for parameter in shown for option in parameter.opts if option.startswith("--")}
        assert options | {"--help"} == set(re.findall(r"^ +(?:-h, )?(--[a-z-]+)", helps[path], re.MULTILINE))


def _commands(command, path):
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{path} {name}")
