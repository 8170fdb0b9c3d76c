from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from vgrpo_core import VgrpoError
from vgrpo_report.commands import report


@pytest.fixture
def call():
    app = typer.Typer()
    app.command()(report)

    def run(*words):
        return CliRunner().invoke(app, list(map(str, words)))

    return run


def test_the_report_of_one_run_goes_to_its_folder(made, call):
    folder = made()
    result = call(folder)
    file = folder / "report.html"
    assert (result.exit_code, result.output) == (0, f"wrote {file} ({file.stat().st_size / 1e6:.1f} MB)\n")
    assert file.read_text().startswith("<!doctype html>")


def test_the_report_of_several_goes_to_the_working_folder(made, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(made("first"), made("second")).output.startswith("wrote report.html (")
    assert (tmp_path / "report.html").is_file()
    assert not (tmp_path / "first" / "report.html").exists()


def test_another_file_may_be_named(made, call, tmp_path):
    call(made(), "--out", tmp_path / "other.html")
    assert (tmp_path / "other.html").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"first", "other.html"}


def test_a_place_that_cannot_be_written_is_a_mistake_to_mend(made, call, tmp_path):
    error = call(made(), "--out", tmp_path / "nowhere" / "page.html").exception
    assert isinstance(error, VgrpoError)
    assert str(error).endswith("page.html: the report can't be written: No such file or directory; choose another place with --out")


def test_importing_the_command_imports_no_heavy_library():
    code = "import sys, vgrpo_report.commands, vgrpo_report.live; print({'torch', 'matplotlib', 'numpy', 'PIL'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
