"""What `vgrpo new` writes is a package: it builds, installs, is found, keeps its own tests, and trains."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from vgrpo_cli import scaffold
from vgrpo_cli.scaffold import Kind, new
from vgrpo_core import VgrpoError

ROOT = Path(__file__).parents[2]
NAMES = {Kind.reward: "sun-light", Kind.sampler: "half_way", Kind.backbone: "pixels"}
WRITTEN = {"reward": "vgrpo-sun-light", "sampler": "vgrpo-half-way", "backbone": "vgrpo-pixels"}
RECIPE_NAMES = {"reward": "sun_light", "sampler": "half_way", "backbone": "pixels"}
USES = {"reward": "./toy.py:Bright", "sampler": "euler", "backbone": "./toy.py:Model"}


def run(*command, **options):
    """Run a command and return what it prints; it has to succeed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folders of a new package of each kind."""
    parent = tmp_path_factory.mktemp("new")
    return {kind: new(kind, name, parent / kind) for kind, name in NAMES.items()}


@pytest.fixture(scope="module")
def python(written, tmp_path_factory):
    """An environment of its own with the wheels of all three; what this one has installed can be imported in it."""
    folder = tmp_path_factory.mktemp("environment")
    for package in written.values():
        run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder / "dist", package)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    site = next((folder / "venv").rglob("site-packages"))
    ours = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "outside.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in ours))
    python = next(path for path in (folder / "venv").rglob("python*") if path.stem == "python")
    wheels = sorted((folder / "dist").glob("*.whl"))
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", *wheels)
    return python


# in an environment


def test_the_wheels_hold_the_package_with_its_types_and_nothing_else(python):
    for kind, name in RECIPE_NAMES.items():
        wheel = next((python.parents[2] / "dist").glob(f"vgrpo_{name}-*.whl"))
        files = {file for file in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in file}
        inside = {"__init__.py", "py.typed"} | ({"policy.py"} if kind == "backbone" else set())
        assert files == {f"vgrpo_{name}/{file}" for file in inside}


def test_an_installed_package_is_listed_with_its_distribution_and_what_it_does(python):
    rows = json.loads(run(python, "-m", "vgrpo_cli", "plugins", "--json"))
    found = {row["kind"]: row for row in rows if row["distribution"] in WRITTEN.values()}
    assert {kind: row["name"] for kind, row in found.items()} == RECIPE_NAMES
    assert all(row["version"] == "0.1.0" and row["about"] for row in found.values())


def test_the_tests_that_a_package_comes_with_pass(python, written):
    tests = [folder / "tests" for folder in written.values()]
    said = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", *tests)
    count = sum(path.read_text().count("\ndef test_") for folder in tests for path in folder.glob("*.py"))
    assert int(said.rpartition(" passed")[0].split()[-1]) >= count > 9


TRAIN = """
import sys
from vgrpo_cli.app import main
for name in sys.argv[1:]:
    sys.argv = ["vgrpo", "run", f"{name}.toml"]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, ended.code
