"""The command `vgrpo plugins show`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field
from rich.cells import cell_len

import vgrpo_rewards
from vgrpo_cli.showing import type_name
from vgrpo_recipe.registry import Registry

GALLERY = '''
from pathlib import Path
from typing import Literal

from pydantic import Field

from vgrpo_core import Asset, Reward, Sampler, hookimpl


class Gallery(Reward):
    """Likeness to the pictures
    of a gallery.

    A second paragraph.
    """

    name = "gallery"
    range = "0 to 7"
    text_limit = 35
    requires = ("json", "a_missing_library.part", "another_missing")
    extra = "vgrpo-museum[gallery]"
    style: Literal["oil", "ink"] = Field(description="what it was painted with")
    size: tuple[int, int] = Field(default=(3, 4), description="height and width " * 9)
    folder: Path | None = None

    def assets(self):
        return [Asset(f"museum/{self.style}", 1.25, "CC0"), Asset("museum/frame", 0.004, "MIT")]

    def load(self, device):
        raise AssertionError("nothing may be loaded")


class Hall(Gallery):
    """A hall."""

    name = "hall"
    requires = ("a_missing_library",)
    extra = ""
    number: int


class Euler(Reward):
    name = "euler"
    number: int
    call: dict[str, str] = Field(default_factory=dict)

    def load(self, device):
        raise AssertionError("nothing may be loaded")


class Size(Euler):
    """A size of its own."""

    name = "jpeg_size"
    number: int = 0


@hookimpl
def vgrpo_rewards():
    return [Gallery, Hall, Euler, Size]
'''


@pytest.fixture
def gallery(install):
    """Install a distribution with plugins of its own, and return its module."""
    return install("vgrpo-museum", GALLERY)


@pytest.fixture
def page(vgrpo, gallery):
    """Show a plugin as text, in which line breaks do not count."""

    def show(*words):
        result = vgrpo("plugins", "show", *words)
        assert (result.code, result.err) == (0, "")
        return " ".join(result.out.split())

    return show


@pytest.fixture
def facts(vgrpo, gallery):
    """Show plugins as JSON."""
    return lambda *words: json.loads(vgrpo("plugins", "show", *words, "--json").out)


def test_it_says_where_a_plugin_comes_from_and_what_it_is(page, gallery, folder):
    shown = page("gallery")
    assert shown.startswith("reward gallery: Likeness to the pictures of a gallery. from vgrpo-museum 0.3 ")
    assert f"class {gallery}.Gallery file {folder / 'site-packages' / gallery}.py range 0 to 7 reads 35 tokens of a prompt" in shown
    assert "second paragraph" not in shown


def test_it_says_what_is_installed_of_what_a_plugin_needs_and_how_to_get_it(page):
    modules = "modules json (installed), a_missing_library.part (not installed), another_missing (not installed)"
    assert f'{modules} install pip install "vgrpo-museum[gallery]"' in page("gallery")


def test_without_an_extra_what_is_missing_is_what_to_install(page, facts):
    assert "install pip install a_missing_library options" in page("hall")
    assert facts("hall")[0]["install"] == ["a_missing_library"]


def test_options_have_type_default_and_description(page):
    options = page("gallery").partition(" options ")[2]
    one, two, three = (options.index(f"{name}: ") for name in ("style", "size", "folder"))
    assert options[one:two] == 'style: "oil" or "ink"; required what it was painted with '
    assert options[two:three] == f"size: 2 integers; default [3, 4] {'height and width ' * 9}"
    assert options[three:] == "folder: path"


def test_assets_are_those_of_each_choice_that_has_to_be_made(page, facts):
    shown = 'assets museum/oil, 1.25 GB, CC0 (for style "oil") museum/frame, 0.004 GB, MIT (for style "oil") museum/ink, 1.25 GB'
    assert shown in page("gallery")
    assert facts("gallery")[0]["assets"][2] == {"options": {"style": "ink"}, "name": "museum/ink", "size": 1.25, "licence": "CC0"}


def test_where_assets_depend_on_what_is_not_known_they_are_missing_and_not_none(page, facts):
    assert facts("hall")[0]["assets"] is None
    assert [each["assets"] for each in facts("euler")] == [[], []]
    assert "assets as these options ask for: style, number modules" in page("hall")


def test_a_plugin_that_says_nothing_of_itself_is_shown_all_the_same(page):
    shown = page("vgrpo-museum/euler")
    assert shown.startswith("reward euler from vgrpo-museum 0.3 class ")
    assert shown.endswith("options number: integer; required call: table; default {}")


def test_a_name_of_several_kinds_shows_each_and_kind_chooses(facts):
    assert [(each["kind"], each["distribution"]) for each in facts("euler")] == [("reward", "vgrpo-museum"), ("sampler", "vgrpo")]
    assert [each["kind"] for each in facts("euler", "--kind", "sampler")] == ["sampler"]


def test_a_name_of_several_distributions_shows_each_and_its_whole_name_chooses(facts, page):
    assert [each["distribution"] for each in facts("jpeg_size")] == ["vgrpo", "vgrpo-museum"]
    assert [each["version"] for each in facts("vgrpo/jpeg_size")] == [version("vgrpo")]
    assert page("jpeg_size").count("reward jpeg_size: ") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["galery"], 'no plugin named "galery"; did you mean reward "gallery"?'),
        (["eulr"], 'no plugin named "eulr"; did you mean sampler "euler" or reward "euler"'),
        (["gallery", "--kind", "sampler"], 'no sampler named "gallery"; did you mean reward "gallery"?'),
        (["zzz"], 'no plugin named "zzz"\n  `vgrpo plugins` lists'),
        (["gallery", "--kind", "rewards"], '--kind: no kind "rewards"; did you mean "reward"?\n  Kinds: backbone, '),
    ],
)
def test_an_unknown_name_gives_the_nearest_of_all_kinds(vgrpo, gallery, words, said):
    result = vgrpo("plugins", "show", *words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"Error: {said}")


def test_plugins_that_are_not_there_for_a_reason_are_named(vgrpo, install, monkeypatch):
    install("vgrpo-broken", "import a_missing_library\n")
    assert "Not loaded: vgrpo-broken 0.3" in vgrpo("plugins", "show", "zzz").err
    monkeypatch.setenv("VGRPO_PLUGINS", "")
    assert "Kept out by VGRPO_PLUGINS: vgrpo-broken 0.3" in vgrpo("plugins", "show", "zzz").err


def test_every_shipped_plugin_fits_80_columns(vgrpo):
    names = {offer.name for offer in Registry.discover().offers if offer.distribution == "vgrpo"}
    assert "ocr" in names
    for name in names:
        lines = vgrpo("plugins", "show", name).out.splitlines()
        long = [line.split() for line in lines if cell_len(line) > 80]
        assert [words for words in long if len(words) > 2] == []  # a label and one path that can't be broken
        assert not any("\x1b" in line for line in lines)


def test_the_facts_are_those_of_the_class(facts):
    for reward in vgrpo_rewards.vgrpo_rewards():
        found = facts(f"vgrpo/{reward.name}", "--kind", "reward")[0]
        assert (found["range"] or "", found["text_limit"]) == (reward.range, reward.text_limit)
        assert [option["name"] for option in found["options"]] == list(reward.model_fields)
        assert [option["description"] for option in found["options"]] == [f.description for f in reward.model_fields.values()]
        required = [option["name"] for option in found["options"] if option["required"]]
        assert required == [name for name, field in reward.model_fields.items() if field.is_required()]
        if not required:
            assert [asset["name"] for asset in found["assets"]] == [asset.name for asset in reward().assets()]


class Inner(BaseModel):
    """A table."""

    rank: int
    alpha: float


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (int, "integer"),
        (float | None, "number"),
        (Path | None, "path"),
        (bool, "true or false"),
        (Literal["a", 2], '`"a"` or `2`'),
        (tuple[int, int], "2 integers"),
        (tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]], "2 numbers"),
        (tuple[str, ...], "list of text"),
        (list[int], "list of integers"),
        (tuple[Literal["a", "b"], ...], 'list of `"a"` or `"b"`'),
        (float | tuple[tuple[int, float], ...], "number or list of [integer, number]"),
        (dict[str, int], "table"),
        (Inner | None, "table: `rank`, `alpha`"),
        (set, "set"),
    ],
)
def test_types_are_named_as_people_say_them(annotation, name):
    assert type_name(annotation, "`") == name
    assert type_name(annotation) == name.replace("`", "")


def test_nothing_heavy_is_imported(folder):
    code = (
        "import sys; from vgrpo_cli.showing import lines; lines('ocr'); lines('hpsv2'); "
        "print([name for name in ('torch', 'numpy', 'transformers', 'open_clip', 'rapidocr') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
