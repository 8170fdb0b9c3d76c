"""Names of colours: the numbers against scikit-image and the survey, the choice against CLIP of transformers called directly."""

import numpy as np
import pytest
import torch
import transformers as T
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageColor

from vgrpo_rewards.clauses import COLORS
from vgrpo_rewards.clip import load_clip
from vgrpo_rewards.colours import SHADES, Crop, by_clip, by_pixels, lab
from vgrpo_rewards.detectors import Detection
from vgrpo_rewards.networks import Limit

from .clip_models import save_clip

NOISE = np.random.default_rng(1).integers(0, 256, (40, 56, 3), np.uint8)
DISC = np.hypot(*np.mgrid[-20:20, -28:28]) < 15


def flat(color, height=12, width=16):
    return np.broadcast_to(np.array(ImageColor.getrgb(color), np.uint8), (height, width, 3))


def test_lab_is_that_of_scikit_image():
    convert = pytest.importorskip("skimage.color").rgb2lab
    assert lab(NOISE.reshape(-1, 3)) == pytest.approx(convert(NOISE / 255).reshape(-1, 3), abs=0.01)


def test_shades_are_those_of_the_survey():
    survey = pytest.importorskip("matplotlib.colors").XKCD_COLORS
    for name, shades in SHADES.items():
        for kind, shade in zip(("", "dark ", "light "), shades, strict=False):
            assert survey[f"xkcd:{kind}{name}"] == f"#{shade}"


@pytest.mark.parametrize("name", COLORS)
def test_a_surface_in_the_colour_that_the_web_calls_so_is_called_so(name):
    assert by_pixels([Crop(flat(name), None, "car")]) == [{"brown": "red"}.get(name, name)]  # the web's brown is a dark red


def test_most_people_s_names_are_met_for_seven_shades_of_ten():
    survey = pytest.importorskip("matplotlib.colors").XKCD_COLORS
    own = {shade for shades in SHADES.values() for shade in shades}
    held_out = [(name.split()[-1].removeprefix("xkcd:"), value) for name, value in survey.items() if value[1:] not in own]
    held_out = [(name, value) for name, value in held_out if name in COLORS]
    named = by_pixels([Crop(flat(value, 2, 2), None, "") for _, value in held_out])
    assert len(held_out) > 400
    assert np.mean([name == found for (name, _), found in zip(held_out, named, strict=True)]) > 0.65


def test_grey_is_none_of_the_ten():
    assert by_pixels([Crop(flat("grey"), None, "car")]) == ["grey"]


def test_the_colour_is_that_of_most_pixels_and_of_the_mask_alone():
    picture = flat("blue", 40, 56).copy()
    picture[DISC] = ImageColor.getrgb("red")
    assert by_pixels([Crop(picture, DISC, "ball"), Crop(picture, ~DISC, "hoop")]) == ["red", "blue"]
    assert by_pixels([Crop(picture, None, "ball")]) == ["red"]  # the middle half
    picture[DISC & (np.mgrid[:40, :56][1] < 26)] = ImageColor.getrgb("green")
    assert by_pixels([Crop(picture, DISC, "ball")]) == ["red"]


def test_without_a_mask_the_middle_half_each_way_decides():
    picture = flat("blue", 40, 56).copy()
    picture[10:21, 14:42] = ImageColor.getrgb("red")  # 11 of the 20 rows in the middle
    assert by_pixels([Crop(picture, None, "")]) == by_pixels([Crop(picture.swapaxes(0, 1), None, "")]) == ["red"]


def test_an_empty_mask_is_no_mask():
    assert by_pixels([Crop(flat("green"), np.zeros((12, 16), bool), "car")]) == ["green"]


numbers = st.floats(-20, 80)


@given(numbers, numbers, numbers, numbers)
def test_a_crop_is_pil_s_inside_the_image_and_never_empty(left, top, width, height):
    box = (left, top, left + abs(width), top + abs(height))
    crop = Crop.of(NOISE, Detection("car", 0.5, box, mask=DISC), "car")
    assert crop.pixels.size
    assert crop.mask.shape == crop.pixels.shape[:2]
    sides = [round(side) for side in box]
    inside = (max(sides[0], 0), max(sides[1], 0), min(sides[2], 56), min(sides[3], 40))
    if inside[2] > inside[0] and inside[3] > inside[1]:
        assert (crop.pixels == np.asarray(Image.fromarray(NOISE).crop(inside))).all()
        assert (crop.mask == np.asarray(Image.fromarray(DISC).crop(inside))).all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_clip(tmp_path_factory.mktemp("clip"))


def asked_directly(folder, picture, box, mask, word):
    """Do what GenEval does: paint the ground, cut out, and compare with the mean of three descriptions of each colour."""
    model = T.CLIPModel.from_pretrained(folder).eval()
    processor, tokenizer = T.CLIPImageProcessorPil.from_pretrained(folder), T.AutoTokenizer.from_pretrained(folder)
    image = Image.fromarray(picture)
    if mask is not None:
        image = Image.composite(image, Image.new("RGB", image.size, "#999"), Image.fromarray(mask))
    with torch.no_grad():
        pixels = processor(image.crop(box), return_tensors="pt").pixel_values
        seen = torch.nn.functional.normalize(model.get_image_features(pixel_values=pixels).pooler_output, dim=-1)
        descriptions = []
        for color in COLORS:
            texts = [f"a photo of a {color} {word}", f"a photo of a {color}-colored {word}", f"a photo of a {color} object"]
            read = model.get_text_features(**tokenizer(texts, padding=True, return_tensors="pt")).pooler_output
            descriptions.append(torch.nn.functional.normalize(read, dim=-1).mean(0))
        return COLORS[int((seen @ torch.nn.functional.normalize(torch.stack(descriptions), dim=-1).T).argmax())]


def test_clip_names_what_the_benchmark_would(folder):
    name = by_clip(load_clip(folder, folder, torch.device("cpu"), torch.float32, Limit("geneval", 77)))
    rng, cases = np.random.default_rng(7), []
    for at in range(16):
        left, top = (int(value) for value in rng.integers(0, 20, 2))
        picture = rng.integers(0, 256, (40, 56, 3), np.uint8) // 3 + np.array(ImageColor.getrgb(COLORS[at % 10])) * 2 // 3
        box = (left, top, left + int(rng.integers(8, 30)), top + int(rng.integers(8, 20)))
        cases.append((picture.astype(np.uint8), box, DISC if at % 2 else None, ("car", "cup")[at % 3 == 0]))
    crops = [Crop.of(picture, Detection(word, 0.5, box, mask), word) for picture, box, mask, word in cases]
    expected = [asked_directly(folder, *case) for case in cases]
    with torch.no_grad():
        assert name(crops) == expected
        assert [name([crop])[0] for crop in crops] == expected
        assert name([]) == []
    assert len(set(expected)) > 2  # or one answer would do for all
