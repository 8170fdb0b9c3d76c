"""What an installation holds: exactly vgrpo's import packages and their data."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "vgrpo_core", "vgrpo_diffusers", "vgrpo_samplers", "vgrpo_objectives", "vgrpo_prompts", "vgrpo_glyphs", "vgrpo_rewards",
    "vgrpo_remote", "vgrpo_recipe", "vgrpo_compare", "vgrpo_report", "vgrpo_track", "vgrpo_use", "vgrpo_cli",
}  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from the sdist, as an index would get it."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return zipfile.ZipFile(next(out.glob("*.whl")))


def shelf(package):
    """Return the folder of a package in the checkout."""
    return next(path for path in [ROOT / package, *ROOT.glob(f"*/{package}")] if path.is_dir())


def test_the_wheel_made_from_the_sdist_holds_our_packages_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES


def test_the_wheel_holds_every_file_of_the_packages_that_git_keeps(wheel):
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    ours = [(package, ROOT / name) for package in PACKAGES for name in listed if package in Path(name).parts]
    kept = {str(path.relative_to(shelf(package).parent)) for package, path in ours}
    assert kept
    assert kept == {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_wheel_ships_types_model_recipes_and_words(wheel):
    names = set(wheel.namelist())
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    model = [name for name in names if name.startswith("vgrpo_glyphs/model/")]
    assert sum(wheel.getinfo(name).file_size for name in model) < 12e6
    assert {"vgrpo_glyphs/model/model_index.json", "vgrpo_cli/recipes/words.toml", "vgrpo_prompts/words.txt"} <= names


def test_the_installed_entry_points_are_those_of_the_checkout():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]["vgrpo"]
    installed = {entry.name: entry.value for entry in entry_points(group="vgrpo") if entry.dist and entry.dist.name == "vgrpo"}
    assert installed == declared, "run `pip install -e .` again: entry points are written at install time"


def test_the_core_stays_small():
    """Count lines of code: no blank lines, comments or docstrings."""
    assert sum(lines_of_code(path) for path in (ROOT / "vgrpo_core").glob("*.py")) < 1600


def test_no_file_is_longer_than_300_lines():
    files = [path for folder in ("vgrpo_core", "plugins", "rewards", "cli") for path in (ROOT / folder).rglob("*.py")]
    assert not [path.name for path in files if len(path.read_text(encoding="utf-8").splitlines()) > 300]


def lines_of_code(path):
    """Count the lines that hold code."""
    import ast
    import io
    import tokenize

    text = path.read_text(encoding="utf-8")
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in silent]
    code = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    alone = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    strings = [value for value in alone if isinstance(value, ast.Constant)]
    return len(code - {line for string in strings for line in range(string.lineno, (string.end_lineno or 0) + 1)})
