"""The engines of the reward `ocr` besides rapidocr's own, with their real weights, and what is said where something is missing."""

import importlib.util
import shutil
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vgrpo_core import Asset, PluginError, Prompt
from vgrpo_rewards import OCR, easy, engines, rapid

pytest.importorskip("rapidocr")

BLANK = np.full((64, 96, 3), 255, np.uint8)
CPU = torch.device("cpu")
WEIGHTS = {"rapidocr": "rapidocr", "ppocrv4": "rapidocr_onnxruntime", "easyocr": "easyocr_en_models"}


def folder(engine):
    """Return the folder of an engine's weights, which lies in a package; skip where it is not installed."""
    for package in [WEIGHTS[engine], "easyocr"][: 1 + (engine == "easyocr")]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    return str(Path(importlib.util.find_spec(WEIGHTS[engine]).origin).parent / "models")


@pytest.fixture(scope="module", params=["ppocrv4", "easyocr"])
def engine(request):
    return request.param


@pytest.fixture(scope="module")
def scene(engine):
    return OCR(engine=engine, models=folder(engine)).load(CPU)


@pytest.fixture(scope="module")
def word(engine):
    return OCR(engine=engine, models=folder(engine), mode="word").load(CPU)


def refused(**options):
    with pytest.raises(PluginError) as error:
        OCR(**options).load(CPU)
    return str(error.value)


def test_words_in_a_scene_are_read_and_scored(scene, draw, samples):
    picture = draw(160, 256, [(20, 20, "HELLO", 40, (200, 0, 0)), (100, 100, "world", 40, (0, 0, 200))])
    found = scene(samples(['"Hello world"', '"hello"', '"hello wall"', "a wall"], [picture] * 4))
    assert found.values[:3].tolist() == pytest.approx([1.0, 1.0, 1 - 3 / 9])
    assert found.values[3].isnan()
    assert found.evidence[0] == {"read": "HELLO world", "unsure": "", "wanted": "Hello world"}


def test_a_picture_of_a_word_is_read_alone(word, draw, samples):
    pictures = [draw(40, 110, [(8, 6, text, 28, (20, 20, 120))]) for text in ("stop", "exit")]
    assert word(samples(['"stop"', '"exit"'], pictures)).values.tolist() == [1.0, 1.0]
    assert word(samples(['"step"', '"exam"'], pictures)).values.tolist() == [0.75, 0.5]


def test_r038_a_blank_image_is_zero_and_not_missing(scene, word, samples):
    for read in (scene, word):
        assert read(samples(['"SALE"'], [BLANK])).values.tolist() == [0.0]


def test_the_score_of_an_image_is_independent_of_its_batch(scene, draw, samples):
    pictures = [draw(64, 96, [(10, 20, text, 28, (20, 90, 20))]) for text in ("stop", "stap", "")]
    together = scene(samples(['"stop"'] * 3, pictures))
    single = [scene(samples(['"stop"'], [picture])) for picture in pictures]
    assert together.values.tolist() == [one.values.item() for one in single] == [1.0, 0.75, 0.0]
    assert together.evidence == [one.evidence[0] for one in single]


def test_torch_draws_the_same_random_numbers_whether_something_was_read_or_not(scene, word, draw, samples):
    before = torch.get_rng_state()
    for read in (scene, word):
        read(samples(['"stop"'], [draw(64, 96, [(10, 20, "stop", 28, (20, 90, 20))])]))
    assert torch.equal(torch.get_rng_state(), before)


def test_ppocrv4_reads_what_its_own_package_s_models_read_in_rapidocr(draw):
    from rapidocr import RapidOCR

    models = Path(folder("ppocrv4"))
    picture = draw(160, 256, [(20, 20, "Hello", 40, (200, 0, 0)), (60, 100, "w0rld!", 40, (0, 0, 200))])
    paths = {f"{part.title()}.model_path": str(models / f"ch_PP-OCRv4_{part}_infer.onnx") for part in ("det", "rec")}
    library = RapidOCR(params=paths | {"Det.limit_type": "max", "Det.limit_side_len": 512, "Global.text_score": 0.0})
    expected = library(picture[..., ::-1].copy(), use_det=True, use_cls=False, use_rec=True)
    (found,) = rapid.scene_reader("ppocrv4", None, 512, 1)(picture[None])
    assert found == list(zip(expected.txts, map(float, expected.scores), strict=True))
    assert found != rapid.scene_reader("rapidocr", None, 512, 1)(picture[None])[0]


