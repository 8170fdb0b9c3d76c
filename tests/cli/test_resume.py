from __future__ import annotations

import json
import os
import shutil

import pytest
from PIL import Image

from vgrpo_recipe import load

VARIES = ("seconds", "memory/peak_gb")


def iterations(folder):
    return [json.loads(line)["iteration"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def done(vgrpo, folder):
    """A run of two iterations in runs/toy."""
    vgrpo("run", "toy.toml", "--set", "run.iterations=2")
    return folder / "runs" / "toy"


def test_a_finished_run_says_so_and_how_to_go_on(vgrpo, done):
    before = (done / "summary.json").stat().st_mtime_ns
    result = vgrpo("run", "toy.toml", "--resume")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "runs/toy is finished: all 2 iterations are done; "
        "go on with: vgrpo run toy.toml --resume --out runs/toy --set run.iterations=4\n"
    )
    assert (done / "summary.json").stat().st_mtime_ns == before


def test_a_finished_run_goes_on_with_more_iterations(vgrpo, done):
    with Image.open(done / "samples" / "000000.png") as picture:
        first = picture.tobytes()
    result = vgrpo("run", "toy.toml", "--resume", "--set", "run.iterations=5")
    assert (result.code, result.err) == (0, "")
    assert "folder   runs/toy, resumed" in result.out.splitlines()
    assert iterations(done) == [0, 1, 2, 3, 4, 5]
    metrics = [json.loads(line) for line in (done / "metrics.jsonl").read_text().splitlines()]
    start, after = metrics[0]["eval/light/mean"], metrics[4]["eval/light/mean"]
    assert f"iteration 4  light {after:.3f} ({after - start:+.3f})  held out" in result.out
    with Image.open(done / "samples" / "000000.png") as picture:
        assert picture.tobytes() == first


def test_a_resumed_run_is_the_run_that_was_not_stopped(vgrpo, done, folder):
    vgrpo("run", "toy.toml", "--resume", "--set", "run.iterations=4")
    vgrpo("run", "toy.toml", "--out", "whole")
    timeless = [
        [{key: value for key, value in json.loads(line).items() if key not in VARIES} for line in (path / "metrics.jsonl").open()]
        for path in (done, folder / "whole")
    ]
    assert timeless[0] == timeless[1]
    assert (done / "before-after.png").read_bytes() == (folder / "whole" / "before-after.png").read_bytes()


def test_a_run_killed_after_its_last_checkpoint_is_completed(vgrpo, done):
    (done / "summary.json").unlink()
    (done / "before-after.png").unlink()
    shutil.rmtree(done / "model")
    assert vgrpo("run", "toy.toml", "--resume").code == 0
    assert (done / "summary.json").is_file()
    assert (done / "before-after.png").is_file()
    assert (done / "model").is_dir()
    assert iterations(done) == [0, 1, 2]


def test_a_longer_run_killed_after_its_last_checkpoint_is_completed(vgrpo, done):
    more = ("--resume", "--set", "run.iterations=3")
    summary = (done / "summary.json").read_text()
    vgrpo("run", "toy.toml", *more)
    (done / "summary.json").write_text(summary)  # as it was after two iterations
    assert vgrpo("run", "toy.toml", *more).code == 0
    assert json.loads((done / "summary.json").read_text())["iterations"] == 3


def test_without_out_the_run_saved_last_is_resumed(vgrpo, folder):
    for _ in range(3):
        vgrpo("run", "toy.toml", "--set", "run.iterations=1")
    vgrpo("run", "toy.toml", "--set", "run.iterations=1", "--set", "run.name=toy-man")
    runs = folder / "runs"
    (runs / "toy-9").mkdir()  # has no checkpoint
    os.utime(runs / "toy-2" / "checkpoints" / "000001", (2e9, 2e9))
    result = vgrpo("run", "toy.toml", "--resume", "--set", "run.iterations=2")
    assert "folder   runs/toy-2, resumed" in result.out.splitlines()


def test_out_names_the_run_to_resume(vgrpo, done, folder):
    vgrpo("run", "toy.toml", "--set", "run.iterations=1")
    result = vgrpo("run", "toy.toml", "--resume", "--out", "runs/toy", "--set", "run.iterations=3")
    assert "folder   runs/toy, resumed" in result.out.splitlines()
    assert iterations(folder / "runs" / "toy-2") == [0, 1]


@pytest.mark.parametrize("out", [(), ("--out", "runs/toy"), ("--out", "nowhere")])
def test_nothing_to_resume_is_a_mistake(vgrpo, folder, out):
    (folder / "runs" / "toy").mkdir(parents=True)
    result = vgrpo("run", "toy.toml", "--resume", *out)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Error: --resume: ")
    assert "no checkpoint" in result.err or "with a checkpoint" in result.err
    assert "start a new run without --resume" in result.err
    assert not (folder / "nowhere").exists()


def test_another_recipe_is_refused_and_what_differs_is_named(vgrpo, done, folder):
    text = (folder / "toy.toml").read_text().replace("lr = 0.1", "lr = 0.2").replace("group = 4", "group = 2")
    (folder / "toy.toml").write_text(text.replace('label = "light"', 'label = "light"\ndelay = 0.5'))
    result = vgrpo("run", "toy.toml", "--resume", "--set", "run.seed=3", "--set", "run.iterations=9")
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[:-1] == [
        "Error: --resume: runs/toy was started with another recipe",
        "  run.seed was 0, now 3",
        "  batch.group was 4, now 2",
        "  optimizer.lr was 0.1, now 0.2",
        "  reward.0.delay was 0.0, now 0.5",
    ]
    assert iterations(done) == [0, 1, 2]


def test_iterations_checkpoints_and_evaluation_may_change(vgrpo, done):
    changes = ("run.iterations=3", "checkpoint.every=0", "checkpoint.keep=1", "eval.every=1")
    result = vgrpo("run", "toy.toml", "--resume", *(word for change in changes for word in ("--set", change)))
    assert (result.code, result.err) == (0, "")
    assert [path.name for path in (done / "checkpoints").iterdir()] == ["000003"]


def test_the_rate_may_change_where_it_is_typed(vgrpo, done):
    result = vgrpo("run", "toy.toml", "--resume", "--set", "run.iterations=3", "--set", "optimizer.lr=0.05")
    assert (result.code, result.err) == (0, "")
    assert load(done / "recipe.toml").optimizer.lr == 0.05


def test_a_resumed_run_does_not_need_the_run_that_it_began_with(vgrpo, done, folder):
    words = ("--set", "run.init=runs/toy", "--out", "second")
    assert vgrpo("run", "toy.toml", *words).code == 0
    shutil.rmtree(done)
    result = vgrpo("run", "toy.toml", *words, "--set", "run.iterations=3", "--resume")
    assert (result.code, result.err) == (0, "")
    assert load(folder / "second" / "recipe.toml").run.init == done


def test_the_recipe_of_the_folder_is_what_goes_on(vgrpo, done, folder):
    (folder / "toy.toml").write_text((folder / "toy.toml").read_text().replace("iterations = 4", "iterations = 7"))
    assert "is finished: all 2 iterations" in vgrpo("run", "toy.toml", "--resume").out


def test_other_held_out_prompts_are_not_compared(vgrpo, done):
    result = vgrpo("run", "toy.toml", "--resume", "--set", "run.iterations=3", "--set", "eval.samples=2")
    assert (result.code, result.err) == (0, "")
    assert "warning: no before-after.png: the prompts or sizes of evaluation have changed since the start" in result.out
    assert "look at runs/toy/samples and runs/toy/report.html; " in result.last


def test_a_lost_first_picture_is_a_warning(vgrpo, done):
    (done / "samples" / "000000.png").unlink()
    result = vgrpo("run", "toy.toml", "--resume", "--set", "run.iterations=3")
    assert (result.code, result.err) == (0, "")
    assert "warning: no before-after.png: " in result.out
