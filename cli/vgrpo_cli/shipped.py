"""The recipes that come with vgrpo."""

from __future__ import annotations

from pathlib import Path

from vgrpo_core import VgrpoError
from vgrpo_core.errors import nearest

FOLDER = Path(__file__).parent / "recipes"


def names() -> list[str]:
    """List the shipped recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def shipped(name: str) -> Path:
    """Return the file of a shipped recipe; an unknown name is a VgrpoError."""
    if name not in names():
        raise VgrpoError(f'no shipped recipe "{name}"{nearest(name, names())}\n  {_known()}')
    return FOLDER / f"{name}.toml"


def find(recipe: str) -> Path:
    """Return the file that RECIPE means: that of a path, or of the bare name of a shipped recipe."""
    path = Path(recipe)
    if recipe in names() and not path.is_file():
        return shipped(recipe)
    if path.is_file() or path.name != recipe:
        return path
    hint = nearest(path.stem, names()) or nearest(recipe, [other.name for other in Path().glob("*.toml")])
    raise VgrpoError(f'no file "{recipe}", and no shipped recipe of that name{hint}\n  {_known()}')


def called(path: Path) -> str:
    """Return what RECIPE is for a file: the bare name of a shipped one, which is the same on every machine."""
    return path.stem if path.parent == FOLDER else str(path)


def about(name: str) -> str:
    """Return what the first line of a shipped recipe says of it."""
    return shipped(name).read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def copy(name: str, to: Path) -> Path:
    """Copy a shipped recipe to a file or into a folder and return where it went; nothing is overwritten."""
    target = to / f"{name}.toml" if to.is_dir() else to
    text = shipped(name).read_text(encoding="utf-8")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise VgrpoError(f"{target} exists and is not overwritten; name another file: vgrpo recipes copy {name} FILE") from error
    except OSError as error:
        raise VgrpoError(f"{target} can't be written: {error.strerror}") from error
    return target


def _known() -> str:
    return f"Shipped recipes: {', '.join(names())}. Anything else is the path of a file."
