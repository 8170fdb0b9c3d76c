"""Every block of TOML and Python in README and docs/ is what it says: recipes load, fragments fit a recipe, Python runs."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest
import tomli_w

from vgrpo_recipe import load
from vgrpo_recipe.registry import Registry

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHIPPED = ROOT / "cli" / "vgrpo_cli" / "recipes"
KINDS = {"toml", "toml fragment", "toml pyproject", "python", "text", "console"}


def blocks(kind):
    """List the fenced blocks of a kind with the page and line that each begins at."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```([^\n]+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            if match[1] == kind:
                line = text[: match.start()].count("\n") + 1
                found.append(pytest.param(match[2], id=f"{page.name}:{line}"))
    return found


def test_every_block_is_of_a_kind_that_is_tested_or_plain_text():
    found = [kind for page in PAGES for kind in re.findall(r"^```([^\n]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)]
    assert found
    assert set(found) <= KINDS


@pytest.mark.parametrize("text", blocks("toml"))
def test_a_recipe_in_the_docs_loads(text, tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    load(path, (), Registry.discover())


@pytest.mark.parametrize("text", blocks("toml fragment"))
def test_a_fragment_in_the_docs_fits_a_recipe(text, tmp_path):
    for name, code in example_files().items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    path = tmp_path / "recipe.toml"
    whole = tomllib.loads((SHIPPED / "words.toml").read_text(encoding="utf-8")) | tomllib.loads(text)
    path.write_text(tomli_w.dumps(whole), encoding="utf-8")
    load(path, (), Registry.discover())


def example_files():
    """Return the plugin files that the docs tell readers to save beside a recipe."""
    names = {"glow.py": "class Glow(Reward)", "reward_weighted.py": "class RewardWeighted(Objective)"}
    codes = [param.values[0] for param in blocks("python")]
    return {name: next(code for code in codes if mark in code) for name, mark in names.items()}


@pytest.mark.parametrize("text", blocks("toml pyproject"))
def test_a_pyproject_in_the_docs_names_an_entry_point(text):
    assert tomllib.loads(text)["project"]["entry-points"]["vgrpo"]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_in_the_docs_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs", "exec"), {"__name__": "docs"})


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.toml")), ids=lambda path: path.name)
def test_a_shipped_recipe_loads(path):
    load(path, (), Registry.discover())


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


GENERATED = ["recipe.md", "plugins.md", "options.md", "words.md", "samplers.md", "families.md", "performance.md"]
GENERATED += ["recipes.md", "benchmark.md", "offline.md"]


@pytest.mark.parametrize("page", GENERATED)
def test_the_generated_parts_of_the_docs_say_what_the_code_says(page):
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == generate["rendered"](page), "run python docs/generate.py"
