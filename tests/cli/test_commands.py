from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version

import pytest

LIGHT = """
import sys
from vgrpo_cli.app import main
sys.argv = ["vgrpo", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(sorted({"torch", "diffusers", "transformers"} & sys.modules.keys()))
"""


QUICK = ["--help", "--version", "run --help", "check toy.toml", "plugins", "plugins show ocr", "recipes", "recipes show words"]


@pytest.mark.parametrize("command", QUICK)
def test_what_answers_at_once_imports_no_heavy_library(command, folder):
    toy = (folder / "toy.py").read_text()
    light = toy.replace("import torch\nfrom torch import nn\n", "").replace("Policy, Process, ", "").replace(", Schedule", "")
    (folder / "toy.py").write_text(light.replace("class ToyPolicy(Policy)", "class ToyPolicy"))
    done = subprocess.run([sys.executable, "-c", LIGHT, *command.split()], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version_is_that_of_the_distribution(vgrpo):
    assert vgrpo("--version")[:2] == (0, f"vgrpo {version('vgrpo')}\n")


def test_the_module_is_the_same_command(started):
    process = started("--version")
    assert process.communicate()[0] == f"vgrpo {version('vgrpo')}\n"


# check


def test_check_prints_the_plan_multiplied_out(vgrpo):
    result = vgrpo("check", "toy.toml", "--set", "run.iterations=10")
    assert (result.code, result.err) == (0, "")
    images, iterations, steps, pairs = 4 * 4, 10, 2, 4
    assert f"4 prompts x 4 samples = {images} images" in result.out
    assert f"{images} images x {steps} evaluations = {images * steps}" in result.out
    assert f"{images} images x {pairs} evaluations = {images * pairs}" in result.out
    each = images * (steps + pairs)
    assert f"{iterations} iterations x {each} evaluations = {iterations * each}" in result.out
    assert "toy [bold]colour[/bold] model" in result.out


def test_check_makes_nothing(vgrpo, folder):
    vgrpo("check", "toy.toml")
    assert sorted(path.name for path in folder.iterdir()) == ["toy.py", "toy.toml"]


MISTAKES = {
    "learning_rte": ("[optimizer]\nlr = 0.1", "[optimizer]\nlearning_rte = 0.1", r"unknown key"),
    "a near key": ("lr = 0.1", "lr = 0.1\nwarmupp = 1", r'unknown key "warmupp"; did you mean "warmup"\?'),
    "the wrong table": ("micro = 64", "micro = 64\nlr = 0.1", r'unknown key "lr"; it belongs to \[optimizer\]'),
    "an option of a plugin": ('label = "light"', 'label = "light"\nenable = false', r'unknown key "enable"'),
    "a number in quotes": ("lr = 0.1", 'lr = "1e-4"', r'lr is "1e-4": .*without quotes'),
    "a choice": ("lr = 0.1", 'lr = 0.1\ndecay = "cosin"', r'"cosin".*did you mean "cosine"'),
    "no TOML": ("[run]", "[run", r"toy\.toml:1:5: not TOML"),
}


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_mistake_in_a_recipe_is_one_message_with_place_and_remedy(vgrpo, folder, monkeypatch, command, old, new, said):
    monkeypatch.setenv("HF_TOKEN", "hf_SECRET")
    text = (folder / "toy.toml").read_text()
    assert old in text
    (folder / "toy.toml").write_text(text.replace(old, new, 1))
    result = vgrpo(command, "toy.toml")
    assert (result.code, result.out) == (2, "")
    assert re.match(r"Error: toy\.toml:\d+", result.err)
    assert re.search(said, result.err)
    assert "Traceback" not in result.err
    assert "hf_SECRET" not in result.err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("optimizer.lrr=1", 'unknown key "lrr"; did you mean "lr"?'),
        ("run.iterations", 'write it as key=value, such as "run.seed=1"'),
        ("reward.ligt.weight=1", 'no entry "ligt"; there are 0 (light); did you mean "light"?'),
        ("run.iterations=many", 'iterations is "many"'),
    ],
)
def test_a_mistake_in_set_is_named_as_it_was_typed(vgrpo, override, said):
    result = vgrpo("check", "toy.toml", "--set", override)
    assert result.code == 2
    assert result.err.startswith(f"Error: --set {override}: ")
    assert said in result.err


def test_all_mistakes_are_told_at_once(vgrpo):
    result = vgrpo("check", "toy.toml", "--set", "run.iterations=0", "--set", "batch.group=1")
    assert "--set run.iterations=0" in result.err
    assert "--set batch.group=1" in result.err


# RECIPE


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize("name", ["wrods", "wrods.toml"])
def test_an_unknown_recipe_gives_the_nearest_shipped_name(vgrpo, command, name):
    result = vgrpo(command, name)
    assert (result.code, result.out) == (2, "")
    first, second = result.err.splitlines()
    assert first == f'Error: no file "{name}", and no shipped recipe of that name; did you mean "words"?'
    assert "words" in second


