"""What Weights & Biases and trackio have after a run and its resumption, where they are installed."""

from __future__ import annotations

import json
import struct

import pytest

from vgrpo_core.events import Iterated
from vgrpo_core.run import Stopped

IMAGES = "eval/images/"


def numbers_of(ran):
    """Return the numbers of metrics.jsonl by iteration."""
    return {line["iteration"]: {k: v for k, v in line.items() if v is not None and k != "iteration"} for line in ran.lines}


def _key(item):
    return "/".join([item.key, *item.nested_key]).strip("/")


def records(path):
    """Read a file of W&B: after 7 bytes LevelDB's log format, a protobuf message in each entry."""
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole = data[at + 7 : at + 7 + size] if kind in (1, 2) else whole + data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield pb.Record.FromString(whole)


def test_weights_and_biases_has_numbers_images_and_the_recipe_goes_on_and_knows_a_failure(recipe, follow, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    made = recipe(
        'track.with=["wandb"]', "track.project=lab", "track.options.wandb.mode=offline", 'track.options.wandb.tags=["try"]'
    )

    def fail(event):
        if isinstance(event, Iterated) and event.metrics["iteration"] == 3:
            raise ValueError("out of paint")

    with pytest.raises(ValueError, match="out of paint"):
        follow(made, also=fail)
    ran = follow(made, resume=True)
    wandb.teardown()  # its own process writes the last of the file
    first, second = [list(records(path)) for path in sorted(ran.folder.glob("track/wandb/offline-run-*/run-*.wandb"))]
    runs = [next(record.run for record in part if record.HasField("run")) for part in (first, second)]
    assert [(run.project, run.display_name, list(run.tags)) for run in runs] == [("lab", "run", ["try"])] * 2
    assert runs[0].run_id == runs[1].run_id == json.loads((ran.folder / "track" / "wandb.json").read_text())["key"]
    assert [next(record.exit.exit_code for record in part if record.HasField("exit")) for part in (first, second)] == [1, 0]
    found, images = {}, {}
    for part in (first, second):
        for record in part:
            if record.HasField("history"):
                items = {_key(item): json.loads(item.value_json) for item in record.history.item}
                step = items["_step"]
                assert step not in found
                found[step] = {key: value for key, value in items.items() if not key.startswith(("_", IMAGES))}
                images[step] = {key.removeprefix(IMAGES): value for key, value in items.items() if key.startswith(IMAGES)}
    assert found == numbers_of(ran)
    sizes = {step: (image["count"], image["width"], image["height"]) for step, image in images.items() if image}
    assert sizes == dict.fromkeys((0, 2, 4), (5, 2, 1))
    assert images[4]["captions"] == [f"prompt {index}" for index in range(5)]
    config = {update.key: update.value_json for record in first for update in record.config.update}
    assert (config["optimizer.lr"], config["optimizer.betas"]) == ("0.01", '"[0.9, 0.95]"')
    assert not any(key.startswith("track") for key in config)


def test_trackio_has_numbers_images_and_the_recipe_and_goes_on(recipe, follow, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    made = recipe('track.with=["trackio"]', "track.project=lab")
    with pytest.raises(Stopped):
        follow(made, stop=lambda: True)
    ran = follow(made, resume=True)
    (run,) = trackio.Api().runs("lab")
    assert run.name == f"run-{json.loads((ran.folder / 'track' / 'trackio.json').read_text())['key']}"
    assert (run.config["optimizer.lr"], run.config["optimizer.betas"]) == (0.01, "[0.9, 0.95]")
    logs = {entry["step"]: entry for entry in SQLiteStorage.get_logs("lab", run.name)}
    shown = {step: [value for key, value in entry.items() if key.startswith("eval/images")] for step, entry in logs.items()}
    captions = {step: [image["caption"] for image in images] for step, images in shown.items() if images}
    assert captions == {step: [f"prompt {index}" for index in range(5)] for step in (0, 2, 4)}
    numbers = {step: {k: v for k, v in entry.items() if isinstance(v, int | float) and k != "step"} for step, entry in logs.items()}
    assert numbers == numbers_of(ran)
