"""A stand-in for a server with OpenAI's chat API, on 127.0.0.1."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from PIL import Image


@dataclass
class Reply:
    """What the server sends; a text stands for itself."""

    body: Any = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """What the server was asked."""

    question: str
    image: np.ndarray
    body: dict[str, Any]
    headers: dict[str, str]


@dataclass
class Served:
    """A running server."""

    url: str
    asked: list[Asked] = field(default_factory=list)
    at_once: int = 0
    """The most requests that were answered at the same time."""


def text(answer: str | None) -> Reply:
    """Answer with a text."""
    return Reply({"choices": [{"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}]})


def tokens(logarithms: dict[str, float]) -> Reply:
    """Answer with the most probable first tokens."""
    top = [{"token": token, "logprob": value, "bytes": list(token.encode())} for token, value in logarithms.items()]
    content = [top[0] | {"top_logprobs": top}]
    choice = {"index": 0, "message": {"role": "assistant", "content": top[0]["token"]}, "logprobs": {"content": content}}
    return Reply({"choices": [choice]})


@contextmanager
def serve(reply: Callable[[Asked], Reply], models: Any = ("judge",)) -> Iterator[Served]:
    """Run a server that lists `models`, or sends them if they are a Reply, and answers a question with `reply(asked)`."""
    listed = models if isinstance(models, Reply) else Reply({"object": "list", "data": [{"id": name} for name in models]})
    lock, busy = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send(listed if self.path == "/v1/models" else Reply("no such page", 404))

        def do_POST(self):
            asked = question(json.loads(self.rfile.read(int(self.headers["Content-Length"]))), dict(self.headers))
            with lock:
                served.asked.append(asked)
                busy[0] += 1
                served.at_once = max(served.at_once, busy[0])
            try:
                answer = reply(asked) if self.path == "/v1/chat/completions" else Reply("no such page", 404)
            finally:
                with lock:
                    busy[0] -= 1
            self.send(answer)

        def send(self, reply):
            data = reply.body.encode() if isinstance(reply.body, str) else json.dumps(reply.body).encode()
            try:
                self.send_response(reply.status)
                for name, value in {"Content-Length": str(len(data)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
            except BrokenPipeError:  # the client gave up, as a test of time-outs wants
                self.close_connection = True

        def log_message(self, *arguments):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served = Served(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


def question(body: dict[str, Any], headers: dict[str, str]) -> Asked:
    """Take a request apart; one of another form than OpenAI's is an error."""
    (message,) = body["messages"]
    picture, words = message["content"]
    assert (message["role"], picture["type"], words["type"]) == ("user", "image_url", "text")
    kind, _, data = picture["image_url"]["url"].partition(",")
    assert kind == "data:image/png;base64"
    return Asked(words["text"], np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), body, headers)
