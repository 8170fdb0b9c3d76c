from __future__ import annotations

import json
import os
import tomllib

from PIL import Image


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_says_what_it_does_and_where_things_are(vgrpo, folder):
    result = vgrpo("run", "toy.toml")
    assert (result.code, result.err) == (0, "")
    out = result.out.splitlines()
    assert out[:2] == ["recipe   toy.toml", "folder   runs/toy"]
    assert out[2] == "model    toy [bold]colour[/bold] model"
    assert "some seconds" in out[5]
    run = folder / "runs" / "toy"
    assert {path.name for path in run.iterdir()} == {
        "recipe.toml", "manifest.json", "metrics.jsonl", "summary.json", "checkpoints", "model", "samples", "before-after.png",
        "report.html",
    }  # fmt: skip
    assert result.last == (
        "runs/toy: look at runs/toy/before-after.png and runs/toy/report.html; the weights are in runs/toy/model; "
        "go on with: vgrpo run toy.toml --resume --out runs/toy --set run.iterations=8"
    )


def test_the_lines_show_the_numbers_of_metrics_and_the_gain_since_the_start(vgrpo, folder):
    out = vgrpo("run", "toy.toml").out.splitlines()
    metrics = lines(folder / "runs" / "toy")
    start = metrics[0]["eval/light/mean"]
    assert f"iteration 0  light {start:.3f}  held out" in out
    for at in (2, 4):
        mean = metrics[at]["eval/light/mean"]
        assert f"iteration {at}  light {mean:.3f} ({mean - start:+.3f})  held out" in out
    for at in (1, 2, 3, 4):
        assert any(line.startswith(f"iteration {at}/4  light {metrics[at]['reward/light/mean']:.3f}  ") for line in out)
    final = metrics[4]["eval/light/mean"]
    assert f"light     {start:.3f}  {final:.3f}  {final:.3f}" in out
    assert out.count("") == 2  # around the table
    assert not any("\x1b" in line for line in out)


def test_pictures_are_saved_at_each_evaluation_and_at_the_end(vgrpo, folder):
    vgrpo("run", "toy.toml")
    run = folder / "runs" / "toy"
    expected = [f"00000{iteration}.{kind}" for iteration in (0, 2, 4) for kind in ("json", "png")]
    assert sorted(path.name for path in (run / "samples").iterdir()) == expected
    with Image.open(run / "before-after.png") as picture:
        assert picture.format == "PNG"


def test_runs_of_one_name_go_to_folders_of_their_own(vgrpo, folder):
    (folder / "runs" / "toy-2").mkdir(parents=True)
    short = ("--set", "run.iterations=1")
    assert "folder   runs/toy\n" in vgrpo("run", "toy.toml", *short).out
    assert "folder   runs/toy-3\n" in vgrpo("run", "toy.toml", *short).out
    assert "folder   runs/other\n" in vgrpo("run", "toy.toml", *short, "--set", "run.name=other").out
    assert list((folder / "runs" / "toy-2").iterdir()) == []


def test_out_names_the_folder(vgrpo, folder):
    (folder / "empty").mkdir()
    for name in ("empty", "deep/er"):
        result = vgrpo("run", "toy.toml", "--set", "run.iterations=1", "--out", name)
        assert f"folder   {name}\n" in result.out
        assert (folder / name / "summary.json").is_file()
    assert not (folder / "runs").exists()


def test_out_never_writes_into_a_folder_that_holds_something(vgrpo, folder):
    (folder / "full").mkdir()
    (folder / "full" / "thesis.txt").write_text("mine")
    result = vgrpo("run", "toy.toml", "--out", "full")
    assert (result.code, result.out) == (2, "")
    assert result.err == "Error: --out full: the folder is not empty; choose another, or add --resume to go on with the run in it\n"
    assert [path.name for path in (folder / "full").iterdir()] == ["thesis.txt"]


def test_out_may_not_be_a_file(vgrpo):
    result = vgrpo("run", "toy.toml", "--out", "toy.py")
    assert (result.code, result.err) == (2, "Error: --out toy.py: not a folder; choose another\n")


def test_a_folder_that_can_not_be_made_is_named(vgrpo, folder):
    (folder / "runs").write_text("a file")
    result = vgrpo("run", "toy.toml")
    assert (result.code, result.err) == (2, "Error: runs/toy: the run's folder can't be made: Not a directory\n")


def test_the_command_to_go_on_repeats_the_overrides_in_shell_quotes(vgrpo):
    last = vgrpo("run", "toy.toml", "--set", "run.iterations=1", "--set", "optimizer.betas=[0.9, 0.9]").last
    assert last.endswith("--resume --out runs/toy --set 'optimizer.betas=[0.9, 0.9]' --set run.iterations=2")


def test_the_folder_keeps_the_recipe_as_overridden(vgrpo, folder):
    vgrpo("run", "toy.toml", "--set", "run.iterations=1", "--set", "run.seed=5")
    kept = tomllib.loads((folder / "runs" / "toy" / "recipe.toml").read_text())
    assert (kept["run"]["iterations"], kept["run"]["seed"]) == (1, 5)


