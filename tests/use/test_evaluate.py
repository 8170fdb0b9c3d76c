"""`vgrpo evaluate` judges as the run did, compares in pairs and writes down every image."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean

import pytest

from vgrpo_core.folder import Folder

TOLD = '''
from vgrpo_core import Reward, Scores


class Told(Reward):
    """Mean red, and what it was made from: in every other image something that JSON can't hold."""

    name = "told"

    def load(self, device):
        print("a plugin may print")

        def score(samples):
            red = samples.images[:, 0].mean((1, 2))
            tables = [{"red": float(value)} if row % 2 else {"set": {1}} for row, value in enumerate(red)]
            return Scores(red, tables)

        return score


class Broken(Reward):
    """Nothing but errors."""

    name = "broken"

    def load(self, device):
        def score(samples):
            raise RuntimeError("no light")

        return score
'''


def evaluated(vgrpo, *words):
    """The summary that is printed and the file that is written."""
    result = vgrpo("evaluate", *words, "--json")
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    written = json.loads(Path(summary["file"]).read_text())
    assert written["rewards"] == summary["rewards"]
    return summary, written


def test_means_before_and_after_are_those_that_the_run_found(toy_run, vgrpo):
    lines = {line["iteration"]: line for line in Folder(toy_run.folder).lines()}
    for which, iteration in (("2", 2), ("last", 3)):
        found, _ = evaluated(vgrpo, toy_run.folder, "--checkpoint", which)
        red = found["rewards"]["red"]
        assert found["weights"] == ["base", f"small@{iteration}"]
        assert red["before"] == pytest.approx(lines[0]["eval/red/mean"], abs=1e-12)
        assert red["after"] == pytest.approx(lines[iteration]["eval/red/mean"], abs=1e-12)
    assert lines[0]["eval/red/mean"] != lines[3]["eval/red/mean"]


def test_the_table_follows_from_the_images_in_the_file(toy_run, vgrpo):
    _, written = evaluated(vgrpo, toy_run.folder, "--samples", 3, "--out", "found.json")
    first, second = written["weights"]
    assert len(written["images"]) == 4 * 3
    for label in ("red", "gaps"):
        pairs = [
            (each["number"], each["judged"][first][label]["score"], each["judged"][second][label]["score"])
            for each in written["images"]
        ]
        known = [(number, b, a) for number, b, a in pairs if b is not None and a is not None]
        found = written["rewards"][label]
        assert found["before"] == pytest.approx(fmean(b for _, b, _ in known))
        assert found["after"] == pytest.approx(fmean(a for _, _, a in known))
        assert found["difference"] == pytest.approx(fmean(a - b for _, b, a in known))
        changes = [fmean(a - b for number, b, a in known if number == each) for each in {number for number, _, _ in known}]
        assert found["better"] == pytest.approx(fmean(change > 0 for change in changes))
        assert (found["images"], found["missing"]) == (len(known), 12 - len(known))
        low, high = found["interval"]
        assert low <= found["difference"] <= high
    assert 0 < written["rewards"]["gaps"]["missing"] < 12


def test_a_run_can_be_compared_with_another_checkpoint(toy_run, vgrpo, monkeypatch):
    monkeypatch.chdir(toy_run.folder.parents[1])
    lines = {line["iteration"]: line for line in Folder(toy_run.folder).lines()}
    found, _ = evaluated(vgrpo, "small", "--against", "small@2")
    assert found["weights"] == ["small@2", "small@3"]
    assert found["rewards"]["red"]["before"] == pytest.approx(lines[2]["eval/red/mean"], abs=1e-12)
    assert Path(found["file"]) == Path("runs/small/evaluations/small@2-small@3.json")
    back, _ = evaluated(vgrpo, "small", "--checkpoint", "2", "--against", "small")
    assert back["rewards"]["red"]["difference"] == pytest.approx(-found["rewards"]["red"]["difference"])


def test_weights_before_training_are_judged_alone(toy_run, vgrpo):
    found, written = evaluated(vgrpo, toy_run.folder, "--checkpoint", "base")
    line = Folder(toy_run.folder).lines()[0]
    assert found["rewards"]["red"]["mean"] == pytest.approx(line["eval/red/mean"], abs=1e-12)
    assert set(written["images"][0]["judged"]) == {"small@base"}


def test_a_reward_that_is_lowered_is_better_where_it_fell(toy_run, vgrpo):
    up, _ = evaluated(vgrpo, toy_run.folder)
    down, _ = evaluated(vgrpo, toy_run.folder, "--set", "reward.red.weight=-1")
    assert (down["rewards"]["red"]["better"], down["rewards"]["red"]["worse"]) == (
        up["rewards"]["red"]["worse"],
        up["rewards"]["red"]["better"],
    )
    assert up["rewards"]["red"]["better"] != up["rewards"]["red"]["worse"]


def test_another_recipe_says_what_to_judge_and_evidence_is_kept(toy_run, vgrpo, tmp_path):
    (tmp_path / "told.py").write_text(TOLD)
    text = (toy_run.folder / "recipe.toml").read_text()
    rewards = '\n[[eval.reward]]\nuse = "./told.py:Told"\n[[eval.reward]]\nuse = "./told.py:Broken"\n'
    (tmp_path / "other.toml").write_text(text + rewards)
    result = vgrpo("evaluate", toy_run.folder, "--recipe", "other.toml", "--json", "--out", "found.json")
    assert "a plugin may print" in result.err
    assert 'warning: reward "broken"' in result.err
    assert "no light" in result.err
    summary, written = json.loads(result.out), json.loads(Path("found.json").read_text())
    assert summary["rewards"]["told"]["after"] == pytest.approx(summary["rewards"]["red"]["after"])
    assert summary["rewards"]["broken"]["missing"] == 8
    told = [each["judged"]["small@3"]["told"] for each in written["images"]]
    assert told[0]["evidence"] == {"text": "{'set': {1}}"}
    assert told[1]["evidence"] == {"red": told[1]["score"]}
    assert all(each["judged"]["small@3"]["broken"] == {"score": None} for each in written["images"])


def test_a_model_is_judged_by_another_s_recipe(glyphs_runs, vgrpo, tmp_path):
    from vgrpo_diffusers.source import find

    (tmp_path / "model").symlink_to(find("builtin:glyphs").name)
    run = glyphs_runs["full"].folder
    found, _ = evaluated(vgrpo, "model", "--recipe", run / "recipe.toml", "--out", "found.json")
    line = Folder(run).lines()[0]
    assert found["weights"] == ["model"]
    assert found["rewards"]["light"]["mean"] == pytest.approx(line["eval/light/mean"], abs=1e-9)


def test_the_table_says_what_was_found(toy_run, vgrpo):
    result = vgrpo("evaluate", toy_run.folder, "--out", "found.json")
    lines, found = result.out.splitlines(), json.loads(Path("found.json").read_text())["rewards"]["red"]
    assert lines[0].split() == ["held", "out", "base", "small@3", "change", "95%", "interval", "better", "worse", "missing"]
    cells = lines[1].split()
    assert cells[0] == "red"
    assert math.isclose(float(cells[1]), found["before"], abs_tol=5e-4)
    assert math.isclose(float(cells[3]), found["difference"], abs_tol=5e-4)
    assert cells[-3:] == [f"{found['better']:.0%}", f"{found['worse']:.0%}", "0/8"]
    assert lines[-2].startswith("4 prompts x 2 images")
    assert lines[-1] == "each image: found.json"


MISTAKES = [
    (["nothing"], "A model, as its folder or hub id, needs --recipe"),
    (["small", "--against", "small@4"], 'no checkpoint "4"'),
    (["small", "--against", "small"], "would be compared with itself"),
    (["small", "--recipe", "none.toml"], 'no file "none.toml"'),
    (["small", "--set", "eval.sede=1"], 'did you mean "seed"?'),
    (["small", "--out", "toy.toml"], "--out toy.toml exists and is not overwritten"),
    (["small", "--out", "toy.toml/x.json"], "toy.toml: can't be written there: Not a directory; name another place with --out"),
    (["nothing", "--recipe", "toy.toml", "--checkpoint", "2"], "a model has no checkpoints"),
    (["nothing", "--recipe", "toy.toml"], 'unknown key "model"'),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_mistakes_are_explained(toy_run, vgrpo, monkeypatch, words, message):
    monkeypatch.chdir(toy_run.folder.parents[1])
    result = vgrpo("evaluate", *words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
