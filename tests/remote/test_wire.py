"""The messages: what comes through exactly, what is refused, and where."""

import base64
import io
import json
import math
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from vgrpo_core import PluginError, Prompt, Samples, Scores
from vgrpo_remote.wire import Answer, Limits, Malformed, Request, TooLarge, answer, join, pack, parse, unpack


def samples(images, prompts=None):
    return Samples(tuple(prompts or (Prompt(f"picture {row}") for row in range(len(images)))), images)


def through(sent):
    return unpack(parse(Request, pack("a", sent)), Limits())


def png(image, **options):
    file = io.BytesIO()
    image.save(file, options.pop("format", "PNG"), **options)
    return base64.b64encode(file.getvalue()).decode()


def request(*images, **more):
    return {"id": "a", "samples": [{"prompt": "", "image": image, **more} for image in images]}


GREY = png(Image.new("RGB", (4, 4), (128, 128, 128)))


def test_all_8_bit_images_come_through_to_the_last_bit():
    levels = torch.arange(256).repeat(3, 1).view(1, 3, 16, 16)
    noise = torch.randint(0, 256, (5, 3, 16, 16), generator=torch.Generator().manual_seed(1))
    images = torch.cat([levels, noise]).float() / 255
    found = through(samples(images)).images
    assert torch.equal(found, images)
    assert found.stride() == images.stride()


def test_images_between_8_bit_values_arrive_as_pixels_rounds_them():
    images = torch.rand(3, 3, 9, 7, generator=torch.Generator().manual_seed(2))
    found = through(samples(images))
    assert np.array_equal(found.pixels(), samples(images).pixels())
    assert (found.images - images).abs().max() <= 0.5 / 255 + 1e-7


def test_r031_a_request_is_json_and_png_that_other_programs_read():
    images = torch.randint(0, 256, (2, 3, 5, 6), generator=torch.Generator().manual_seed(3)).float() / 255
    sent = json.loads(pack("x7", samples(images, [Prompt('a "sign"', {"text": "ü", "count": 2}), Prompt("b")])))
    assert sent["id"] == "x7"
    assert [(row["prompt"], row["metadata"]) for row in sent["samples"]] == [('a "sign"', {"text": "ü", "count": 2}), ("b", {})]
    for row, image in zip(sent["samples"], images, strict=True):
        picture = Image.open(io.BytesIO(base64.b64decode(row["image"])))
        assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (6, 5))
        assert torch.equal(torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255, image)


def test_prompts_come_through_with_metadata_and_tags():
    prompts = [Prompt("чёрный “кот” 🐈", {"include": [{"class": "cat", "count": 1}], "none": None}, frozenset("ab")), Prompt("")]
    assert through(samples(torch.zeros(2, 3, 4, 4), prompts)).prompts == tuple(prompts)


@pytest.mark.parametrize("value", [object(), math.nan, {1, 2}])
def test_metadata_that_json_does_not_hold_is_refused_with_its_prompt(value):
    with pytest.raises(PluginError, match="metadata of the prompt 'the second' can't be sent"):
        pack("a", samples(torch.zeros(2, 3, 4, 4), [Prompt("the first"), Prompt("the second", {"bad": value})]))


def test_scores_come_through_to_the_last_digit():
    generator = torch.Generator().manual_seed(4)
    for dtype in (torch.float32, torch.float64):
        values = torch.randn(200, generator=generator, dtype=dtype) * 10 ** torch.randint(-30, 30, (200,), generator=generator)
        found = join([parse(Answer, answer("a", Scores(values[:150]))), parse(Answer, answer("b", Scores(values[150:])))])
        assert torch.equal(found.values, values.double())
        assert list(found.evidence) == []


def test_missing_is_null_on_the_way_and_nan_at_both_ends():
    sent = answer("a", Scores(torch.tensor([0.5, math.nan, math.inf, -math.inf]), [{"box": [math.nan, 1.0]}, {}, {}, {}]))
    assert json.loads(sent) == {"id": "a", "values": [0.5, None, None, None], "evidence": [{"box": [None, 1.0]}, {}, {}, {}]}
    assert join([parse(Answer, sent)]).values.isnan().tolist() == [False, True, True, True]


def test_evidence_that_json_does_not_hold_is_an_error_and_not_left_out():
    with pytest.raises(ValueError, match="Unable to serialize"):
        answer("a", Scores(torch.zeros(1), [{"engine": object()}]))


def test_an_answer_may_hold_more_than_is_read():
    found = parse(Answer, b'{"id": "a", "values": [0.78], "success": [1], "score": [1.0]}')
    assert (found.values, found.evidence) == ([0.78], [])


MALFORMED = {
    "no JSON": (b"\x80\x04K\x01.", "Invalid JSON"),
    "an array": (b"[]", "Input should be an object"),
    "no id": (json.dumps({"samples": request(GREY)["samples"]}).encode(), "id: Field required"),
    "no samples": (json.dumps(request()).encode(), "samples: List should have at least 1 item"),
    "unknown key": (json.dumps(request(GREY, pickle="gASV")).encode(), "samples.0.pickle: Extra inputs are not permitted"),
    "number as prompt": (json.dumps(request(GREY, prompt=7)).encode(), "samples.0.prompt: Input should be a valid string"),
    "no base64": (json.dumps(request(GREY, "!")).encode(), "samples.1.image: not a PNG in base64"),
    "no image": (json.dumps(request(base64.b64encode(b"hello").decode())).encode(), "samples.0.image: not a PNG in base64"),
    "cut short": (
        json.dumps(request(png(Image.effect_noise((64, 64), 9).convert("RGB"))[:-1200])).encode(),
        "samples.0.image: not a PNG",
    ),
    "JPEG": (json.dumps(request(png(Image.new("RGB", (4, 4)), format="JPEG"))).encode(), "samples.0.image: not a PNG in base64"),
    "with alpha": (json.dumps(request(png(Image.new("RGBA", (4, 4))))).encode(), "samples.0.image: the PNG is RGBA, not RGB"),
    "two sizes": (json.dumps(request(GREY, png(Image.new("RGB", (4, 5))))).encode(), "images of a request must have one size"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_is_refused_with_the_place(name):
    body, words = MALFORMED[name]
    with pytest.raises(Malformed) as error:
        unpack(parse(Request, body), Limits())
    assert words in str(error.value)


def test_more_images_than_the_limit_are_refused():
    asked = parse(Request, json.dumps(request(GREY, GREY, GREY)).encode())
    assert len(unpack(asked, Limits(images=3))) == 3
    with pytest.raises(TooLarge, match="3 images, and a request may hold 2"):
        unpack(asked, Limits(images=2))


def test_an_image_that_would_be_too_large_unpacked_is_refused_by_its_header():
    """The file says 8000 x 8000 pixels, 192 MB, and holds none of them: reading it would fail in another way."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 8000, 8000, 8, 2, 0, 0, 0)
    content = zlib.compress(b"")
    data = struct.pack(">I", len(content)) + b"IDAT" + content + struct.pack(">I", zlib.crc32(b"IDAT" + content))
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + data
    asked = parse(Request, json.dumps(request(base64.b64encode(bomb).decode())).encode())
    with pytest.raises(TooLarge, match="8000 x 8000 pixels"):
        unpack(asked, Limits(size=10**6))


def test_the_images_of_a_request_share_the_limit():
    asked = parse(Request, json.dumps(request(GREY, GREY)).encode())
    assert len(unpack(asked, Limits(size=2 * 4 * 4 * 3))) == 2
    with pytest.raises(TooLarge):
        unpack(asked, Limits(size=2 * 4 * 4 * 3 - 1))
