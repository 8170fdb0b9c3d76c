"""Held-out images of the same prompts and noise at each evaluation, small enough to be part of a page."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from vgrpo_cli import pictures

from .read import Run

PROMPTS, MOMENTS = 24, 24  # shown at most: of the images of an evaluation, and evaluations of all runs together
ROOM = 3_800_000  # bytes of all images of a page as text
QUALITY = 72
Key = tuple[str, int]
"""A prompt, and which of its images."""


class Frame(NamedTuple):
    """An image as it was drawn at an iteration."""

    iteration: int
    source: str
    """A data URI."""


class Column(NamedTuple):
    """One place in a card: the images that the slider goes through; `run` counts from 0, None for what was before."""

    title: str
    run: int | None
    frames: list[Frame]


class Card(NamedTuple):
    """One prompt."""

    prompt: str
    columns: list[Column]


class Gallery(NamedTuple):
    """What the page shows of the evaluations; `moments` are the stops of the slider."""

    cards: list[Card]
    moments: list[int]
    size: tuple[int, int]
    notes: list[str]


class Thumbs(NamedTuple):
    """The images of one evaluation that may be shown."""

    prompts: tuple[str, ...]
    size: tuple[int, int]
    sources: dict[Key, str]


def gallery(runs: Sequence[Run], names: Sequence[str]) -> Gallery | None:
    """Put the images of the same prompts next to each other, as many as there is room for; None where there are none."""
    notes = list[str]()
    found = [_evaluations(run, name, max(2, MOMENTS // len(runs)), notes) for run, name in zip(runs, names, strict=True)]
    if not any(found):
        return None
    shown = [(number, frames) for number, frames in enumerate(found) if frames]
    last = [frames[max(frames)] for _, frames in shown]
    keys = [key for key in last[0].sources if all(key in thumbs.sources for thumbs in last)]
    if not keys:
        notes.append(
            "The runs were evaluated on different prompts: there is nothing to put side by side. See each run's own report."
        )
    cards = _fitting(_card(key, shown, names) for key in keys)
    if cards and len(cards) < len(last[0].prompts):
        notes.append(f"{len(cards)} of {len(last[0].prompts)} pictured images are shown, to keep this file small.")
    moments = sorted({iteration for _, frames in shown for iteration in frames})
    return Gallery(cards, moments, last[0].size, notes)


def source(image: Image.Image) -> str:
    """Write an image as a data URI."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "webp", quality=QUALITY, method=2)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"


def spread(values: Sequence[int], count: int) -> list[int]:
    """Choose at most `count` (2 or more) of some values, evenly, the first and the last among them."""
    if len(values) <= count:
        return list(values)
    return [values[round(at * (len(values) - 1) / (count - 1))] for at in range(count)]


def _evaluations(run: Run, name: str, most: int, notes: list[str]) -> dict[int, Thumbs]:
    """Return what can be compared with the last evaluation, by iteration."""
    files = {int(file.stem): file for file in sorted((run.path / "samples").glob("*.png")) if file.stem.isdecimal()}
    written = [iteration for iteration in files if iteration <= run.done]
    chosen = spread(written, most)
    if len(chosen) < len(written):
        notes.append(f"{name}: {len(chosen)} of {len(written)} evaluations are shown, to keep this file small.")
    found = {iteration: thumbs for iteration in chosen if (thumbs := _readable(run.path, iteration, files[iteration]))}
    if not found:
        return {}
    last = found[max(found)]
    same = {at: thumbs for at, thumbs in found.items() if (thumbs.prompts, thumbs.size) == (last.prompts, last.size)}
    if gone := [str(iteration) for iteration in chosen if iteration not in same]:
        notes.append(f"{name}: iteration {', '.join(gone)} is left out: its file is damaged, or of other prompts or another size.")
    return same


def _readable(folder: Path, iteration: int, file: Path) -> Thumbs | None:
    try:
        return _thumbs(folder, iteration, file.stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, SyntaxError):  # Pillow's decoder of PNG raises them all
        return None


@lru_cache(maxsize=2 * MOMENTS)
def _thumbs(folder: Path, iteration: int, stamp: int) -> Thumbs:
    """Encode an evaluation once, however often a run renews its report; `stamp` tells files of one name apart."""
    sheet = pictures.load(folder, iteration)
    keys = list(_keys(sheet.prompts))
    first = sorted(range(len(keys)), key=lambda row: (keys[row][1], row))[:PROMPTS]  # one of each prompt, then a second one, ...
    return Thumbs(tuple(sheet.prompts), sheet.cells[0].size, {keys[row]: source(sheet.cells[row]) for row in sorted(first)})


def _keys(prompts: Sequence[str]) -> Iterator[Key]:
    seen = Counter[str]()
    for prompt in prompts:
        yield prompt, seen[prompt]
        seen[prompt] += 1


def _card(key: Key, found: Sequence[tuple[int, dict[int, Thumbs]]], names: Sequence[str]) -> Card:
    frames = [(number, [Frame(at, thumbs.sources[key]) for at, thumbs in sorted(each.items())]) for number, each in found]
    before = dict.fromkeys(each[0] for _, each in frames if each[0].iteration == 0)  # runs of one model start alike
    several = len(before) > 1
    starts = [Column(f"before ({number})" if several else "before", None, [frame]) for number, frame in enumerate(before, 1)]
    return Card(key[0], starts + [Column(names[number], number, each) for number, each in frames])


def _fitting(cards: Iterator[Card]) -> list[Card]:
    """Take cards while there is room, and one in any case."""
    taken, used = list[Card](), 0
    for card in cards:
        used += sum(len(frame.source) for column in card.columns for frame in column.frames)
        if taken and used > ROOM:
            break
        taken.append(card)
    return taken
