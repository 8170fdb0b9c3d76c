"""The command `vgrpo score`."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.cells import cell_len

from vgrpo_cli.scoring import BATCH

JUDGES = '''
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field

from vgrpo_core import Reward, Scores


class Level(Reward):
    """Mean level of the picture in 8 bits, and what it was given; a black picture is missing."""

    name = "level"
    times: float = Field(default=1.0, ge=0, description="factor")
    batch: int = Field(default=4, description="has the name of a recipe's table")
    mode: Literal["plain", "odd"] = "plain"
    weights: Path | None = None

    def load(self, device):
        Path("loaded").touch()
        print("a plugin may print")
        return self.score

    def score(self, samples):
        print("at any time")
        pixels = torch.from_numpy(samples.pixels())
        means = self.times * pixels.double().mean((1, 2, 3))
        given = {"shape": list(samples.images.shape), "weights": self.weights and str(self.weights)}
        tables = [
            given | {"first": pixel.tolist(), "text": prompt.text, "data": dict(prompt.metadata)}
            for pixel, prompt in zip(pixels[:, 0, 0], samples.prompts, strict=True)
        ]
        return Scores(means.where(means > 0, torch.nan), tables)


class Bare(Reward):
    """The mean, without evidence."""

    name = "bare"
    version: Literal["1", "2"] = Field(description="which one")

    def load(self, device):
        return lambda samples: samples.images.view(len(samples), -1).mean(1)


class Reading(Reward):
    """What is read is long."""

    name = "reading"
    read: str = "x"

    def load(self, device):
        return lambda samples: Scores(torch.ones(len(samples)), [{"line": "a\\nb", "read": self.read * 200}] * len(samples))


class Faulty(Reward):
    """A reward with a fault in it."""

    name = "faulty"
    fault: str = "raise"

    def load(self, device):
        return self.score

    def score(self, samples):
        if self.fault == "shape":
            return samples.images.mean()
        if self.fault == "evidence":
            return Scores(torch.ones(len(samples)), [{"where": object()} for _ in samples.prompts])
        if self.fault == "number":
            return Scores(torch.ones(len(samples)), [{"where": float("nan")} for _ in samples.prompts])
        return [].pop()


class Needy(Reward):
    """A reward that needs what is not there."""

    name = "needy"
    requires = ("a_missing_library",)
    extra = "vgrpo[needy]"

    def load(self, device):
        raise AssertionError
'''


@pytest.fixture(autouse=True)
def judges(folder):
    (folder / "judges.py").write_text(JUDGES)


@pytest.fixture
def picture(folder):
    """Save a picture of `size` (width, height) in one grey, or what is given."""

    def save(name, image=100, size=(6, 4), **options):
        made = Image.new("RGB", size, (image,) * 3) if isinstance(image, int) else image
        made.save(folder / name, **options)
        return name

    return save


@pytest.fixture
def scored(vgrpo):
    """Score with the reward `level` and return the list that --json prints."""

    def score(*words):
        result = vgrpo("score", "./judges.py:Level", *words, "--json")
        assert result.code == 0, result.err
        return json.loads(result.out)

    return score


# Pictures


def test_pictures_of_different_sizes_are_scored_in_groups_and_told_in_their_order(scored, picture):
    names = [picture(f"{level}.png", level, size) for level, size in [(90, (6, 4)), (30, (5, 5)), (60, (6, 4)), (10, (4, 6))]]
    rows = scored(*names)
    assert [(row["file"], row["score"]) for row in rows] == [("90.png", 90), ("30.png", 30), ("60.png", 60), ("10.png", 10)]
    assert [row["evidence"]["shape"] for row in rows] == [[2, 3, 4, 6], [1, 3, 5, 5], [2, 3, 4, 6], [1, 3, 6, 4]]


def test_many_pictures_are_held_in_memory_a_few_at_a_time(scored, picture):
    names = [picture(f"{level}.png", level) for level in range(1, BATCH + 4)]
    rows = scored(*names)
    assert [row["score"] for row in rows] == list(range(1, BATCH + 4))
    assert [row["evidence"]["shape"][0] for row in rows] == [BATCH] * BATCH + [3] * 3


FORMATS = {"png": "RGB L 1 P", "jpg": "RGB L CMYK YCbCr", "tiff": "RGB L 1 P CMYK YCbCr", "gif": "RGB L 1 P", "webp": "RGB L P"}


@pytest.mark.parametrize(("ending", "mode"), [(ending, mode) for ending, modes in FORMATS.items() for mode in modes.split()])
def test_pictures_of_any_mode_are_rgb_as_pillow_has_it(scored, picture, mode, ending):
    picture(f"a.{ending}", Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)).convert(mode))
    with Image.open(f"a.{ending}") as image:
        expected = np.asarray(image.convert("RGB"))
    row = scored(f"a.{ending}")[0]
    assert row["score"] == pytest.approx(expected.mean())
    assert row["evidence"]["first"] == expected[0, 0].tolist()


@pytest.mark.parametrize(("level", "expected"), [(0, 0), (257 * 64, 64), (257 * 200 + 100, 200), (65535, 255)])
def test_grey_of_sixteen_bits_is_scaled_and_not_cut_off(scored, picture, level, expected):
    picture("deep.png", Image.fromarray(np.full((4, 4), level, np.uint16)))
    assert scored("deep.png")[0]["evidence"]["first"] == [expected] * 3


@pytest.mark.parametrize(("mode", "ink"), [("RGBA", (0, 200, 100)), ("LA", (80,))])
def test_what_is_transparent_lies_on_white(scored, picture, mode, ink):
    for alpha in (0, 51, 255):
        picture("clear.png", Image.new(mode, (4, 4), (*ink, alpha)))
        shares = [round((alpha * level + (255 - alpha) * 255) / 255) for level in (ink if len(ink) == 3 else ink * 3)]
        assert scored("clear.png")[0]["evidence"]["first"] == pytest.approx(shares, abs=1)


def test_a_photograph_is_turned_as_its_camera_was(scored, picture):
    upright = Image.fromarray(np.repeat(np.arange(0, 240, 40, dtype=np.uint8)[:, None, None], 3, 2).repeat(4, 1))
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by 180 degrees
    picture("turned.png", upright.rotate(180), exif=exif)
    assert scored("turned.png")[0]["evidence"]["first"] == [0, 0, 0]


# Prompts


def test_without_a_prompt_it_is_empty(scored, picture):
    row = scored(picture("a.png"))[0]
    assert (row["prompt"], row["evidence"]["text"], row["evidence"]["data"]) == ("", "", {})


def test_one_prompt_is_for_all(scored, picture):
    rows = scored(picture("a.png"), picture("b.png"), "--prompt", "a grey wall")
    assert [row["evidence"]["text"] for row in rows] == [row["prompt"] for row in rows] == ["a grey wall"] * 2


def test_prompts_of_a_file_go_with_the_pictures_in_order_and_bring_their_metadata(scored, picture, folder):
    (folder / "p.jsonl").write_text('{"prompt": "one", "text": "1"}\n{"prompt": "two", "text": "2"}\n')
    rows = scored(picture("large.png", size=(9, 9)), picture("small.png"), "--prompts", "p.jsonl")
    assert [(row["prompt"], row["evidence"]["text"], row["evidence"]["data"]) for row in rows] == [
        ("one", "one", {"text": "1"}),
        ("two", "two", {"text": "2"}),
    ]


PROMPTS = {
    "too many": (["--prompts", "two.txt"], "--prompts two.txt: 2 prompts for 1 images"),
    "both": (["--prompts", "two.txt", "--prompt", "x"], "--prompt is one for all images"),
    "an ending": (["--prompts", "two.doc"], 'the ending ".doc" is unknown; known: .txt'),
    "no file": (["--prompts", "tow.txt"], "tow.txt can not be read: No such file or directory"),
    "a broken file": (["--prompts", "broken.jsonl"], "broken.jsonl:1: no JSON"),
}


@pytest.mark.parametrize(("words", "said"), PROMPTS.values(), ids=PROMPTS)
def test_prompts_that_do_not_fit_are_told(vgrpo, picture, folder, words, said):
    (folder / "two.txt").write_text("one\ntwo\n")
    (folder / "broken.jsonl").write_text("{\n")
    refused(vgrpo("score", "./judges.py:Level", picture("a.png"), *words), folder, said)


# Options


def test_options_are_toml_and_may_have_the_names_of_tables_of_a_recipe(scored, picture):
    assert scored(picture("a.png"), "--option", "times=0.5", "--option", "batch=2", "--option", "mode=odd")[0]["score"] == 50


def test_a_file_is_looked_for_in_the_working_folder(scored, picture, folder):
    found = scored(picture("a.png"), "--option", "weights=w.bin")[0]["evidence"]["weights"]
    assert found == str(folder / "w.bin")


@pytest.mark.parametrize("option", ["times=a", "times=-1", "times=true", "batch=1.5", "mode=plian", "tims=2", "zz=1"])
def test_a_wrong_option_is_explained_as_in_a_recipe(vgrpo, picture, folder, option):
    path = folder / "toy.toml"
    path.write_text(path.read_text().replace('"./toy.py:Bright"\nlabel = "light"', '"./judges.py:Level"\nlabel = "level"'))
    recipe = vgrpo("check", "toy.toml", "--set", f"reward.level.{option}").err
    here = vgrpo("score", "./judges.py:Level", picture("a.png"), "--option", option)
    said = recipe.removeprefix(f"Error: --set reward.level.{option}: [[reward]] 1 ").partition("; known: ")[0]
    refused(here, folder, f"Error: --option {option}: {said.rstrip()}")


def test_all_wrong_options_are_told_at_once(vgrpo, picture, folder):
    result = vgrpo("score", "./judges.py:Level", picture("a.png"), "--option", "tims=2", "--option", "batch=x", "--option", "alone")
    refused(result, folder, 'unknown key "tims"; did you mean "times"?')
    assert '--option batch=x: batch is "x": ' in result.err
    assert "--option alone: write it as key=value" in result.err


def test_keys_that_recipes_read_themselves_are_no_options(vgrpo, picture, folder):
    result = vgrpo("score", "./judges.py:Level", picture("a.png"), "--option", "weight=2")
    refused(result, folder, '--option weight=2: unknown key "weight"; did you mean "weights"?')
    result = vgrpo("score", "./judges.py:Level", picture("a.png"), "--option", "iterations=2")
    refused(result, folder, '--option iterations=2: unknown key "iterations"; known: times, batch, mode, weights\n')


def test_an_option_without_a_default_is_asked_for(vgrpo, picture):
    result = vgrpo("score", "./judges.py:Bare", picture("a.png"))
    assert (result.code, result.err) == (2, 'Error: --option: "version" is missing (which one)\n')


# Which reward


def test_an_installed_reward_is_found_by_name_and_by_distribution(vgrpo, picture):
    name = picture("a.png", 100, (64, 64))
    picture("a.jpg", Image.open(name), quality=95)
    size = Path("a.jpg").stat().st_size / 1000
    for reward in ("jpeg_size", "vgrpo/jpeg_size"):
        assert json.loads(vgrpo("score", reward, name, "--json").out)[0]["score"] == pytest.approx(size)


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ("jpg_size", 'no reward named "jpg_size"; did you mean "jpeg_size"?'),
        ("euler", 'no reward named "euler"; it is the name of sampler'),
        ("./judges.py:Levl", 'no class "Levl" in it; did you mean "Level"?'),
        ("./judges.py:Needy", 'needs a_missing_library, which is not installed\n  Run: pip install "vgrpo[needy]"'),
    ],
)
def test_a_reward_that_can_not_be_used_is_told(vgrpo, picture, folder, reward, said):
    refused(vgrpo("score", reward, picture("a.png")), folder, said)


# Mistakes


def test_all_pictures_that_can_not_be_read_are_told_at_once(vgrpo, picture, folder):
    (folder / "words.png").write_text("no picture")
    (folder / "short.png").write_bytes((folder / picture("whole.png", size=(99, 99))).read_bytes()[:60])
    picture("float.tiff", Image.fromarray(np.ones((4, 4), np.float32)))
    result = vgrpo("score", "./judges.py:Level", "gone.png", "whole.png", "words.png", ".", "short.png", "float.tiff")
    refused(result, folder, "Error: 5 of 6 images can't be read\n")
    _, *found = result.err.splitlines()
    assert [line.split(": ")[0] for line in found] == ["  gone.png", "  words.png", "  .", "  short.png", "  float.tiff"]
    assert found[0].endswith(": No such file or directory")
    assert found[1].endswith(": not an image, or of no known format")
    assert found[2].endswith(": Is a directory")
    assert 'mode "F" have no known white' in found[4]


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "mps:9"])
def test_a_device_that_is_not_there_is_told(vgrpo, picture, folder, device):
    refused(vgrpo("score", "./judges.py:Level", picture("a.png"), "--device", device), folder, f"Error: --device {device}: ")


def refused(result, folder, said):
    """Check that a command was refused with one message, and before the reward was loaded."""
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert "Traceback" not in result.err
    assert not (folder / "loaded").exists()


# Faults of a reward


def test_the_fault_of_a_reward_is_told_with_its_line(vgrpo, picture):
    result = vgrpo("score", "./judges.py:Faulty", picture("a.png"), "--prompt", "a wall")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith('Error: reward "faulty" (')
    assert "failed on 1 samples, first prompt 'a wall': IndexError: pop from empty list" in result.err
    assert "judges.py" in result.err
    assert "return [].pop()" in result.err


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("shape", 1, "ValueError: returned shape [] for 2 samples"),
        ("evidence", 2, "returned evidence that JSON can't hold\n  TypeError: Object of type object is not JSON serializable"),
        ("number", 2, "returned evidence that JSON can't hold"),
    ],
)
def test_what_a_reward_may_not_return_is_told(vgrpo, picture, fault, code, said):
    result = vgrpo("score", "./judges.py:Faulty", picture("a.png"), picture("b.png"), "--option", f"fault={fault}")
    assert (result.code, result.out) == (code, "")
    assert said in result.err


# What is printed


def test_json_is_all_that_goes_to_stdout(vgrpo, picture):
    result = vgrpo("score", "./judges.py:Level", picture("a.png"), picture("black.png", 0), "--prompt", "x", "--json")
    rows = json.loads(result.out)
    assert [list(row) for row in rows] == [["file", "prompt", "score", "evidence"]] * 2
    assert [row["score"] for row in rows] == [100, None]
    assert result.err == "a plugin may print\nat any time\n"


def test_a_reward_without_evidence_has_null(vgrpo, picture):
    rows = json.loads(vgrpo("score", "./judges.py:Bare", picture("a.png", 51), "--option", "version='2'", "--json").out)
    assert rows == [{"file": "a.png", "prompt": "", "score": pytest.approx(0.2), "evidence": None}]


def test_the_table_has_file_score_and_evidence_and_below_it_mean_deviation_and_what_is_missing(vgrpo, picture):
    names = [picture("a.png", 7), picture("black.png", 0), picture("c.png", 200)]
    *table, blank, last = vgrpo("score", "./judges.py:Level", *names).out.splitlines()
    assert [line.split()[:2] for line in table] == [["a.png", "7"], ["black.png", "missing"], ["c.png", "200"]]
    assert all(line.split("  ")[-1].lstrip().startswith("shape [3, 3, 4, 6], weights null, ") for line in table)
    deviation = statistics.pstdev([7, 200])
    assert (blank, last) == ("", f"mean 103.5, deviation {deviation:g}, missing 1 of 3")


def test_where_nothing_could_be_judged_the_mean_is_missing_too(vgrpo, picture):
    out = vgrpo("score", "./judges.py:Level", picture("black.png", 0)).out
    assert out.splitlines()[-1] == "mean missing, deviation missing, missing 1 of 1"


@pytest.mark.parametrize("read", ["x", "売", "\N{GRINNING FACE}"])
def test_the_table_fits_80_columns_and_keeps_the_ends_of_long_names(vgrpo, picture, folder, read):
    (folder / ("d" * 90)).mkdir()
    names = [picture(f"{'d' * 90}/{index}.png") for index in range(3)]
    table = vgrpo("score", "./judges.py:Reading", *names, "--option", f"read={read}").out.splitlines()[:3]
    assert all(72 < cell_len(line) <= 80 and line.endswith("...") for line in table)
    assert [line.split()[0][-6:] for line in table] == ["/0.png", "/1.png", "/2.png"]


@pytest.mark.parametrize("value", [0.28712, 0.28791, 21.3456, 123456.0, 1e-7])
def test_scores_are_native_and_close_ones_stay_apart(vgrpo, picture, folder, value):
    (folder / "fixed.py").write_text(
        f"import torch\nfrom vgrpo_core import Reward\n\n\nclass Fixed(Reward):\n    name = 'fixed'\n\n"
        f"    def load(self, device):\n        return lambda samples: torch.full((len(samples),), {value})\n"
    )
    shown = vgrpo("score", "./fixed.py:Fixed", picture("a.png")).out.split()[1]
    assert math.isclose(float(shown), value, rel_tol=1e-5)
