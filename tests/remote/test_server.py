"""The server, asked by other clients than ours."""

import base64
import io
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch
from PIL import Image
from pydantic import Field

from vgrpo_core import PluginError, Reward
from vgrpo_remote import server
from vgrpo_remote.wire import Limits


class Red(Reward):
    """Mean of the red channel, in 8-bit levels."""

    name = "red"
    range = "0 to 255"
    text_limit = 77
    channel: int = Field(default=0)
    names: list[str] = Field(default_factory=lambda: ["red"])
    needed: str = Field(description="no default")

    def load(self, device):
        return lambda samples: samples.images[:, self.channel].mean((1, 2)) * 255


class Waiting(Reward):
    """A reward that the test lets go on; it counts who is inside."""

    name = "waiting"

    def load(self, device):
        self.loading.wait(10)
        return self._score

    def model_post_init(self, context):
        for name in ("loading", "going"):
            object.__setattr__(self, name, threading.Event())
        object.__setattr__(self, "inside", [0, 0, 0])

    def _score(self, samples):
        self.inside[0] += 1
        self.inside[1] = max(self.inside[:2])
        self.inside[2] += len(samples)
        self.going.wait(10)
        time.sleep(0.01)
        self.inside[0] -= 1
        return torch.zeros(len(samples))


class Raising(Reward):
    """A reward that fails as the prompt says."""

    name = "raising"

    def load(self, device):
        def score(samples):
            kind = {"user": PluginError, "value": ValueError}[samples.prompts[0].text]
            raise kind("no such colour")

        return score


def body(*colours, prompt=""):
    """Write a request by hand."""
    rows = []
    for colour in colours:
        file = io.BytesIO()
        Image.new("RGB", (4, 4), colour).save(file, "PNG")
        rows.append({"prompt": prompt, "image": base64.b64encode(file.getvalue()).decode()})
    return json.dumps({"id": "17", "samples": rows}).encode()


def ask(url, data=None, **headers):
    """Ask with the standard library: status and JSON."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_request_written_by_hand_is_scored(serve):
    url = serve(Red(needed="x"))
    assert ask(f"{url}/score", body((7, 0, 0), (255, 1, 1))) == (200, {"id": "17", "values": [7.0, 255.0], "evidence": []})


def test_describe_says_what_runs_and_how(serve):
    status, found = ask(f"{serve(Red(channel=2, needed='x'), limits=Limits(images=9, size=1000))}/describe")
    assert status == 200
    assert found == {
        "protocol": 1,
        "reward": "red",
        "class_name": "Red",
        "distribution": "tests",
        "version": "1.0",
        "options": {"channel": 2, "names": ["red"], "needed": "x"},
        "defaults": {"channel": 0, "names": ["red"]},
        "range": "0 to 255",
        "text_limit": 77,
        "limits": {"images": 9, "size": 1000},
    }


def test_health_tells_loading_from_ready_and_nothing_is_scored_before(serve):
    plugin = Waiting()
    url = serve(plugin, loaded=False)
    assert ask(f"{url}/health") == (503, {"state": "loading"})
    assert ask(f"{url}/describe")[0] == 200
    assert ask(f"{url}/score", body((1, 1, 1))) == (503, {"error": "the reward is still loading"})
    plugin.loading.set()
    plugin.going.set()
    while ask(f"{url}/health") != (200, {"state": "ready"}):
        time.sleep(0.01)
    assert ask(f"{url}/score", body((1, 1, 1)))[0] == 200


def waiting(serve):
    plugin = Waiting()
    plugin.loading.set()
    return plugin, serve(plugin)


def test_health_answers_at_once_while_a_reward_is_busy(serve):
    plugin, url = waiting(serve)
    with ThreadPoolExecutor() as pool:
        busy = pool.submit(ask, f"{url}/score", body((1, 1, 1)))
        while not plugin.inside[0]:
            time.sleep(0.01)
        start = time.perf_counter()
        assert ask(f"{url}/health")[0] == 200
        assert time.perf_counter() - start < 5  # the reward waits for twice that
        assert not busy.done()
        plugin.going.set()
        assert busy.result()[0] == 200


def test_requests_that_come_together_are_scored_one_after_the_other(serve):
    plugin, url = waiting(serve)
    plugin.going.set()
    with ThreadPoolExecutor(8) as pool:
        assert {status for status, _ in pool.map(lambda _: ask(f"{url}/score", body((1, 1, 1))), range(16))} == {200}
    assert plugin.inside == [0, 1, 16]


def test_who_has_gone_is_not_scored(serve):
    """A client that timed out while others were scored asks again: its first request must not take the reward's time."""
    plugin, url = waiting(serve)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask, f"{url}/score", body((1, 1, 1)))
        while not plugin.inside[0]:
            time.sleep(0.01)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/score", content=body(*[(2, 2, 2)] * 5), timeout=0.2)
        plugin.going.set()
        assert first.result()[0] == 200
    assert ask(f"{url}/score", body((3, 3, 3)))[0] == 200
    assert plugin.inside[2] == 2


