"""What a run on several ranks says and leaves when a process is killed, or when it is asked to stop."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from vgrpo_cli import launch
from vgrpo_core import RecipeError, RunError, VgrpoError
from vgrpo_core.errors import RankError

SLOW = ("--set", "reward.light.delay=0.1", "--set", "run.iterations=50", "--set", "checkpoint.every=2")


@pytest.fixture
def torchrun(folder):
    """Start the toy's recipe on two ranks and wait for its first checkpoint; kill what is left."""
    out = (folder / "out.txt").open("w+")
    words = ["--nproc_per_node", "2", "--standalone", "-m", "vgrpo_cli", "run", "toy.toml", *SLOW]
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    with subprocess.Popen(command, cwd=folder, stdout=out, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        end = time.monotonic() + 120
        while not (folder / "runs/toy/checkpoints/000002/state.json").is_file() and time.monotonic() < end:
            time.sleep(0.1)
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def ranks_of(process):
    """Return the processes that torchrun started."""
    return [int(pid) for pid in subprocess.check_output(["pgrep", "-P", str(process.pid)], text=True).split()]


def test_a_killed_rank_ends_the_launch_within_30_seconds_with_the_reason(torchrun, folder):
    os.kill(ranks_of(torchrun)[-1], signal.SIGKILL)
    _, err = torchrun.communicate(timeout=30)
    assert torchrun.returncode == 1
    assert "another rank does not answer: it has ended" in err
    kept = int(re.search(r"failed after iteration \d+; iteration (\d+) is kept", err)[1])
    assert "go on with: torchrun --nproc_per_node 2 -m vgrpo_cli run toy.toml --resume --out runs/toy" in err
    assert (folder / "runs" / "toy" / "checkpoints" / f"{kept:06d}" / "state.json").is_file()


def test_a_launch_that_is_asked_to_stop_saves_one_iteration_on_all_ranks(torchrun, folder):
    torchrun.send_signal(signal.SIGTERM)
    torchrun.communicate(timeout=60)
    out = (folder / "out.txt").read_text()
    (at,) = re.findall(r"^stopped after iteration (\d+) of 50; go on with: torchrun ", out, re.MULTILINE)
    assert (folder / "runs" / "toy" / "checkpoints" / f"{int(at):06d}" / "state.json").is_file()


@pytest.mark.parametrize(
    ("command", "count"),
    [
        (["python", "accelerate", "launch", "--cpu", "--num_processes", "2", "-m", "vgrpo_cli"], 2),
        (["accelerate", "launch", "--num-processes=3", "x"], 3),
        (["accelerate", "launch", "-m", "vgrpo_cli"], 1),
        ([], 1),
    ],
)
def test_the_number_of_processes_is_read_off_the_command_line_of_accelerate(command, count):
    assert launch.asked_for(command) == count


def test_accelerate_that_starts_one_process_where_two_were_asked_for_is_refused(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setattr(launch, "_parent", lambda: ["accelerate", "launch", "--num_processes", "2"])
    with pytest.raises(VgrpoError, match=r"started one[\s\S]*torchrun --nproc_per_node 2 -m vgrpo_cli run r\.toml"):
        launch.check_launcher("r.toml")


def test_errors_that_all_ranks_have_are_said_by_the_main_one(monkeypatch):
    common, own = [RecipeError(["x"]), RunError("x")], [RankError("x"), VgrpoError("x")]
    assert not any(launch.said_elsewhere(error) for error in [*common, *own])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert [launch.said_elsewhere(error) for error in [*common, *own]] == [True, True, False, False]
