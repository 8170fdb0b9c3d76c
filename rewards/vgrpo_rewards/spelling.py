"""What a prompt wants written, and how near to it a text is."""

from __future__ import annotations

import re

from vgrpo_core import Prompt

# An apostrophe is no quotation mark: "the dog's owner's hat" quotes nothing.
QUOTED = re.compile(r'"([^"]*)"|[“„”]([^“„”]*)[“”]|「([^」]*)」|『([^』]*)』')


def wanted(prompt: Prompt) -> str:
    """Return the text to write: the metadata's `text`, else all that the prompt quotes; empty where there is neither."""
    text = prompt.metadata.get("text")
    return " ".join(map("".join, QUOTED.findall(prompt.text))) if text is None else str(text)


def target(prompt: Prompt) -> str:
    """Return the letters to write, of which spaces and case are no part."""
    return letters(wanted(prompt))


def letters(text: str) -> str:
    """Drop spaces and case, which are not scored."""
    return "".join(text.split()).lower()


def similarity(read: str, wanted: str) -> float:
    """Return 1 - edit distance / length of `wanted`, at least 0; 1 where `wanted` occurs in `read`."""
    if wanted in read:
        return 1.0
    return max(0.0, 1 - edit_distance(read, wanted) / len(wanted))


def edit_distance(a: str, b: str) -> int:
    """Count the insertions, deletions and replacements of one letter that turn `a` into `b` (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]
