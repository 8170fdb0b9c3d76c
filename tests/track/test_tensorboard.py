"""What TensorBoard's own reader finds after a run."""

from __future__ import annotations

import io
import shutil

import numpy as np
import pytest
from PIL import Image

from vgrpo_core.events import Iterated, Started, Warned
from vgrpo_core.run import Stopped


def scalars(board):
    """Return (iteration, value) pairs by key, in the order in which they were written."""
    return {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def expected(lines):
    """Return the same from metrics.jsonl; TensorBoard keeps float32."""
    keys = {key for line in lines for key, value in line.items() if value is not None} - {"iteration"}
    pairs = {key: [(line["iteration"], line.get(key)) for line in lines] for key in keys}
    return {key: [(at, float(np.float32(value))) for at, value in found if value is not None] for key, found in pairs.items()}


def test_every_number_of_metrics_is_there_at_its_iteration_and_a_missing_one_is_left_out(recipe, follow, board):
    ran = follow(recipe())
    found = scalars(board())
    assert found == expected(ran.lines)
    assert [at for at, _ in found["reward/red/mean"]] == [1, 2, 3, 4]
    assert [at for at, _ in found["eval/red/mean"]] == [0, 2, 4]
    assert ran.lines[0]["eval/blind/mean"] is None
    assert "eval/blind/mean" not in found


def test_held_out_images_are_there_one_by_one_with_their_prompts(recipe, follow, board):
    ran = follow(recipe())
    found = board()
    tags = [f"eval/images/{index:02d} prompt {index}" for index in range(5)]
    assert found.Tags()["images"] == tags
    for iteration, images in ran.images().items():
        drawn = np.rint(images.permute(0, 2, 3, 1).numpy() * 255)
        for tag, pixels in zip(tags, drawn, strict=True):
            (event,) = [event for event in found.Images(tag) if event.step == iteration]
            assert (event.width, event.height) == (2, 1)
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(event.encoded_image_string))), pixels)


def test_the_resolved_recipe_is_there_as_text_without_the_options_of_trackers(recipe, follow, board):
    made = recipe("run.iterations=1", "track.options.tensorboard.filename_suffix=.secret")
    follow(made)
    (event,) = board().Tensors("recipe/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    whole, _, track = made.to_toml().partition("[track]")
    assert track
    assert [line.removeprefix("    ") for line in text.rstrip().split("\n")] == whole.rstrip().split("\n")


def test_options_reach_the_tracker(recipe, follow, tmp_path):
    follow(recipe("run.iterations=1", "track.options.tensorboard.filename_suffix=.mine"))
    (file,) = (tmp_path / "run" / "track" / "tensorboard").iterdir()
    assert file.suffix == ".mine"


def test_a_resumed_run_goes_on_in_the_same_folder_and_no_iteration_is_there_twice(recipe, follow, board, tmp_path):
    def fail(event):
        if isinstance(event, Iterated) and event.metrics["iteration"] == 3:
            raise ValueError("out of paint")

    with pytest.raises(ValueError, match="out of paint"):
        follow(recipe(), also=fail)
    assert [event.step for event in board().Scalars("reward/red/mean")] == [1, 2, 3]
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "000003")  # as if the process had been killed
    ran = follow(recipe(), resume=True)
    assert ran.heard(Started)[0].iteration == 2
    found = scalars(board())
    assert [at for at, _ in found["reward/red/mean"]] == [1, 2, 3, 4]
    assert found["reward/red/mean"] == expected(ran.lines)["reward/red/mean"]


def test_a_tracker_that_is_added_when_the_run_is_resumed_gets_all_that_was_before(recipe, follow, board):
    with pytest.raises(Stopped):
        follow(recipe("track.with=[]"), stop=lambda: True)
    ran = follow(recipe(), resume=True)
    assert len(ran.lines) == 5
    assert scalars(board()) == expected(ran.lines)
    assert [event.step for event in board().Images("eval/images/00 prompt 0")] == [2, 4]


def test_a_tracker_that_fails_is_told_once_ends_no_run_and_gets_what_it_missed(recipe, follow, board, monkeypatch):
    from accelerate.tracking import TensorBoardTracker

    log = TensorBoardTracker.log

    def flaky(self, values, step=None, **more):
        if ran_before_failing(step):
            raise ConnectionError("no route to host")
        return log(self, values, step, **more)

    attempts = []

    def ran_before_failing(step):
        attempts.append(step)
        return step == 2 and attempts.count(2) < 3

    monkeypatch.setattr(TensorBoardTracker, "log", flaky)
    ran = follow(recipe())
    assert [event.message for event in ran.heard(Warned)] == ["tracker tensorboard: ConnectionError: no route to host"]
    assert attempts == [None, 0, 1, 2, 2, 2, 3, 4]
    assert scalars(board()) == expected(ran.lines)


def test_a_tracker_that_can_not_start_is_told_and_the_run_goes_on(recipe, follow, monkeypatch):
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    monkeypatch.delitem(LOGGER_TYPE_TO_CLASS, "tensorboard")
    ran = follow(recipe("run.iterations=1"))
    (warning,) = ran.heard(Warned)
    assert "tracker tensorboard: accelerate " in warning.message
    assert "pip install --upgrade accelerate" in warning.message
    assert len(ran.lines) == 2


@pytest.mark.parametrize("how", ["ends", "stops", "fails"])
def test_the_tracker_is_closed_once_the_run_ends_stops_or_fails(how, recipe, follow, board, monkeypatch):
    from accelerate.tracking import TensorBoardTracker

    closed, finish = [], TensorBoardTracker.finish
    monkeypatch.setattr(TensorBoardTracker, "finish", lambda self: closed.append(finish(self)))

    def fail(event):
        if how == "fails" and isinstance(event, Iterated):
            raise ValueError("out of paint")

    try:
        ran = follow(recipe("run.iterations=2"), stop=lambda: how == "stops", also=fail)
        assert how == "ends"
        assert len(ran.lines) == 3
    except Stopped:
        assert how == "stops"
    except ValueError:
        assert how == "fails"
    assert len(closed) == 1
    assert scalars(board())["reward/red/mean"][-1][0] == (2 if how == "ends" else 1)


def test_a_run_without_trackers_has_no_folder_for_them(recipe, follow):
    ran = follow(recipe("track.with=[]", "run.iterations=1"))
    assert not (ran.folder / "track").exists()
