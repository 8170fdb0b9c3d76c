"""`vgrpo serve`: a reward behind HTTP."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vgrpo_core import PluginError, Reward
from vgrpo_core.offers import Offer
from vgrpo_recipe.choice import choose
from vgrpo_recipe.registry import Registry
from vgrpo_recipe.tables import Source

from . import typed

if TYPE_CHECKING:
    from vgrpo_remote.server import Service

Ready = Callable[[], None]
NEEDED = ("starlette", "uvicorn", "httpx")


@dataclass(frozen=True)
class Asked:
    """What was typed."""

    reward: str
    options: list[str]
    host: str
    port: int
    token_env: str | None
    device: str
    images: int
    attached: bool = False
    """Whether a run has started this: it sends the options, is told the port, and takes this with it when it ends."""


def serve(asked: Asked) -> None:
    """Serve until stopped."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise PluginError(f"vgrpo serve needs {', '.join(missing)}, not installed", fix='Run: pip install "vgrpo[serve]"')
    from vgrpo_remote import process

    from .training import settle

    sent, parent = process.attach() if asked.attached else ({}, None)
    settle()
    from vgrpo_remote import server
    from vgrpo_remote.wire import Limits

    registry = Registry.discover()
    offer = choose(registry, "reward", asked.reward, Path.cwd())
    plugin = _sent(offer, sent, registry) if parent else typed.reward(offer, asked.options, registry)
    token, device = guard(asked.host, asked.token_env), typed.device(asked.device)
    service = server.Service(offer, plugin, device, token, Limits(images=asked.images))
    with listen(asked.host, asked.port) as listening:
        address = listening.getsockname()
        typer.echo(f'reward "{offer.name}" ({offer.source}) at {url(address)}: loading', err=asked.attached)
        ready = partial(print, address[1], file=parent, flush=True) if parent else partial(typer.echo, "ready; stop it with Ctrl-C")
        _run(service, asked, listening, ready)


def _sent(offer: Offer, options: dict[str, Any], registry: Registry) -> Reward:
    plugin = typed.checked(offer, options, Source(Path("the run's options"), "", {}), registry)
    assert isinstance(plugin, Reward)
    return plugin


def _run(service: Service, asked: Asked, listening: socket.socket, ready: Ready) -> None:
    from vgrpo_remote import server

    try:
        server.run(service, server.make(service, signals=not asked.attached), listening, ready)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)  # an ordinary exit would wait until what is loading, or being scored, is through


def guard(host: str, token_env: str | None) -> str | None:
    """Return the token that requests have to bring; one is needed wherever others than this machine may ask."""
    from vgrpo_remote.remote import is_loopback, read_token

    if token_env is not None:
        return read_token(token_env)
    if not is_loopback(host):
        why = f"{host} can be reached from other machines"
        raise PluginError("vgrpo serve needs a token", why, "Put one into an environment variable and name it: --token-env NAME")
    return None


def listen(host: str, port: int) -> socket.socket:
    """Take a port; 0 takes any that is free."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise PluginError(
            f"{host}:{port} can't be served from: {error.strerror or error}", fix="Choose another --host or --port."
        ) from error


def url(address: tuple[Any, ...]) -> str:
    """Write an address of a socket as people type it."""
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
