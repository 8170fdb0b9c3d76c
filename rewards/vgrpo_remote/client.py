"""The client's side of the wire: preflight, batches, time-outs, retries, and the word when a server stays down."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from threading import Lock
from typing import TYPE_CHECKING
from uuid import uuid4

import httpx

from vgrpo_core import PluginError, RunError, Samples, Scores

from . import process
from .remote import Remote, is_loopback
from .wire import Answer, Description, Limits, Malformed, join, pack, parse

if TYPE_CHECKING:
    import torch

CONNECT = 10.0  # seconds: a machine that is there accepts within one
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
POLL = 0.2
FIXES = {
    401: "Let `token_env` name the environment variable that holds the server's token.",
    404: "Is this the address that `vgrpo serve` printed?",
    413: "Lower `batch`.",
}


def connect(remote: Remote, device: torch.device) -> Client:
    """Reach the server, or start one; see that it runs what was asked for; wait until it is ready."""
    token = remote.token()
    if remote.python is None:
        client = Client(remote, str(remote.url), token)
    else:
        child = process.start(remote.python, remote.reward, remote.options, str(device), remote.startup)
        client = Client(remote, child.url, child.token, child.check)
    description = client.describe()
    remote.check(description, client.source)
    client.limits = description.limits
    client.wait()
    return client


class Passing(Exception):
    """A failure that may have passed at the next try."""


class Outage:
    """Keep since when a server has failed and how often it was tried; once given up, every call has one try until one succeeds."""

    def __init__(self, source: str, retries: int) -> None:
        self.source, self.retries = source, retries
        self.since: datetime | None = None
        self.tries = 0
        self.given_up = False
        self.lock = Lock()

    def over(self) -> None:
        """Note a success."""
        with self.lock:
            self.since, self.tries, self.given_up = None, 0, False

    def failed(self, error: Exception, attempt: int) -> float:
        """Note a failure, the `attempt`-th of its request from 0, and return the seconds to wait; a RunError after the last."""
        with self.lock:
            self.since = self.since or datetime.now().astimezone()
            self.tries += 1
            if attempt < self.retries and not self.given_up:
                if self.tries == 1:
                    warnings.warn(f"{self.source} failed, and is tried again: {_words(error)}", stacklevel=2)
                return pause(attempt)
            self.given_up = True
            times = f"{self.tries} {'try' if self.tries == 1 else 'tries'}"
            since = self.since.isoformat(" ", "seconds")
            raise RunError(f"{self.source} is down since {since}: {times} failed, the last with {_words(error)}") from error


def pause(attempt: int) -> float:
    """Return the seconds to wait after a failed attempt, counted from 0: doubled each time, and spread so that clients part."""
    return random.uniform(0.5, 1) * min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**attempt)


class Client:
    """One server, as one run sees it."""

    def __init__(self, remote: Remote, url: str, token: str | None, check: Callable[[], None] = lambda: None) -> None:
        """Connect to nothing yet; `check` raises when it is known that the server will not come back."""
        self.remote, self.check = remote, check
        self.source = f'reward "{remote.reward}" at {url}'
        self.limits = Limits()
        self.outage = Outage(self.source, remote.retries)
        self.http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(remote.timeout, connect=min(CONNECT, remote.timeout)),
            trust_env=not is_loopback(httpx.URL(url).host),  # a proxy has no way to this machine's own addresses
        )

    def describe(self) -> Description:
        """Ask what is served, once: at the start, a server that is not there is a mistake."""
        try:
            return parse(Description, self._content(self._get("describe")))
        except Malformed as error:
            raise PluginError(f"{self.source} is no `vgrpo serve`", str(error), FIXES[404]) from error
        except Passing as error:
            raise PluginError(f"{self.source} failed to say what it runs", str(error)) from error

    def wait(self) -> None:
        """Wait until the reward is loaded, for as long as `startup` says."""
        end = time.monotonic() + self.remote.startup
        while not self._get("health").is_success:
            if time.monotonic() > end:
                what = f"{self.source} is still loading after {self.remote.startup:g} s"
                raise PluginError(what, fix="Raise `startup`, or look at what the server printed.")
            time.sleep(POLL)

    def _get(self, path: str) -> httpx.Response:
        try:
            return self.http.get(path)
        except httpx.TransportError as error:
            fix = f"Start it with: vgrpo serve {self.remote.reward}"
            raise PluginError(f"{self.source} can't be reached", _words(error), fix) from error

    def score(self, samples: Samples) -> Scores:
        """Score samples in requests of the right size, several at a time: float64 [B] in the order of the samples."""
        parts = samples.split(min(self.remote.batch, self.limits.images))
        with ThreadPoolExecutor(self.remote.parallel) as pool:
            return join([answer for answers in pool.map(self._score, parts) for answer in answers])

    def _score(self, part: Samples) -> list[Answer]:
        """Score in one request, or in halves where it would be larger than the server takes."""
        name = uuid4().hex
        body = pack(name, part)
        if max(len(body), part.images.numel()) <= self.limits.size:
            return [self._ask(name, body, len(part))]
        if len(part) > 1:
            return [answer for half in part.split((len(part) + 1) // 2) for answer in self._score(half)]
        height, width = part.images.shape[2:]
        what = f"{self.source} takes requests of {self.limits.size} bytes; an image of {width} x {height} pixels is larger"
        raise PluginError(what)

    def _ask(self, name: str, body: bytes, count: int) -> Answer:
        attempt = 0
        while True:
            try:
                answer = self._attempt(name, body)
            except (httpx.TransportError, Passing) as error:
                self.check()
                time.sleep(self.outage.failed(error, attempt))
                attempt += 1
            else:
                self.outage.over()
                return self._counted(answer, count)

    def _attempt(self, name: str, body: bytes) -> Answer:
        response = self.http.post("score", content=body, headers={"Content-Type": "application/json"})
        try:
            answer = parse(Answer, self._content(response))
        except Malformed as error:
            raise RunError(f"{self.source} gave an answer that can't be read: {error}") from error
        if answer.id != name:
            raise Passing("the answer to another request")
        return answer

    def _counted(self, answer: Answer, count: int) -> Answer:
        if len(answer.values) != count or len(answer.evidence) not in (0, count):
            found = f"{len(answer.values)} values and {len(answer.evidence)} pieces of evidence"
            raise RunError(f"{self.source} returned {found} on {count} images")
        return answer

    def _content(self, response: httpx.Response) -> bytes:
        """Return the body of an answer; what may pass is a Passing, what will not is a PluginError."""
        if response.is_success:
            return response.content
        said = f"{response.status_code}, {_message(response)}"
        if response.is_server_error:
            raise Passing(said)
        raise PluginError(f"{self.source} refused a request: {said}", fix=FIXES.get(response.status_code, ""))


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200] or response.reason_phrase


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, Passing) else f"{type(error).__name__}: {error}".rstrip(": ")
