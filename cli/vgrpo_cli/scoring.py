"""`vgrpo score`: one reward on pictures from disk, through the reader and the door to the reward that a run uses."""

from __future__ import annotations

import json
import statistics
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.cells import cell_len, set_cell_size

from vgrpo_core import PluginError, Prompt, Prompts, Reward, RunError, VgrpoError
from vgrpo_core.errors import reason
from vgrpo_core.offers import Offer
from vgrpo_recipe.choice import choose
from vgrpo_recipe.registry import Registry
from vgrpo_recipe.tables import Source, dump

from . import typed
from .listing import columns

if TYPE_CHECKING:
    import torch

    from vgrpo_core.scoring import Judge

Evidence = Mapping[str, Any] | None
WIDTH, NAME, LONE = 80, 30, 60  # columns: of the table, of a file's name beside evidence, and without any
BATCH = 16  # pictures held in memory together


@dataclass(frozen=True)
class Asked:
    """What was typed."""

    reward: str
    images: Sequence[Path]
    prompt: str | None
    prompts: Path | None
    options: Sequence[str]
    device: str


@dataclass(frozen=True)
class Row:
    """What is said of one picture."""

    file: str
    prompt: str
    score: float | None
    evidence: Evidence


def lines(asked: Asked, *, as_json: bool = False) -> list[str]:
    """Score what was asked for and return what to print; every mistake of the user is a VgrpoError, before anything is loaded."""
    rows = score(asked)
    if as_json:
        return [json.dumps([vars(row) for row in rows], indent=2)]
    return [*_table(rows), "", _summary(rows)]


def score(asked: Asked) -> list[Row]:
    """Score the pictures, in their order."""
    registry = Registry.discover()
    offer = choose(registry, "reward", asked.reward, Path())
    reward = typed.reward(offer, asked.options, registry)
    prompts, sizes = _prompts(asked, registry), _sizes(asked.images)
    with redirect_stdout(sys.stderr):  # plugins may print, and --json promises JSON alone
        found = _judged(offer, reward, asked, prompts, sizes)
    return [Row(str(file), prompt.text, *result) for file, prompt, result in zip(asked.images, prompts, found, strict=True)]


# What was typed


def _prompts(asked: Asked, registry: Registry) -> Sequence[Prompt]:
    if asked.prompts is None:
        return [Prompt(asked.prompt or "")] * len(asked.images)
    if asked.prompt is not None:
        raise VgrpoError("--prompt is one for all images, --prompts a file with one for each; give one of the two")
    offer = choose(registry, "prompts", "file", Path())
    made = typed.checked(offer, {"path": str(asked.prompts)}, Source(Path("--prompts"), "", {}), registry)
    assert isinstance(made, Prompts)
    found, wanted = made.load(), len(asked.images)
    if len(found) != wanted:
        what = f"--prompts {asked.prompts}: {len(found)} prompts for {wanted} images; one an image is needed, in the same order"
        raise VgrpoError(what)
    return found


# Pictures


def pixels(file: Path) -> np.ndarray:
    """Read a picture as people see it, uint8 RGB [H, W, 3]: turned as its EXIF data says, what is transparent on white.

    Grey of 16 bits is rounded to 8. Numbers without a known white, as in floating-point TIFFs, are a ValueError.
    """
    with Image.open(file) as image:
        upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith(("I", "F")):
        upright = _eight_bits(upright)
    if upright.has_transparency_data:
        upright = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright.convert("RGBA"))
    return np.asarray(upright.convert("RGB"))


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale grey of 16 bits, which Pillow's own conversion cuts off at 255."""
    if not image.mode.startswith("I;16"):
        raise ValueError(f'pixels of mode "{image.mode}" have no known white; save it with 8 or 16 bits a channel')
    return Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8))