def test_easyocr_reads_what_it_reads_of_the_same_picture_in_a_file(draw, tmp_path):
    models = folder("easyocr")
    import easyocr

    picture = draw(128, 192, [(20, 20, "Hello", 36, (230, 30, 0)), (40, 80, "World", 36, (0, 60, 250))])
    Image.fromarray(picture).save(tmp_path / "picture.png")
    place = str(tmp_path / "own")
    library = easyocr.Reader(
        ["en"], gpu=False, model_storage_directory=models, user_network_directory=place, quantize=False, verbose=False
    )
    expected = [(text, confidence) for _, text, confidence in library.readtext(str(tmp_path / "picture.png"))]
    (found,) = easy.scene_reader(Path(models), 512)(picture[None])
    assert [text for text, _ in found] == [text for text, _ in expected] == ["Hello", "World"]
    # Files are turned grey by another routine, which rounds otherwise.
    assert [confidence for _, confidence in found] == pytest.approx([confidence for _, confidence in expected], abs=0.02)


class Spy:
    """Stand in for EasyOCR's reader: keep what it is shown, find nothing."""

    def __init__(self):
        self.colour, self.grey = [], []

    def detect(self, image, **more):
        self.colour.append(image)
        return [[]], [[]]

    def recognize(self, image, *boxes, **more):
        self.grey.append(image)
        return []


@pytest.mark.parametrize("mode", ["word", "scene"])
def test_easyocr_is_shown_red_first_and_the_grey_that_eyes_see(mode, monkeypatch):
    spy = Spy()
    monkeypatch.setattr(easy, "_easyocr", lambda *arguments, **more: spy)
    one_colour = np.broadcast_to(np.array([200, 100, 20], np.uint8), (2, 5, 7, 3))
    assert OCR(engine="easyocr", mode=mode)._reader()(one_colour) == [[], []]
    assert all((image == (200, 100, 20)).all() for image in spy.colour)
    assert len(spy.colour) == (2 if mode == "scene" else 0)
    assert [(image == round(0.299 * 200 + 0.587 * 100 + 0.114 * 20)).all() for image in spy.grey] == [True, True]


def box(left, top, width=40, height=20, rise=0):
    return [[left, top], [left + width, top - rise], [left + width, top + height - rise], [left, top + height]]


@pytest.mark.parametrize(
    "placed",
    [
        {"one": box(0, 0), "two": box(50, 3), "three": box(0, 30)},
        {"one": box(0, 4), "two": box(50, 0), "three": box(100, 5)},
        {"one": box(10, 0, rise=8), "two": box(0, 40), "three": box(60, 60, rise=15)},
        {"one": box(0, 0), "two": box(0, 21), "three": box(0, 42)},
    ],
)
def test_easyocr_s_texts_are_put_in_reading_order(placed):
    for order in (["one", "two", "three"], ["three", "one", "two"], ["two", "three", "one"]):
        found = [(placed[text], text, np.float64(0.5)) for text in order]
        assert easy.lines(found) == [("one", 0.5), ("two", 0.5), ("three", 0.5)]


def test_r039_nothing_found_is_an_empty_list():
    assert easy.lines([]) == []


@pytest.mark.parametrize("engine", ["rapidocr", "ppocrv4", "easyocr"])
def test_r152_loading_from_a_folder_opens_no_connection_and_writes_nothing_elsewhere(engine, tmp_path, monkeypatch):
    def connect(*arguments):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", connect)
    if engine == "easyocr":
        monkeypatch.setattr(pytest.importorskip("easyocr.easyocr"), "MODULE_PATH", str(tmp_path / "home"))
    assert callable(OCR(engine=engine, models=folder(engine)).load(CPU))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("engine", "module", "install"),
    [
        ("ppocrv4", "rapidocr_onnxruntime", "--no-deps --ignore-requires-python rapidocr-onnxruntime==1.4.4"),
        ("easyocr", "easyocr", '"vgrpo[easyocr]"'),
    ],
)
def test_r040_a_missing_package_is_named_with_what_to_run_and_no_other_engine_is_tried(monkeypatch, engine, module, install):
    monkeypatch.setitem(sys.modules, module, None)
    expected = f'reward "ocr" needs {module} for engine = "{engine}", which is not installed\n  Run: pip install {install}'
    assert refused(engine=engine) == expected


