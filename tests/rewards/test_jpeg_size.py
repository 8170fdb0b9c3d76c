"""The reward `jpeg_size`."""

import numpy as np
import pytest
import torch
from PIL import Image

from vgrpo_rewards import JpegSize


@pytest.fixture(scope="module")
def pictures():
    noise = np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)
    ramp = np.broadcast_to(np.arange(96, dtype=np.uint8)[:, None] * 2, (64, 96, 3))
    return [noise, ramp, np.zeros((64, 96, 3), np.uint8)]


@pytest.fixture(scope="module")
def judge(samples):
    function = JpegSize().load(torch.device("cpu"))
    return lambda pictures: function(samples(["a cat"] * len(pictures), pictures))


def test_the_score_is_the_size_of_the_file_that_pillow_writes_in_kilobytes(judge, pictures, tmp_path):
    for i, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / f"{i}.jpg", quality=95)
    sizes = [(tmp_path / f"{i}.jpg").stat().st_size / 1000 for i in range(3)]
    assert judge(pictures).tolist() == pytest.approx(sizes, rel=1e-6)


def test_sizes_are_native_and_not_squeezed_into_one(judge, pictures):
    noise, ramp, black = judge(pictures).tolist()
    assert noise > 5 > ramp > black > 0


def test_the_order_of_a_batch_does_not_matter(judge, pictures):
    assert judge(pictures[::-1]).tolist() == judge(pictures).tolist()[::-1] == [judge([p]).item() for p in pictures[::-1]]
