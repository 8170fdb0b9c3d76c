"""The rewards that are statistics of the pixels: `brightness`, `dark_fraction`, `edge_density` and `color_entropy`."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from vgrpo_core import Samples
from vgrpo_core.plugin import Prompt
from vgrpo_rewards.statistics import Brightness, ColorEntropy, DarkFraction, EdgeDensity

ALL = [Brightness, DarkFraction, EdgeDensity, ColorEntropy]
every = pytest.mark.parametrize("reward", ALL, ids=lambda reward: reward.name)


def judged(reward, images):
    """Score images [B, 3, H, W] with a reward or its class."""
    made = reward() if isinstance(reward, type) else reward
    return made.load(torch.device("cpu"))(Samples((Prompt(""),) * len(images), images))


def score(reward, image):
    return judged(reward, image[None]).item()


def plain(*colour, size=(6, 8)):
    return torch.tensor(colour or (0.0, 0.0, 0.0)).view(3, 1, 1).expand(3, *size).clone()


def grey(plane):
    return torch.as_tensor(plane, dtype=torch.float32).expand(3, *np.shape(plane)).clone()


def checkerboard(cell, size=24):
    rows, columns = np.indices((size, size)) // cell
    return grey((rows + columns) % 2)


def noise(height=20, width=32, seed=0):
    return torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def photo():
    """A photograph of an astronaut, float32 [3, 512, 512]."""
    data = pytest.importorskip("skimage.data")
    return torch.from_numpy(data.astronaut().copy()).permute(2, 0, 1).float() / 255


# Closed forms


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        (plain(0.0, 0.0, 0.0), {"brightness": 0, "dark_fraction": 1, "edge_density": 0, "color_entropy": 0}),
        (plain(1.0, 1.0, 1.0), {"brightness": 1, "dark_fraction": 0, "edge_density": 0, "color_entropy": 0}),
        (plain(1.0, 0.0, 0.0), {"brightness": 0.2126, "dark_fraction": 0, "edge_density": 0, "color_entropy": 0}),
        (plain(0.0, 1.0, 0.0), {"brightness": 0.7152, "dark_fraction": 0, "edge_density": 0, "color_entropy": 0}),
        (plain(0.0, 0.0, 1.0), {"brightness": 0.0722, "dark_fraction": 0, "edge_density": 0, "color_entropy": 0}),
        (checkerboard(4), {"brightness": 0.5, "dark_fraction": 0.5, "color_entropy": 1}),
    ],
    ids=["black", "white", "red", "green", "blue", "checkerboard"],
)
def test_plain_pictures_have_the_numbers_that_the_definitions_give(picture, expected):
    found = {reward.name: score(reward, picture) for reward in ALL}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_a_pixel_is_dark_under_the_threshold():
    ramp = grey(np.arange(100).reshape(10, 10) / 100)
    assert score(DarkFraction(), ramp) == pytest.approx(0.05)
    assert score(DarkFraction(threshold=0.305), ramp) == pytest.approx(0.31)


def test_blue_of_half_strength_is_dark_and_green_of_it_is_not():
    assert [score(DarkFraction(), plain(*colour)) for colour in [(0.0, 0.0, 0.5), (0.0, 0.5, 0.0)]] == [1, 0]


@pytest.mark.parametrize(("down", "across"), [(0.0, 0.01), (0.015, 0.0), (0.003, 0.004), (-0.006, 0.008)])
@pytest.mark.parametrize("size", [(12, 20), (40, 40)])
def test_a_ramp_has_the_edge_density_of_its_slope_whatever_its_size(down, across, size):
    rows, columns = np.indices(size)
    assert score(EdgeDensity, grey(0.3 + down * rows + across * columns)) == pytest.approx(math.hypot(down, across), rel=1e-4)


def test_a_sharp_border_has_steepness_one_half_on_both_sides():
    half = np.zeros((9, 12))
    half[:, 5:] = 1
    assert score(EdgeDensity, grey(half)) == pytest.approx(0.5 * 2 / 10)  # two of the ten columns that count
    assert score(EdgeDensity, grey(half.T)) == pytest.approx(0.5 * 2 / 10)


def test_a_checkerboard_of_single_pixels_is_even_to_the_operator_and_one_of_two_is_not():
    assert score(EdgeDensity, checkerboard(1)) == 0
    assert score(EdgeDensity, checkerboard(2)) > 0.2


def test_no_picture_is_steeper_than_the_range_says():
    corners = torch.tensor(list(itertools.product((0.0, 1.0), repeat=9))).view(
        -1, 1, 3, 3
    )  # steepness is convex: extremes are corners
    assert judged(EdgeDensity, corners.repeat(1, 3, 1, 1)).max().item() == pytest.approx(math.sqrt(20) / 8)
    assert 0.55 < math.sqrt(20) / 8 < 0.56


@pytest.mark.parametrize("size", [(1, 1), (2, 9), (9, 2)])
def test_the_edges_of_a_picture_too_small_to_have_any_are_missing_and_not_zero(size):
    assert math.isnan(score(EdgeDensity, plain(0.0, 0.5, 1.0, size=size)))


def test_all_colours_alike_are_six_bits():
    levels = torch.tensor([0.0, 0.3, 0.6, 1.0])
    cube = torch.stack([channel.reshape(8, 8) for channel in torch.meshgrid(levels, levels, levels, indexing="ij")])
    assert score(ColorEntropy, cube) == pytest.approx(6)


@pytest.mark.parametrize("colours", [2, 4, 16])
def test_colours_in_equal_shares_are_the_logarithm_of_their_number(colours):
    cells = list(itertools.product((0.1, 0.4, 0.6, 0.9), repeat=3))[:colours]
    stripes = torch.tensor(cells).T.reshape(3, 1, colours).expand(3, 5, colours)
    assert score(ColorEntropy, stripes) == pytest.approx(math.log2(colours))


@pytest.mark.parametrize(("below", "above"), [(63, 64), (127, 128), (191, 192)])
def test_colours_are_parted_at_quarters_of_eight_bits(below, above):
    assert score(ColorEntropy, grey(np.array([[below, above]]) / 255)) == 1
    assert score(ColorEntropy, grey(np.array([[below - 63, below], [below - 1, below]]) / 255)) == 0


def test_uniform_noise_is_of_middling_brightness_in_nearly_all_colours():
    picture = noise(256, 256)
    assert score(Brightness, picture) == pytest.approx(0.5, abs=0.005)
    assert 5.99 < score(ColorEntropy, picture) <= 6
    weights = (0.2126, 0.7152, 0.0722)  # the corner of the cube under a plane, for the share of dark pixels
    assert score(DarkFraction, picture) == pytest.approx(0.05**3 / 6 / math.prod(weights), abs=0.001)


# References


def test_luminance_is_that_of_scikit_image_to_the_digits_of_its_weights(photo):
    color = pytest.importorskip("skimage.color")
    expected = color.rgb2gray(photo.permute(1, 2, 0).numpy())  # 0.2125, 0.7154, 0.0721
    assert score(Brightness, photo) == pytest.approx(expected.mean(), abs=2e-4)
    assert score(DarkFraction, photo) == pytest.approx((expected < 0.05).mean(), abs=1e-3)


@pytest.mark.parametrize(
    "make", [lambda photo: photo, lambda photo: noise(), lambda photo: checkerboard(3)], ids=["photo", "noise", "board"]
)
def test_edges_are_those_of_scipy(photo, make):
    ndimage = pytest.importorskip("scipy.ndimage")
    picture = make(photo)
    plane = np.tensordot([0.2126, 0.7152, 0.0722], picture.double().numpy(), axes=1)
    slopes = [ndimage.sobel(plane, axis)[1:-1, 1:-1] / 8 for axis in (0, 1)]
    assert score(EdgeDensity, picture) == pytest.approx(np.hypot(*slopes).mean(), rel=1e-5)


def test_edges_are_those_of_a_loop():
    picture = noise(5, 7)
    plane = np.tensordot([0.2126, 0.7152, 0.0722], picture.double().numpy(), axes=1)
    found = []
    for y, x in itertools.product(range(1, 4), range(1, 6)):
        across = sum(w * (plane[y + d, x + 1] - plane[y + d, x - 1]) for d, w in [(-1, 1), (0, 2), (1, 1)]) / 8
        down = sum(w * (plane[y + 1, x + d] - plane[y - 1, x + d]) for d, w in [(-1, 1), (0, 2), (1, 1)]) / 8
        found.append(math.hypot(across, down))
    assert score(EdgeDensity, picture) == pytest.approx(sum(found) / 15, rel=1e-5)


def test_color_entropy_is_that_of_scipy_and_of_counted_pixels(photo):
    stats = pytest.importorskip("scipy.stats")
    part = photo[:, :200, :300]
    pixels = (part * 255).round().long().flatten(1).T.tolist()
    counts = Counter((red // 64, green // 64, blue // 64) for red, green, blue in pixels)
    assert score(ColorEntropy, part) == pytest.approx(stats.entropy(list(counts.values()), base=2), rel=1e-5)


# What they are for


def test_r117_each_blur_lowers_the_edge_density(photo):
    filters = pytest.importorskip("skimage.filters")
    part = photo[:, 100:300, 100:300].numpy()
    blurred = [torch.from_numpy(filters.gaussian(part, sigma, channel_axis=0)).float().clamp(0, 1) for sigma in (0, 0.5, 1, 2, 4)]
    found = judged(EdgeDensity, torch.stack(blurred)).tolist()
    assert all(after < 0.95 * before for before, after in itertools.pairwise(found))
    assert judged(Brightness, torch.stack(blurred)).std() < 1e-3  # nothing but the edges has changed


def test_r119_a_grid_of_growing_strength_raises_the_edge_density(photo):
    grid = torch.zeros(512, 512)
    grid[::8], grid[:, ::8] = 1, 1
    found = [score(EdgeDensity, (photo * (1 - strength * grid)).clamp(0, 1)) for strength in (0, 0.2, 0.4, 0.8)]
    assert found == sorted(found)
    assert found[-1] > 2 * found[0]


def test_r123_images_that_grow_brighter_show_in_the_brightness(photo):
    found = [score(Brightness, (photo * factor).clamp(0, 1)) for factor in (0.5, 0.8, 1, 1.2)]
    assert all(after > before + 0.05 for before, after in itertools.pairwise(found))


# Of all


@pytest.mark.parametrize("reward", [Brightness, DarkFraction, ColorEntropy], ids=lambda reward: reward.name)
def test_larger_pixels_change_nothing_but_edges(reward):
    picture = noise() * torch.linspace(0, 1, 32)
    larger = picture.repeat_interleave(3, dim=1).repeat_interleave(2, dim=2)
    assert score(reward, larger) == pytest.approx(score(reward, picture), rel=1e-5)


@every
def test_turned_and_mirrored_pictures_score_the_same(reward):
    picture = noise() * torch.linspace(0, 1, 32)
    turned = [picture.transpose(1, 2), picture.flip(1), picture.flip(2), picture.rot90(2, (1, 2))]
    assert [score(reward, other) for other in turned] == pytest.approx([score(reward, picture)] * 4, rel=1e-5)


@every
def test_a_batch_is_judged_image_by_image_in_float32(reward):
    images = torch.stack([noise(seed=seed) ** power for seed, power in enumerate((1, 2, 5))])
    found = judged(reward, images)
    assert (found.dtype, found.shape) == (torch.float32, (3,))
    assert found.tolist() == pytest.approx([score(reward, image) for image in images], rel=1e-6)
    assert len(set(found.tolist())) == 3


@every
def test_no_images_are_no_scores(reward):
    assert judged(reward, torch.empty(0, 3, 8, 8)).shape == (0,)
