"""Mistakes of all kinds, in all commands: one message of one form on stderr, exit code 2, no traceback, nothing printed."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from PIL import Image

MISTAKES = {
    # the parser's
    "nonsense": ["Error: vgrpo: no such command 'nonsense'", "`vgrpo --help`"],
    "runn": ["did you mean 'run'?"],
    "run": ["Error: vgrpo run: missing argument 'RECIPE'", "`vgrpo run --help`"],
    "run toy.toml --resum": ['Error: vgrpo run: no option --resum; did you mean "--resume"?'],
    "run toy.toml more": ["Error: vgrpo run: got unexpected extra argument"],
    "check toy.toml --set": ["Error: vgrpo check: option '--set' requires an argument"],
    "check toy.toml --ranks many": ["Error: vgrpo check: invalid value for '--ranks'"],
    "check toy.toml --ranks -1": ["Error: vgrpo check: invalid value for '--ranks'"],
    "sample runs/x --count 0": ["Error: vgrpo sample: invalid value for '--count'"],
    "export runs/x": ["Error: vgrpo export: missing option '--to'"],
    "serve jpeg_size --port 99999": ["Error: vgrpo serve: invalid value for '--port'"],
    "new thing name": ["Error: vgrpo new: invalid value for 'KIND'", "reward"],
    "new": ["Error: vgrpo new: missing argument 'KIND'"],
    "compare toy.toml": ["Error: vgrpo compare: missing option '--objectives'"],
    "plugins shw": ["Error: vgrpo plugins: no such command 'shw'", "did you mean 'show'?", "`vgrpo plugins --help`"],
    # files
    "check toy.py": ["Error: toy.py:", "not TOML"],
    "check picture.png": ["Error: picture.png:1: ", "is not UTF-8"],
    "check .": ["Error: .: a folder, not a recipe file"],
    "run toy.toml --out /proc/x": ["Error: /proc/x: the run's folder can't be made"],
    "compare toy.toml --objectives vgrpo --budget 1000 --out toy.py/x": ["toy.py/x: can't be written there: Not a directory"],
    "report toy.py": ["Error: toy.py"],
    "score jpeg_size toy.py": ["1 of 1 images can't be read", "toy.py: not an image"],
    "score jpeg_size absent.png": ["absent.png: No such file or directory"],
    "score jpeg_size picture.png --prompts none.txt": ["none.txt can not be read: No such file or directory"],
    # names and values
    "check toy.toml --set sampler.use=eular": ['no sampler named "eular"; did you mean "euler"?'],
    "check toy.toml --set batch.group=many": ['--set batch.group=many: [batch] group is "many"', "write it without quotes"],
    "check toy.toml --set batch.group=-1": ["--set batch.group=-1: [batch] group is -1"],
    "score jpeg picture.png": ['no reward named "jpeg"; did you mean "jpeg_size"?'],
    "score jpeg_size picture.png --option quality=3": ['--option quality=3: unknown key "quality"'],
    "serve jpeg_size --option quality=3": ['--option quality=3: unknown key "quality"'],
    "serve jpeg_size --option quality": ["--option quality: write it as key=value"],
    "score jpeg_size picture.png --device nonsense": ["--device nonsense: RuntimeError", "Choose another, such as cpu"],
    "serve jpeg_size --device nonsense": ["--device nonsense: RuntimeError", "Choose another, such as cpu"],
    "run toy.toml --set run.device=nonsense": ["Error: run.device nonsense: RuntimeError", "Choose another, such as cpu"],
    "run toy.toml --set run.init=absent": ["Error: toy.toml: run.init is ", "no run with a checkpoint is there"],
    "plugins show ocrr": ['no plugin named "ocrr"; did you mean reward "ocr"?', "`vgrpo plugins`"],
    "plugins show ocr --kind rewrd": ['--kind: no kind "rewrd"; did you mean "reward"?'],
    "sample nowhere": ['no run "nowhere"'],
    "evaluate nowhere": ['no run "nowhere"'],
    "export nowhere --to x": ['no run "nowhere"'],
    "new reward 1x": ['"1x" makes no name for a class'],
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_message_that_says_what_and_how(vgrpo, folder, typed):
    Image.new("RGB", (8, 8)).save(folder / "picture.png")
    before = sorted(folder.rglob("*"))
    result = vgrpo(*shlex.split(typed))
    assert (result.code, result.out) == (2, "")
    first, *others = result.err.splitlines()
    assert first.startswith("Error: ")
    assert all(line.startswith("  ") for line in others), "what to do is below, two columns to the right"
    assert "Traceback" not in result.err and "Usage:" not in result.err and "\x1b" not in result.err
    assert [part for part in MISTAKES[typed] if part not in result.err] == []
    assert [path for path in sorted(folder.rglob("*")) if path not in before and "__pycache__" not in path.parts] == []


def test_without_a_command_help_goes_to_stderr(vgrpo):
    result = vgrpo()
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: vgrpo")


@pytest.mark.parametrize("typed", ["plugins --json", "plugins", "check words"])
def test_a_reader_that_goes_away_is_no_traceback(typed):
    command = [sys.executable, "-m", "vgrpo_cli", *typed.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert "Traceback" not in err and "Broken" not in err and "Exception" not in err
    assert process.returncode == 1
