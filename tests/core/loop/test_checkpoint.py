from __future__ import annotations

import json
import math
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from vgrpo_core import RunError, checkpoint
from vgrpo_core.checkpoint import Checkpoint, complete, load, save, write_json

TENSORS = "shard-00001-model-00001-of-00001.safetensors"


def made(iteration, value=1.0):
    weights = {"a.weight": torch.full((2, 3), value), "b": torch.arange(3, dtype=torch.bfloat16)}
    optimizer = {"a.weight/step": torch.tensor(float(iteration)), "a.weight/exp_avg": torch.rand(3, 2).T}
    copies = {"a.weight/average": torch.full((2, 3), value / 3), "a.weight/old": torch.full((2, 3), value / 5)}
    return Checkpoint(weights, optimizer, copies, {"iteration": iteration, "seconds": 1.5, "idle": 0})


def names(root):
    return sorted(path.name for path in root.iterdir())


def test_a_checkpoint_comes_back_bit_equal(tmp_path):
    saved = made(4)
    found = load(save(tmp_path, saved, keep=2))
    assert found.state == saved.state | {"format": 3}
    for part in ("weights", "optimizer", "copies"):
        before, after = getattr(saved, part), getattr(found, part)
        assert before.keys() == after.keys()
        assert all(after[name].equal(value) and after[name].dtype == value.dtype for name, value in before.items())


def test_a_checkpoint_is_named_after_its_iteration_and_holds_nothing_pickled(tmp_path):
    path = save(tmp_path / "checkpoints", made(4), keep=2)
    assert path == tmp_path / "checkpoints" / "000004"
    assert names(path) == [TENSORS, "state.json"]
    assert sorted(load_file(path / TENSORS)) == [
        "copies/a.weight/average", "copies/a.weight/old", "optimizer/a.weight/exp_avg", "optimizer/a.weight/step",
        "weights/a.weight", "weights/b",
    ]  # fmt: skip


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path, keep):
    for iteration in (2, 4, 10, 100, 998):
        save(tmp_path, made(iteration), keep=keep)
    assert names(tmp_path) == ["000004", "000010", "000100", "000998"][-keep:]
    assert complete(tmp_path)[-1].name == "000998"


@pytest.mark.parametrize("broken", ["state_dict_saver", "write_json", "_flush"])
def test_a_checkpoint_cut_short_is_never_seen(tmp_path, monkeypatch, broken):
    save(tmp_path, made(2), keep=1)

    def die(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        target, name = (checkpoint.state_dict_saver, "save") if broken == "state_dict_saver" else (checkpoint, broken)
        patch.setattr(target, name, die)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, made(4), keep=1)
    assert [path.name for path in complete(tmp_path)] == ["000002"]
    assert load(complete(tmp_path)[-1]).state["iteration"] == 2
    save(tmp_path, made(4), keep=1)
    assert names(tmp_path) == ["000004"]  # nothing half-written is left behind


def test_dying_before_the_last_rename_leaves_the_older_checkpoint(tmp_path, monkeypatch):
    save(tmp_path, made(2), keep=1)
    rename = os.replace

    def die(source, target):
        if os.fspath(target).endswith("000004"):
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, made(4), keep=1)
    assert [path.name for path in complete(tmp_path)] == ["000002"]


def test_a_folder_without_its_state_is_no_checkpoint(tmp_path):
    save(tmp_path, made(2), keep=3)
    (tmp_path / "000004").mkdir()
    (tmp_path / "000004" / TENSORS).touch()
    (tmp_path / ".000006.partial").mkdir()
    assert [path.name for path in complete(tmp_path)] == ["000002"]
    assert load(save(tmp_path, made(4), keep=3)).state["iteration"] == 4


def test_there_are_no_checkpoints_where_there_is_no_folder(tmp_path):
    assert complete(tmp_path / "none") == []


@pytest.mark.parametrize("name", [TENSORS, "state.json"])
@pytest.mark.parametrize("how", ["cut", "empty", "gone"])
def test_a_checkpoint_that_can_not_be_read_is_named_with_what_to_do(tmp_path, name, how):
    path = save(tmp_path, made(2), keep=1)
    content = (path / name).read_bytes()
    if how == "gone":
        (path / name).unlink()
    else:
        (path / name).write_bytes(content[: len(content) // 2 if how == "cut" else 0])
    with pytest.raises(RunError) as caught:
        load(path)
    assert str(path) in str(caught.value) and "not a readable checkpoint" in str(caught.value) and "remove it" in str(caught.value)


@pytest.mark.parametrize("key", ["weights/b", "optimizer/a.weight/exp_avg", "copies/a.weight/old"])
def test_a_checkpoint_that_lacks_a_tensor_is_not_read(tmp_path, key):
    path = save(tmp_path, made(2), keep=1)
    save_file({name: tensor for name, tensor in load_file(path / TENSORS).items() if name != key}, path / TENSORS)
    with pytest.raises(RunError, match=f"of 1 of its tensors some part is gone, such as {key}"):
        load(path)


def test_a_checkpoint_of_another_format_is_refused(tmp_path):
    path = save(tmp_path, made(2), keep=1)
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(state | {"format": 2}))
    with pytest.raises(RunError, match="format 2, this version reads 3"):
        load(path)


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "summary.json"
    write_json(path, {"a": None, "b": 0.1})
    assert json.loads(path.read_text()) == {"a": None, "b": 0.1}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": math.nan})
    assert json.loads(path.read_text()) == {"a": None, "b": 0.1} and names(tmp_path) == ["summary.json"]
