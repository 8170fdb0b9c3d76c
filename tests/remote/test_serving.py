"""The command `vgrpo serve`."""

import os
import signal
import socket
import subprocess

import httpx
import pytest

from vgrpo_cli import serving, typed
from vgrpo_core import PluginError, RecipeError
from vgrpo_core.offers import Offer
from vgrpo_recipe.registry import Registry
from vgrpo_remote.wire import pack
from vgrpo_rewards import OCR

from .commands import command, started


@pytest.fixture(scope="module")
def served(file):
    """`vgrpo serve` with a token and options: its process and its address."""
    words = command(f"{file}:Number", "--port", 0, "--option", "times=3", "--images", 2, "--device", "cpu", "--token-env", "SECRET")
    with started(words, env=os.environ | {"SECRET": "s3cret"}) as (process, url):
        yield process, url


def test_r033_a_reward_from_a_file_is_served_and_scores_as_here(served, remote, painted, monkeypatch):
    monkeypatch.setenv("SECRET", "s3cret")
    score = remote(served[1], options={"times": 3}, token_env="SECRET")
    assert score(painted([5, 6, 7])).values.tolist() == [15, 18, 21]


def test_by_default_it_listens_on_this_machine_alone(served):
    assert served[1].startswith("http://127.0.0.1:")


def test_the_token_is_asked_for_and_is_not_on_the_command_line(served):
    process, url = served
    assert httpx.get(f"{url}/describe").status_code == 401
    assert httpx.get(f"{url}/describe", headers={"Authorization": "Bearer s3cret"}).status_code == 200
    assert "s3cret" not in subprocess.run(["ps", "-o", "args=", "-p", str(process.pid)], capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_it_stops_though_a_reward_is_busy_for_an_hour(spawn, file, painted, number, code):
    process, url = spawn(f"{file}:Slow", "--port", 0)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/score", content=pack("a", painted([1])), timeout=0.5)
    process.send_signal(number)
    assert process.wait(20) == code


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_other_machines_are_let_in_with_a_token_only(host, monkeypatch):
    with pytest.raises(PluginError, match=r"needs a token\n.*can be reached from other machines\n.*--token-env"):
        serving.guard(host, None)
    monkeypatch.setenv("SECRET", "s3cret")
    assert serving.guard(host, "SECRET") == "s3cret"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_this_machine_needs_no_token_and_may_ask_for_one(host, monkeypatch):
    assert serving.guard(host, None) is None
    monkeypatch.setenv("SECRET", "s3cret")
    assert serving.guard(host, "SECRET") == "s3cret"


def test_a_token_that_is_not_there_is_an_error_and_not_an_open_door(monkeypatch):
    monkeypatch.delenv("SECRET", raising=False)
    with pytest.raises(PluginError, match='"SECRET" holds no token'):
        serving.guard("127.0.0.1", "SECRET")


def test_a_port_in_use_is_an_error_that_says_so():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PluginError, match="Address already in use"):
        serving.listen("127.0.0.1", taken.getsockname()[1])


def test_addresses_are_written_as_people_type_them():
    assert serving.url(("127.0.0.1", 80)) == "http://127.0.0.1:80"
    assert serving.url(("::1", 80, 0, 0)) == "http://[::1]:80"


def test_options_are_as_strict_as_in_a_recipe_and_all_mistakes_are_named():
    offer, registry = Offer("reward", "ocr", OCR, "vgrpo", "0.1.0"), Registry(())
    assert typed.reward(offer, ["mode=word", "threads=2"], registry) == OCR(mode="word", threads=2)
    with pytest.raises(RecipeError) as error:
        typed.reward(offer, ["mode=wrod", "thread=2", 'min_confidence="0.5"', "threads"], registry)
    assert error.value.mistakes[0].startswith("--option threads: write it as key=value")
    words = str(error.value)
    assert """--option mode=wrod: mode is "wrod": input should be 'word' or 'scene'; did you mean "word"?""" in words
    assert '--option thread=2: unknown key "thread"; did you mean "threads"?' in words
    assert '--option min_confidence="0.5": min_confidence is "0.5": input should be a valid number' in words


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["jpeg"], 'Error: no reward named "jpeg"; did you mean "jpeg_size"?'),
        (["jpeg_size", "--option", "quality=3"], 'Error: --option quality=3: unknown key "quality"'),
        (["jpeg_size", "--host", "0.0.0.0"], "Error: vgrpo serve needs a token"),
    ],
)
def test_mistakes_are_one_message_without_a_traceback(words, found):
    result = subprocess.run(command(*words), capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert found in result.stderr and "Traceback" not in result.stderr
