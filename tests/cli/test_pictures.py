from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vgrpo_cli import pictures
from vgrpo_core import Prompt
from vgrpo_core.events import Evaluated


def evaluated(iteration, count, height, width, prompts=None):
    """An evaluation whose image i is of one colour, different for each."""
    colours = torch.rand(count, 3, 1, 1, generator=torch.Generator().manual_seed(iteration))
    images = colours.expand(count, 3, height, width).contiguous()
    texts = prompts or [f"prompt {index}" for index in range(count)]
    return Evaluated(iteration, {}, tuple(map(Prompt, texts)), images)


def colours(event):
    return [tuple(image[:, 0, 0].mul(255).round().int().tolist()) for image in event.images]


SIZES = [((24, 64), (72, 192)), ((4, 8), (96, 192)), ((192, 192), (192, 192)), ((1024, 512), (256, 128))]


@pytest.mark.parametrize(("size", "cell"), SIZES)
def test_small_images_grow_by_whole_factors_and_large_ones_shrink(folder, size, cell):
    event = evaluated(3, 12, *size)
    path = pictures.save(event, folder)
    assert path == folder / "samples" / "000003.png"
    sheet = pictures.load(folder, 3)
    assert sheet.prompts == [prompt.text for prompt in event.prompts]
    for image, colour in zip(sheet.cells, colours(event), strict=True):
        assert image.size == cell[::-1]
        assert image.getcolors() == [(cell[0] * cell[1], colour)]
    with Image.open(path) as picture:
        across = (picture.width + pictures.GAP) // (cell[1] + pictures.GAP)
        down = (picture.height + pictures.GAP) // (cell[0] + pictures.GAP)
        assert picture.size == (across * (cell[1] + pictures.GAP) - pictures.GAP, down * (cell[0] + pictures.GAP) - pictures.GAP)
        assert across * down == 12


def test_growing_keeps_the_pixels(folder):
    image = torch.rand(1, 3, 3, 4, generator=torch.Generator().manual_seed(0))
    pictures.save(Evaluated(0, {}, (Prompt("x"),), image), folder)
    cell = np.asarray(pictures.load(folder, 0).cells[0])
    assert cell.shape == (144, 192, 3)
    assert (cell[::48, ::48] == image[0].mul(255).round().byte().permute(1, 2, 0).numpy()).all()
    assert (cell == cell[::48, ::48].repeat(48, 0).repeat(48, 1)).all()


@pytest.mark.parametrize("count", [1, 2, 5, 7, 64])
def test_any_number_of_images_makes_a_sheet(folder, count):
    event = evaluated(0, count, 24, 64)
    with Image.open(pictures.save(event, folder)) as picture:
        assert picture.width < 6 * picture.height
    found = [image.getpixel((5, 5)) for image in pictures.load(folder, 0).cells]
    assert found == colours(event)


def test_before_and_after_stand_side_by_side(folder):
    before, after = evaluated(0, 6, 24, 64), evaluated(8, 6, 24, 64)
    pictures.save(before, folder)
    pictures.save(after, folder)
    with Image.open(pictures.before_after(folder, 8, "toy: light 0.1 -> 0.2")) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    for left, right in zip(colours(before), colours(after), strict=True):
        places = [np.argwhere((pixels == colour).all(-1)) for colour in (left, right)]
        assert [len(place) for place in places] == [192 * 72, 192 * 72]
        (top, start), (_, end) = places[0].min(0), places[0].max(0)
        assert places[1].min(0).tolist() == [top, end + 1 + pictures.GAP]
        assert (pixels[top - pictures.TEXT : top, start : end + 1] != 255).any()  # the prompt stands above


def test_before_and_after_show_each_prompt_before_any_twice(folder):
    prompts = [f"prompt {index // 4}" for index in range(64)]
    chosen = pictures._varied(prompts, 24)
    assert chosen == sorted(chosen)
    assert [index for index in chosen if index % 4 == 0] == list(range(0, 64, 4))
    assert [index for index in chosen if index % 4] == [index + 1 for index in range(0, 32, 4)]


def test_long_prompts_and_titles_are_cut_to_their_place(folder):
    prompts = [f"{index} " + "very " * 200 for index in range(4)]
    for iteration in (0, 2):
        pictures.save(evaluated(iteration, 4, 24, 64, prompts), folder)
    with Image.open(pictures.before_after(folder, 2, "title " * 200)) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert (pixels[:, -pictures.MARGIN :] == 255).all()


def test_other_prompts_or_sizes_can_not_be_compared(folder):
    pictures.save(evaluated(0, 4, 24, 64), folder)
    pictures.save(evaluated(1, 5, 24, 64), folder)
    pictures.save(evaluated(2, 4, 64, 64), folder)
    for last in (1, 2):
        with pytest.raises(ValueError, match="have changed"):
            pictures.before_after(folder, last, "")
    with pytest.raises(FileNotFoundError):
        pictures.before_after(folder, 3, "")