@pytest.mark.parametrize(
    "given", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}, {"Authorization": "Bearer sécret"}]
)
def test_without_the_token_nothing_is_told_but_health(serve, given):
    url = serve(Red(needed="x"), token="secret")
    for path, data in (("describe", None), ("score", body((1, 1, 1))), ("score", b"nonsense")):
        status, found = ask(f"{url}/{path}", data, **given)
        assert (status, "token" in found["error"]) == (401, True)
    assert ask(f"{url}/health") == (200, {"state": "ready"})


def test_with_the_token_all_is_told(serve):
    url = serve(Red(needed="x"), token="secret")
    assert ask(f"{url}/describe", Authorization="Bearer secret")[0] == 200
    assert ask(f"{url}/score", body((9, 1, 1)), Authorization="Bearer secret")[1]["values"] == [9.0]


def test_a_malformed_request_is_400_with_the_place(serve):
    url = serve(Red(needed="x"))
    assert ask(f"{url}/score", b"\x80\x04K\x01.")[0] == 400
    assert ask(f"{url}/score", b'{"id": "a", "samples": [{"prompt": "", "image": "!"}]}') == (
        400,
        {"error": "samples.0.image: not a PNG in base64: Only base64 data is allowed"},
    )


def test_requests_over_a_limit_are_413_whether_they_say_their_length_or_not(serve):
    url = serve(Red(needed="x"), limits=Limits(images=2, size=1000))
    assert len(body((1, 1, 1))) < 1000
    assert ask(f"{url}/score", body((1, 1, 1)))[0] == 200
    assert ask(f"{url}/score", body(*[(1, 1, 1)] * 3)) == (413, {"error": "3 images, and a request may hold 2"})
    assert ask(f"{url}/score", b"[" * 1001) == (413, {"error": "a request may have 1000 bytes"})
    chunked = httpx.post(f"{url}/score", content=(b"[" * 100 for _ in range(11)))
    assert (chunked.status_code, chunked.json()) == (413, {"error": "a request may have 1000 bytes"})


def test_a_request_that_never_ends_is_not_kept_in_memory(serve):
    url = serve(Red(needed="x"), limits=Limits(size=1000))
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"POST /score HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n" + b"[" * 1000 + b"\r\n")
        connection.sendall(b"1\r\n[\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_a_reward_that_raises_is_500_with_its_message_and_the_server_goes_on(serve, caplog):
    url = serve(Raising())
    message = "reward \"raising\" (tests 1.0) failed on 1 samples, first prompt 'value': ValueError: no such colour"
    assert ask(f"{url}/score", body((1, 1, 1), prompt="value")) == (500, {"error": message})
    assert "Traceback" in caplog.text
    assert ask(f"{url}/health")[0] == 200


def test_a_mistake_that_the_user_can_mend_is_422(serve):
    assert ask(f"{serve(Raising())}/score", body((1, 1, 1), prompt="user")) == (422, {"error": "no such colour"})


def test_other_paths_and_methods_are_errors_in_json(serve):
    url = serve(Red(needed="x"))
    assert ask(f"{url}/nowhere") == (404, {"error": "Not Found"})
    assert ask(f"{url}/score") == (405, {"error": "Method Not Allowed"})


class Unloadable(Reward):
    """A reward whose weights are missing."""

    name = "unloadable"

    def load(self, device):
        raise PluginError("no weights")


def test_a_reward_that_does_not_load_ends_the_server_with_its_error():
    from vgrpo_core.offers import Offer

    service = server.Service(Offer("reward", "unloadable", Unloadable, "tests", "1.0"), Unloadable(), torch.device("cpu"))
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(PluginError, match="no weights"):
        server.run(service, server.make(service), listening)


def test_r024_a_reward_gets_float_images_on_its_device_without_gradients(serve):
    seen = []

    class Looking(Reward):
        name = "looking"

        def load(self, device):
            def score(samples):
                seen.append((samples.images.dtype, samples.images.device.type, torch.is_grad_enabled()))
                return torch.zeros(len(samples))

            return score

    ask(f"{serve(Looking())}/score", body((1, 1, 1)))
    assert seen == [(torch.float32, "cpu", False)]
