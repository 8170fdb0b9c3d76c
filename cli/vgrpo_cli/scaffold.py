"""`vgrpo new`: write a package with a small, working plugin in it, ready to be changed and published."""

from __future__ import annotations

import keyword
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path, PurePath
from string import Template

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import Version

from vgrpo_core import VgrpoError

TEMPLATES = Path(__file__).parent / "scaffolds"
LETTERS = "Use letters, digits, - and _, and begin with a letter, such as glow or two-cats."


class Kind(StrEnum):
    """What `vgrpo new` can write."""

    reward = "reward"
    sampler = "sampler"
    backbone = "backbone"


@dataclass(frozen=True)
class Names:
    """One name as recipes, Python and PyPI write it."""

    recipe: str

    @classmethod
    def of(cls, typed: str) -> Names:
        """Read a name as it was typed, with or without "vgrpo-" before it; one that can't be a package's is a VgrpoError."""
        try:
            names = cls(canonicalize_name(typed, validate=True).removeprefix("vgrpo-").replace("-", "_"))
        except InvalidName as error:
            raise VgrpoError(f'"{typed}" is no name for a package\n  {LETTERS}') from error
        if not names.class_name.isidentifier() or keyword.iskeyword(names.class_name):
            raise VgrpoError(f'"{typed}" makes no name for a class: "{names.class_name}"\n  {LETTERS}')
        return names

    @property
    def distribution(self) -> str:
        """Return what PyPI calls it."""
        return "vgrpo-" + self.recipe.replace("_", "-")

    @property
    def package(self) -> str:
        """Return what is imported."""
        return f"vgrpo_{self.recipe}"

    @property
    def class_name(self) -> str:
        """Return the name of the class."""
        return "".join(part.capitalize() for part in self.recipe.split("_"))


def new(kind: Kind, name: str, to: Path | None = None) -> Path:
    """Write a package with a plugin into `to`, by default the folder `vgrpo-NAME`, and return it.

    A name that can't be used or is taken, and a folder that is not empty, are a VgrpoError.
    """
    names = Names.of(name)
    files = dict(_rendered(kind, names))
    _check_free(kind, names)
    folder = to or Path(names.distribution)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise VgrpoError(f"{folder} exists and is not overwritten; name another folder with --to")
    try:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise VgrpoError(f"{error.filename} can't be written: {error.strerror}") from error
    return folder


def next_steps(folder: Path) -> str:
    """Say in one line what was written and what to do with it."""
    return f'wrote {folder}; go on with: cd {shlex.quote(str(folder))} && pip install -e ".[dev]" && pytest'


def _rendered(kind: Kind, names: Names) -> Iterator[tuple[PurePath, str]]:
    """Yield each file of the package with its text."""
    words = {
        "kind": kind.value, "name": names.recipe, "class": names.class_name, "package": names.package,
        "distribution": names.distribution, "vgrpo": _installed(),
    }  # fmt: skip
    for root in (TEMPLATES / "shared", TEMPLATES / kind.value):
        for path in sorted(root.rglob("*.txt")):
            text = Template(path.read_text(encoding="utf-8"))
            if re.search(rf"^\s*(from|import|class) .*\b{names.class_name}\b", text.template, re.MULTILINE):
                raise VgrpoError(f'"{names.recipe}" would hide {names.class_name}, which the package uses\n  Choose a longer name.')
            place = str(path.relative_to(root)).removesuffix(".txt").replace("PACKAGE", names.package).replace("NAME", names.recipe)
            yield PurePath(place), text.substitute(words)


def _installed() -> str:
    """Return the version of vgrpo to ask for: the minor one, or a pre-release as it is."""
    found = Version(version("vgrpo"))
    return str(found) if found.is_prerelease else f"{found.major}.{found.minor}"


def _check_free(kind: Kind, names: Names) -> None:
    """Refuse a name that an installed plugin of that kind, or an installed package, has."""
    from vgrpo_recipe.registry import Registry

    taken = [offer.source for offer in Registry.discover().offers if (offer.kind, offer.name) == (kind, names.recipe)]
    if taken:
        raise VgrpoError(
            f'{taken[0]} offers a {kind} named "{names.recipe}" already\n  Choose another name, such as my-{names.recipe}.'
        )
    if find_spec(names.package):
        raise VgrpoError(f"a package {names.package} is installed already\n  Choose another name, or uninstall it.")
