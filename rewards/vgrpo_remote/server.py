"""The server's side of the wire: one reward behind `GET /health`, `GET /describe` and `POST /score`.

Images are scored one request after the other, in one thread of their own: the event loop stays free to say how the server is.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import uvicorn
from pydantic_core import to_jsonable_python
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vgrpo_core import Reward, RunError, VgrpoError
from vgrpo_core.offers import Offer
from vgrpo_core.scoring import Judge

from .wire import PROTOCOL, Description, Limits, Malformed, Request, TooLarge, answer, parse, unpack

if TYPE_CHECKING:
    import torch

    from vgrpo_core import Samples, Scores

GONE = 499  # as nginx logs a client that did not wait for its answer
GRACE = 2  # seconds that a request under way has to end when the server is stopped

STATUS = {ClientDisconnect: GONE, Malformed: 400, TooLarge: 413, RunError: 500, VgrpoError: 422}
"""Of an error that is of several kinds, the first counts; of no kind, it is 500."""

log = logging.getLogger("vgrpo.serve")


@dataclass
class Service:
    """One reward, loaded in the thread that scores."""

    offer: Offer
    plugin: Reward
    device: torch.device
    token: str | None = None
    limits: Limits = field(default_factory=Limits)
    judge: Judge | None = None
    """There once the reward is loaded."""
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "score"))

    @property
    def source(self) -> str:
        """Name the reward and where it is from."""
        return f'reward "{self.offer.name}" ({self.offer.source})'

    def load(self) -> None:
        """Load the reward."""
        self.judge = Judge(self.offer.name, self.source, self.plugin.load(self.device))

    def examine(self, samples: Samples) -> Scores:
        """Score samples where the reward is."""
        assert self.judge
        return self.judge.examine(replace(samples, images=samples.images.to(self.device)))

    def describe(self) -> Description:
        """Say what is served, and how it is set."""
        fields = type(self.plugin).model_fields.items()
        defaults = {name: each.get_default(call_default_factory=True) for name, each in fields if not each.is_required()}
        return Description(
            protocol=PROTOCOL,
            reward=self.offer.name,
            class_name=type(self.plugin).__name__,
            distribution=self.offer.distribution,
            version=self.offer.version,
            options=self.plugin.model_dump(mode="json"),
            defaults=to_jsonable_python(defaults),
            range=self.plugin.range,
            text_limit=self.plugin.text_limit,
            limits=self.limits,
        )


def app(service: Service) -> Starlette:
    """Make the ASGI application of a service, which is ready once the service is loaded."""
    room = asyncio.Semaphore(2)  # the images of one request are unpacked while those of another are scored, and no more
    turn = asyncio.Lock()

    async def health(request: HTTPRequest) -> Response:
        return JSONResponse({"state": "ready"}) if service.judge else JSONResponse({"state": "loading"}, 503)

    async def describe(request: HTTPRequest) -> Response:
        _admit(request, service.token)
        return Response(service.describe().model_dump_json(), media_type="application/json")

    async def score(request: HTTPRequest) -> Response:
        _admit(request, service.token)
        if not service.judge:
            raise HTTPException(503, "the reward is still loading")
        body = await _body(request, service.limits.size)
        async with room:
            name, samples = await run_in_threadpool(_read, body, service.limits)
            async with turn:
                if await request.is_disconnected():  # it has timed out meanwhile, and may have asked again
                    return Response(status_code=GONE)
                scores = await asyncio.get_running_loop().run_in_executor(service.thread, service.examine, samples)
        return Response(answer(name, scores), media_type="application/json")

    routes = [Route("/health", health), Route("/describe", describe), Route("/score", score, methods=["POST"])]
    return Starlette(routes=routes, exception_handlers=dict.fromkeys([*STATUS, HTTPException, Exception], _error))


def _admit(request: HTTPRequest, token: str | None) -> None:
    """Refuse a request without the token, in a time that says nothing about it."""
    given = request.headers.get("authorization", "").encode("latin-1")
    if token and not hmac.compare_digest(given, f"Bearer {token}".encode()):
        raise HTTPException(401, "this server wants its token, as `Authorization: Bearer TOKEN`", {"WWW-Authenticate": "Bearer"})


async def _body(request: HTTPRequest, most: int) -> bytes:
    """Read a request of at most `most` bytes, whatever it says of its length."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise TooLarge(f"a request may have {most} bytes")
    return bytes(body)


def _read(body: bytes, limits: Limits) -> tuple[str, Samples]:
    request = parse(Request, body)
    return request.id, unpack(request, limits)


async def _error(request: HTTPRequest, error: Exception) -> Response:
    """Answer with an error as JSON; one of the reward is logged with its traceback."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)
    if isinstance(error, RunError):
        log.error("%s", error, exc_info=error.__cause__)
    message = str(error) if status < 500 or isinstance(error, RunError) else f"{type(error).__name__}: {error}"
    return JSONResponse({"error": message}, status)


class _Deaf(uvicorn.Server):
    """A server that leaves signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make(service: Service, *, signals: bool = True) -> uvicorn.Server:
    """Make the server of a service; with `signals`, SIGINT and SIGTERM stop it."""
    config = uvicorn.Config(
        app(service),
        lifespan="off",
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    return uvicorn.Server(config) if signals else _Deaf(config)


def run(service: Service, server: uvicorn.Server, listening: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until the server is stopped, and load meanwhile; a reward that fails to load stops it, and its error is raised."""

    def loaded(loading: Future[None]) -> None:
        if loading.exception():
            server.should_exit = True
        else:
            ready()

    loading = service.thread.submit(service.load)
    loading.add_done_callback(loaded)
    server.run([listening])
    if loading.done():
        loading.result()
