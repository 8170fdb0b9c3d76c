"""The command `vgrpo report`. Nothing here imports torch or matplotlib before a report is written."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from vgrpo_core import PluginError, VgrpoError

NAME = "report.html"
NEEDS = ("matplotlib", "jinja2")


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="The folder of a run; several are compared.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write. [default: RUN/report.html; report.html for several]")
    ] = None,
) -> None:
    """Write what runs have learned as one HTML file.

    A run may still be going. A file of that name is replaced.
    """
    file = out or (runs[0] / NAME if len(runs) == 1 else Path(NAME))
    size = write(runs, file)
    typer.echo(f"wrote {file} ({size / 1e6:.1f} MB)")


def write(runs: Sequence[Path], file: Path) -> int:
    """Write the report of some runs, whole or not at all, and return its size in bytes; what can be mended is a VgrpoError."""
    check_installed()
    from .page import render
    from .read import Run

    content = render([Run.read(path) for path in runs]).encode()
    partial = file.with_name(f"{file.name}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(file)
    except OSError as error:
        raise VgrpoError(f"{file}: the report can't be written: {error.strerror}; choose another place with --out") from error
    return len(content)


def check_installed() -> None:
    """Refuse to go on without what draws the page; the PluginError says what to install."""
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        raise PluginError(f"a report needs {' and '.join(missing)}, which is not installed", fix='Run: pip install "vgrpo[plot]"')
