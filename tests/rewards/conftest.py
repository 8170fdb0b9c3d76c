"""Pictures of known content, drawn with a font that matplotlib ships."""

import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from vgrpo_core import Prompt, Samples


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    """Refuse connections to other machines: rewards load and score from what is on this one."""
    connect = socket.socket.connect

    def here(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a reward reached out for {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", here)
    monkeypatch.setattr(Image, "open", Image.open)  # ultralytics replaces it when it is imported: put back after each test


@pytest.fixture(scope="session")
def draw():
    """Return `draw(height, width, [(x, y, text, size, colour), ...])`: uint8 RGB [H, W, 3] on a bright ground."""
    matplotlib = pytest.importorskip("matplotlib")
    font = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf"

    def draw(height, width, texts=()):
        image = Image.new("RGB", (width, height), (236, 240, 228))
        for x, y, text, size, colour in texts:
            ImageDraw.Draw(image).text((x, y), text, font=ImageFont.truetype(font, size), fill=colour, anchor="lt")
        return np.asarray(image)

    return draw


@pytest.fixture(scope="session")
def samples():
    """Return `samples(prompts, pictures)`: Samples from texts or Prompts and uint8 RGB [H, W, 3] pictures."""

    def samples(prompts, pictures):
        prompts = tuple(p if isinstance(p, Prompt) else Prompt(p) for p in prompts)
        return Samples(prompts, torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255)

    return samples
