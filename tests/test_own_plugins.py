"""Our own plugins pass the checks that authors of plugins are offered."""

from __future__ import annotations

import pytest

from vgrpo_core.testing import check_backbone, check_reward, check_sampler
from vgrpo_diffusers import Diffusers
from vgrpo_rewards import OCR, Brightness, ColorEntropy, DarkFraction, EdgeDensity, FaceCount, JpegSize, PixelColor
from vgrpo_samplers import DDIM, DPMSolver, Euler, Heun, Scheduler

GLYPHS = {"model": "builtin:glyphs", "size": (24, 64), "call": {"max_sequence_length": 1}}
FLOWS, DIFFUSION = ["flow/flow", "flow/sample"], ["diffusion/epsilon", "diffusion/v", "diffusion/sample"]
REFUSED = [
    (Euler(), []),
    (Heun(), []),
    (DPMSolver(), []),
    (DDIM(), FLOWS),
    (Scheduler(scheduler="UniPCMultistepScheduler"), []),
    (Scheduler(scheduler="DDIMScheduler"), FLOWS),
    (Scheduler(scheduler="HeunDiscreteScheduler"), FLOWS),
]


@pytest.mark.parametrize(("sampler", "refused"), REFUSED, ids=lambda value: getattr(value, "scheduler", getattr(value, "name", "")))
def test_a_sampler_passes_its_check_where_it_fits(sampler, refused):
    assert check_sampler(sampler) == refused


@pytest.mark.parametrize("reward", [Brightness, ColorEntropy, DarkFraction, EdgeDensity, JpegSize, PixelColor])
def test_a_reward_passes_its_check(reward):
    check_reward(reward())


def test_the_reward_face_count_passes_its_check():
    pytest.importorskip("facenet_pytorch")
    check_reward(FaceCount(count=1))


@pytest.mark.parametrize("mode", ["word", "scene"])
def test_the_reward_ocr_passes_its_check(mode):
    pytest.importorskip("rapidocr")
    check_reward(OCR(mode=mode))


@pytest.mark.parametrize("options", [{}, {"lora": {"rank": 2}}], ids=["all weights", "adapters"])
def test_the_embedded_model_passes_its_check(options):
    check_backbone(Diffusers(**GLYPHS, **options))


def test_the_embedded_model_in_half_precision_passes_with_its_tolerance():
    check_backbone(Diffusers(**GLYPHS, dtype="bfloat16", lora={"rank": 2}), tolerance=3e-2)