@pytest.mark.parametrize(
    ("engine", "file"),
    [("rapidocr", "PP-OCRv6_rec_small.onnx"), ("ppocrv4", "ch_PP-OCRv4_det_infer.onnx"), ("easyocr", "english_g2.pth")],
)
def test_r153_a_missing_file_of_weights_is_named_by_its_path(engine, file, tmp_path):
    for name in [*easy.WEIGHTS, *rapid.SHIPPED["rapidocr"][2], *rapid.SHIPPED["ppocrv4"][2]]:
        (tmp_path / name).touch()
    (tmp_path / file).unlink()
    if engine == "easyocr":
        pytest.importorskip("easyocr")
    assert refused(engine=engine, models=str(tmp_path)).startswith(
        f'reward "ocr": engine = "{engine}" finds no {tmp_path / file}\n'
    )


@pytest.mark.parametrize(("mode", "damaged"), [("word", 1), ("scene", 0), ("scene", 1)])
@pytest.mark.parametrize("engine", ["rapidocr", "ppocrv4"])
def test_damaged_weights_are_found_when_they_are_loaded(engine, mode, damaged, tmp_path):
    for name in rapid.SHIPPED[engine][2]:
        shutil.copy(Path(folder(engine)) / name, tmp_path)
    (tmp_path / rapid.SHIPPED[engine][2][damaged]).write_bytes(b"no network")
    message = refused(engine=engine, mode=mode, models=str(tmp_path))
    assert message.startswith(f'reward "ocr": engine = "{engine}" can not load ')
    assert "Protobuf parsing failed" in message


def test_damaged_weights_of_easyocr_are_told_by_their_checksum(tmp_path):
    weights = Path(folder("easyocr"))
    shutil.copy(weights / easy.WEIGHTS[0], tmp_path)
    (tmp_path / easy.WEIGHTS[1]).write_bytes((weights / easy.WEIGHTS[1]).read_bytes()[:-1])
    message = refused(engine="easyocr", models=str(tmp_path))
    assert f"MD5 mismatch for {tmp_path / easy.WEIGHTS[1]}" in message
    assert message.endswith("put craft_mlt_25k.pth and english_g2.pth of EasyOCR into a folder and name it as `models`")


def test_easyocr_without_weights_and_network_says_what_to_do(monkeypatch, tmp_path):
    easyocr = pytest.importorskip("easyocr.easyocr")

    def connect(*arguments):
        raise OSError("no route")

    monkeypatch.setattr(easyocr, "MODULE_PATH", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    message = refused(engine="easyocr")
    assert "no route" in message
    assert "name it as `models`" in message


@pytest.mark.parametrize("found", ["1.6.2", "1.8.0", "1.70"])
def test_another_release_of_easyocr_is_refused_with_what_to_install(monkeypatch, found):
    pytest.importorskip("easyocr")
    monkeypatch.setattr(engines, "version", lambda name: found)
    assert refused(engine="easyocr") == f"reward \"ocr\" works with easyocr 1.7, not {found}\n  pip install 'easyocr==1.7.*'"


def test_only_what_easyocr_fetches_is_an_asset():
    assert OCR(engine="easyocr").assets() == (
        Asset("EasyOCR craft_mlt_25k.pth", 0.08, "Apache-2.0"),
        Asset("EasyOCR english_g2.pth", 0.02, "Apache-2.0"),
    )
    assert [OCR(**one).assets() for one in ({}, {"engine": "ppocrv4"}, {"engine": "easyocr", "models": "x"})] == [()] * 3


def test_the_sizes_of_the_assets_are_those_of_the_files():
    weights = Path(folder("easyocr"))
    sizes = [asset.size for asset in OCR(engine="easyocr").assets()]
    assert [round((weights / name).stat().st_size / 1e9, 2) for name in easy.WEIGHTS] == sizes


def test_a_prompt_s_own_text_is_wanted_before_its_quotes(scene, samples):
    (table,) = scene(samples([Prompt('"old"', {"text": "New York"})], [BLANK])).evidence
    assert table["wanted"] == "New York"
