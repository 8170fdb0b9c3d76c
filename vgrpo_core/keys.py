"""Keyed randomness: every draw is a pure function of what it is for.

Nothing random depends on rank, micro-batch size or history; that gives exact resume, equal results on any number of ranks and pairs
shared by a group without communication.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

Purpose = Literal["order", "noise", "steps", "pairs", "eval", "start-up"]


def seed(run: int, purpose: Purpose, *place: int) -> int:
    """Return the 63-bit seed of one draw: a hash of the run's seed, the purpose and the place (iteration, prompt, sample)."""
    key = ":".join([str(run), purpose, *map(str, place)])
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


def generator(run: int, purpose: Purpose, *place: int) -> torch.Generator:
    """Return a CPU generator for one draw: the numbers are the same on every kind of device."""
    return torch.Generator().manual_seed(seed(run, purpose, *place))


@lru_cache(maxsize=64)
def epoch_order(run: int, epoch: int, count: int, *source: int) -> Tensor:
    """Return the order in which one pass visits the `count` prompts of a set: int64 [count]."""
    return torch.randperm(count, generator=generator(run, "order", epoch, *source))


def prompt_index(run: int, place: int, count: int, *source: int) -> int:
    """Return the row, out of `count`, that the draw number `place` (from 0) visits: each once per pass."""
    return int(epoch_order(run, place // count, count, *source)[place % count])
