"""The embedded model's classes, untrained, and what it is shipped as."""

from pathlib import Path

import pytest
import torch

import vgrpo_glyphs
from vgrpo_glyphs import build
from vgrpo_prompts.words import Words

MODEL = Path(vgrpo_glyphs.__file__).parent / "model"


@pytest.fixture(scope="session")
def model():
    """The folder of the shipped weights; its tests fail where it is missing, for a wheel without it is broken."""
    return MODEL


@pytest.fixture(scope="session")
def untrained():
    """The whole pipeline with random weights; its last layer is not zero, so that all parts matter."""
    torch.manual_seed(0)
    pipe = build.pipeline(build.autoencoder())
    torch.nn.init.normal_(pipe.transformer.proj_out.weight, std=0.1)
    pipe.set_progress_bar_config(disable=True)
    for part in (pipe.transformer, pipe.vae, pipe.text_encoder, pipe.text_encoder_2):
        part.eval()
    return pipe


@pytest.fixture(scope="session")
def prompts():
    """Every default prompt, in each colour."""
    return [prompt for split in ("train", "validation", "test") for prompt in Words(split=split, every_color=True).load()]