def test_an_unknown_recipe_gives_the_nearest_file(vgrpo):
    assert 'did you mean "toy.toml"?' in vgrpo("check", "toi.toml").err


def test_a_missing_path_is_named(vgrpo):
    result = vgrpo("check", "elsewhere/toy.toml")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Error: elsewhere/toy.toml: no such file")


def test_a_file_comes_before_a_shipped_recipe_of_that_name(vgrpo, folder):
    (folder / "words").write_text((folder / "toy.toml").read_text())
    assert "toy [bold]" in vgrpo("check", "words").out


# plugins


def test_plugins_lists_what_is_installed(vgrpo):
    result = vgrpo("plugins")
    assert result.code == 0
    rows = [line.split(maxsplit=4) for line in result.out.splitlines()]
    assert ["objective", "vgrpo", "vgrpo", version("vgrpo")] in [row[:4] for row in rows]
    assert {row[0] for row in rows} == {"backbone", "sampler", "prompts", "reward", "objective"}
    assert [row[:2] for row in rows] == sorted(row[:2] for row in rows)


def test_plugins_as_json_says_the_same(vgrpo):
    rows = json.loads(vgrpo("plugins", "--json").out)
    text = vgrpo("plugins").out.splitlines()
    assert [" ".join(row.values()).split() for row in rows] == [line.split() for line in text]
    assert {"kind", "name", "distribution", "version", "about"} == set(rows[0])


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_plugins_that_fail_are_listed_on_stderr(vgrpo, folder, monkeypatch, option):
    info = folder / "vgrpo_broken-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vgrpo-broken\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[vgrpo]\nbroken = vgrpo_broken_module\n")
    (folder / "vgrpo_broken_module.py").write_text("import a_missing_library\n")
    monkeypatch.syspath_prepend(str(folder))
    result = vgrpo("plugins", *option)
    assert result.code == 0
    assert "vgrpo-broken" not in result.out
    assert result.err == "not loaded: vgrpo-broken 0.3 \"broken\" (ModuleNotFoundError: No module named 'a_missing_library')\n"


def test_plugins_kept_out_are_named(vgrpo, folder, monkeypatch):
    info = folder / "vgrpo_other-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vgrpo-other\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[vgrpo]\nother = nothing_that_exists\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("VGRPO_PLUGINS", "")
    assert vgrpo("plugins").err == "kept out by VGRPO_PLUGINS: vgrpo-other 0.3\n"


# recipes


@pytest.mark.parametrize("command", [("recipes",), ("recipes", "list")])
def test_recipes_lists_the_shipped_ones(vgrpo, command):
    result = vgrpo(*command)
    assert result.code == 0
    assert {"words", "paper-flux"} < {line for line in result.out.splitlines() if line and not line.startswith(" ")}


def test_show_prints_what_copy_writes(vgrpo, folder):
    shown = vgrpo("recipes", "show", "words").out
    assert tomllib.loads(shown)["reward"][0]["use"] == "ocr"
    assert vgrpo("recipes", "copy", "words").code == 0
    assert vgrpo("recipes", "copy", "words", "mine.toml").out == "wrote mine.toml; run it with: vgrpo run mine.toml\n"
    assert (folder / "words.toml").read_text() == (folder / "mine.toml").read_text() == shown


def test_copy_overwrites_nothing(vgrpo, folder):
    (folder / "words.toml").write_text("mine")
    result = vgrpo("recipes", "copy", "words")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Error: words.toml exists and is not overwritten")
    assert (folder / "words.toml").read_text() == "mine"


@pytest.mark.parametrize("command", ["show", "copy"])
def test_an_unknown_shipped_recipe_gives_the_nearest(vgrpo, command):
    result = vgrpo("recipes", command, "word")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith('Error: no shipped recipe "word"; did you mean "words"?')


def test_copy_into_a_missing_folder_says_so(vgrpo):
    result = vgrpo("recipes", "copy", "words", "nowhere/words.toml")
    assert (result.code, result.err) == (2, "Error: nowhere/words.toml can't be written: No such file or directory\n")


# Mistakes on the command line


@pytest.mark.parametrize("arguments", [("runn",), ("run",), ("run", "toy.toml", "--resum"), ("check", "toy.toml", "--set")])
def test_a_wrong_command_line_is_no_traceback(vgrpo, arguments):
    result = vgrpo(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "Error: " in result.err
    assert "Traceback" not in result.err


def test_a_deep_check_of_a_backbone_without_checks_says_so(vgrpo):
    result = vgrpo("check", "toy.toml", "--deep")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-1] == 'backbone "toy" has no checks of its own'


def test_check_says_what_memory_a_recipe_takes_without_loading_it(vgrpo):
    words = vgrpo("check", "words", "--memory")
    sizes = [line.split()[0] for line in words.out.splitlines() if line.endswith((" GB", " MB"))]
    assert words.code == 0 and sizes[-2:] == ["gradients", "optimizer"]
    assert "together" in words.last
    toy = vgrpo("check", "toy.toml", "--memory")
    assert toy.last == 'backbone "toy" does not say what memory it takes'
