"""What a prompt of GenEval asks for, and what of it holds for the objects that were found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from vgrpo_core import PluginError, Prompt
from vgrpo_core.errors import nearest

from .coco import KNOWN
from .detectors import Detection
from .geometry import Relation, relations

Rule = Literal["strict", "graded", "benchmark"]
Color = Literal["red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white"]
COLORS: tuple[Color, ...] = get_args(Color)
Groups = Sequence[Sequence[Detection] | None]


def _class(word: str) -> str:
    if word not in KNOWN:
        raise ValueError(f'unknown class "{word}"{nearest(word, KNOWN)}')
    return word


Class = Annotated[str, AfterValidator(_class)]
"""A name that is understood as a class of COCO."""


class Bound(BaseModel):
    """An entry of `exclude`: fewer than `count` objects of a class."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    word: Class = Field(alias="class")
    count: int = Field(ge=1)

    @property
    def label(self) -> str:
        """Name the class as COCO does."""
        return KNOWN[self.word]


class Clause(Bound):
    """An entry of `include`: `count` objects of a class, their colour, and their place from the objects of an earlier clause."""

    color: Color | None = None
    position: tuple[Relation, int] | None = None

    def considered(self, found: Sequence[Detection], rule: Rule) -> Sequence[Detection] | None:
        """Return the objects whose colour and place count, or None if their number is wrong."""
        if rule == "benchmark":
            return found[: self.count] if len(found) >= self.count else None
        return found if len(found) == self.count else None


class Task(BaseModel):
    """The metadata of a prompt that GenEval judges by; other keys are not read."""

    model_config = ConfigDict(frozen=True)

    tag: str = ""
    include: tuple[Clause, ...] = Field(min_length=1)
    exclude: tuple[Bound, ...] = ()

    @classmethod
    def of(cls, prompt: Prompt) -> Task | None:
        """Read the metadata of a prompt; None where it has no `include`, a PluginError where it can't be judged."""
        if not prompt.metadata.get("include"):
            return None
        try:
            task = cls.model_validate(dict(prompt.metadata))
        except ValidationError as error:
            raise _mistake(prompt, error) from error
        for index, clause in enumerate(task.include):
            if clause.position and not 0 <= clause.position[1] < index:
                what = f'reward "geneval": clause {index} of the prompt {prompt.text!r} is placed from clause {clause.position[1]}'
                raise PluginError(what, fix="a position names an earlier clause, counted from 0")
        return task


def _mistake(prompt: Prompt, error: ValidationError) -> PluginError:
    first = error.errors(include_url=False)[0]
    where, message = ".".join(map(str, first["loc"])), str(first["msg"]).removeprefix("Value error, ")
    return PluginError(f'reward "geneval": the metadata of the prompt {prompt.text!r} can\'t be judged by', f"{where}: {message}")


class Verdict(NamedTuple):
    """A score, and each clause with what was found and what of it holds; ready for JSON."""

    score: float
    clauses: list[dict[str, Any]]


def judge(task: Task, found: Mapping[str, Sequence[Detection]], rule: Rule) -> Verdict:
    """Judge what was found, by class and most confident first, with the colours told that `considered` objects need.

    strict: 1 if every clause holds with exactly its number of objects, else 0. benchmark: at least that number, of which the most
    confident are looked at, and no excess over `exclude`. graded: the mean of all parts of the clauses, at most 1, where a wrong
    number gives 1 - |asked - found| / asked, which is negative beyond twice as many, and colour or position 0.
    """
    clauses, groups = list[dict[str, Any]](), list[Sequence[Detection] | None]()
    for clause in task.include:
        objects = found.get(clause.label, ())
        group = clause.considered(objects, rule)
        parts = _parts(clause, len(objects), group, groups)
        holds = group is not None and all(value == 1 for part, value in parts.items() if part != "count")
        groups.append(group if holds else None)
        clauses.append({**_asked(clause), "found": len(objects), "holds": holds, "parts": parts})
    if rule == "graded":
        values = [value for clause in clauses for value in clause["parts"].values()]
        return Verdict(sum(values) / len(values), clauses)
    if rule == "benchmark":
        clauses += [_bound(bound, len(found.get(bound.label, ()))) for bound in task.exclude]
    return Verdict(float(all(clause["holds"] for clause in clauses)), clauses)


def _parts(clause: Clause, count: int, group: Sequence[Detection] | None, groups: Groups) -> dict[str, float]:
    parts = {"count": 1 - abs(clause.count - count) / clause.count}
    if clause.color:
        parts["color"] = sum(one.color == clause.color for one in group or ()) / clause.count
    if clause.position:
        parts["position"] = float(_placed(clause.position, group, groups))
    return parts


def _placed(position: tuple[Relation, int], group: Sequence[Detection] | None, groups: Groups) -> bool:
    relation, target = position
    others = groups[target]
    if group is None or others is None:
        return False
    return all(relation in relations(one.box, other.box) for one in group for other in others)


def _asked(clause: Clause) -> dict[str, Any]:
    return clause.model_dump(mode="json", by_alias=True, exclude_none=True)


def _bound(bound: Bound, count: int) -> dict[str, Any]:
    return {"class": bound.word, "fewer than": bound.count, "found": count, "holds": count < bound.count}
