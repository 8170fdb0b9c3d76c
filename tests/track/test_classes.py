"""How each of accelerate's classes is called, without the services behind them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from vgrpo_core import Prompt
from vgrpo_core.events import Evaluated
from vgrpo_track.log import _arguments, _class
from vgrpo_track.pictures import log

IMAGES = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 3, 4, 6)
EVALUATED = Evaluated(3, {}, (Prompt("a black\ncat"), Prompt("a white dog")), IMAGES)


@pytest.mark.parametrize("name", sorted(LOGGER_TYPE_TO_CLASS))
def test_each_class_takes_what_it_is_called_with(name):
    tracker = _class(name)(**_arguments(name, "lab", Path("runs/words"), "1234abcd"))
    assert tracker.name == name
    named = [str(value) for value in vars(tracker).values()]
    assert any("words" in value or "lab" in value for value in named)


def test_the_state_that_accelerate_wants_changes_no_threads_and_joins_no_ranks(monkeypatch):
    PartialState._reset_state()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(3)
    _class("tensorboard")
    assert torch.get_num_threads() == 3
    assert not torch.distributed.is_initialized()
    assert PartialState().device == torch.device("cpu")


class Recorder:
    """Remember every call."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.calls.append((name, args, kwargs))


def started(name, attribute, client):
    """Return accelerate's class for a tracker with `client` in place of what it would have started."""
    tracker = _class(name)("words")
    setattr(tracker, attribute, client)
    return tracker


def picture(image, caption=None):
    return (np.asarray(image).mean(), np.asarray(image).shape, caption)


BLACK, WHITE = (0, (4, 6, 3), "a black cat"), (255, (4, 6, 3), "a white dog")


def test_swanlab_gets_numbers_and_a_gallery_with_captions(monkeypatch):
    monkeypatch.setitem(sys.modules, "swanlab", SimpleNamespace(Image=picture))
    client = Recorder()
    log("swanlab", started("swanlab", "run", client), {"eval/red/mean": 0.5}, 3, EVALUATED)
    assert client.calls == [("log", ({"eval/red/mean": 0.5, "eval/images": [BLACK, WHITE]},), {"step": 3})]


def test_aim_gets_each_image_with_its_caption(monkeypatch):
    monkeypatch.setitem(sys.modules, "aim", SimpleNamespace(Image=picture))
    client = Recorder()
    log("aim", started("aim", "writer", client), {"eval/red/mean": 0.5}, 3, EVALUATED)
    assert client.calls == [
        ("track", (BLACK,), {"name": "eval/images/00", "step": 3}),
        ("track", (WHITE,), {"name": "eval/images/01", "step": 3}),
        ("track", (0.5,), {"name": "eval/red/mean", "step": 3}),
    ]


def test_clearml_gets_each_image_under_its_prompt():
    client = Recorder()
    log("clearml", started("clearml", "task", SimpleNamespace(get_logger=lambda: client)), {"loss": 0.5}, 3, EVALUATED)
    titles = [(name, given["title"], given["iteration"]) for name, _, given in client.calls]
    first, second = "eval/images/00 a black cat", "eval/images/01 a white dog"
    assert titles == [("report_image", first, 3), ("report_image", second, 3), ("report_scalar", "loss", 3)]
    assert [given["image"].mean() for _, _, given in client.calls[:2]] == [0, 255]


def test_a_tracker_without_images_gets_the_numbers(monkeypatch):
    client = Recorder()
    monkeypatch.setitem(sys.modules, "mlflow", client)
    log("mlflow", started("mlflow", "active_run", None), {"loss": 0.5}, 3, EVALUATED)
    assert client.calls == [("log_metrics", ({"loss": 0.5},), {"step": 3})]
