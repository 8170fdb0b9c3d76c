"""Where boxes lie from each other, against GenEval's definition written out with numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgrpo_rewards.geometry import RELATIONS, relations

sides = st.tuples(st.integers(0, 64), st.integers(1, 40)).map(lambda pair: (pair[0], pair[0] + pair[1]))
boxes = st.tuples(sides, sides).map(lambda pair: (pair[0][0], pair[1][0], pair[0][1], pair[1][1]))
CENTRE = (40, 40, 60, 60)


def defined(a, b):
    """Write out the definition: offset of centres, less a tenth of the sizes, over the norm of the whole offset."""
    a, b = np.array(a, float).reshape(2, 2), np.array(b, float).reshape(2, 2)
    offset = a.mean(0) - b.mean(0)
    revised = np.sign(offset) * np.maximum(np.abs(offset) - 0.1 * (a[1] - a[0] + b[1] - b[0]), 0)
    if (revised == 0).all():
        return set()
    dx, dy = revised / np.linalg.norm(offset)
    named = {"left of": dx < -0.5, "right of": dx > 0.5, "above": dy < -0.5, "below": dy > 0.5}
    margin = min(abs(abs(dx) - 0.5), abs(abs(dy) - 0.5))
    return None if margin < 1e-9 else {name for name, holds in named.items() if holds}  # None: rounding decides


@given(boxes, boxes)
def test_relations_are_those_of_the_definition(a, b):
    expected = defined(a, b)
    assert expected is None or relations(a, b) == expected


@given(boxes, boxes)
def test_what_one_box_is_to_another_the_other_is_to_it_the_other_way_round(a, b):
    opposite = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
    assert relations(b, a) == {opposite[relation] for relation in relations(a, b)}


@given(boxes, boxes, st.sampled_from([0.25, 2, 16]))
def test_the_size_of_the_image_does_not_matter(a, b, factor):
    assert relations(tuple(factor * side for side in a), tuple(factor * side for side in b)) == relations(a, b)


@given(boxes, boxes)
def test_one_relation_of_each_axis_at_most(a, b):
    found = relations(a, b)
    assert found <= set(RELATIONS)
    assert not {"left of", "right of"} <= found
    assert not {"above", "below"} <= found


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ((0, 40, 20, 60), {"left of"}),
        ((80, 40, 100, 60), {"right of"}),
        ((40, 0, 60, 20), {"above"}),  # y grows downwards
        ((40, 80, 60, 100), {"below"}),
        ((0, 0, 20, 20), {"left of", "above"}),
        ((40, 40, 60, 60), set()),
        ((44, 40, 64, 60), set()),  # 4 pixels to the right, of sizes that add up to 40
        ((50, 40, 70, 60), {"right of"}),  # 10 pixels, of which 6 are beyond the slack of 4
        ((48, 40, 68, 60), set()),  # 8 pixels: 4 beyond the slack is half of 8, and not over it
    ],
)
def test_positions_by_hand(box, expected):
    assert relations(box, CENTRE) == expected


def test_boxes_that_are_points_in_one_place_have_no_relation():
    assert relations((5, 5, 5, 5), (5, 5, 5, 5)) == set()
