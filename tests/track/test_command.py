"""`vgrpo run` with trackers, alone and on two ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

OF_THE_MACHINE = ("seconds", "memory/peak_gb")


@pytest.fixture
def vgrpo(recipe, tmp_path, monkeypatch, capsys):
    """Run the recipe in the folder `run` and return what was printed."""
    from vgrpo_cli.app import main

    recipe()
    for name in ("OMP_WAIT_POLICY", "DIFFUSERS_VERBOSITY", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(name, os.environ.get(name, "passive" if name.startswith("OMP") else "error"))

    def call(*args):
        words = ["vgrpo", "run", str(tmp_path / "small.toml"), "--out", str(tmp_path / "run"), *args]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out

    return call


def steps(board):
    return [event.step for event in board.Scalars("reward/red/mean")]


def test_trackers_are_named_at_the_start_and_may_change_when_a_run_is_resumed(vgrpo, board, tmp_path):
    assert "\ntrackers" not in vgrpo("--set", "track.with=[]", "--set", "run.iterations=1")
    shutil.rmtree(tmp_path / "run" / "model")
    out = vgrpo("--resume", "--set", 'track.with=["tensorboard"]', "--set", "run.iterations=2")
    assert "\ntrackers  tensorboard\n" in out
    assert steps(board()) == [1, 2]


def test_a_run_whose_recipe_was_kept_before_there_were_trackers_is_resumed(vgrpo, board, tmp_path):
    vgrpo("--set", "track.with=[]", "--set", "run.iterations=1")
    shutil.rmtree(tmp_path / "run" / "model")
    kept = tmp_path / "run" / "recipe.toml"
    kept.write_text(kept.read_text().partition("[track]")[0])
    vgrpo("--resume", "--set", "run.iterations=2")
    assert not (tmp_path / "run" / "track").exists()


def test_of_two_ranks_the_main_one_logs_and_the_run_is_the_same_as_without(recipe, board, tmp_path):
    recipe()
    words = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", "-m", "vgrpo_cli", "run", "small.toml"]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    lines = {}
    for folder, more in (("run", ()), ("untracked", ("--set", "track.with=[]"))):
        command = [sys.executable, *words, "--out", folder, "--set", "run.iterations=2", *more]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=300)
        text = (tmp_path / folder / "metrics.jsonl").read_text()
        lines[folder] = [{k: v for k, v in json.loads(line).items() if k not in OF_THE_MACHINE} for line in text.splitlines()]
    assert lines["run"] == lines["untracked"]
    assert len(list((tmp_path / "run" / "track" / "tensorboard").iterdir())) == 1
    assert steps(board()) == [1, 2]
