from __future__ import annotations

import numpy as np
import pytest
import torch

from vgrpo_core import Prompt, Samples

PROMPTS = (Prompt("a cat"), Prompt("a dog", {"word": "dog"}))


def images(count=2, channels=3, fill=0.5, **kind):
    return torch.full((count, channels, 4, 6), fill, **kind)


def test_prompts_and_images_of_one_length_make_samples():
    samples = Samples(PROMPTS, images())
    assert len(samples) == 2 and samples.prompts[1].metadata["word"] == "dog"


def test_black_and_white_are_in_range():
    both = torch.stack([torch.zeros(3, 2, 2), torch.ones(3, 2, 2)])
    assert Samples(PROMPTS, both).images.equal(both)


def test_no_samples_are_samples():
    assert len(Samples((), images(0))) == 0


def test_r008_swapped_arguments_are_a_type_error_that_names_the_field():
    with pytest.raises(TypeError, match=r"Samples\.prompts"):
        Samples(images(), PROMPTS)


def test_texts_in_place_of_prompts_are_a_type_error():
    with pytest.raises(TypeError, match=r"Samples\.prompts must hold Prompt"):
        Samples(("a cat", "a dog"), images())


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (np.zeros((2, 3, 4, 6), np.float32), "ndarray"),
        (images(dtype=torch.float16), "float16"),
        (images(fill=200, dtype=torch.uint8), "uint8"),
        (images(dtype=torch.float64), "float64"),
        ([images(1)[0]] * 2, "list"),
    ],
    ids=["numpy", "half", "bytes", "double", "list"],
)
def test_r024_anything_but_a_float32_tensor_is_a_type_error_that_says_what_was_found(wrong, found):
    with pytest.raises(TypeError, match=rf"Samples\.images must be a float32 tensor, not .*{found}"):
        Samples(PROMPTS, wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        *(images(3), images(1), images(channels=4), images(channels=1)),
        *(images()[0], images().movedim(1, 3), images()[None], torch.tensor(0.5)),
    ],
    ids=["too many", "too few", "alpha", "grey", "one image", "channels last", "video", "number"],
)
def test_another_shape_is_a_value_error_with_both_shapes(wrong):
    with pytest.raises(ValueError, match=r"\[2, 3, H, W\], not \[") as caught:
        Samples(PROMPTS, wrong)
    assert str(list(wrong.shape)) in str(caught.value)


@pytest.mark.parametrize("value", [-0.01, 1.01, 255.0, float("nan"), float("inf")])
def test_one_pixel_out_of_range_is_a_value_error(value):
    wrong = images()
    wrong[1, 2, 3, 5] = value
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        Samples(PROMPTS, wrong)


def test_pixels_are_rounded_to_bytes_with_channels_last():
    levels = torch.arange(256) / 255
    shown = levels.view(1, 1, 16, 16).repeat(1, 3, 1, 1)
    shown[:, 1] = 0.4999 / 255
    shown[:, 2] = 0.5001 / 255
    found = Samples(PROMPTS[:1], shown).pixels()
    assert found.shape == (1, 16, 16, 3) and found.dtype == np.uint8
    assert found[0, :, :, 0].flatten().tolist() == list(range(256))
    assert (found[..., 1] == 0).all() and (found[..., 2] == 1).all()
