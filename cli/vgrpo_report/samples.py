"""Scores and evidence of the pictured images of an evaluation: `samples/<iteration>.json`, beside the sheet of that name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vgrpo_cli import pictures
from vgrpo_cli.screen import number

from .pictures import source
from .read import Run

SHOWN = 6  # best and worst
Table = Mapping[str, Any]


class Box(NamedTuple):
    """Where something was found, in pixels of the image as it was drawn."""

    name: str
    x: float
    y: float
    width: float
    height: float


class Judged(NamedTuple):
    """An image with what each reward said of it: label, score as people read it, evidence in words."""

    prompt: str
    source: str
    rows: list[tuple[str, str, str]]
    boxes: list[Box]
    size: tuple[int, int]


class Extremes(NamedTuple):
    """The images that the trained rewards like best and least."""

    iteration: int
    best: list[Judged]
    worst: list[Judged]
    pictured: int


def save(
    folder: Path,
    iteration: int,
    prompts: Sequence[str],
    scores: Mapping[str, Sequence[float]],
    evidence: Mapping[str, Sequence[Table]],
    size: tuple[int, int],
) -> Path:
    """Write what rewards said of the images on a sheet and return the file.

    Scores and evidence are by label and in the order of the prompts; `size` is width and height of the images as they were
    drawn, which boxes refer to. NaN is missing. Evidence that JSON can't hold is a ValueError or TypeError, and nothing is written.
    """
    from vgrpo_core.checkpoint import write_text

    known = {label: [value if math.isfinite(value) else None for value in values] for label, values in scores.items()}
    told = {label: [dict(table) for table in tables] for label, tables in evidence.items() if any(tables)}
    content = {"prompts": list(prompts), "size": list(size), "scores": known, "evidence": told}
    text = json.dumps(content, allow_nan=False, ensure_ascii=False)
    path = _path(folder, iteration)
    path.parent.mkdir(exist_ok=True)
    write_text(path, text)
    return path


def extremes(run: Run) -> Extremes | None:
    """Choose images of the last evaluation; None where its scores, or its sheet, are not kept."""
    iteration = run.evaluated[-1][0]
    try:
        told = json.loads(_path(run.path, iteration).read_text(encoding="utf-8"))
        sheet = pictures.load(run.path, iteration)
    except OSError:
        return None
    if sheet.prompts != told["prompts"][: len(sheet.prompts)]:
        return None  # files of different evaluations
    order = ranked(told["scores"], {reward.label: reward.factor for reward in run.rewards}, len(sheet.prompts))
    each = min(SHOWN, len(order) // 2) or 1
    judged = {row: _judged(told, row, source(sheet.cells[row])) for row in {*order[:each], *order[-each:]}}
    worst = [judged[row] for row in reversed(order[-each:])] if len(order) > 1 else []
    return Extremes(iteration, [judged[row] for row in order[:each]], worst, len(order))


def ranked(scores: Mapping[str, Sequence[float | None]], factors: Mapping[str, float], count: int) -> list[int]:
    """Order the first `count` samples, best first: by the sum of factor times score, each score in deviations from its mean.

    A missing score counts as the mean. Samples without any score of a trained reward are left out.
    """
    total, judged = np.zeros(count), np.zeros(count, dtype=bool)
    for label, factor in factors.items():
        values = np.array(scores.get(label, [None] * count)[:count], dtype=float)
        known = np.isfinite(values)
        judged |= known
        if known.any() and (deviation := values[known].std()) > 0:
            total[known] += factor * (values[known] - values[known].mean()) / deviation
    return sorted(np.flatnonzero(judged).tolist(), key=lambda row: -total[row])


def said(evidence: Table) -> str:
    """Say evidence in words; what was found in boxes is named, the boxes themselves are drawn."""
    return ", ".join(f"{key} {_value(value)}" for key, value in evidence.items())


def boxes(evidence: Any) -> Iterator[Box]:
    """Yield the boxes anywhere in evidence: tables with a `box` of left, top, right and bottom."""
    if isinstance(evidence, dict) and _is_box(evidence.get("box")):
        left, top, right, bottom = evidence["box"]
        yield Box(_value(evidence), left, top, right - left, bottom - top)
    elif isinstance(evidence, dict | list):
        for inner in evidence.values() if isinstance(evidence, dict) else evidence:
            yield from boxes(inner)


def _judged(told: Table, row: int, image: str) -> Judged:
    evidence = {label: tables[row] for label, tables in told["evidence"].items()}
    rows = [(label, number(values[row]), said(evidence.get(label, {}))) for label, values in told["scores"].items()]
    return Judged(told["prompts"][row], image, rows, list(boxes(evidence)), tuple(told["size"]))


def _value(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case str():
            return f'"{value}"'
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3g}"
        case list():
            return ", ".join(map(_value, value)) or "none"
        case dict():
            return " ".join(inner if isinstance(inner, str) else _value(inner) for key, inner in value.items() if key != "box")
    return str(value)


def _is_box(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(isinstance(side, int | float) for side in value)


def _path(folder: Path, iteration: int) -> Path:
    return folder / "samples" / f"{iteration:06d}.json"
