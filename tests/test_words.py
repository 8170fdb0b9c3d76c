"""The recipe `words` as a user runs it, made short: the embedded pipeline, a real OCR engine, the command."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vgrpo_core import checkpoint
from vgrpo_core.trainer import Trainer
from vgrpo_recipe import load

WORDS = Path(__file__).parent.parent / "cli" / "vgrpo_cli" / "recipes" / "words.toml"
WEIGHTS = "diffusion_pytorch_model.safetensors"
SHORT = ("run.iterations=6", "prompts.count=5", "batch.prompts=2", "batch.group=3", "eval.every=2", "eval.prompts.count=4")


def command(out, *more):
    """Return the command of a short run: 2 of 5 prompts an iteration, so that an epoch ends inside iteration 3."""
    sets = [word for override in SHORT for word in ("--set", override)]
    return [sys.executable, "-m", "vgrpo_cli", "run", "words", "--out", str(out), *sets, *more]


def ended(out):
    """Return what a run ends with: weights, optimizer state and metrics, but for the clock."""
    last = max((out / "checkpoints").iterdir())
    lines = [json.loads(line) | {"seconds": 0, "memory/peak_gb": 0} for line in (out / "metrics.jsonl").read_text().splitlines()]
    saved = checkpoint.load(last)
    return saved.weights, saved.optimizer, lines


def same(one, other):
    """Compare tensors by name, bit by bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_run_stopped_by_sigterm_and_resumed_is_bit_equal_to_one_that_was_not(tmp_path):
    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True)
    with subprocess.Popen(command(tmp_path / "parts"), stdout=subprocess.PIPE, text=True) as process:
        after = f"iteration {random.randint(1, 4)}/6 "
        next(line for line in process.stdout if line.startswith(after))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 143
    assert not (tmp_path / "parts" / "summary.json").exists()
    subprocess.run(command(tmp_path / "parts", "--resume"), check=True, capture_output=True)
    whole, parts = ended(tmp_path / "whole"), ended(tmp_path / "parts")
    assert same(whole[0], parts[0])
    assert same(whole[1], parts[1])
    assert whole[2] == parts[2]
    assert (tmp_path / "whole" / "before-after.png").stat().st_size > 1000


def update(micro):
    """Return the first update of the weights with micro-batches of `micro` rows."""
    trainer = Trainer(load(WORDS, [*SHORT, f"batch.micro={micro}"]), torch.device("cpu"), lambda event: None)
    before = {name: value.clone() for name, value in trainer.policy.state().items()}
    trainer.train()
    return torch.cat([(value - before[name]).flatten() for name, value in trainer.policy.state().items()])


@pytest.mark.slow
def test_micro_batches_of_1_3_and_8_rows_give_the_same_update_up_to_rounding():
    whole = update(8)
    for micro in (1, 3):
        assert (update(micro) - whole).norm() < 1e-2 * whole.norm()  # Adam turns rounding of tiny gradients into whole steps


RANKS = ("run.iterations=2", "prompts.count=6", "batch.prompts=2", "batch.group=4", "batch.micro=8", "eval.every=0")
RANKS += ("eval.prompts.count=6", "optimizer.ema=0.9", "eval.watch=false")


@pytest.mark.slow
def test_the_embedded_model_trains_on_two_ranks_sharded_or_not_as_on_one(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    sets = [word for override in RANKS for word in ("--set", override)]
    two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "vgrpo_cli"]
    launches = {"one": [sys.executable, "-m", "vgrpo_cli"], "two": two, "shard": two}
    for name, command in launches.items():
        more = ["--set", "run.shard=true"] if name == "shard" else []
        done = subprocess.run([*command, "run", "words", "--out", str(tmp_path / name), *sets, *more], env=environment, timeout=300)
        assert done.returncode == 0
    one, *others = (checkpoint.load(tmp_path / name / "checkpoints" / "000002") for name in launches)
    for other in others:
        for part in ("weights", "copies"):
            expected, found = getattr(one, part), getattr(other, part)
            assert expected.keys() == found.keys()
            assert max((expected[key] - found[key]).abs().max().item() for key in expected) < 5e-5
    whole, *exported = (load_file(tmp_path / name / "model" / "transformer" / WEIGHTS) for name in launches)
    assert all(whole.keys() == other.keys() and all(whole[key].shape == other[key].shape for key in whole) for other in exported)
