"""A vision-language model behind the chat API of OpenAI, as vLLM, SGLang and many others serve it."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from time import sleep
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from vgrpo_core import PluginError, RunError
from vgrpo_core.errors import nearest

from .answers import Failure

if TYPE_CHECKING:
    import numpy as np

    Tokens = list[tuple[str, float]]

T = TypeVar("T")
FIRST_WAIT = 0.5  # seconds before the second try; twice as long before each further one
LONGEST_WAIT = 60.0  # whatever a server's Retry-After says
TOP = 20  # most tokens whose log-probabilities OpenAI and vLLM return
LISTED = 10  # names of models in a message


@dataclass(frozen=True)
class Chat:
    """A client that asks one question an image, several at a time. An answer that keeps failing is a Failure.

    If every answer of a call fails, it is a RunError: a judge that is down must not pass for one that has no opinion.
    """

    reward: str
    """How messages name whoever asks."""
    endpoint: str
    """URL; without a path, /v1 is meant."""
    model: str
    key: str | None = field(default=None, repr=False)
    parallel: int = 8
    timeout: float = 60.0
    """In seconds."""
    retries: int = 3
    max_tokens: int = 512

    @cached_property
    def client(self) -> httpx.Client:
        """Connections that are kept from call to call."""
        url = httpx.URL(self.endpoint)
        return httpx.Client(
            base_url=url.copy_with(path="/v1") if url.path in ("", "/") else url,
            headers={"Authorization": f"Bearer {self.key}"} if self.key else None,
            timeout=self.timeout,
            limits=httpx.Limits(max_connections=self.parallel),
        )

    def check(self) -> None:
        """Ask the server which models it has; a PluginError if it can't be reached or `model` is not among them."""
        try:
            listed = self.client.get("models").raise_for_status().json()
            known = [str(one["id"]) for one in listed["data"]]
        except httpx.HTTPError as error:
            what = f'reward "{self.reward}": {self.client.base_url}models can\'t be read'
            raise PluginError(what, reason(error), "start the server, or correct `endpoint` or `key_env`") from None
        except (ValueError, LookupError, TypeError):
            raise PluginError(f'reward "{self.reward}": {self.client.base_url} is no OpenAI-compatible server') from None
        if self.model not in known:
            what = f'reward "{self.reward}": {self.endpoint} has no model "{self.model}"{nearest(self.model, known)}'
            raise PluginError(what, fix=f"it has: {', '.join(known[:LISTED])}{', ...' if len(known) > LISTED else ''}")

    def answers(self, questions: Sequence[str], images: np.ndarray) -> list[str | Failure]:
        """Ask `questions[i]` about `images[i]`, uint8 RGB [B, H, W, 3], and return what is answered, greedily decoded."""
        return self._all(questions, images, {"max_tokens": self.max_tokens}, _text)

    def first_tokens(self, questions: Sequence[str], images: np.ndarray) -> list[Tokens | Failure]:
        """Return the most probable first tokens of each answer, with the logarithms of their probabilities."""
        return self._all(questions, images, {"max_tokens": 1, "logprobs": True, "top_logprobs": TOP}, _first_tokens)

    def _all(
        self, questions: Sequence[str], images: np.ndarray, options: dict[str, Any], read: Callable[[Any], T]
    ) -> list[T | Failure]:
        def one(pair: tuple[str, np.ndarray]) -> T | Failure:
            return self._one(*pair, options, read)

        with ThreadPoolExecutor(self.parallel) as pool:
            found = list(pool.map(one, zip(questions, images, strict=True)))
        failures = [answer for answer in found if isinstance(answer, Failure)]
        if failures and len(failures) == len(found):
            what = f"{self.endpoint} answered none of {len(found)} questions, the first because of {failures[0].reason}"
            raise RunError(f'reward "{self.reward}": {what}')
        return found

    def _one(self, question: str, image: np.ndarray, options: dict[str, Any], read: Callable[[Any], T]) -> T | Failure:
        content = [{"type": "image_url", "image_url": {"url": data_uri(image)}}, {"type": "text", "text": question}]
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], "temperature": 0, **options}
        try:
            response = self._post(body)
        except httpx.HTTPError as error:
            return Failure(reason(error))
        try:
            return read(response.json()["choices"][0])
        except (ValueError, LookupError, TypeError) as error:
            return Failure(f"an answer of another form ({type(error).__name__}: {error})")

    def _post(self, body: dict[str, Any]) -> httpx.Response:
        """Send until it succeeds, fails for good, or has been tried often enough."""
        for attempt in range(self.retries):
            try:
                return self._send(body)
            except httpx.HTTPError as error:
                wait = patience(error, attempt)
                if wait is None:
                    raise
            sleep(wait)
        return self._send(body)

    def _send(self, body: dict[str, Any]) -> httpx.Response:
        return self.client.post("chat/completions", json=body).raise_for_status()


def patience(error: httpx.HTTPError, attempt: int) -> float | None:
    """Return the seconds to wait before another try; None where it would fail again."""
    backoff = min(FIRST_WAIT * 2**attempt, LONGEST_WAIT)
    if isinstance(error, httpx.HTTPStatusError):
        passing = error.response.status_code == httpx.codes.TOO_MANY_REQUESTS or error.response.is_server_error
        return max(backoff, retry_after(error.response)) if passing else None
    return backoff if isinstance(error, httpx.TransportError) else None


def retry_after(response: httpx.Response) -> float:
    """Return the seconds that a server asks to wait, as a number or a date, up to a minute; 0 where it does not say."""
    asked = response.headers.get("Retry-After", "")
    try:
        seconds = float(asked) if asked[:1].isdigit() else (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
    return min(max(seconds, 0.0), LONGEST_WAIT) if math.isfinite(seconds) else 0.0


def reason(error: httpx.HTTPError) -> str:
    """Say what went wrong: the status and what the server says of it, or the kind of error."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}: {error.response.text.strip()[:200]}"
    return f"{type(error).__name__}: {error}"


def data_uri(image: np.ndarray) -> str:
    """Encode an image, uint8 RGB [H, W, 3], as a PNG in a data URI."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _text(choice: Any) -> str:
    content = choice["message"]["content"]
    if not isinstance(content, str):
        raise TypeError(f"content is {content!r}")
    return content


def _first_tokens(choice: Any) -> Tokens:
    return [(str(one["token"]), float(one["logprob"])) for one in choice["logprobs"]["content"][0]["top_logprobs"]]
