"""Served rewards, servers of faults, and pictures whose content is known."""

import socket
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import pytest
import torch

from vgrpo_core import Prompt, Samples
from vgrpo_core.offers import Offer
from vgrpo_remote import Remote, client, server

from .commands import command, started
from .faulty import Faulty

FILE = Path(__file__).parent / "painted.py"


@pytest.fixture(scope="session")
def file():
    """The file of rewards."""
    return FILE


@pytest.fixture(scope="session")
def painted():
    """Return `painted(numbers, size=4)`: Samples of one colour each, which writes the number."""

    def painted(numbers, size=4):
        numbers = torch.as_tensor(numbers)
        colours = torch.stack([numbers % 256, numbers // 256 % 256, numbers // 65536], 1).float() / 255
        images = colours[:, :, None, None].expand(-1, -1, size, size).contiguous()
        return Samples(tuple(Prompt(f"number {number}", {"number": number}) for number in numbers.tolist()), images)

    return painted


@contextmanager
def serving(plugin, **options):
    """Serve a plugin in a thread and yield its address."""
    offer = Offer("reward", type(plugin).name, type(plugin), "tests", "1.0")
    service = server.Service(offer, plugin, torch.device("cpu"), **options)
    made = server.make(service)
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    thread = threading.Thread(target=server.run, args=(service, made, listening))
    thread.start()
    try:
        yield url
    finally:
        made.should_exit = True
        thread.join()


@pytest.fixture
def serve():
    """Return `serve(plugin, ...)`: the address of a server that ends with the test."""

    def serve(plugin, loaded=True, **options):
        url = servers.enter_context(serving(plugin, **options))
        while loaded and not httpx.get(f"{url}/health", trust_env=False).is_success:
            time.sleep(0.01)
        return url

    with ExitStack() as servers:
        yield serve


@pytest.fixture
def faulty():
    """A server whose faults the test writes down."""
    with closing(Faulty()) as server:
        yield server


@pytest.fixture
def pauses(monkeypatch):
    """Take no pauses, and list those that were to be taken."""
    taken = []
    monkeypatch.setattr(client.time, "sleep", taken.append)
    return taken


@pytest.fixture
def remote(painted):
    """Return `remote(url, ...)`: the scoring function of the reward `number` there."""

    def remote(url, **options):
        return Remote(**{"reward": "number", "url": url, "batch": 64, "parallel": 1, "timeout": 10} | options).load(
            torch.device("cpu")
        )

    return remote


@pytest.fixture
def spawn():
    """Return `spawn(*words)`: `vgrpo serve` as a process of its own, which ends with the test, and its address."""
    with ExitStack() as processes:
        yield lambda *words: processes.enter_context(started(command(*words)))
