"""Several runs on one page."""

from __future__ import annotations


def test_runs_are_overlaid_each_in_its_colour(made, report):
    found = report(made("first"), made("second", done=2, wanted=2))
    assert [len(found.pieces(f"x-iteration.ocr.{run}.raw")[0]) for run in (0, 1)] == [4, 2]
    [path] = [each for each in found.all("path", "x-iteration.ocr.1.held") if "fill: none" in each.attributes.get("style", "")]
    assert "stroke: var(--run-1)" in path.attributes["style"]
    assert [each.text for each in found.all("h1")] == ["first and second"]


def test_runs_are_compared_in_a_table_with_what_differs_in_their_recipes(made, report):
    found = report(made("first"), made("second", score=lambda label, at: 0.2 * at, lr=0.01))
    assert "first 0.000 → 0.400 +0.400 second 0.000 → 0.800 +0.800" in found.text("numbers")
    assert found.text("differences") == "key first second optimizer.lr 0.001 0.01"


def test_runs_show_the_same_prompts_side_by_side(made, painted, report):
    first, second = made("first"), made("second")
    for folder, moments in ((first, (0, 2, 4)), (second, (0, 4))):
        for at in moments:
            painted(folder, at, ["one", "two"] if folder is first else ["two", "three"])
    found = report(first, second)
    assert [each.text for each in found.all("p", "gallery", **{"class": "prompt"})] == ["two"]
    assert [each.text for each in found.all("figcaption", "gallery")] == ["before (1)", "before (2)", "first, 4", "second, 4"]
    assert found.all("input", type="range")[0].attributes["data-moments"] == "0 2 4"


def test_runs_that_start_alike_share_one_picture_of_it(made, painted, report):
    folders = made("first"), made("second")
    for folder in folders:
        for at in (0, 4):
            painted(folder, at, ["one"])
    captions = [each.text for each in report(*folders).all("figcaption", "gallery")]
    assert captions == ["before", "first, 4", "second, 4"]


def test_runs_of_other_prompts_and_rewards_are_still_compared(made, painted, report):
    first = made("first")
    made.rewards = [{"use": "ocr", "weight": 1.0, "scale": 1.0}, {"use": "color", "weight": 1.0, "scale": 1.0}]
    second = made("second", labels=("ocr", "color"))
    painted(first, 4, ["one"])
    painted(second, 4, ["two"])
    found = report(first, second)
    assert "nothing to put side by side" in found.text("gallery")
    assert "not measured" in found.text("numbers")
    assert len(found.pieces("x-iteration.color.1.raw")[0]) == 4


def test_several_long_runs_share_the_points(made, report):
    runs = [made(name, done=600, wanted=600, every=1, labels=("ocr",)) for name in ("first", "second")]
    found = report(*runs)
    for run in (0, 1):
        assert len(found.pieces(f"x-iteration.ocr.{run}.raw")[0]) == 300
        assert len(found.pieces(f"x-iteration.ocr.{run}.held")[0]) == 301
    assert "training, means of 2 iterations" in found.text("curves")
