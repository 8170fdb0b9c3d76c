"""What launchers such as torchrun leave in the environment: which of how many processes this one is."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from vgrpo_core import RecipeError, RunError, VgrpoError
from vgrpo_core.errors import RankError


def rank() -> int:
    """Return this process's place among those that train together."""
    return int(os.environ.get("RANK", "0")) if processes() > 1 else 0


def processes() -> int:
    """Count the processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def command() -> list[str]:
    """Return the words that start vgrpo as this process was started."""
    here = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return ["torchrun", "--nproc_per_node", here, "-m", "vgrpo_cli"] if processes() > 1 else ["vgrpo"]


def said_elsewhere(error: VgrpoError) -> bool:
    """Tell the errors that all ranks have alike: the main one says them."""
    return rank() > 0 and isinstance(error, RecipeError | RunError) and not isinstance(error, RankError)


def check_launcher(recipe: str) -> None:
    """Refuse to train alone where `accelerate launch` was asked for more: on a CPU it starts one process and does not say so."""
    if processes() > 1 or "ACCELERATE_MIXED_PRECISION" not in os.environ:
        return
    wanted = asked_for(_parent())
    if wanted > 1:
        what = f"accelerate launch was asked for {wanted} processes and started one, as it does on a CPU"
        raise VgrpoError(f"{what}\n  Start them with: torchrun --nproc_per_node {wanted} -m vgrpo_cli run {recipe}")


def asked_for(command: Sequence[str]) -> int:
    """Return the number of processes that a command line of accelerate asks for; 1 where it says nothing."""
    words = [word.replace("-", "_") for part in command for word in part.split("=", 1)]
    after = [following for word, following in itertools.pairwise(words) if word == "__num_processes"]
    return int(after[0]) if after and after[0].isdecimal() else 1


def _parent() -> list[str]:
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # no /proc, or a parent that is gone
        return []