"""


def test_one_iteration_with_each_new_plugin_trains_the_toy(python, folder):
    recipe = (folder / "toy.toml").read_text().replace("iterations = 4", "iterations = 1")
    for kind, name in RECIPE_NAMES.items():
        assert recipe.count(f'use = "{USES[kind]}"') == 1
        (folder / f"{kind}.toml").write_text(recipe.replace(f'use = "{USES[kind]}"', f'use = "{name}"'))
    run(python, "-c", TRAIN, *RECIPE_NAMES)
    for kind in RECIPE_NAMES:
        before, after = map(json.loads, (folder / "runs" / kind / "metrics.jsonl").read_text().splitlines())
        assert (before["iteration"], after["iteration"]) == (0, 1)
        assert after["grad/norm"] > 0
        assert after["eval/light/mean"] != before["eval/light/mean"]
        assert WRITTEN[kind] in json.dumps(json.loads((folder / "runs" / kind / "manifest.json").read_text())["plugins"])


@pytest.mark.parametrize("kind", RECIPE_NAMES)
def test_the_recipe_in_the_readme_uses_the_plugin_and_is_sound(python, folder, written, kind):
    text = (written[kind] / "README.md").read_text().partition("```toml\n")[2].partition("```")[0]
    (folder / "recipe.toml").write_text(text)
    plan = run(python, "-m", "vgrpo_cli", "check", "recipe.toml")
    assert f"({WRITTEN[kind]} 0.1.0)" in plan


# style


@pytest.mark.parametrize("name", ["glow", "a-rather-long-name-for-one"])
@pytest.mark.parametrize("kind", Kind)
def test_what_is_written_is_formatted_and_clean_by_our_own_rules(kind, name, tmp_path):
    folder, settings = new(kind, name, tmp_path / "new"), tmp_path / "ruff.toml"
    settings.write_text(f'extend = "{ROOT / "pyproject.toml"}"\nsrc = ["{folder / "src"}"]\n')
    run(sys.executable, "-m", "ruff", "check", "--config", settings, folder)
    run(sys.executable, "-m", "ruff", "format", "--check", "--config", settings, folder)


@pytest.mark.slow
def test_what_is_written_is_typed_by_our_own_rules(written):
    """Minutes where mypy has not seen torch before."""
    sources = {"MYPYPATH": os.pathsep.join(str(folder / "src") for folder in written.values())}
    files = [path for folder in written.values() for path in folder.rglob("*.py")]
    run(sys.executable, "-m", "mypy", "--strict", *files, cwd=ROOT, env=os.environ | sources)


@pytest.mark.parametrize("kind", Kind)
def test_no_word_of_the_templates_is_left(kind, written):
    texts = [path.read_text() for path in written[kind].rglob("*") if path.is_file()]
    assert len(texts) > 5
    assert not [text for text in texts if "$" in text or "PACKAGE" in text or "NAME" in text]


# names


def test_a_package_asks_for_the_minor_version_of_vgrpo_that_wrote_it(written):
    project = tomllib.loads((written["reward"] / "pyproject.toml").read_text())["project"]
    major, minor = version("vgrpo").split(".")[:2]
    assert project["dependencies"] == [f"vgrpo>={major}.{minor}"]


@pytest.mark.parametrize(("found", "asked"), [("0.3.2", "0.3"), ("1.0", "1.0"), ("0.4.0.dev1", "0.4.0.dev1"), ("2.0rc1", "2.0rc1")])
def test_a_pre_release_is_asked_for_as_it_is(monkeypatch, tmp_path, found, asked):
    monkeypatch.setattr(scaffold, "version", lambda name: found)
    folder = new(Kind.reward, "glow", tmp_path / "glow")
    assert f'"vgrpo>={asked}"' in (folder / "pyproject.toml").read_text()


def test_without_a_place_the_package_goes_to_a_folder_of_its_name(folder):
    assert new(Kind.reward, "Sun.Light") == Path("vgrpo-sun-light")
    assert (folder / "vgrpo-sun-light" / "src" / "vgrpo_sun_light" / "__init__.py").is_file()


@pytest.mark.parametrize("typed", ["glow", "vgrpo-glow", "vgrpo_glow", "Glow"])
def test_a_name_may_be_typed_in_any_way_that_pypi_takes_for_the_same(typed, tmp_path):
    module = ast.parse((new(Kind.reward, typed, tmp_path / "new") / "src" / "vgrpo_glow" / "__init__.py").read_text())
    assert [node.name for node in module.body if isinstance(node, ast.ClassDef)] == ["Glow"]


REFUSED = {
    "ocr": 'vgrpo .* offers a reward named "ocr" already\n.*such as my-ocr',
    "jpeg-size": 'offers a reward named "jpeg_size" already',
    "core": "a package vgrpo_core is installed already",
    "3d": 'makes no name for a class: "3d"\n.*begin with a letter',
    "none": 'makes no name for a class: "None"',
    "two words": '"two words" is no name for a package\n.*such as glow',
    "-x": "is no name for a package",
    "grün": "is no name for a package",
    "": "is no name for a package",
    "reward": '"reward" would hide Reward, which the package uses\n.*a longer name',
}


@pytest.mark.parametrize(("name", "said"), REFUSED.items())
def test_a_name_that_will_not_do_is_refused_with_the_reason_and_nothing_is_written(name, said, folder):
    before = sorted(folder.iterdir())
    with pytest.raises(VgrpoError, match=said):
        new(Kind.reward, name)
    assert sorted(folder.iterdir()) == before


def test_a_name_is_taken_only_by_a_plugin_of_its_kind(tmp_path):
    assert new(Kind.sampler, "ocr", tmp_path / "ocr").is_dir()


def test_nothing_is_overwritten_but_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "mine").mkdir()
    folder = new(Kind.reward, "glow", tmp_path / "mine")
    (folder / "README.md").write_text("my own words")
    with pytest.raises(VgrpoError, match="mine exists and is not overwritten; name another folder with --to"):
        new(Kind.reward, "glow", folder)
    assert (folder / "README.md").read_text() == "my own words"
    with pytest.raises(VgrpoError, match=r"README\.md exists and is not overwritten"):
        new(Kind.reward, "glow", folder / "README.md")


def test_a_place_that_can_not_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(VgrpoError, match=r"file.*can't be written: Not a directory"):
        new(Kind.reward, "glow", tmp_path / "file" / "glow")


def test_the_next_steps_can_be_pasted(tmp_path):
    said = scaffold.next_steps(tmp_path / "my plugins" / "glow")
    assert said.endswith(f"""cd '{tmp_path}/my plugins/glow' && pip install -e ".[dev]" && pytest""")
