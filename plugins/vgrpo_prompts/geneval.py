"""The prompt source `geneval`: prompts of the kinds that GenEval asks, generated, with what each asks for.

GenEval is Ghosh et al., "GenEval: An Object-Focused Framework for Evaluating Text-to-Image Alignment" (2023).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import combinations, permutations, product
from typing import Any, Literal

from pydantic import Field, field_validator

from vgrpo_core import Prompt, Prompts

Tag = Literal["single_object", "two_object", "counting", "colors", "position", "color_attr"]
Split = Literal["train", "test"]
Spelling = Literal["english", "benchmark"]
Clause = dict[str, Any]

CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light", "fire hydrant",
    "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe",
    "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard", "sports ball", "kite", "baseball bat",
    "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl",
    "banana", "apple", "sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch",
    "potted plant", "bed", "dining table", "toilet", "tv", "laptop", "computer mouse", "tv remote", "computer keyboard",
    "cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear",
    "hair drier", "toothbrush",
)  # fmt: skip
"""The 80 classes of COCO in its order, by the names that GenEval gives them."""
COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
RELATIONS = ("left of", "right of", "above", "below")
NUMBERS = {2: "two", 3: "three", 4: "four"}
PLURALS = {
    "person": "people",
    "sheep": "sheep",
    "skis": "skis",
    "knife": "knives",
    "computer mouse": "computer mice",
    "scissors": "scissors",
}


class GenEval(Prompts):
    """Generate prompts of GenEval's six kinds in turn; the metadata is that of its rows: `tag`, `include`, for counting `exclude`.

    What a prompt asks for decides its split: the class, with the number or the colour asked of it; or the two classes together,
    whatever their order, colours and relation. Every prompt of a kind comes once before one comes again.
    """

    name = "geneval"
    count: int = Field(default=6000, ge=1, description="how many prompts")
    seed: int = Field(default=0, description="which prompts, and in which order; the splits do not depend on it")
    split: Split = Field(default="train", description="about one of eight things to ask for is for the test")
    tags: tuple[Tag, ...] = Field(
        default=("single_object", "two_object", "counting", "colors", "position", "color_attr"),
        min_length=1,
        description="which kinds, in equal shares",
    )
    plurals: Spelling = Field(default="english", description='"benchmark" for "two benchs" and "three skises", as GenEval has them')

    @field_validator("tags")
    @classmethod
    def _each_once(cls, tags: tuple[Tag, ...]) -> tuple[Tag, ...]:
        if len(set(tags)) < len(tags):
            raise ValueError("a tag is named twice; the shares are equal")
        return tags

    def load(self) -> Sequence[Prompt]:
        """Return the prompts."""
        orders = {tag: sorted(subjects(tag, self.split), key=lambda subject: self._hash(tag, subject)) for tag in self.tags}
        turns = (divmod(number, len(self.tags)) for number in range(self.count))
        return [self._prompt(self.tags[kind], orders[self.tags[kind]], turn) for turn, kind in turns]

    def _prompt(self, tag: Tag, order: Sequence[tuple[str, ...]], turn: int) -> Prompt:
        again, place = divmod(turn, len(order))
        asked = variants(tag, order[place])
        include = asked[(self._hash(tag, order[place]) + again) % len(asked)]
        exclude = {"exclude": [one | {"count": one["count"] + 1} for one in include]} if tag == "counting" else {}
        return Prompt(write(tag, include, self.plurals), {"tag": tag, "include": include} | exclude)

    def _hash(self, tag: Tag, subject: tuple[str, ...]) -> int:
        return _number(str(self.seed), tag, *subject)


@lru_cache
def subjects(tag: Tag, split: Split) -> tuple[tuple[str, ...], ...]:
    """List what the prompts of a tag may ask for in a split, as words that do not depend on the order of the objects."""
    named = CLASSES[1:] if tag in ("colors", "color_attr") else CLASSES  # no coloured persons
    found: Iterable[tuple[str, ...]]
    match tag:
        case "single_object":
            found = [(name,) for name in named]
        case "counting":
            found = product(named, map(str, NUMBERS))
        case "colors":
            found = product(named, COLORS)
        case _:
            found = combinations(named, 2)
    return tuple(subject for subject in found if (_number("split", *sorted(subject)) % 8 == 0) == (split == "test"))


def variants(tag: Tag, subject: tuple[str, ...]) -> list[list[Clause]]:
    """List the clauses of every prompt that asks for a subject; of a position the second object lies so towards the first."""
    match tag:
        case "single_object":
            return [[_clause(subject[0])]]
        case "counting":
            return [[_clause(subject[0], count=int(subject[1]))]]
        case "colors":
            return [[_clause(subject[0], color=subject[1])]]
        case "two_object":
            return [[_clause(a), _clause(b)] for a, b in permutations(subject)]
        case "position":
            pairs = product(permutations(subject), RELATIONS)
            return [[_clause(ground), _clause(thing, position=[relation, 0])] for (ground, thing), relation in pairs]
        case "color_attr":
            painted = product(permutations(subject), permutations(COLORS, 2))
            return [[_clause(a, color=x), _clause(b, color=y)] for (a, b), (x, y) in painted]


def write(tag: Tag, include: Sequence[Clause], plurals: Spelling = "english") -> str:
    """Write the prompt that asks for what the clauses of a GenEval row include."""
    if tag == "counting":
        name, number = include[0]["class"], NUMBERS[include[0]["count"]]
        return f"a photo of {number} {_plural(name, plurals)}"
    things = [_with_article(f"{clause['color']} {clause['class']}" if "color" in clause else clause["class"]) for clause in include]
    if tag == "position":
        return f"a photo of {things[1]} {include[1]['position'][0]} {things[0]}"
    return f"a photo of {' and '.join(things)}"


def _clause(name: str, count: int = 1, **more: Any) -> Clause:
    return {"class": name, "count": count} | more


def _with_article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _plural(name: str, spelling: Spelling) -> str:
    if spelling == "english" and name in PLURALS:
        return PLURALS[name]
    hissing = ("s", "ch", "sh") if spelling == "english" else ("s",)
    return f"{name}es" if name.endswith(hissing) else f"{name}s"


def _number(*parts: str) -> int:
    return int.from_bytes(blake2b("\n".join(parts).encode(), digest_size=8).digest())
