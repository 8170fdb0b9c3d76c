"""What a prompt asks for and how what was found is judged, against hand-made scenes and laws that any judge must keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgrpo_core import PluginError, Prompt
from vgrpo_rewards.clauses import COLORS, Task, judge
from vgrpo_rewards.detectors import Detection, keep

LEFT, RIGHT, UP = (0, 40, 20, 60), (80, 40, 100, 60), (40, 0, 60, 20)
RULES = ("strict", "graded", "benchmark")


def ask(*include, exclude=(), tag=""):
    return Task.of(Prompt("a photo", {"tag": tag, "include": list(include), "exclude": list(exclude), "prompt": "a photo"}))


def see(*objects):
    """Make detections of (class, box, colour), each less certain than the one before."""
    made = [Detection(label, 0.9 - 0.01 * at, box, color=color) for at, (label, box, color) in enumerate(objects)]
    return keep(made, 0.0, 16)


def dogs(count):
    return [("dog", LEFT, None)] * count


SINGLE = ask({"class": "dog", "count": 1}, tag="single_object")
TWO = ask({"class": "dog", "count": 1}, {"class": "tv", "count": 1}, tag="two_object")
COUNTING = ask({"class": "dog", "count": 3}, exclude=[{"class": "dog", "count": 4}], tag="counting")
COLORED = ask({"class": "dog", "count": 1, "color": "red"}, tag="colors")
PLACED = ask({"class": "dog", "count": 1}, {"class": "cat", "count": 1, "position": ["right of", 0]}, tag="position")
BOTH = ask({"class": "dog", "count": 1, "color": "red"}, {"class": "cat", "count": 1, "color": "blue"}, tag="color_attr")
DOG, CAT = ("dog", LEFT, "red"), ("cat", RIGHT, "blue")

SCENES = [  # task, what is there, and the scores by the rules strict, graded, benchmark
    (SINGLE, [DOG], 1, 1, 1),
    (SINGLE, [], 0, 0, 0),
    (SINGLE, [CAT], 0, 0, 0),
    (SINGLE, [CAT, DOG], 1, 1, 1),
    (SINGLE, dogs(2), 0, 0, 1),
    (SINGLE, dogs(3), 0, -1, 1),
    (TWO, [DOG, ("tv", UP, None)], 1, 1, 1),
    (TWO, [DOG], 0, 1 / 2, 0),
    (TWO, [DOG, ("tv", UP, None), ("tv", LEFT, None)], 0, 1 / 2, 1),
    (COUNTING, dogs(2), 0, 2 / 3, 0),
    (COUNTING, dogs(3), 1, 1, 1),
    (COUNTING, dogs(4), 0, 2 / 3, 0),
    (COLORED, [DOG], 1, 1, 1),
    (COLORED, [("dog", LEFT, "blue")], 0, 1 / 2, 0),
    (COLORED, [], 0, 0, 0),
    (COLORED, [DOG, ("dog", RIGHT, "blue")], 0, 0, 1),  # the benchmark looks at the more certain one
    (COLORED, [("dog", RIGHT, "blue"), DOG], 0, 0, 0),
    (PLACED, [DOG, CAT], 1, 1, 1),
    (PLACED, [("dog", RIGHT, None), ("cat", LEFT, None)], 0, 2 / 3, 0),
    (PLACED, [DOG, ("cat", UP, None)], 1, 1, 1),  # above and to the right: both hold
    (PLACED, [CAT], 0, 1 / 3, 0),
    (PLACED, [DOG], 0, 1 / 3, 0),
    (PLACED, [*dogs(2), CAT], 0, 1 / 3, 1),
    (BOTH, [DOG, CAT], 1, 1, 1),
    (BOTH, [("dog", LEFT, "blue"), ("cat", RIGHT, "red")], 0, 1 / 2, 0),
    (BOTH, [DOG, ("cat", RIGHT, "red")], 0, 3 / 4, 0),
    (BOTH, [DOG], 0, 1 / 2, 0),
]


@pytest.mark.parametrize(("task", "there", "strict", "graded", "benchmark"), SCENES)
def test_scenes_by_hand(task, there, strict, graded, benchmark):
    expected = dict(zip(RULES, (strict, graded, benchmark), strict=True))
    assert {rule: judge(task, see(*there), rule).score for rule in RULES} == pytest.approx(expected)


def test_every_object_must_have_the_colour_and_the_place():
    task = ask({"class": "dog", "count": 2, "color": "red"}, {"class": "cat", "count": 2, "position": ["right of", 0]})
    cats = [("cat", RIGHT, None), ("cat", (70, 30, 90, 50), None)]
    assert judge(task, see(DOG, DOG, *cats), "strict").score == 1
    assert judge(task, see(DOG, DOG, cats[0], ("cat", LEFT, None)), "graded").score == pytest.approx(3 / 4)
    # one of two dogs is red; there is then no group to be right of
    assert judge(task, see(DOG, ("dog", LEFT, "blue"), *cats), "graded").score == pytest.approx((1 + 1 / 2 + 1 + 0) / 4)


def test_r043_the_verdict_says_of_each_clause_what_was_found_and_what_holds():
    verdict = judge(BOTH, see(DOG, ("cat", RIGHT, "red")), "strict")
    assert verdict.clauses == [
        {"class": "dog", "count": 1, "color": "red", "found": 1, "holds": True, "parts": {"count": 1, "color": 1}},
        {"class": "cat", "count": 1, "color": "blue", "found": 1, "holds": False, "parts": {"count": 1, "color": 0}},
    ]
    bound = judge(COUNTING, see(*dogs(5)), "benchmark").clauses[-1]
    assert bound == {"class": "dog", "fewer than": 4, "found": 5, "holds": False}


classes = st.sampled_from(["dog", "cat", "tv"])
colors = st.sampled_from(COLORS[:2])
places = st.sampled_from([LEFT, RIGHT, UP])
scenes = st.lists(st.tuples(classes, places, colors), max_size=6).map(lambda objects: see(*objects))


@st.composite
def tasks(draw):
    """Ask for one to three classes, none twice."""
    include = []
    for index, label in enumerate(draw(st.lists(classes, min_size=1, max_size=3, unique=True))):
        clause = {"class": label, "count": draw(st.integers(1, 3))}
        if draw(st.booleans()):
            clause["color"] = draw(colors)
        if index and draw(st.booleans()):
            clause["position"] = [draw(st.sampled_from(["left of", "above"])), draw(st.integers(0, index - 1))]
        include.append(clause)
    return include


@given(tasks(), scenes)
def test_full_credit_is_all_or_nothing_met(include, scene):
    task = ask(*include)
    assert (judge(task, scene, "graded").score == 1) == (judge(task, scene, "strict").score == 1)


@given(tasks(), scenes)
def test_strict_is_the_benchmark_with_every_excess_excluded(include, scene):
    exclude = [{"class": clause["class"], "count": clause["count"] + 1} for clause in include]
    assert judge(ask(*include), scene, "strict").score == judge(ask(*include, exclude=exclude), scene, "benchmark").score


@given(tasks(), scenes)
def test_what_nobody_asked_for_does_not_matter(include, scene):
    crowded = scene | {"zebra": [Detection("zebra", 0.5, UP)]}
    assert all(judge(ask(*include), scene, rule) == judge(ask(*include), crowded, rule) for rule in RULES)


@given(tasks(), scenes)
def test_partial_credit_is_the_mean_of_the_parts(include, scene):
    score, clauses = judge(ask(*include), scene, "graded")
    parts = [value for clause in clauses for value in clause["parts"].values()]
    asked = sum(1 + ("color" in clause) + ("position" in clause) for clause in include)
    assert len(parts) == asked
    assert score == pytest.approx(sum(parts) / asked)
    assert score <= 1


@pytest.mark.parametrize("metadata", [{}, {"include": []}, {"tag": "colors", "text": "a"}])
def test_a_prompt_that_asks_for_no_object_has_no_task(metadata):
    assert Task.of(Prompt("a photo", metadata)) is None


@pytest.mark.parametrize(
    ("clause", "message"),
    [
        ({"class": "girafe", "count": 1}, 'unknown class "girafe"; did you mean "giraffe"?'),
        ({"class": "dog", "count": 0}, "include.0.count"),
        ({"class": "dog"}, "include.0.count: Field required"),
        ({"class": "dog", "count": 1, "color": "teal"}, "'red', 'orange', 'yellow'"),
        ({"class": "dog", "count": 1, "position": ["under", 0]}, "'left of', 'right of'"),
        ({"class": "dog", "count": 1, "colour": "red"}, "include.0.colour"),
        ({"class": "dog", "count": 1, "position": ["above", 0]}, "an earlier clause"),
        ({"class": "dog", "count": 1, "position": ["above", -1]}, "an earlier clause"),
    ],
)
def test_a_clause_that_makes_no_sense_is_refused_with_the_prompt(clause, message):
    with pytest.raises(PluginError) as error:
        Task.of(Prompt("a giraffe", {"include": [clause]}))
    assert message in str(error.value)
    assert "'a giraffe'" in str(error.value)


@pytest.mark.parametrize(
    ("word", "label"), [("tv remote", "remote"), ("computer mouse", "mouse"), ("computer keyboard", "keyboard")]
)
def test_the_benchmarks_own_names_are_classes_of_coco(word, label):
    task = ask({"class": word, "count": 1})
    assert judge(task, see((label, LEFT, None)), "strict").score == 1
    assert judge(task, see((label, LEFT, None)), "strict").clauses[0]["class"] == word
