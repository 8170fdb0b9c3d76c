"""The adapter of rapidocr."""

import threading
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from packaging.requirements import Requirement

from vgrpo_core import PluginError
from vgrpo_rewards import OCR, engines, rapid

pytest.importorskip("rapidocr")

ONE_COLOUR = np.broadcast_to(np.array([10, 20, 30], np.uint8), (2, 5, 7, 3))  # red 10, green 20, blue 30


class Spy:
    """Stand in for rapidocr: keep what it is shown, find nothing."""

    def __init__(self):
        self.shown, self.flags = [], []

    def __call__(self, image, **flags):
        self.shown.append(image)
        self.flags.append(flags)
        return SimpleNamespace(txts=None, scores=None)

    def _load_rec_model(self):
        def recognise(batch):
            self.shown.extend(batch.img)
            return SimpleNamespace(txts=("",) * len(batch.img), scores=(0.0,) * len(batch.img))

        return recognise


@pytest.fixture
def spy(monkeypatch):
    spy = Spy()
    monkeypatch.setattr(rapid, "_rapidocr", lambda *arguments, **more: spy)
    return spy


@pytest.mark.parametrize(
    "reader", [lambda: rapid.word_reader("rapidocr", None, 1), lambda: rapid.scene_reader("rapidocr", None, 512, 1)]
)
def test_the_engine_is_shown_blue_first(spy, reader):
    assert len(reader()(ONE_COLOUR)) == 2
    assert [image.shape for image in spy.shown] == [(5, 7, 3)] * 2
    assert all((image == (30, 20, 10)).all() for image in spy.shown)


def test_a_scene_is_read_with_all_three_flags_every_time(spy):
    rapid.scene_reader("rapidocr", None, 512, 1)(ONE_COLOUR)
    assert spy.flags == [{"use_det": True, "use_cls": False, "use_rec": True}] * 2


@pytest.mark.parametrize("nothing", [None, (), []])
def test_every_way_to_say_nothing_is_an_empty_list(nothing):
    assert rapid.lines(SimpleNamespace(txts=nothing, scores=None)) == []
    assert rapid.lines(SimpleNamespace(txts=nothing, scores=[1.0])) == []


def test_texts_come_with_their_confidence():
    result = SimpleNamespace(txts=("a", "b"), scores=(np.float32(0.5), 0.25))
    assert rapid.lines(result) == [("a", 0.5), ("b", 0.25)]


def test_batches_are_read_side_by_side_and_put_together_in_order():
    together = threading.Barrier(2, timeout=10)  # breaks unless two batches are being read at once

    def read(images):
        together.wait()
        return [[(str(image), 1.0)] for image in images]

    found = rapid.in_parallel(read, batch=3, threads=2)(np.arange(12))
    assert found == [[(str(i), 1.0)] for i in range(12)]


def test_an_error_of_the_engine_is_not_swallowed():
    def read(images):
        raise RuntimeError("no backend")

    with pytest.raises(RuntimeError, match="no backend"):
        rapid.in_parallel(read, batch=1, threads=2)(np.arange(3))


@pytest.mark.parametrize("mode", ["word", "scene"])
def test_loading_downloads_nothing(monkeypatch, mode):
    from rapidocr.utils.download_file import DownloadFile

    def download(*arguments):
        raise AssertionError("a download was tried")

    monkeypatch.setattr(DownloadFile, "run", download)
    read = OCR(mode=mode, threads=1).load(None)
    assert callable(read)


@pytest.mark.parametrize("found", ["3.9.2", "3.11.0", "3.1.0", "3.100.0", "4.3.10"])
def test_another_version_is_refused_with_what_to_install(monkeypatch, found):
    monkeypatch.setattr(engines, "version", lambda name: found)
    with pytest.raises(PluginError) as error:
        OCR().load(None)
    assert str(error.value) == f"reward \"ocr\" works with rapidocr 3.10, not {found}\n  pip install 'rapidocr==3.10.*'"


def test_the_extra_installs_what_the_reward_needs_in_the_tested_version():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    requirements = {r.name: r for r in map(Requirement, project["optional-dependencies"]["ocr"])}
    assert OCR.extra == "vgrpo[ocr]"
    assert set(OCR.requires) == set(requirements)
    allowed = requirements["rapidocr"].specifier
    assert [f"{rapid.TESTED}.7" in allowed, "3.9.9" in allowed, "3.11.0" in allowed] == [True, False, False]
