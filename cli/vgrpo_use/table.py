"""What `vgrpo evaluate` prints."""

from __future__ import annotations

from collections.abc import Sequence

from vgrpo_cli.listing import columns
from vgrpo_cli.screen import number

from .evaluate import Evaluation
from .interval import LEVEL, Compared, Judged


def lines(found: Evaluation) -> list[str]:
    """Return the table, and what its numbers are over."""
    names = [side.name for side in found.job.sides]
    heads = ["change", f"{LEVEL:.0%} interval", "better", "worse"] if len(names) == 2 else [f"{LEVEL:.0%} interval"]
    rows = [[label, *_cells(each)] for label, each in found.rewards.items()]
    return [*columns([["held out", *names, *heads, "missing"], *rows], right=True), "", *_notes(found)]


def _cells(found: Compared | Judged) -> Sequence[str]:
    missing = f"{found.missing}/{found.images + found.missing}"
    if isinstance(found, Judged):
        return [number(found.mean), _interval(found.interval), missing]
    means = [number(found.before), number(found.after), number(found.difference, sign="+")]
    return [*means, _interval(found.interval, "+"), _share(found.better), _share(found.worse), missing]


def _interval(found: tuple[float, float] | None, sign: str = "") -> str:
    return "unknown" if found is None else "..".join(number(end, sign) for end in found)


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0%}"


def _notes(found: Evaluation) -> list[str]:
    each = found.job.recipe.eval.samples
    count = f"{found.prompts} prompts x {each} image{'s' if each > 1 else ''}"
    pairs = ", each pair with the same noise; better and worse are shares of prompts" if len(found.job.sides) == 2 else ""
    return [f"{count}{pairs}; intervals: bootstrap over prompts", f"each image: {found.job.out}"]
