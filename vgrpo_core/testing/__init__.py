"""Checks that a plugin keeps what vgrpo relies on, for the tests of plugins.

Each takes a plugin with its options and raises an AssertionError of one sentence where something does not hold. No test framework
is needed. Whether a plugin measures or draws what it says is for its own tests.
"""

from __future__ import annotations

from .backbone import check_backbone
from .light import check_light
from .objective import check_objective
from .reward import check_reward
from .sampler import check_sampler

__all__ = ["check_backbone", "check_light", "check_objective", "check_reward", "check_sampler"]