def test_threads_wait_without_spinning_unless_the_user_says_otherwise(vgrpo, monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY")
    vgrpo("run", "toy.toml", "--set", "run.iterations=1")
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    vgrpo("run", "toy.toml", "--set", "run.iterations=1")
    assert os.environ["OMP_WAIT_POLICY"] == "active"


# Runs that fail


def test_a_reward_that_fails_ends_the_run_with_a_message_and_the_way_on(vgrpo):
    result = vgrpo("run", "toy.toml", "--set", "reward.light.fail_at=4")  # the evaluation after iteration 2
    assert result.code == 1
    first, *_, last = result.err.splitlines()
    assert first.startswith('Error: reward "light" (')
    assert first.endswith("ValueError: out of [red]paint[/red]")
    assert "Traceback" not in result.err
    assert "is kept" in result.err
    assert last == "  go on with: vgrpo run toy.toml --resume --out runs/toy --set reward.light.fail_at=4"


def test_a_monitor_that_fails_is_a_warning(vgrpo, folder):
    text = (folder / "toy.toml").read_text() + '\n[[eval.reward]]\nuse = "./toy.py:Bright"\nlabel = "watched"\nfail_at = 2\n'
    (folder / "toy.toml").write_text(text)
    result = vgrpo("run", "toy.toml", "--set", "eval.watch=false")
    assert (result.code, result.err) == (0, "")
    assert "watched (watched only)" in result.out
    [warning] = [line for line in result.out.splitlines() if line.startswith("warning: ")]
    assert warning.endswith("out of [red]paint[/red]")
    [line] = [line for line in result.out.splitlines() if line.startswith("iteration 2  ")]
    assert "watched missing  held out" in line


def test_what_no_reward_is_about_is_watched_and_said_when_it_falls(vgrpo):
    out = vgrpo("run", "toy.toml").out.splitlines()  # the toy learns to be white
    [warning] = [line for line in out if line.startswith("warning: ")]
    assert warning.startswith("warning: color_entropy has fallen from ")
    assert not [line for line in out if "brightness" in line]  # it is in metrics.jsonl


def test_a_model_that_does_not_load_leaves_no_folder(vgrpo, folder):
    code = (folder / "toy.py").read_text()
    fault = 'from vgrpo_core import PluginError\n        raise PluginError("no [bold]weights[/bold]", "why", "do this")'
    (folder / "toy.py").write_text(code.replace("time.sleep(self.loading)", fault))
    result = vgrpo("run", "toy.toml")
    assert (result.code, result.err) == (2, "Error: no [bold]weights[/bold]\n  why\n  do this\n")
    assert not (folder / "runs").exists()


def test_prompts_that_are_none_are_refused_before_a_folder_is_made(vgrpo, folder):
    result = vgrpo("run", "toy.toml", "--set", "prompts.count=0")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith('Error: prompts "names" has none')
    assert not (folder / "runs").exists()


def test_a_fault_keeps_its_traceback_and_notes_but_shows_no_variables(started, folder):
    code = (folder / "toy.py").read_text()
    fault = 'secret = "hf_" + "SECRET"\n        1 / 0'
    (folder / "toy.py").write_text(code.replace("return latents.sigmoid()", f"{fault}\n        return latents.sigmoid()"))
    process = started("run", "toy.toml")
    _, err = process.communicate()
    assert process.returncode == 1
    assert "Traceback" in err
    assert "ZeroDivisionError: division by zero" in err
    assert "failed after iteration 0" in err
    assert "hf_SECRET" not in err


def test_a_run_without_any_signal_stops_and_says_why(vgrpo, folder):
    text = (folder / "toy.toml").read_text().replace("toy.py:Bright", "toy.py:Worse").replace("iterations = 4", "iterations = 9")
    (folder / "toy.toml").write_text(text)
    result = vgrpo("run", "toy.toml")
    assert result.code == 1
    assert result.err.startswith("Error: every advantage was 0")


def test_after_weights_that_have_diverged_the_way_on_is_half_the_rate(vgrpo):
    result = vgrpo("run", "toy.toml", "--set", "optimizer.lr=1e38", "--set", "optimizer.warmup=0", "--set", "checkpoint.every=1")
    assert result.code == 1
    assert "its weights have diverged" in result.err
    assert result.err.rstrip().endswith("--set optimizer.warmup=0 --set checkpoint.every=1 --set optimizer.lr=5e+37")


def test_long_lines_are_not_wrapped(vgrpo, folder):
    deep = "a" * 60 + "/" + "b" * 60
    result = vgrpo("run", "toy.toml", "--set", "run.iterations=1", "--out", deep)
    assert f"folder   {deep}" in result.out.splitlines()
    assert result.last.startswith(f"{deep}: look at {deep}/before-after.png and {deep}/report.html; ")