def _sizes(files: Sequence[Path]) -> list[tuple[int, int]]:
    """Read all pictures once, so that those that can't be read are told together, and before a model is loaded."""
    sizes, mistakes = list[tuple[int, int]](), list[str]()
    for file in files:
        try:
            height, width, _ = pixels(file).shape
            sizes.append((height, width))
        except Exception as error:  # Pillow's decoders raise errors of many kinds
            mistakes.append(f"{file}: {_why(error)}")
    if mistakes:
        raise VgrpoError("\n  ".join([f"{len(mistakes)} of {len(files)} images can't be read", *mistakes]))
    return sizes


def _why(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or of no known format"
    return (isinstance(error, OSError) and error.strerror) or reason(error)


# Scores


def _judged(
    offer: Offer, reward: Reward, asked: Asked, prompts: Sequence[Prompt], sizes: Sequence[tuple[int, int]]
) -> list[tuple[float | None, Evidence]]:
    from .training import settle

    settle()
    from vgrpo_core.scoring import Judge

    device = typed.device(asked.device)
    judge = Judge(offer.name, f'reward "{offer.name}" ({offer.source})', reward.load(device))
    found = dict[int, tuple[float | None, Evidence]]()
    for places in _parts(sizes):
        images = [pixels(asked.images[place]) for place in places]
        found |= zip(places, _examined(judge, [prompts[place] for place in places], images, device), strict=True)
    return [found[place] for place in range(len(sizes))]


def _parts(sizes: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield the places of at most `BATCH` pictures of one size."""
    groups = defaultdict[tuple[int, int], list[int]](list)
    for place, size in enumerate(sizes):
        groups[size].append(place)
    for places in groups.values():
        yield from (places[start : start + BATCH] for start in range(0, len(places), BATCH))


def _examined(
    judge: Judge, prompts: list[Prompt], images: list[np.ndarray], device: torch.device
) -> list[tuple[float | None, Evidence]]:
    import torch

    from vgrpo_core import Samples
    from vgrpo_core.metrics import number

    stacked = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    try:
        values, evidence = judge.examine(Samples(tuple(prompts), stacked.to(device).float() / 255))
    except RunError as error:
        if error.__cause__ and not isinstance(error.__cause__, VgrpoError):  # whoever writes a reward needs the line
            error.add_note("".join(traceback.format_exception(error.__cause__)).rstrip())
        raise
    _check_json(judge, evidence)
    said = list(evidence) if evidence else [None] * len(images)
    return list(zip(map(number, values), said, strict=True))


def _check_json(judge: Judge, evidence: Sequence[Mapping[str, Any]]) -> None:
    try:
        json.dumps(list(evidence), allow_nan=False)
    except (TypeError, ValueError) as error:
        fix = "Evidence holds text, plain numbers, lists and tables; what is missing is None."
        raise PluginError(f"{judge.source} returned evidence that JSON can't hold", reason(error), fix) from error


# What is printed


def _table(rows: Sequence[Row]) -> list[str]:
    evidence = [", ".join(f"{key} {dump(value)}" for key, value in (row.evidence or {}).items()) for row in rows]
    names = [_tail(row.file, NAME if any(evidence) else LONE) for row in rows]
    scores = [_figure(row.score) for row in rows]
    wide = max(map(len, scores))
    room = WIDTH - max(map(cell_len, names)) - wide - 4
    cells = zip(names, scores, evidence, strict=True)
    return columns([(name, figure.rjust(wide), _head(said, room)) for name, figure, said in cells])


def _summary(rows: Sequence[Row]) -> str:
    known = [row.score for row in rows if row.score is not None]
    mean, deviation = (statistics.fmean(known), statistics.pstdev(known)) if known else (None, None)
    return f"mean {_figure(mean)}, deviation {_figure(deviation)}, missing {len(rows) - len(known)} of {len(rows)}"


def _figure(value: float | None) -> str:
    return "missing" if value is None else f"{value:.6g}"


def _head(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 3).rstrip() + "..."


def _tail(text: str, width: int) -> str:
    return text if len(text) <= width else f"...{text[3 - width :]}"
