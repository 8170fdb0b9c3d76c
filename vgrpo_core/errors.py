"""The errors that people see: each says where, what was found and what to do, and is printed without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class VgrpoError(Exception):
    """A mistake that whoever runs vgrpo can mend."""

    exit_code = 2


class RecipeError(VgrpoError):
    """Everything that is wrong with a recipe, one message each."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        """Keep the single messages in `mistakes`."""
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


class PluginError(VgrpoError):
    """A plugin that can't be used: what failed, why, and how to mend it; plugins may raise it themselves."""

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        """Join the parts, each on a line of its own."""
        super().__init__("\n".join([what, *(f"  {part}" for part in (why, fix) if part)]))


class RunError(VgrpoError):
    """A run that stopped; the message says what is kept and how to go on. Of several ranks, all stop for the same reason."""

    exit_code = 1


class Diverged(RunError):
    """Weights that are of no use any more: they are not saved, and to go on from an earlier checkpoint needs a lower rate."""


class NoSignal(RunError):
    """Rewards that have told no sample from another for too long."""


class RankError(RunError):
    """Ranks that have lost each other, or differ: nothing can be saved."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "x"?` for the known name most like `name`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def reason(error: BaseException) -> str:
    """Name an error in one line, as people read it."""
    first = (str(error).strip().splitlines() or [""])[0]
    return first if isinstance(error, VgrpoError) else f"{type(error).__name__}: {first}"
