"""Draw a word on a sign: the picture that a caption asks for, or a faulty one."""

from __future__ import annotations

import functools
import string
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .build import HEIGHT, WIDTH

FONTS = ("DejaVuSansMono-Bold.ttf", "DejaVuSansMono.ttf")
FONT_SIZE = 22  # pixels; a letter is 13.25 pixels wide, so that four fit
ADVANCE = 13.25
BASELINE = 18

Colour = tuple[int, int, int]
PALETTE: dict[str, Colour] = {
    "red": (205, 30, 30),
    "green": (20, 135, 40),
    "blue": (30, 60, 205),
    "black": (15, 15, 15),
    "orange": (225, 120, 10),
    "purple": (130, 30, 150),
}


class Sign(NamedTuple):
    """What a caption says: the word and its ink."""

    word: str
    colour: str


@functools.cache
def font(name: str) -> ImageFont.FreeTypeFont:
    """Load one of the fonts that matplotlib ships."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name, FONT_SIZE)


def corrupt(sign: Sign, rng: np.random.Generator, noise: float) -> Sign:
    """Replace half of the letters with probability `noise`, and the ink with probability 0.7 `noise`."""
    word, colour = sign
    if rng.random() < noise:
        word = "".join(rng.choice(list(string.ascii_lowercase)) if rng.random() < 0.5 else c for c in word)
    if rng.random() < 0.7 * noise:
        colour = str(rng.choice(list(PALETTE)))
    return Sign(word, colour)


def render(sign: Sign, rng: np.random.Generator, noise: float = 0.0) -> np.ndarray:
    """Draw a sign on a bright ground: uint8 RGB [H, W, 3].

    `noise` is the probability of a caption that does not fit its picture (`corrupt`); with probability 0.7 `noise` one or two
    strokes cross the word.
    """
    word, colour = corrupt(sign, rng, noise)
    ground = tuple(int(v) for v in rng.integers(215, 256, 3))
    ink = tuple(int(v) for v in np.clip(np.array(PALETTE[colour]) + rng.integers(-12, 13, 3), 0, 255))
    image = Image.new("RGB", (WIDTH, HEIGHT), ground)
    draw = ImageDraw.Draw(image)
    corner = ((WIDTH - ADVANCE * len(word)) / 2 + rng.integers(-1, 2), BASELINE + rng.integers(-1, 2))
    draw.text(corner, word, font=font(str(rng.choice(FONTS))), fill=ink, anchor="ls")
    if rng.random() < 0.7 * noise:
        for _ in range(rng.integers(1, 3)):
            ends = rng.integers(0, (WIDTH, HEIGHT, WIDTH, HEIGHT))
            draw.line([int(v) for v in ends], fill=ink, width=2)
    return np.asarray(image)
