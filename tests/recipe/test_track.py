from __future__ import annotations

import subprocess
import sys
import tomllib
import types

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from vgrpo_core import RecipeError
from vgrpo_recipe import layout, load
from vgrpo_recipe.layout import LAYOUT, fields


@pytest.fixture
def read(tmp_path, registry, text):
    """Load the recipe with a table `[track]`."""

    def do(table, **how):
        path = tmp_path / "words.toml"
        path.write_text(f"{text}\n{table}")
        return load(path, (), registry, **how)

    return do


@pytest.fixture
def mistakes(read, tmp_path):
    def of(track):
        with pytest.raises(RecipeError) as caught:
            read(track)
        return [mistake.removeprefix(f"{tmp_path}/words.toml:").partition(": ")[2] for mistake in caught.value.mistakes]

    return of


@pytest.fixture
def installed(monkeypatch):
    """Let these packages be installed, and no other tracker; what is only a folder has no origin."""

    def only(*names, folders=()):
        specs = {name: types.SimpleNamespace(origin="__init__.py") for name in names}
        specs |= {name: types.SimpleNamespace(origin=None) for name in folders}
        monkeypatch.setattr(layout, "find_spec", specs.get)

    return only


def test_the_trackers_are_those_of_accelerate():
    annotation = LAYOUT["track",][0].model_fields["with"].annotation
    names = annotation.__args__[0].__origin__.__args__
    assert sorted(names) == sorted(LOGGER_TYPE_TO_CLASS)


def test_the_resolved_recipe_says_how_the_run_is_followed_and_loads_again(read, installed, tmp_path, registry):
    installed("wandb", "tensorboard")
    made = read('[track]\nwith = ["tensorboard", "wandb"]\n[track.options.wandb]\nentity = "lab"\ntags = ["first", "try"]\n')
    options = {"wandb": {"entity": "lab", "tags": ["first", "try"]}}
    assert made.table["track"] == {"with": ["tensorboard", "wandb"], "project": "vgrpo", "options": options}
    again = tmp_path / "recipe.toml"
    again.write_text(made.to_toml())
    assert load(again, (), registry).table == made.table


def test_a_recipe_without_trackers_has_no_table_for_them(read):
    assert "track" not in tomllib.loads(read("").to_toml())


def test_all_mistakes_are_said_at_once_with_the_nearest_name_and_the_command_that_installs(mistakes, installed):
    installed("tensorboard")
    first, second, third, fourth = mistakes('[track]\nwith = ["tensorbord", "wandb", "tensorboard"]\nprojekt = "x"\nproject = ""\n')
    assert first.startswith('[track] project is ""')
    assert second.startswith('[track] with.0 is "tensorbord": ')
    assert second.endswith('did you mean "tensorboard"?')
    assert third == '[track] with.1 is "wandb": it is not installed; run: pip install wandb'
    assert fourth == '[track] unknown key "projekt"; did you mean "project"?'


def test_a_folder_named_like_a_tracker_is_no_installed_one(mistakes, installed):
    installed(folders=("wandb",))
    assert mistakes('[track]\nwith = ["wandb"]\n') == ['[track] with.0 is "wandb": it is not installed; run: pip install wandb']


def test_options_of_a_tracker_that_is_not_used_are_a_mistake(mistakes, installed):
    installed("wandb")
    (mistake,) = mistakes('[track]\nwith = ["wandb"]\n[track.options.wandbb]\nentity = "lab"\n')
    assert mistake == '[track] options are for trackers that `with` names, not for "wandbb"; did you mean "wandb"?'


def test_with_is_a_key_like_any_other(mistakes):
    assert fields(LAYOUT["track",][0]) == ["project", "options", "with"]
    assert mistakes('[track]\nwiht = ["wandb"]\n')[1] == '[track] unknown key "wiht"; did you mean "with"?'


def test_who_only_reads_a_run_needs_none_of_its_trackers(read, installed):
    installed()
    assert "track" not in read('[track]\nwith = ["wandb"]\n', track=False).table


def test_reading_a_recipe_with_trackers_imports_neither_torch_nor_accelerate_nor_a_tracker():
    code = (
        "import sys\nfrom vgrpo_recipe.layout import LAYOUT\nimport vgrpo_track\n"
        "assert getattr(LAYOUT['track',][0].model_validate({'with': ['tensorboard']}), 'with') == ('tensorboard',)\n"
        "print(sorted({'torch', 'accelerate', 'tensorboard'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
