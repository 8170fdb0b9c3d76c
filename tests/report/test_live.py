from __future__ import annotations

import importlib.util
import runpy
import textwrap
from pathlib import Path

import pytest

from vgrpo_cli.training import Asked, train
from vgrpo_core.events import Evaluated, Iterated, Warned
from vgrpo_report import live
from vgrpo_report.live import Live

CLI = runpy.run_path(str(Path(__file__).parents[1] / "cli" / "conftest.py"))


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Train the small model of the command's tests, and return its folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.py").write_text(textwrap.dedent(CLI["TOY"]))
    (tmp_path / "toy.toml").write_text(CLI["RECIPE"])

    def run(*overrides):
        assert train(Asked("toy.toml", list(overrides), tmp_path / "run", False)) == 0
        return tmp_path / "run"

    return run


def test_a_run_leaves_a_report_with_all_its_evaluations(toy, page):
    found = page(toy() / "report.html")
    assert found.all("input", type="range")[0].attributes["data-moments"] == "0 2 4"
    assert len(found.pieces("x-iteration.light.0.raw")[0]) == 4
    assert "toy [bold]colour[/bold] model" in found.all("p", **{"class": "lede"})[0].text


def test_it_is_renewed_when_the_numbers_of_an_evaluation_are_on_disk(made, monkeypatch):
    folder, writes = made(), []
    monkeypatch.setattr(live, "write", lambda runs, file: writes.append(file))
    listen = Live(folder, print)
    for event in (Evaluated(0, {}, (), None), Iterated({"iteration": 1}), Iterated({"iteration": 2})):
        listen(event)
    assert writes == [folder / "report.html"]


def test_a_report_that_cannot_be_written_is_a_warning_said_once_and_the_run_goes_on(toy, monkeypatch, capsys):
    def fail(runs, file):
        raise ZeroDivisionError("no [red]paint[/red] left")

    monkeypatch.setattr(live, "write", fail)
    folder = toy()
    assert (folder / "summary.json").is_file()
    warning = "warning: no report.html: ZeroDivisionError: no [red]paint[/red] left\n"
    assert capsys.readouterr().out.count(warning) == 1


def test_without_matplotlib_one_line_says_what_to_install(made, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr("vgrpo_report.commands.find_spec", lambda name: None if name == "matplotlib" else real(name))
    told = []
    listen = Live(made(), told.append)
    listen.write()
    listen.write()
    expected = 'no report.html: a report needs matplotlib, which is not installed Run: pip install "vgrpo[plot]"'
    assert told == [Warned(expected)]
