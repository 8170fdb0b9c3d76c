"""Pictures of a run: a sheet of held-out images at each evaluation, and the same prompts and seeds before and after."""

from __future__ import annotations

import bisect
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from vgrpo_core.events import Evaluated

SMALL, LARGE = 192, 256  # pixels of an image's longer side on a sheet: smaller ones grow by whole factors, larger ones shrink
GAP, MARGIN, TEXT = 3, 18, 14
PAPER, INK, PALE = "#ffffff", "#202020", "#707070"
PAIRS = 24


class Sheet(NamedTuple):
    """Images of one size with the prompts they were drawn for."""

    prompts: list[str]
    cells: list[Image.Image]


def save(event: Evaluated, folder: Path) -> Path:
    """Write an evaluation's images as `samples/<iteration>.png`, a grid in the order of the prompts, and return the file."""
    from vgrpo_core import Samples

    cells = [_fit(Image.fromarray(pixels)) for pixels in Samples(event.prompts, event.images).pixels()]
    width, height = cells[0].size
    across = _across(len(cells), width, height)
    down = math.ceil(len(cells) / across)
    sheet = Image.new("RGB", (across * (width + GAP) - GAP, down * (height + GAP) - GAP), PAPER)
    for index, cell in enumerate(cells):
        sheet.paste(cell, _corner(index, across, cell.size))
    layout = {"prompts": [prompt.text for prompt in event.prompts], "across": across, "size": [width, height]}
    about = PngInfo()
    about.add_text("vgrpo", json.dumps(layout))
    return _write(sheet, _path(folder, event.iteration), about)


def load(folder: Path, iteration: int) -> Sheet:
    """Cut what `save` wrote into its images again."""
    with Image.open(_path(folder, iteration)) as sheet:
        about = json.loads(sheet.info["vgrpo"])
        width, height = about["size"]
        corners = [_corner(index, about["across"], (width, height)) for index in range(len(about["prompts"]))]
        return Sheet(about["prompts"], [sheet.crop((x, y, x + width, y + height)) for x, y in corners])


def before_after(folder: Path, last: int, title: str) -> Path:
    """Write `before-after.png` from the sheets of iterations 0 and `last` and return the file.

    A sheet that is missing is an OSError; sheets of other prompts, which can't be compared, are a ValueError.
    """
    before, after = load(folder, 0), load(folder, last)
    if (before.prompts, before.cells[0].size) != (after.prompts, after.cells[0].size):
        raise ValueError("the prompts or sizes of evaluation have changed since the start")
    shown = _varied(before.prompts, PAIRS)
    pairs = [(before.prompts[index], before.cells[index], after.cells[index]) for index in shown]
    return _write(_compared(pairs, title, ("before", f"after {last} iterations")), folder / "before-after.png")


def _compared(pairs: Sequence[tuple[str, Image.Image, Image.Image]], title: str, captions: tuple[str, str]) -> Image.Image:
    """Lay out pairs in columns: the prompt above each, and above each column which is which."""
    width, height = pairs[0][1].size
    block = (2 * width + GAP + MARGIN, height + TEXT + MARGIN)
    across = min(len(pairs), _across(len(pairs), *block))
    down, top = math.ceil(len(pairs) / across), 3 * TEXT + 2 * MARGIN
    sheet = Image.new("RGB", (across * block[0] + MARGIN, top + down * block[1]), PAPER)
    draw = ImageDraw.Draw(sheet)
    _label(draw, (MARGIN, MARGIN), title, sheet.width - 2 * MARGIN, INK, TEXT + 2)
    for column in range(across):
        for side, caption in enumerate(captions):
            _label(draw, (MARGIN + column * block[0] + side * (width + GAP), MARGIN + 2 * TEXT), caption, width, INK)
    for index, (prompt, *images) in enumerate(pairs):
        x, y = MARGIN + index % across * block[0], top + index // across * block[1]
        _label(draw, (x, y - 4), prompt, 2 * width + GAP, PALE)
        for side, image in enumerate(images):
            sheet.paste(image, (x + side * (width + GAP), y + TEXT))
    return sheet


def _label(draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, room: int, colour: str, size: int = TEXT - 1) -> None:
    """Write one line, cut where there is no more room."""
    font = cast(ImageFont.FreeTypeFont, ImageFont.load_default(size))
    text = " ".join(text.split())
    if draw.textlength(text, font) > room:
        too_long = bisect.bisect_left(range(len(text)), 1, key=lambda end: int(draw.textlength(f"{text[:end]}...", font) > room))
        text = f"{text[: max(0, too_long - 1)]}..."
    draw.text(at, text, colour, font)


def _fit(image: Image.Image) -> Image.Image:
    longer = max(image.size)
    if longer > LARGE:
        image.thumbnail((LARGE, LARGE), Image.Resampling.LANCZOS)
        return image
    factor = max(1, SMALL // longer)
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def _across(count: int, width: int, height: int) -> int:
    """Choose how many cells stand in a row: near 4:3 overall, with few places left empty."""

    def cost(across: int) -> float:
        down = math.ceil(count / across)
        return abs(math.log(across * width / (down * height) * 3 / 4)) + across * down / count

    return min(range(1, count + 1), key=cost)


def _corner(index: int, across: int, size: tuple[int, int]) -> tuple[int, int]:
    return index % across * (size[0] + GAP), index // across * (size[1] + GAP)


def _varied(prompts: Sequence[str], count: int) -> list[int]:
    """Choose at most `count` images, in order: one of each prompt first, then a second one, and so on."""
    seen: Counter[str] = Counter()
    turns = []
    for index, prompt in enumerate(prompts):
        turns.append((seen[prompt], index))
        seen[prompt] += 1
    return sorted(index for _, index in sorted(turns)[:count])


def _path(folder: Path, iteration: int) -> Path:
    return folder / "samples" / f"{iteration:06d}.png"


def _write(image: Image.Image, path: Path, about: PngInfo | None = None) -> Path:
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    image.save(partial, format="png", pnginfo=about)
    partial.replace(path)
    return path
