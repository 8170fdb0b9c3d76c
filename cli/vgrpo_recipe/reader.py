"""Read and validate a recipe: choose the plugins, then check every key, so that all tables report together."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from vgrpo_core import PluginError, RecipeError, StochasticSampler
from vgrpo_core.errors import nearest, reason
from vgrpo_core.offers import Offer
from vgrpo_core.recipe import Eval, PromptSet, Recipe, RewardEntry
from vgrpo_core.schema import Run, Table

from .choice import choose, is_file
from .layout import LAYOUT, LISTS, OPTIONAL, REMOTE, SEVERAL, WATCHED, UseMonitor, UseReward, fields, inner, title
from .provenance import provenance
from .registry import Registry
from .tables import At, Source, dump


def load(path: str | Path, overrides: Sequence[str] = (), registry: Registry | None = None, *, track: bool = True) -> Recipe:
    """Read, override (`key.path=value`) and validate a recipe; a RecipeError holds all that is wrong with it.

    Without `track` its trackers, which need not be installed then, are left out.
    """
    source = Source.read(Path(path), overrides)
    if not track:
        source.table.pop("track", None)
    return _Reader(source, registry or Registry.discover()).recipe()


@dataclass
class _Section:
    """One table of the file, with what it is read as."""

    at: At
    keys: type[Table]
    kind: str
    values: dict[str, Any]
    offer: Offer | None = None
    own: Any = None
    plugin: Any = None
    remote: Any = None

    @property
    def known(self) -> list[str]:
        return [*fields(self.keys), *(fields(self.offer.plugin) if self.offer else ()), *inner(self.at)]

    @property
    def label(self) -> str:
        return str(self.values.get("label") or (self.offer.name if self.offer else ""))

    def entry(self) -> RewardEntry:
        own, offer = self.own, cast(Offer, self.offer)
        if self.keys is not UseReward:
            return RewardEntry(self.label, 0.0, 1.0, 0.0, self.remote or self.plugin, offer)
        return RewardEntry(self.label, own.weight, own.scale, own.offset, self.remote or self.plugin, offer, own.gate, own.on)


class _Reader:
    """Read a recipe in two passes, so that all tables report together: choose the plugins, then check every key."""

    def __init__(self, source: Source, registry: Registry) -> None:
        self.source, self.registry = source, registry
        self.mistakes = list(source.mistakes)
        self.sections = list(self.split())

    def recipe(self) -> Recipe:
        for section in self.sections:
            self.choose(section)
        self.sections += self.watched()
        tops = [str(at[0]) for at in LAYOUT if len(at) == 1]
        for key in self.source.table.keys() - set(tops):
            self.mistake((), self.unknown("table or key", key, tops), key)
        for section in self.sections:
            self.check(section)
        self.check_rewards()
        self.check_sampler()
        if self.mistakes:
            raise RecipeError(self.mistakes)
        return self.compose()

    def split(self) -> Iterator[_Section]:
        """Yield the sections of the file; those that may not be left out are empty where they are missing."""
        for at, (keys, kind) in LAYOUT.items():
            value = self.source.get(at)
            value = None if value == [] and at in SEVERAL else value
            listed = at in LISTS or (at in SEVERAL and isinstance(value, list))
            entries = value if listed else [{}] if value is None and at not in OPTIONAL else [value]
            if value is None and at in OPTIONAL:
                continue
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                header = f"[{title(at)}], in double brackets, once for each reward" if at in LISTS else title(at)
                self.mistake(at, f"is not a table; write {header}")
                continue
            for index, entry in enumerate(entries):
                own = {key: inside for key, inside in entry.items() if key not in inner(at)}
                yield _Section((*at, index) if listed else at, keys, kind, own)

    def watched(self) -> list[_Section]:
        """Add the statistics that are watched by default, where they are installed and not named by the recipe itself."""
        if self.source.get(("eval", "watch")) is False:
            return []
        named = [section.label for section in self.sections if section.kind == "reward"]
        entries = self.source.get(("eval", "reward"))
        places = itertools.count(len(entries) if isinstance(entries, list) else 0)
        offers = {offer.name: offer for offer in self.registry.offers if offer.kind == "reward" and offer.name in WATCHED}
        wanted = [offers[name] for name in WATCHED if name in offers and name not in named]
        return [_Section(("eval", "reward", next(places)), UseMonitor, "reward", {"use": o.name}, o) for o in wanted]

    def choose(self, section: _Section) -> None:
        use = section.values.get("use", section.keys.model_fields["use"].default if section.kind else None)
        if section.kind and isinstance(use, str):
            try:
                away = section.kind == "reward" and bool({"url", "python"} & section.values.keys())
                section.offer = choose(self.registry, section.kind, use, self.source.path.parent, here=not away)
            except PluginError as error:
                self.mistake(section.at, str(error), "use")

    def check(self, section: _Section) -> None:
        own = {key: value for key, value in section.values.items() if not section.kind or self.is_own(section, key)}
        options = {key: self.placed(section, key, value) for key, value in section.values.items() if key not in own}
        if section.keys is Run:
            own = {"name": self.source.path.stem.lstrip(".") or "run"} | own
        section.own = self.validate(section, section.keys, own)
        if section.offer:
            section.plugin = self.validate(section, section.offer.plugin, options)
            section.remote = self.elsewhere(section)

    def is_own(self, section: _Section, key: str) -> bool:
        """Tell the keys of the table from the options of its plugin."""
        options = section.offer.plugin.model_fields if section.offer else {}
        return key in section.keys.model_fields and not (key in REMOTE and key in options)

    def elsewhere(self, section: _Section) -> Any:
        """Return the client of a reward that runs in another process, as its `url` or `python` says."""
        place = {key: value for key in REMOTE if (value := getattr(section.own, key, None)) is not None}
        if not place or section.plugin is None:
            return None
        try:
            client = choose(self.registry, "reward", "remote", self.source.path.parent).plugin
        except PluginError as error:
            self.mistake(section.at, str(error), next(iter(place)))
            return None
        use = _absolute(section.own.use, self.source.path.parent)
        return self.validate(section, client, {"reward": use, "options": section.plugin.model_dump(mode="json"), **place})

    def placed(self, section: _Section, key: str, value: Any) -> Any:
        """Look for a file in the folder of the recipe that names it; one named by an override, in the working folder."""
        field = section.offer.plugin.model_fields.get(key) if section.offer else None
        if not field or field.annotation not in (Path, Path | None) or not isinstance(value, str):
            return value
        overridden = any((*section.at, key)[: len(at)] == at for at in self.source.overridden)
        return str((Path() if overridden else self.source.path.parent).resolve() / Path(value).expanduser())

    def validate(self, section: _Section, model: type[BaseModel], values: Mapping[str, Any]) -> BaseModel | None:
        """Validate as strictly as JSON: no text for numbers, no number for true and false."""
        try:
            return model.model_validate_json(json.dumps(values, default=_refuse_moment), strict=True)
        except ValidationError as error:
            for item in error.errors(include_url=False):
                self.mistake(section.at, self.wording(section, model, dict(item)), *item["loc"])
        except Exception as error:  # a plugin's own validator may raise anything
            self.mistake(section.at, f"the options could not be read: {reason(error)}")
        return None

    def wording(self, section: _Section, model: type[BaseModel], item: Mapping[str, Any]) -> str:
        at, found, message = item["loc"], item["input"], str(item["msg"]).removeprefix("Value error, ")
        key, message = ".".join(map(str, at)), message[:1].lower() + message[1:]
        match item["type"]:
            case "extra_forbidden":
                return self.unknown("key", key, fields(model, at[:-1]) if at[1:] else section.known, section)
            case "missing":
                described = model.model_fields[key].description if key in model.model_fields else None
                choices = f"installed: {', '.join(self.registry.names(section.kind)) or 'none'}" if key == "use" else described
                return f'"{key}" is missing' + (f" ({choices})" if choices else "")
            case "literal_error" if isinstance(found, str):
                message += nearest(found, re.findall(r"'([^']*)'", message))
            case "int_type" | "float_type" | "bool_type" if isinstance(found, str):
                message += "; write it without quotes"
        return f"{key} is {_short(found)}: {message}" if key else message

    def unknown(self, what: str, key: str, known: Sequence[str], here: _Section | None = None) -> str:
        homes = dict.fromkeys(title(s.at).partition(" ")[0] for s in self.sections if s is not here and key in s.known)
        hint = f"; it belongs to {' or '.join(homes)}" if homes else nearest(key.rpartition(".")[2], known)
        return f'unknown {what} "{key}"' + (hint or (f"; known: {', '.join(known)}" if known else "; it takes none"))

    def check_rewards(self) -> None:
        trained = [section for section in self.sections if section.keys is UseReward]
        if self.source.get(("reward",)) in (None, []):
            self.mistake((), "there is no [[reward]]; add one to train on")
        if trained and all(section.own and _idle(section.own) for section in trained):
            self.mistake(trained[0].at, "every weight is 0, so there is nothing to train on", "weight")
        labels = [section.label for section in trained]
        for section in trained:
            gate = section.own.gate if section.own else None
            if gate and gate.reward not in set(labels) - {section.label}:
                others = [label for label in labels if label != section.label]
                self.mistake(section.at, f'gate names no other [[reward]]: "{gate.reward}"{nearest(gate.reward, others)}', "gate")
        best = next((section.own.best for section in self.sections if section.at == ("checkpoint",) and section.own), None)
        known = [section.label for section in self.sections if section.kind == "reward"]
        if best and best not in known:
            self.mistake(("checkpoint",), f'best names no reward: "{best}"{nearest(best, known)}', "best")
        taken: dict[str, At] = {}
        for section in self.sections:
            if section.kind == "reward" and section.label and taken.setdefault(section.label, section.at) != section.at:
                other = title(taken[section.label])
                what = f'the label "{section.label}" is taken by {other}; give one of them another `label`'
                self.mistake(section.at, what, "label")

    def check_sampler(self) -> None:
        """See that the sampler gives the noisy steps that the objective learns from."""
        found = {section.at: section.plugin for section in self.sections}
        sampler, objective = found.get(("sampler",)), found.get(("objective",))
        wanted, given = getattr(objective, "noisy_steps", 0), getattr(sampler, "noisy_steps", 0)
        if sampler is None or wanted <= given:
            return
        why = f'objective "{objective.name}" learns from {wanted} steps that draw noise'
        if given:
            self.mistake(("sampler",), f'"{sampler.name}" draws noise in {given} steps, and {why}')
            return
        able = sorted(o.name for o in self.registry.offers if o.kind == "sampler" and issubclass(o.plugin, StochasticSampler))
        fix = f"use {' or '.join(able)}" if able else "no sampler that does is installed"
        self.mistake(("sampler",), f'"{sampler.name}" draws none on the way, and {why}; {fix}', "use")

    def mistake(self, at: At, what: str, *key: str | int) -> None:
        self.mistakes.append(f"{self.source.where((*at, *key))}: {title(at)} {what}" if at else f"{self.source.where(key)}: {what}")

    def compose(self) -> Recipe:
        own = {section.at: section.own for section in self.sections}
        plugin = {section.at: section.plugin for section in self.sections}
        prompts = self.prompt_sets(("prompts",))
        offers = tuple(dict.fromkeys(section.offer for section in self.sections if section.offer))
        evaluation = Eval(
            **own["eval",].model_dump(exclude={"watch"}),
            prompts=self.prompt_sets(("eval", "prompts")) or prompts,
            sampler=plugin.get(("eval", "sampler"), plugin["sampler",]),
            rewards=tuple(section.entry() for section in self.sections if section.keys is UseMonitor),
        )
        return Recipe(
            path=self.source.path,
            **{name: own[name,] for name in ("run", "batch", "optimizer", "combine", "checkpoint")},
            **{name: plugin[name,] for name in ("backbone", "sampler", "objective")},
            prompts=prompts,
            rewards=tuple(section.entry() for section in self.sections if section.keys is UseReward),
            eval=evaluation,
            offers=offers,
            table=self.resolved(),
            made=provenance(offers),
        )

    def prompt_sets(self, at: At) -> tuple[PromptSet, ...]:
        sections = [section for section in self.sections if section.at[: len(at)] == at]
        return tuple(PromptSet(section.plugin, section.own.share, section.own.tag) for section in sections)

    def resolved(self) -> dict[str, Any]:
        """Collect all values, defaults included; files are named by their whole path."""
        table: dict[str, Any] = {}
        for section in self.sections:
            values = section.own.model_dump(mode="json", exclude_none=True)
            if section.kind:
                values |= section.plugin.model_dump(mode="json", exclude_none=True)
                values["use"] = _absolute(values["use"], self.source.path.parent)
            *above, last = [str(key) for key in section.at if isinstance(key, str)]
            parent = table[above[0]] if above else table
            parent[last] = [*parent.get(last, ()), values] if isinstance(section.at[-1], int) else values
        return table


def _absolute(use: str, folder: Path) -> str:
    return str(folder.resolve() / use) if is_file(use) else use


def _idle(own: UseReward) -> bool:
    points = own.weight if isinstance(own.weight, tuple) else ((0, own.weight),)
    return own.scale == 0 or all(weight == 0 for _, weight in points)


def _refuse_moment(value: Any) -> None:
    raise PluginError(f"{value.isoformat()} is a date or time; write it in quotes")


def _short(value: Any) -> str:
    text = dump(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
