"""A server that a run starts for itself in another environment, here in the tests' own."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import torch

from vgrpo_core import PluginError, RunError
from vgrpo_remote import Remote

CPU = torch.device("cpu")


def attached(file, name, **more):
    return Remote(**{"reward": f"{file}:{name}", "python": sys.executable, "batch": 2} | more).load(CPU)


def child(score):
    """Return the process behind a scoring function."""
    return score.__self__.check.__self__


def alive(pid):
    """Tell whether a process runs; one that waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(pid, seconds=10):
    """Tell whether a process ends in time."""
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(pid)


@pytest.fixture(scope="module")
def score(file):
    return attached(file, "Number", options={"times": 2.0})


def test_scores_are_those_of_the_reward_with_its_options_though_the_plugin_prints(score, painted):
    found = score(painted([3, 70000, 5]))
    assert found.values.tolist() == [6, 140000, 10]
    assert found.evidence[1] == {"prompt": "number 70000", "colour": [112, 17, 1]}


def test_nobody_else_may_ask(score):
    assert httpx.get(f"{child(score).url}/describe").status_code == 401


def test_signals_that_stop_the_run_leave_its_reward_working(score, painted):
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(child(score).process.pid, number)
    time.sleep(0.2)
    assert score(painted([3])).values.tolist() == [6]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_r028_r029_a_reward_that_hangs_ends_the_run_in_time_and_leaves_no_process(file, painted):
    score = attached(file, "Slow", timeout=0.3, retries=1)
    pid = child(score).process.pid
    start = time.perf_counter()
    with pytest.raises(RunError, match="2 tries failed, the last with ReadTimeout"):
        score(painted([1]))
    assert time.perf_counter() - start < 5
    assert alive(pid)
    del score
    gc.collect()
    assert ends(pid)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_a_reward_whose_process_dies_is_not_waited_for(file, painted):
    score = attached(file, "Number")
    assert score(painted([1])).values.tolist() == [1]
    child(score).process.kill()
    child(score).process.wait()
    start = time.perf_counter()
    with pytest.raises(RunError, match=r"has ended with exit code -9; it said:\n  reward .*: loading\n  a plugin may print"):
        score(painted([1]))
    assert time.perf_counter() - start < 5


PARENT = """
import sys, time, torch
from vgrpo_remote import Remote
score = Remote(reward=sys.argv[1], python=sys.executable).load(torch.device("cpu"))
print(score.__self__.check.__self__.process.pid, flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", [True, False])
def test_the_server_ends_with_the_run_however_that_ends(file, killed):
    words = [sys.executable, "-c", PARENT, f"{file}:Number", "60" if killed else "0"]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    if killed:
        assert alive(pid)
        parent.kill()
    assert parent.wait(20) == (-9 if killed else 0)
    assert ends(pid)
    parent.stdout.close()


@pytest.mark.slow
def test_what_the_reward_says_when_it_can_not_load_is_shown(file):
    with pytest.raises(PluginError) as error:
        attached(file, "Broken")
    words = str(error.value)
    assert words.startswith(f'reward "{file}:Broken" under {sys.executable} did not start; it said:\n')
    assert "  Error: no weights at /weights.pt\n    Download them." in words


def test_options_that_the_reward_refuses_are_shown():
    said = 'did not start; it said:\n  Error: the run\'s options: unknown key "quality"; it takes none\n'
    with pytest.raises(PluginError, match=said):
        Remote(reward="jpeg_size", python=sys.executable, options={"quality": 3}).load(CPU)


def test_an_environment_without_vgrpo_is_named_with_what_it_needs(file, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(PluginError) as error:
        attached(file, "Number", python=str(bare))
    assert "No module named vgrpo_cli" in str(error.value)
    assert 'It needs the plugin and "vgrpo[serve]" in its environment.' in str(error.value)


def test_an_interpreter_that_does_not_exist_is_named(file):
    with pytest.raises(PluginError, match=r"under /no/where/python: there is no such program"):
        attached(file, "Number", python="/no/where/python")


def test_a_program_that_is_never_ready_is_given_up(file, tmp_path):
    mute = tmp_path / "python"
    mute.write_text("#!/bin/sh\nwhile read line; do :; done\n")
    mute.chmod(0o755)
    start = time.perf_counter()
    with pytest.raises(PluginError, match=r"was not ready after 0\.5 s; it said:\n  nothing"):
        attached(file, "Number", python=str(mute), startup=0.5)
    assert time.perf_counter() - start < 5


def test_packages_of_this_environment_are_not_lent_to_the_other(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "vgrpo_cli.py").write_text("raise SystemExit('the wrong one')")
    with pytest.raises(PluginError, match='it said:\n  Error: no reward named "nothing"'):
        Remote(reward="nothing", python=sys.executable).load(CPU)
