from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest
import tomli_w
import torch

from vgrpo_cli import pictures
from vgrpo_core import Prompt
from vgrpo_core.events import Evaluated
from vgrpo_report.commands import write

VOID = {"meta", "img", "input", "link", "br", "hr"}


@dataclass(eq=False)
class Element:
    """A tag of a page with the text inside it."""

    tag: str
    attributes: dict[str, str]
    inside: tuple[Element, ...]
    text: str = ""

    def within(self, name: str) -> bool:
        return any(other.attributes.get("id") == name for other in self.inside)


class Page(HTMLParser):
    """A page taken apart; tags that are not closed in order fail."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self.open: list[Element] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        element = Element(tag, {key: value or "" for key, value in attrs}, tuple(self.open))
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append(Element(tag, {key: value or "" for key, value in attrs}, tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open.pop().tag == tag

    def handle_data(self, data):
        for element in self.open:
            element.text += data

    def all(self, tag: str, within: str = "", **attributes: str) -> list[Element]:
        found = [each for each in self.elements if each.tag == tag and (not within or each.within(within))]
        return [each for each in found if attributes.items() <= each.attributes.items()]

    def text(self, name: str) -> str:
        """Return the text of the element with an id, blanks made one."""
        [element] = [each for each in self.elements if each.attributes.get("id") == name]
        return " ".join(element.text.split())

    def pieces(self, line: str) -> list[list[tuple[float, float]]]:
        """Return the points of a curve, apart where the pen was lifted."""
        [path] = [each for each in self.all("path", line) if "fill: none" in each.attributes.get("style", "")]
        found: list[list[tuple[float, float]]] = []
        words = path.attributes["d"].split()
        for command, x, y in zip(words[::3], words[1::3], words[2::3], strict=True):
            if command == "M":
                found.append([])
            found[-1].append((float(x), float(y)))
        return found


@dataclass
class Maker:
    """Write run folders as `vgrpo run` does."""

    base: Path
    rewards: list[dict] = field(default_factory=lambda: [{"use": "ocr", "weight": 0.5, "scale": 1.0}])
    watched: tuple[str, ...] = ("edge_density",)

    def __call__(
        self, name="first", *, done=4, wanted=4, every=2, score=lambda label, at: 0.1 * at, lr=1e-3, labels=("ocr",)
    ) -> Path:
        folder = self.base / name
        folder.mkdir()
        table = {"run": {"name": "words", "iterations": wanted}, "optimizer": {"lr": lr}, "reward": self.rewards}
        (folder / "recipe.toml").write_text(tomli_w.dumps(table))
        (folder / "manifest.json").write_text(json.dumps(self.manifest(folder)))
        lines = [self.line(at, every, score, labels) for at in range(done + 1)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    def line(self, at, every, score, labels):
        line = {"iteration": at, "seconds": 3.5 * at, "evaluations": 2016 * at, "backwards": 1152 * at}
        if at:
            line |= {f"reward/{label}/mean": score(label, at) for label in labels}
            line |= {"group/zero_std_fraction": 0.0, "group/diversity": 0.6, "memory/peak_gb": 2 + at / 100}
        if at % every == 0:
            line |= {f"eval/{label}/mean": score(label, at) for label in (*labels, *self.watched)}
        return line

    def manifest(self, folder):
        return {
            "argv": ["/somewhere/bin/vgrpo", "run", "words", "--out", str(folder)],
            "python": "3.11.7",
            "platform": "Linux",
            "versions": {"vgrpo": "0.1.0", "torch": "2.14.1"},
            "plugins": [{"kind": "reward", "name": "ocr", "distribution": "vgrpo", "version": "0.1.0"}],
            "backbone": {"what": "a painter of signs", "ranks": 1},
        }


@pytest.fixture
def made(tmp_path) -> Maker:
    return Maker(tmp_path)


@pytest.fixture
def page():
    """Take a file apart."""
    return lambda file: Page(file.read_text(encoding="utf-8"))


@pytest.fixture
def painted():
    """Save the sheet of an evaluation: stripes that differ with each image and iteration."""

    def paint(folder: Path, iteration: int, prompts: list[str], size=(8, 16)) -> Path:
        x = torch.linspace(0, math.tau, size[1]).expand(3, *size)
        images = torch.stack([((number + 1) * x + iteration).sin() / 2 + 0.5 for number in range(len(prompts))])
        return pictures.save(Evaluated(iteration, {}, tuple(map(Prompt, prompts)), images), folder)

    return paint


@pytest.fixture
def report(tmp_path, page):
    def of(*folders):
        file = tmp_path / "page.html"
        write(folders, file)
        return page(file)

    return of
