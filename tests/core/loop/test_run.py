from __future__ import annotations

import json
import tomllib

import pytest
import torch

from vgrpo_core import RunError, checkpoint
from vgrpo_core.errors import Diverged
from vgrpo_core.events import Evaluated, Iterated, Saved, Started, Warned
from vgrpo_core.optimizer import Optimizer
from vgrpo_core.run import Stopped, pick_device
from vgrpo_core.surrogate import SurrogateUpdate


@pytest.fixture
def end(lines):
    """What a run leaves behind that may not depend on interruptions: lines, weights, optimizer, copies, state."""

    def of(folder):
        found = checkpoint.load(checkpoint.complete(folder / "checkpoints")[-1])
        tensors = [{name: value.tolist() for name, value in part.items()} for part in found[:3]]
        return lines(folder), tensors, found.state | {"seconds": 0, "line": {}}

    return of


@pytest.fixture
def whole(go, end):
    """The same run without an interruption."""
    return end(go("whole", monitor=True))


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def held(folder):
    return [path.name for path in checkpoint.complete(folder / "checkpoints")]


# A run from start to end


def test_a_run_writes_one_line_for_every_iteration_and_evaluates_when_due(go, lines):
    found = lines(go("run"))
    assert [line["iteration"] for line in found] == [*range(7)]
    assert [line["iteration"] for line in found if "eval/red/mean" in line] == [0, 2, 4, 6]
    assert found[0].keys() == {"iteration", "evaluations", "backwards", "eval/red/mean", "eval/red/std", "eval/red/missing"}


def test_the_last_iteration_is_evaluated_and_saved_whatever_the_rhythm(go, lines):
    folder = go("run", "eval.every=4", "checkpoint.every=4")
    assert [line["iteration"] for line in lines(folder) if "eval/red/mean" in line] == [0, 4, 6]
    assert held(folder) == ["000004", "000006"]
    folder = go("rare", "eval.every=0", "checkpoint.every=0")
    assert [line["iteration"] for line in lines(folder) if "eval/red/mean" in line] == [0, 6]
    assert held(folder) == ["000006"]


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_as_many_checkpoints_are_kept_as_asked(go, keep):
    assert held(go("run", "checkpoint.every=1", f"checkpoint.keep={keep}")) == [f"{n:06d}" for n in range(7 - keep, 7)]


def test_a_run_tells_what_happens_in_order(go):
    events = []
    folder = go("run", "run.iterations=2", listener=events.append)
    assert [type(event) for event in events] == [Started, Evaluated, Iterated, Evaluated, Iterated, Saved]
    assert events[0] == Started(folder, 0, 2)
    assert events[-1] == Saved(2, folder / "checkpoints" / "000002")
    assert events[2].metrics["iteration"] == 1


def test_the_folder_holds_everything_and_nothing_half_written(go):
    folder = go("run")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["checkpoints", "manifest.json", "metrics.jsonl", "model", "recipe.toml", "summary.json"]
    assert [path.name for path in (folder / "model").iterdir()] == ["weights.pt"]


def test_the_exported_weights_are_the_last_ones(go):
    folder = go("run")
    exported, saved = torch.load(folder / "model" / "weights.pt"), checkpoint.load(checkpoint.complete(folder / "checkpoints")[-1])
    assert exported.keys() == saved.weights.keys() and all(exported[name].equal(value) for name, value in saved.weights.items())


def test_the_summary_is_made_of_the_lines(go, lines):
    folder = go("run", monitor=True)
    found, content = lines(folder), summary(folder)
    means = [line["eval/red/mean"] for line in found if "eval/red/mean" in line]
    watched = [line["eval/watched/mean"] for line in found if "eval/red/mean" in line]
    assert content.keys() == {"start", "final", "best", "iterations", "seconds", "evaluations"}
    assert content["start"] == {"red": means[0], "watched": watched[0]}
    assert content["final"] == {"red": means[-1], "watched": watched[-1]}
    assert content["best"] == {"red": max(means), "watched": max(watched)}
    assert (content["iterations"], content["evaluations"]) == (6, found[-1]["evaluations"])
    assert content["seconds"] > 0


@pytest.mark.parametrize("option", ["reward.red.weight=-1", "reward.red.scale=-1"])
def test_the_best_of_a_score_that_is_lowered_is_its_lowest(go, lines, option):
    folder = go("run", option)
    means = [line["eval/red/mean"] for line in lines(folder) if "eval/red/mean" in line]
    assert len(set(means)) == len(means)
    assert summary(folder)["best"]["red"] == min(means)


