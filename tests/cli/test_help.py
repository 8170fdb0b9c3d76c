from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from vgrpo_cli.app import app

DOCS = Path(__file__).parents[2] / "docs"


def commands(command, *path):
    """All commands, groups included, with their paths."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, *path, name)


PATHS = [path for path, _ in commands(typer.main.get_command(app))]


def shown(path, monkeypatch):
    """What --help prints in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, [*path, "--help"], prog_name="vgrpo")
    assert result.exit_code == 0
    return result.output


def examples(text):
    return re.findall(r"^  (?:Example|Start with): (vgrpo .*)$", text, re.MULTILINE)


@pytest.mark.skipif(not typer.__version__.startswith("0.29."), reason="the page is as typer 0.29 lays help out")
def test_the_page_shows_the_help_of_today():
    rendered = runpy.run_path(str(DOCS / "generate.py"))["rendered"]
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == rendered("cli.md"), "run python docs/generate.py"


def test_every_command_and_option_is_on_the_page():
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    helps = dict(re.findall(r"^\$ (vgrpo[^\n]*?) --help\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    found = {" ".join(["vgrpo", *path]): command for path, command in commands(typer.main.get_command(app))}
    assert helps.keys() == found.keys()
    for path, command in found.items():
        there = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
        options = {option for parameter in there for option in parameter.opts if option.startswith("--")}
        assert options | {"--help"} == set(re.findall(r"^ +(?:-h, )?(--[a-z-]+)", helps[path], re.MULTILINE))


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_fits_80_columns_and_has_no_colour(path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = shown(path, monkeypatch)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "\x1b" not in text


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_ends_with_examples_of_that_command_which_the_parser_takes(path, monkeypatch):
    text = shown(path, monkeypatch)
    found = examples(text)
    assert found, "add an example as its epilog"
    assert text.rstrip().endswith(found[-1])
    for example in found:
        called = parsed(shlex.split(example)[1:])
        assert called == path or (len(path) < 2 and called[: len(path)] == path), example


def test_an_example_with_an_option_that_is_gone_is_found():
    with pytest.raises(typer.BadParameter.__base__):
        parsed(["run", "words", "--sed", "1"])
    with pytest.raises(typer.BadParameter.__base__):
        parsed(["check", "words", "--ranks", "many"])


def parsed(words):
    """Have words parsed as on the command line, and return the path of the command that would run."""
    root = typer.main.get_command(app)
    called = []
    for path, command in commands(root):
        command.callback = lambda path=path, **values: called.append(path)
    root.main(words, standalone_mode=False)
    return called[-1]


CHEAP = [
    *("check words", "check words --memory --set batch.micro=72", "plugins", "plugins --json", "plugins show ocr"),
    *("plugins show geneval --kind reward", "new reward glow"),
]


@pytest.mark.parametrize("example", CHEAP)
def test_examples_that_need_no_run_do_what_they_say(vgrpo, monkeypatch, example):
    texts = "".join(shown(path, monkeypatch) for path in PATHS if path and path[0] in example)
    assert f"vgrpo {example}" in examples(texts), "the example has changed"
    result = vgrpo(*shlex.split(example))
    assert (result.code, result.err) == (0, "")
    assert result.out
