from __future__ import annotations

import json
import random
import re
import shlex
import signal
import time

import pytest

SLOW = ("--set", "reward.light.delay=0.05", "--set", "run.iterations=9", "--set", "checkpoint.every=5")
CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def read_until(process, start):
    """Return the line that begins with `start`."""
    return next(line for line in process.stdout if line.startswith(start))


@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_signal_finishes_the_iteration_saves_and_says_how_to_go_on(started, vgrpo, folder, number, code):
    process = started("run", "toy.toml", *SLOW)
    read_until(process, f"iteration {random.randint(1, 5)}/9")
    time.sleep(random.uniform(0, 0.1))
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "")
    at = int(re.search(r"^finishing iteration (\d+), then saving; press again to quit at once$", out, re.MULTILINE)[1])
    last = out.splitlines()[-1]
    assert last.startswith(f"stopped after iteration {at} of 9; go on with: vgrpo run toy.toml --resume --out runs/toy ")
    run = folder / "runs" / "toy"
    assert (run / "checkpoints" / f"{at:06d}" / "state.json").is_file()
    result = vgrpo(*shlex.split(last.partition("go on with: vgrpo ")[2]))
    assert (result.code, result.err) == (0, "")
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    assert [line["iteration"] for line in metrics] == list(range(10))
    assert not list(run.rglob("*.partial"))


@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_second_signal_quits_at_once(started, number, code):
    process = started("run", "toy.toml", "--set", "reward.light.stall_at=2")  # in iteration 1, for a minute
    read_until(process, "iteration 0 ")
    process.send_signal(number)
    read_until(process, "finishing iteration 1, ")
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode == -number  # of which shells make 130 or 143


@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_signal_while_models_load_quits_at_once_and_leaves_nothing(started, folder, number, code):
    process = started("run", "toy.toml", "--set", "backbone.loading=60")
    read_until(process, "loading")
    assert (folder / "runs" / "toy").is_dir()
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (code, "")
    assert out == "stopped while loading; nothing was written\n"
    assert not (folder / "runs").exists()


def test_a_signal_while_a_run_is_resumed_changes_nothing(started, vgrpo, folder):
    vgrpo("run", "toy.toml", "--set", "run.iterations=1")
    run = folder / "runs" / "toy"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    (folder / "toy.py").write_text((folder / "toy.py").read_text().replace("time.sleep(self.loading)", "time.sleep(60)"))
    process = started("run", "toy.toml", "--resume", "--set", "run.iterations=3")
    read_until(process, "loading")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
