"""The reward `vlm_judge`: what a vision-language model answers to a question about the image."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from vgrpo_core import PluginError, Prompt

from .answers import Failure, Parse, json_number, number, share, within, yes_and_no
from .checkpoint import assets
from .networks import Network, in_batches

if TYPE_CHECKING:
    from typing import Self

    import torch

    from vgrpo_core import Asset, Samples, Scores
    from vgrpo_core.plugin import Score

    from .chat import Chat
    from .vision_language import LocalModel

Ask = Callable[[Sequence[str], Any], Sequence[Any]]
Found = tuple[float, Mapping[str, Any]]


class VisionLanguageReward(Network):
    """A reward that asks a vision-language model about each image: one behind an `endpoint`, or one that it loads itself."""

    requires: ClassVar[tuple[str, ...]] = ("httpx",)
    extra: ClassVar[str] = "vgrpo[judge]"
    model: str = Field(min_length=1, description="its name at the `endpoint`; without one, a folder or hub id")
    endpoint: str | None = Field(default=None, description="OpenAI-compatible server, such as `http://localhost:8000/v1`")
    key_env: str | None = Field(default=None, description="endpoint: the environment variable that holds its API key")
    parallel: int = Field(default=8, ge=1, description="endpoint: images asked about at a time")
    timeout: float = Field(default=60.0, gt=0, description="endpoint: seconds to wait for an answer")
    retries: int = Field(default=3, ge=0, description="endpoint: further tries where a failure may pass")
    max_tokens: int = Field(default=512, ge=1, description="longest answer, in tokens")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(default="bfloat16", description="without an endpoint: precision")
    batch: int = Field(default=8, ge=1, description="without an endpoint: images judged at a time")

    @field_validator("endpoint")
    @classmethod
    def _is_url(cls, endpoint: str | None) -> str | None:
        if endpoint is not None:
            parts = urlsplit(endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
                raise ValueError("write it with its scheme, such as http://localhost:8000/v1")
        return endpoint

    @model_validator(mode="after")
    def _has_a_server(self) -> Self:
        if self.key_env and not self.endpoint:
            raise ValueError("`key_env` is for an `endpoint`, and there is none")
        return self

    def assets(self) -> Sequence[Asset]:
        """List the model, if it is neither on this machine nor behind an endpoint."""
        return [] if self.endpoint else assets(self.model)

    def ready(self, device: torch.device, *, yes: bool = False) -> Chat | LocalModel:
        """Reach the server or load the model, to weigh `yes` against no or for other answers; a PluginError if it is of no use."""
        if self.endpoint:
            chat = self._chat(self.endpoint)
            chat.check()
            return chat
        from .vision_language import load_local

        return load_local(self.name, self.model, *self.place(device), self.max_tokens, yes=yes)

    def judged(self, score: Score) -> Score:
        """Let a scoring function see `batch` samples at a time; a server sees all."""
        return score if self.endpoint else in_batches(score, self.batch)

    def _chat(self, endpoint: str) -> Chat:
        from .chat import Chat

        secret = os.environ.get(self.key_env) if self.key_env else None
        if self.key_env and not secret:
            what = f'reward "{self.name}": the environment variable {self.key_env} is not set'
            raise PluginError(what, fix=f"export {self.key_env}=..., or leave out `key_env`")
        return Chat(self.name, endpoint, self.model, secret, self.parallel, self.timeout, self.retries, self.max_tokens)


class VLMJudge(VisionLanguageReward):
    """The number, the JSON value or the probability of yes that a vision-language model answers to your question.

    The model is any of transformers' image-text-to-text kind, or any behind OpenAI's chat API. With `answer = "yes"` the score is
    P(yes) / (P(yes) + P(no)) for the first token. An answer that can't be read, is out of range or never came is missing (NaN), as
    is a prompt without a field that the question names. Evidence: the answer, or the probabilities of yes and no.
    """

    name = "vlm_judge"
    range: ClassVar[str] = "as you ask; 0 to 1 for yes"
    question: str = Field(min_length=1, description="`{prompt}` and the fields of its metadata are filled in; `{{` is a brace")
    answer: Literal["number", "json", "yes"] = Field(description="how to read it: a number, a key of JSON, how likely yes is")
    pattern: str | None = Field(default=None, description="number: regular expression with one group; its last match counts")
    key: str | None = Field(default=None, min_length=1, description="json: where the number is, such as `score` or `scores.style`")
    low: float | None = Field(default=None, description="a lower number is missing")
    high: float | None = Field(default=None, description="a higher number is missing")
    min_mass: float = Field(default=0.1, ge=0, le=1, description="yes: missing where yes and no together are less probable")

    @field_validator("question")
    @classmethod
    def _is_template(cls, question: str) -> str:
        for _, name, form, conversion in Formatter().parse(question):
            if name is not None and (not name.isidentifier() or form or conversion):
                raise ValueError(f"{{{name}}} is not the name of a field; write {{{{ and }}}} for braces")
        return question

    @field_validator("pattern")
    @classmethod
    def _has_one_group(cls, pattern: str | None) -> str | None:
        try:
            groups = 1 if pattern is None else re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from None
        if groups != 1:
            raise ValueError(f"needs one group, around the number, and has {groups}")
        return pattern

    @model_validator(mode="after")
    def _fits(self) -> Self:
        bounds = self.low is not None or self.high is not None
        mistakes = {
            'answer = "json" needs `key`': self.answer == "json" and not self.key,
            '`key` is for answer = "json"': self.answer != "json" and self.key,
            '`pattern` is for answer = "number"': self.answer != "number" and self.pattern,
            '`low` and `high` are not for answer = "yes"': self.answer == "yes" and bounds,
            "`low` is above `high`": self.low is not None and self.high is not None and self.low > self.high,
        }
        if found := [what for what, wrong in mistakes.items() if wrong]:
            raise ValueError("; ".join(found))
        return self

    def load(self, device: torch.device) -> Score:
        """Reach the server or load the model, and return the scoring function: float32 [B] with the answers as evidence."""
        model = self.ready(device, yes=self.answer == "yes")
        if self.answer == "yes":
            return self.judged(lambda samples: asked(samples, self.ask_for, model.first_tokens, self._weigh))
        parse = within(json_number(self.key) if self.key else number(self.pattern), self.low, self.high)
        return self.judged(lambda samples: asked(samples, self.ask_for, model.answers, lambda answer: parsed(answer, parse)))

    def ask_for(self, prompt: Prompt) -> str | None:
        """Return the question about an image of a prompt; None where the prompt lacks a field."""
        fields = {**prompt.metadata, "prompt": prompt.text}
        names = {name for _, name, _, _ in Formatter().parse(self.question) if name}
        return self.question.format_map(fields) if all(fields.get(name) is not None for name in names) else None

    def _weigh(self, tokens: Iterable[tuple[str, float]]) -> Found:
        yes, no = yes_and_no(tokens)
        return share(yes, no, self.min_mass), {"yes": yes, "no": no}


def parsed(answer: str, parse: Parse) -> Found:
    """Return what `parse` reads, and the answer as evidence."""
    return parse(answer), {"answer": answer}


def asked(samples: Samples, question: Callable[[Prompt], str | None], ask: Ask, read: Callable[[Any], Found]) -> Scores:
    """Ask about each image for whose prompt there is a question: float32 [B], NaN for the others and where no answer came."""
    from vgrpo_core import Scores

    questions = [question(prompt) for prompt in samples.prompts]
    rows = [row for row, text in enumerate(questions) if text is not None]
    values = samples.images.new_full((len(samples),), math.nan)
    evidence: list[Mapping[str, Any]] = [{}] * len(samples)
    answers = ask([questions[row] or "" for row in rows], samples.pixels()[rows]) if rows else []
    for row, answer in zip(rows, answers, strict=True):
        values[row], evidence[row] = (math.nan, {"error": answer.reason}) if isinstance(answer, Failure) else read(answer)
    return Scores(values, evidence)
