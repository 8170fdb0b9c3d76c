from __future__ import annotations

import json
import math
import signal
import statistics

import pytest

from vgrpo_recipe import load

EACH = {"vgrpo": 96, "few": 60}


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def result(folder):
    return json.loads((folder / "compare" / "toy" / "compare.json").read_text())


def timeless(value):
    """Leave out what depends on the clock, and overrides, in which there are folders."""
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if "seconds" not in key and key != "overrides"}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


@pytest.fixture
def done(finished, monkeypatch):
    """Be where a comparison is done, and return what it printed."""
    folder, printed = finished
    monkeypatch.chdir(folder)
    assert (printed.code, printed.err) == (0, "")
    return folder, printed


def test_every_run_is_an_ordinary_run_of_the_same_recipe_but_for_what_is_compared(done):
    folder, _ = done
    tables = {}
    for label, each in EACH.items():
        for seed in (0, 1):
            run = folder / "compare" / "toy" / label / f"seed-{seed}"
            assert (run / "summary.json").is_file() and (run / "model").is_dir() and list((run / "samples").iterdir())
            table = load(run / "recipe.toml").table
            assert (table["run"].pop("iterations"), table["run"].pop("seed")) == (480 // each, seed)
            assert table["objective"].pop("pairs") == {"vgrpo": 2, "few": 1}[label]
            tables[label, seed] = table
            assert metrics(run)[-1]["evaluations"] + 2 * metrics(run)[-1]["backwards"] == 480 // each * each
    assert all(table == tables["vgrpo", 0] for table in tables.values())


def test_the_curves_are_those_of_the_metrics_and_the_score_is_the_weighted_sum(done):
    folder, _ = done
    found = result(folder)
    assert (found["complete"], found["seeds"], found["levels"]) == (True, [0, 1], [0.7, 0.75, 9])
    for entry in found["entries"]:
        for run in entry["runs"]:
            lines = metrics(folder / "compare" / "toy" / run["folder"])
            assert [point["iteration"] for point in run["curve"]] == [line["iteration"] for line in lines]
            for point, line in zip(run["curve"], lines, strict=True):
                assert point["score"] == pytest.approx(2 * (line["eval/red/mean"] - 0.25))
                assert point["cost"] == line["evaluations"] + 2 * line["backwards"]
                assert (point["seconds"], point["means"]) == (line["seconds"], {"red": line["eval/red/mean"]})
        final = [run["curve"][-1]["score"] for run in entry["runs"]]
        assert entry["final"] == {
            "mean": pytest.approx(statistics.mean(final)),
            "std": pytest.approx(statistics.stdev(final)),
            "count": 2,
        }
        assert entry["reached"][-1] == {"level": 9, "cost": None, "seconds": None, "cost_speed": None, "seconds_speed": None}
    starts = {run["curve"][0]["score"] for entry in found["entries"] for run in entry["runs"]}
    assert len(starts) == 2  # the toy's weights at the start follow from the seed


def test_what_is_printed_ends_with_the_tables_and_where_the_picture_is(done):
    folder, printed = done
    lines = printed.out.splitlines()
    first = lines.index("[1/4] vgrpo/seed-0: 5 iterations")
    start, *_, end = result(folder)["entries"][0]["runs"][0]["curve"]
    assert lines[first + 1] == f"  iteration 0/5  score {start['score']:.3f}  red {start['means']['red']:.3f}  cost 0  0 s"
    assert lines[first + 6].startswith(f"  iteration 5/5  score {end['score']:.3f}  red {end['means']['red']:.3f}  cost 480  ")
    assert lines[-1] == "compare/toy: look at compare/toy/compare.png and compare/toy/compare.md"
    assert any(line.split()[:1] == ["few"] and line.endswith("2 of 2") for line in lines)
    assert {path.name for path in (folder / "compare" / "toy").iterdir() if path.is_file()} == {
        ".lock", "compare.json", "compare.md", "compare.png", "compare.svg",
    }  # fmt: skip


def test_what_is_done_is_not_repeated_and_the_results_are_written_again(done, compare, small):
    folder, _ = done
    before = (folder / "compare" / "toy" / "compare.json").read_text()
    for path in (folder / "compare" / "toy").glob("compare.*"):
        path.unlink()
    runs = {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.jsonl")}
    again = compare(*small)
    assert again.code == 0 and again.out.count("done before, final score") == 4
    assert {path: path.stat().st_mtime_ns for path in runs} == runs
    assert (folder / "compare" / "toy" / "compare.json").read_text() == before
    assert (folder / "compare" / "toy" / "compare.svg").is_file()


def test_a_folder_with_another_recipe_is_refused_and_the_difference_named(done, compare, small):
    found = compare(*small, "--set", "few:optimizer.lr=0.5")
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith(
        "Error: few: compare/toy/few/seed-0 holds a run of another recipe\n  optimizer.lr was 0.03, now 0.5\n"
    )
    assert compare(*small, "--set", "checkpoint.keep=1").code == 0
    assert "run.iterations was 5, now 10" in compare(*small[:-1], "960").err


@pytest.mark.slow
def test_killed_and_interrupted_runs_go_on_as_if_they_had_not_been(started, compare, folder, small, finished, monkeypatch):
    arguments = (*small, "--set", "checkpoint.every=1")
    monkeypatch.setenv("DELAY", "0.05")
    killed = started(*arguments)
    next(line for line in killed.stdout if line.startswith("  iteration 2/5"))
    killed.kill()
    killed.communicate()
    stopped = started(*arguments)
    next(line for line in stopped.stdout if line.startswith("  iteration 3/8"))
    stopped.send_signal(signal.SIGINT)
    out, err = stopped.communicate(timeout=60)
    assert (stopped.returncode, err) == (130, "")
    assert "finishing the iteration, then saving; press again to quit at once\n" in out
    assert "of 8; go on with: vgrpo compare toy.toml --objectives vgrpo,few=vgrpo " in out.splitlines()[-1]
    assert not result(folder)["complete"]
    assert "Not complete yet" in (folder / "compare" / "toy" / "compare.md").read_text()
    monkeypatch.delenv("DELAY")
    assert compare(*arguments).code == 0
    for run in (folder / "compare" / "toy").rglob("metrics.jsonl"):
        assert [line["iteration"] for line in metrics(run.parent)] == list(range(6 if "vgrpo" in run.parts else 9))
    assert timeless(result(folder)) == timeless(result(finished[0]))


@pytest.mark.slow
def test_two_processes_with_different_only_make_the_whole_comparison(started, compare, folder, small, finished):
    other = started(*small, "--only", "few")
    assert compare(*small, "--only", "vgrpo").code == 0
    out, err = other.communicate(timeout=60)
    assert not err
    assert other.returncode == 0
    assert "vgrpo/seed" not in out and "[2/2] few/seed-1: 8 iterations" in out
    assert timeless(result(folder)) == timeless(result(finished[0]))


def test_an_entry_that_another_process_runs_is_left_to_it(compare, folder, small):
    from vgrpo_compare.results import alone

    with alone(folder / "compare" / "toy" / "few", wait=False):
        found = compare(*small, "--only", "few")
    assert found.code == 2
    assert found.err.startswith(
        "Error: compare/toy/few: another process runs this entry; choose others with --only\n  go on with: "
    )


def test_the_sweep_chooses_each_entrys_value_and_marks_one_at_the_edge(compare, folder):
    found = compare("--objectives", "vgrpo,few=vgrpo", "--seeds", "0", "--budget", "480", "--sweep", "lr=1e-9,0.1,1e20")
    assert (found.code, found.err) == (0, "")
    for entry in result(folder)["entries"]:
        scores = {}
        for value in ("1e-9", "0.1", "1e20"):
            run = folder / "compare" / "toy" / entry["label"] / "sweep" / f"lr={value}" / "seed-1"
            later = [line["eval/red/mean"] for line in metrics(run)[1:]]
            scores[value] = 2 * (statistics.mean(later[-math.ceil(len(later) / 3) :]) - 0.25)
        assert entry["sweep"]["scores"] == pytest.approx(scores)
        assert entry["sweep"]["best"] == max(scores, key=scores.get)
        assert entry["sweep"]["edge"] == (entry["sweep"]["best"] != "0.1")
        used = load(folder / "compare" / "toy" / entry["label"] / "seed-0" / "recipe.toml").optimizer.lr
        assert used == float(entry["sweep"]["best"])


def test_a_run_that_breaks_its_model_is_a_result_and_the_others_go_on(compare, folder):
    sets = ("--objectives", "broken=vgrpo,vgrpo", "--set", "broken:optimizer.lr=1e38", "--seeds", "0", "--budget", "480")
    found = compare(*sets)
    assert (found.code, found.err) == (0, "")
    broken, whole = result(folder)["entries"]
    (run,) = broken["runs"]
    assert run["broken"] and run["ended"].startswith("broke in iteration 1: ")
    assert (broken["final"], whole["final"]["count"]) == (None, 1)
    assert f"broken, seed 0: {run['ended']}" in found.out
    assert f"done before, {run['ended']}" in compare(*sets).out
    assert result(folder)["complete"]


def test_a_run_that_has_nothing_left_to_learn_ends_early_with_the_score_it_has(compare, folder):
    (folder / "plugins.py").write_text((folder / "plugins.py").read_text().replace("return samples", "return 0 * samples"))
    assert compare("--objectives", "vgrpo", "--seeds", "0", "--budget", "960").code == 0
    (entry,) = result(folder)["entries"]
    (run,) = entry["runs"]
    assert not run["broken"] and run["ended"].startswith("ended in iteration 5: every advantage was 0 in 5 iterations")
    assert entry["final"]["mean"] == run["curve"][-1]["score"] == -0.5


def test_a_reward_that_fails_is_no_result_and_the_command_says_how_to_go_on(compare, folder, small):
    found = compare(*small, "--set", "reward.red.down=true")
    assert found.code == 1
    assert "ConnectionError: no answer" in found.err and "go on with: vgrpo compare toy.toml " in found.err
    assert not list(folder.rglob("ended.json"))


def test_seconds_become_iterations_by_timing_some_first(compare, folder, monkeypatch):
    monkeypatch.setenv("DELAY", "0.02")
    arguments = ("--objectives", "vgrpo,few=vgrpo", "--seeds", "0,1", "--seconds", "0.1")
    found = compare(*arguments)
    assert (found.code, found.err) == (0, "")
    for entry in result(folder)["entries"]:
        (timing,) = (folder / "compare" / "toy" / entry["label"] / "timing").iterdir()
        times = [line["seconds"] for line in metrics(timing)]
        assert len(times) == 4
        each = (times[3] - times[1]) / 2
        assert {run["iterations"] for run in entry["runs"]} == {max(1, int(0.1 / each + 1e-9))}
    assert compare(*arguments).out.count("done before") == 4


def test_several_processes_that_train_together_are_refused(compare, small, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "vgrpo compare trains in one process" in compare(*small).err


def test_importing_the_command_loads_no_torch():
    import subprocess
    import sys

    code = "import sys, vgrpo_compare.command; assert not {'torch', 'matplotlib'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