def test_r002_the_manifest_says_with_what_a_run_was_made(go, toy):
    folder = go("run", "reward.second.size=378", second=True)
    content = json.loads((folder / "manifest.json").read_text())
    assert content["backbone"]["times"] == pytest.approx(toy.ToyPolicy().schedule(3).times.tolist(), abs=0)
    assert content["backbone"]["what"] == "a toy"
    assert content["backbone"]["trainable"] == 8 * 4 + (6 + 5 + 1) * 12 + (12 + 1) * 6
    assert content["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert [reward["size"] for reward in content["recipe"]["reward"]] == [224, 378]
    assert {(plugin["kind"], plugin["name"]) for plugin in content["plugins"]} > {("reward", "toy"), ("objective", "vgrpo")}
    assert all(plugin["version"] for plugin in content["plugins"])


def test_the_recipe_in_the_folder_makes_the_same_run(go, recipe):
    folder = go("run", "optimizer.lr=0.02", monitor=True)
    table = tomllib.loads((folder / "recipe.toml").read_text())
    assert table == recipe("optimizer.lr=0.02", monitor=True).table
    assert table["optimizer"]["lr"] == 0.02 and table["objective"]["span"] == [0.02, 1.0]


def test_auto_is_a_device_that_exists():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


# Stop and resume


@pytest.mark.parametrize("at", range(1, 6))
def test_r081_r082_a_run_that_was_stopped_anywhere_ends_as_if_it_was_not(go, end, whole, tmp_path, at):
    with pytest.raises(Stopped, match=rf"iteration {at} of 6"):
        go("run", stop_after=at, monitor=True)
    assert held(tmp_path / "run")[-1] == f"{at:06d}" and not (tmp_path / "run" / "summary.json").exists()
    assert end(go("run", resume=True, monitor=True)) == whole


def test_a_run_that_was_stopped_twice_ends_as_if_it_was_not(go, end, whole):
    for resume, after in ((False, 1), (True, 2)):
        with pytest.raises(Stopped):
            go("run", resume=resume, stop_after=after, monitor=True)
    assert end(go("run", resume=True, monitor=True)) == whole


def test_a_run_asked_to_stop_in_its_last_iteration_is_finished(go, end, whole):
    folder = go("run", stop_after=6, monitor=True)
    assert end(folder) == whole and (folder / "summary.json").exists()


def test_a_finished_run_can_be_resumed_to_no_effect(go, end, tmp_path):
    before = end(go("run"))
    content = summary(tmp_path / "run")
    (tmp_path / "run" / "model" / "weights.pt").unlink()
    (tmp_path / "run" / "model").rmdir()
    assert end(go("run", resume=True)) == before and summary(tmp_path / "run") == content


def die_at(iteration):
    def listen(event):
        if isinstance(event, Iterated) and event.metrics["iteration"] == iteration:
            raise KeyboardInterrupt

    return listen


@pytest.mark.parametrize("at", [3, 4, 5])
def test_a_run_killed_after_a_line_and_before_its_checkpoint_writes_every_line_once(go, end, whole, lines, tmp_path, at):
    with pytest.raises(KeyboardInterrupt):
        go("run", listener=die_at(at), monitor=True)
    assert [line["iteration"] for line in lines(tmp_path / "run")] == [*range(at + 1)]
    assert held(tmp_path / "run")[-1] == f"{(at - 1) // 2 * 2:06d}"
    assert end(go("run", resume=True, monitor=True)) == whole


def test_a_line_cut_short_by_a_crash_is_dropped(go, end, whole, tmp_path):
    with pytest.raises(Stopped):
        go("run", stop_after=3, monitor=True)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 4, "reward/red/mean": 0.5}\n{"iteration": 5, "reward/re')
    assert end(go("run", resume=True, monitor=True)) == whole


def test_a_run_killed_before_its_first_checkpoint_can_only_start_again(go, end, whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go("run", listener=die_at(1), monitor=True)
    with pytest.raises(RunError, match=r"no checkpoint to resume from; start again without --resume"):
        go("run", resume=True, monitor=True)
    assert end(go("run", monitor=True)) == whole


def test_a_folder_that_holds_a_run_is_not_overwritten(go, end, tmp_path):
    before = end(go("run"))
    with pytest.raises(RunError, match="--resume"):
        go("run", "run.seed=1")
    assert end(tmp_path / "run") == before


def test_an_unreadable_checkpoint_is_named_and_an_older_one_serves_when_it_is_removed(go, end, whole, tmp_path):
    with pytest.raises(Stopped):
        go("run", stop_after=5, monitor=True)
    newest = tmp_path / "run" / "checkpoints" / "000005"
    (newest / "shard-00001-model-00001-of-00001.safetensors").write_bytes(b"x")
    with pytest.raises(RunError, match=r"000005: not a readable checkpoint .*; remove it"):
        go("run", resume=True, monitor=True)
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()
    assert end(go("run", resume=True, monitor=True)) == whole


# Failures


def test_r021_a_monitor_that_always_fails_does_not_stop_the_run(go, lines):
    events = []
    folder = go("run", "eval.reward.watched.kind='fail'", monitor=True, listener=events.append)
    assert [line["eval/watched/mean"] for line in lines(folder) if "eval/red/mean" in line] == [None] * 4
    assert len([event for event in events if isinstance(event, Warned)]) == 4
    assert summary(folder)["best"]["watched"] is None and summary(folder)["best"]["red"] > 0


@pytest.mark.parametrize("call", range(1, 11))
def test_r022_a_training_reward_that_fails_leaves_a_checkpoint_and_the_run_goes_on_from_it(go, end, whole, tmp_path, call):
    """Calls 1, 4, 7 and 10 are those of evaluation."""
    with pytest.raises(RunError, match=r'reward "red" \(.*\) failed on \d samples.*no answer to call') as caught:
        go("run", "reward.red.kind='fail'", f"reward.red.start={call}", monitor=True)
    assert caught.value.exit_code == 1
    kept = int(held(tmp_path / "run")[-1])
    assert f"iteration {kept} is kept" in str(caught.value)
    assert end(go("run", resume=True, monitor=True)) == whole


def test_r016_a_constant_reward_stops_the_run_and_keeps_what_was_done(go, lines, tmp_path):
    with pytest.raises(RunError, match="every advantage was 0 in 5 iterations") as caught:
        go("run", "reward.red.kind='constant'")
    assert caught.value.exit_code == 1
    assert [line["iteration"] for line in lines(tmp_path / "run")] == [*range(5)]
    assert held(tmp_path / "run")[-1] == "000004"


def test_r016_a_run_resumed_with_the_same_constant_reward_stops_again(go):
    for resume in (False, True):
        with pytest.raises(RunError, match="every advantage was 0"):
            go("run", "reward.red.kind='constant'", "checkpoint.every=0", "run.iterations=20", resume=resume)


def test_three_gradients_that_are_not_finite_stop_the_run_and_a_checkpoint_is_left(go, end, whole, tmp_path, monkeypatch):
    loss = SurrogateUpdate.loss

    def spoil(self, rows, step):
        value, found = loss(self, rows, step)
        return value * (torch.nan if self.rollout.iteration > 3 else 1), found

    with monkeypatch.context() as patch:
        patch.setattr(SurrogateUpdate, "loss", spoil)
        with pytest.raises(RunError, match="not finite 3 times in a row"):
            go("run", "checkpoint.every=3", monitor=True)
    assert held(tmp_path / "run") == ["000003"]
    assert end(go("run", resume=True, monitor=True)) == whole


def test_weights_that_have_diverged_are_not_saved_over_those_of_before(go, end, whole, tmp_path, monkeypatch):
    step = Optimizer.step

    def spoil(self, iteration):
        found = step(self, iteration)
        for parameter in self.parameters if iteration == 3 else ():
            parameter.data.fill_(torch.nan)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "step", spoil)
        with pytest.raises(Diverged, match="failed after iteration 3; iteration 2 is kept"):
            go("run", "checkpoint.every=2", monitor=True)
    assert held(tmp_path / "run") == ["000002"]
    assert end(go("run", resume=True, monitor=True)) == whole


def test_a_fault_of_the_program_keeps_its_traceback_and_the_last_iteration(go, tmp_path):
    def listen(event):
        if isinstance(event, Iterated) and event.metrics["iteration"] == 3:
            raise ZeroDivisionError("a listener's fault")

    with pytest.raises(ZeroDivisionError) as caught:
        go("run", listener=listen)
    assert any("iteration 3 is kept" in note for note in caught.value.__notes__)
    assert held(tmp_path / "run")[-1] == "000003"


def test_a_failure_in_the_middle_of_an_update_keeps_the_iteration_before(go, end, whole, tmp_path, monkeypatch):
    loss = SurrogateUpdate.loss

    def fail(self, rows, step):
        if (self.rollout.iteration, step) == (4, 1):
            raise RuntimeError("out of memory")
        return loss(self, rows, step)

    with monkeypatch.context() as patch:
        patch.setattr(SurrogateUpdate, "loss", fail)
        with pytest.raises(RuntimeError) as caught:
            go("run", monitor=True)
    assert held(tmp_path / "run") == ["000002"]
    assert any("failed after iteration 3; iteration 2 is kept" in note for note in caught.value.__notes__)
    assert end(go("run", resume=True, monitor=True)) == whole


@pytest.mark.parametrize(("weight", "choose"), [("1", max), ("-1", min)])
def test_the_checkpoint_that_a_reward_judged_best_is_kept_besides(go, lines, weight, choose):
    folder = go("run", "checkpoint.best=red", "eval.every=1", f"reward.red.weight={weight}", "optimizer.lr=0.05")
    scores = {line["iteration"]: line["eval/red/mean"] for line in lines(folder)}
    (kept,) = (folder / "best").iterdir()
    assert scores[int(kept.name)] == choose(scores.values())
    assert checkpoint.load(kept).state["iteration"] == int(kept.name)


def test_without_a_choice_no_best_checkpoint_is_kept(go):
    assert not (go("run") / "best").exists()
