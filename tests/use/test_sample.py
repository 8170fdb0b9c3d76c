"""`vgrpo sample` draws what the run drew, for every checkpoint from the same noise."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vgrpo_use.sample import Asked, Job, images


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def drawn(run, **asked):
    """Images [B, 3, H, W], before they are rounded."""
    return torch.stack(list(images(Job.of(Asked(str(run), **asked)))))


@pytest.mark.parametrize(("which", "iteration"), [("base", 0), ("2", 2), ("last", 3)])
def test_held_out_images_are_those_of_the_run_to_the_last_bit(toy_run, which, iteration):
    assert torch.equal(drawn(toy_run.folder, checkpoint=which, count=2), toy_run.images[iteration])
    assert not torch.equal(toy_run.images[iteration], toy_run.images[1])


def test_best_is_the_checkpoint_that_the_run_chose(toy_run):
    best = int(next((toy_run.folder / "best").iterdir()).name)
    assert torch.equal(drawn(toy_run.folder, checkpoint="best", count=2), toy_run.images[best])


def test_a_held_out_prompt_that_is_typed_has_the_noise_it_has_in_the_run(toy_run):
    typed = drawn(toy_run.folder, texts=["prompt 6"])  # the third of those held out, of which the run drew two images each
    torch.testing.assert_close(typed[0], toy_run.images[3][4], rtol=0, atol=1e-6)


def test_the_noise_of_any_prompt_depends_on_its_text_alone(toy_run):
    first = drawn(toy_run.folder, texts=["prompt 1", "prompt 2"], count=2)
    second = drawn(toy_run.folder, texts=["prompt 2"])
    torch.testing.assert_close(second[0], first[2], rtol=0, atol=1e-6)
    assert (first[2] - first[3]).abs().max() > 1e-3
    assert (drawn(toy_run.folder, texts=["prompt 2"], seed=4)[0] - second[0]).abs().max() > 1e-3


def test_steps_are_those_of_evaluation_or_those_asked_for(toy_run):
    texts = ["prompt 2"]
    assert torch.equal(drawn(toy_run.folder, texts=texts, steps=3), drawn(toy_run.folder, texts=texts))
    assert not torch.equal(drawn(toy_run.folder, texts=texts, steps=9), drawn(toy_run.folder, texts=texts))


def test_files_say_what_they_show(toy_run, vgrpo):
    result = vgrpo(
        "sample", toy_run.folder, "--prompt", "prompt 2", "--prompt", "prompt 1", "--count", 2, "--seed", 5, "--out", "o"
    )
    names = ["000-seed5-0.png", "000-seed5-1.png", "001-seed5-0.png", "001-seed5-1.png"]
    assert (result.code, result.out.split()) == (0, [f"o/{name}" for name in names])
    expected = drawn(toy_run.folder, texts=["prompt 2", "prompt 1"], count=2, seed=5)
    for name, image in zip(names, expected, strict=True):
        assert np.array_equal(pixels(Path("o", name)), (image.permute(1, 2, 0) * 255).round().byte().numpy())
    with Image.open("o/001-seed5-1.png") as last:
        assert last.text == {
            "prompt": "prompt 1", "number": "1", "seed": "5", "sample": "1", "run": "small", "checkpoint": "3",
            "vgrpo": version("vgrpo"),
        }  # fmt: skip
    index = json.loads(Path("o/index.json").read_text())
    assert [(each["file"], each["prompt"], each["sample"]) for each in index["images"]][2] == (names[2], "prompt 1", 0)
    assert (index["run"], index["checkpoint"], index["seed"], index["sampler"], index["steps"]) == ("small", "3", 5, "toy", 3)


def test_images_go_to_a_new_folder_in_the_run_named_after_the_checkpoint(toy_run, vgrpo, monkeypatch):
    monkeypatch.chdir(toy_run.folder.parents[1])
    folders = [Path(vgrpo("sample", "small", "--checkpoint", which).out.split()[0]).parent for which in ("base", "2", "last", "3")]
    assert folders == [Path("runs/small/images") / name for name in ("base", "000002", "000003", "000003-2")]
    assert len(list(folders[0].glob("*.png"))) == 4


def test_prompts_may_come_from_a_file(toy_run, vgrpo, tmp_path):
    (tmp_path / "mine.txt").write_text("prompt 0\nprompt 3\n")
    assert vgrpo("sample", toy_run.folder, "--prompts", "mine.txt", "--out", "o").code == 0
    assert [each["prompt"] for each in json.loads(Path("o/index.json").read_text())["images"]] == ["prompt 0", "prompt 3"]


def test_other_prompts_can_be_drawn_where_the_held_out_ones_are_gone(glyphs_runs, vgrpo):
    prompts = glyphs_runs["lora"].folder.parents[1] / "prompts.txt"
    text = prompts.read_text()
    prompts.unlink()
    try:
        result = vgrpo("sample", glyphs_runs["lora"].folder, "--prompt", "a sign", "--out", "o", "--steps", 1)
        alone = vgrpo("sample", glyphs_runs["lora"].folder, "--out", "p")
    finally:
        prompts.write_text(text)
    assert (result.code, result.out.split()) == (0, ["o/000-seed0-0.png"])
    assert "warning: " in result.err
    assert "prompts.txt" in result.err
    assert (alone.code, "--prompt" in alone.err) == (2, True)


def test_images_of_the_embedded_model_are_those_of_its_run(glyphs_run):
    assert torch.equal(drawn(glyphs_run.folder), glyphs_run.images[1])
    assert not torch.equal(glyphs_run.images[0], glyphs_run.images[1])


MISTAKES = [
    (["runs/smal"], 'no run "runs/smal"; did you mean "small"?'),
    (["runs"], "the folder holds no recipe.toml, so it is no run"),
    (["runs/small", "--checkpoint", "1"], "There are: 2, 3, best (iteration "),
    (["runs/small", "--checkpoint", "lats"], 'no checkpoint "lats"; did you mean "last"?'),
    (["runs/small", "--out", "runs"], "--out runs: the folder is not empty"),
    (["runs/small", "--out", "/proc/x"], "can't be written there: No such file or directory; name another place with --out"),
    (["runs/small", "--device", "cuda:99"], 'device "cuda:99" can\'t be used here'),
    (["runs/small", "--prompts", "none.txt"], "none.txt"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_mistakes_are_explained_and_nothing_is_written(toy_run, vgrpo, monkeypatch, words, message):
    monkeypatch.chdir(toy_run.folder.parents[1])
    before = set(Path().rglob("*"))
    result = vgrpo("sample", *words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert set(Path().rglob("*")) == before


def test_a_plugin_that_is_gone_is_named_by_the_recipe_s_reader(toy_run, vgrpo, tmp_path):
    (tmp_path / "old").mkdir()
    text = (toy_run.folder / "recipe.toml").read_text()
    (tmp_path / "old" / "recipe.toml").write_text(text.replace(":ToyBackbone", ":Gone"))
    result = vgrpo("sample", "old", "--checkpoint", "base")
    assert result.code == 2
    assert 'no class "Gone" in it' in result.err


def test_a_checkpoint_that_is_torn_is_a_message(toy_run, vgrpo, tmp_path):
    folder = tmp_path / "torn" / "checkpoints" / "000001"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{")
    (tmp_path / "torn" / "recipe.toml").write_text((toy_run.folder / "recipe.toml").read_text())
    result = vgrpo("sample", "torn")
    assert result.code == 2
    assert "not a readable checkpoint" in result.err
