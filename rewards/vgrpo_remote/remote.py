"""The reward `remote`: a reward that runs in another process, on this machine or another."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name
from pydantic import Field, model_validator

from vgrpo_core import PluginError, Reward
from vgrpo_core.errors import nearest

from .wire import PROTOCOL, Description

if TYPE_CHECKING:
    import torch

    from vgrpo_core.plugin import Score


class Remote(Reward):
    """Scores of a reward in another process: behind `vgrpo serve` at `url`, or in the environment of `python`, where it is started.

    What is served has to be the reward that is named, with the options that are given. Images are rounded to 8 bits on their way.
    """

    name = "remote"
    requires: ClassVar[tuple[str, ...]] = ("httpx",)
    extra: ClassVar[str] = "vgrpo[serve]"
    reward: str = Field(description='the reward that is served: "name", "distribution/name" or "./file.py:Class"')
    options: dict[str, Any] = Field(
        default_factory=dict, description="its options; one that is not given has to have its default there"
    )
    url: str | None = Field(default=None, description="where `vgrpo serve` listens, such as `http://127.0.0.1:8800`")
    python: str | None = Field(
        default=None, description="instead of `url`: the interpreter of an environment in which to start the reward"
    )
    token_env: str | None = Field(default=None, description="environment variable that holds the token of the server at `url`")
    timeout: float = Field(default=60, gt=0, allow_inf_nan=False, description="seconds to wait for the answer to a request")
    startup: float = Field(default=600, gt=0, allow_inf_nan=False, description="seconds to wait for a server that is loading")
    retries: int = Field(
        default=8, ge=0, description="how often to try again, with longer and longer pauses: 8 take about a minute"
    )
    batch: int = Field(default=16, ge=1, description="images per request; fewer where the server takes no more")
    parallel: int = Field(default=2, ge=1, description="requests under way at a time")

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if (self.url is None) == (self.python is None):
            raise ValueError('give either "url" or "python"')
        if self.url is not None and not _is_address(self.url):
            raise ValueError('write "url" as http://host:port; a token goes into the variable that "token_env" names')
        if self.python is not None and self.token_env is not None:
            raise ValueError('"token_env" belongs to "url"; a server that is started here makes its own token')
        return self

    def load(self, device: torch.device) -> Score:
        """Reach the server, or start one for `device`, and return the scoring function: float64 [B], and evidence.

        A server that can't be reached, or runs something else, is a PluginError; one that stays down later is a RunError.
        """
        from .client import connect

        return connect(self, device).score

    def token(self) -> str | None:
        """Return the token that `token_env` names."""
        return None if self.token_env is None else read_token(self.token_env)

    def check(self, found: Description, source: str) -> None:
        """Compare what a server says it runs with what this asks for; differences are a PluginError that names them."""
        if found.protocol != PROTOCOL:
            what = f"{source} speaks version {found.protocol} of the protocol, and this vgrpo version {PROTOCOL}"
            raise PluginError(what, fix="Install the same vgrpo on both sides.")
        if not self._names(found):
            what = f'{source} serves "{found.reward}" ({found.distribution} {found.version})'
            raise PluginError(what, fix=f"Start it with: vgrpo serve {self.reward}")
        if wrong := _differences(found.defaults | self.options, found):
            raise PluginError(f"{source} runs with other options", "\n  ".join(wrong), "Make recipe and server agree.")

    def _names(self, found: Description) -> bool:
        file, _, class_name = self.reward.rpartition(":")
        if file.endswith(".py"):
            return class_name == found.class_name
        distribution, _, name = self.reward.rpartition("/")
        return name == found.reward and canonicalize_name(distribution) in ("", canonicalize_name(found.distribution))


def _is_address(url: str) -> bool:
    """Tell whether a URL is a place that paths can be added to, without a password."""
    try:
        parts = urlsplit(url)
        whole = parts.hostname and parts.port != 0 and parts.scheme in ("http", "https")
    except ValueError:  # a port that is no number, or too large
        return False
    return bool(whole) and not parts.query and not parts.fragment and not re.search(r"[\s@]", url)


def is_loopback(host: str) -> bool:
    """Tell whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(variable: str) -> str:
    """Return the token in an environment variable; none, or one that no header could hold, is a PluginError."""
    token = os.environ.get(variable, "")
    if not re.fullmatch(r"[!-~]+", token):
        what = f'the environment variable "{variable}" {"holds no token" if not token else "holds blanks or other than ASCII"}'
        raise PluginError(what, fix="python -c 'import secrets; print(secrets.token_urlsafe())' makes one.")
    return token


def _differences(wanted: dict[str, Any], found: Description) -> list[str]:
    lines = [f'unknown option "{key}"{nearest(key, found.options)}' for key in wanted if key not in found.options]
    for key, value in found.options.items():
        if key not in wanted:
            lines.append(f"{key}: {value!r} there, not given here")
        elif wanted[key] != value:
            lines.append(f"{key}: {value!r} there, {wanted[key]!r} asked for")
    return lines
