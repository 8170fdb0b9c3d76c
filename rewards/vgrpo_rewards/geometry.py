"""Where one box lies from another, as GenEval sees it."""

from __future__ import annotations

import math
from typing import Literal, get_args

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels; x grows to the right and y downwards."""
Relation = Literal["left of", "right of", "above", "below"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)
SLACK = 0.1  # share of the two boxes' sizes that an offset must exceed to count
SHARE = 0.5  # component of the direction from which it counts: up to 60 degrees off the axis


def relations(box: Box, other: Box) -> set[Relation]:
    """Return where `box` lies from `other`: nothing, one relation, or one of each axis.

    An axis counts if the offset of the centres along it, less 0.1 times the sum of the two sizes, is over half the whole offset
    (GenEval, arXiv 2310.11513).
    """
    dx, reach_x = _offset(box[0::2], other[0::2])
    dy, reach_y = _offset(box[1::2], other[1::2])
    limit = SHARE * math.hypot(dx, dy)
    holds = (dx < 0 and reach_x > limit, dx > 0 and reach_x > limit, dy < 0 and reach_y > limit, dy > 0 and reach_y > limit)
    return {relation for relation, true in zip(RELATIONS, holds, strict=True) if true}


def _offset(side: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, float]:
    """Return the offset of the centres along one axis, and how much of it exceeds the slack."""
    offset = (side[0] + side[1] - other[0] - other[1]) / 2
    return offset, max(0.0, abs(offset) - SLACK * (abs(side[1] - side[0]) + abs(other[1] - other[0])))
