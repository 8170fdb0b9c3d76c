from __future__ import annotations

import json
import math
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from vgrpo_cli.alerts import Alerts
from vgrpo_core import VgrpoError
from vgrpo_report.commands import write

NASTY = """<script>alert(1)</script> "a" & 'b' {{ 7 * 7 }}"""


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def sections(found):
    return [each.attributes["id"] for each in found.all("section")]


def on_a_line(positions, values):
    """Tell whether positions are an affine function of values."""
    fit = np.polynomial.Polynomial.fit(values, positions, 1)
    return np.allclose(fit(np.array(values)), positions, atol=1e-3)


def test_the_page_says_everything_in_its_order(made, painted, report):
    folder = made()
    for at in (0, 2, 4):
        painted(folder, at, ["one", "two"])
    found = report(folder)
    assert sections(found) == ["numbers", "curves", "gallery", "alerts", "costs", "recipe"]
    assert [each.text for each in found.all("h1")] == ["words"]
    [lede] = found.all("p", **{"class": "lede"})
    assert " ".join(lede.text.split()) == "a painter of signs. Reward ocr (weight 0.5). 4 iterations in 14 s."


def test_it_needs_nothing_from_elsewhere_and_no_id_is_given_twice(made, painted, report, tmp_path):
    folder = made()
    for at in (0, 4):
        painted(folder, at, ["one"])
    found = report(folder)
    addresses = [value for each in found.elements for key, value in each.attributes.items() if key in ("src", "href", "xlink:href")]
    assert addresses and all(address.startswith(("data:", "#")) for address in addresses)
    assert not re.search(r"@import|url\((?!#)|fetch\(", (tmp_path / "page.html").read_text())
    names = [each.attributes["id"] for each in found.elements if "id" in each.attributes]
    assert len(names) == len(set(names))


def test_numbers_are_those_before_and_after_with_the_best_between(made, report):
    found = report(made(score=lambda label, at: [0.2, 0.3, 0.7, 0.1, 0.5][at]))
    assert "ocr 0.200 → 0.500 +0.300 weight 0.5 best 0.700 at iteration 2" in found.text("numbers")


@pytest.mark.parametrize(("weight", "verdict"), [(0.5, "better"), (-0.5, "worse"), ([[0, -1.0], [9, 3.0]], "worse")])
def test_the_sign_of_the_weight_at_the_start_says_what_is_better(made, report, weight, verdict):
    made.rewards = [{"use": "ocr", "weight": weight, "scale": 1.0}]
    assert [each.text for each in report(made()).all("span", "numbers", **{"class": verdict})] == ["+0.400"]


def test_a_curve_has_a_point_for_every_line_of_metrics_on_every_axis(made, report):
    folder = made(done=30, wanted=30, every=6, score=lambda label, at: math.sin(at) + at / 10)
    found, lines = report(folder), metrics(folder)
    for axis in ("iteration", "evaluations", "seconds"):
        for part, key in (("raw", "reward/ocr/mean"), ("held", "eval/ocr/mean")):
            [points] = found.pieces(f"x-{axis}.ocr.0.{part}")
            known = [line for line in lines if key in line]
            assert len(points) == len(known) == (30 if part == "raw" else 6)
            assert on_a_line([x for x, _ in points], [line[axis] for line in known])
            assert on_a_line([y for _, y in points], [line[key] for line in known])


def test_the_smooth_curve_is_the_mean_of_the_neighbours(made, report):
    folder = made(done=60, wanted=60, score=lambda label, at: math.sin(at))
    raw, smooth = (np.array(report(folder).pieces(f"x-iteration.ocr.0.{part}")[0]) for part in ("raw", "smooth"))
    expected = [np.mean([raw[other, 1] for other in range(60) if abs(other - at) <= 3]) for at in range(60)]
    assert np.allclose(smooth[:, 1], expected, atol=1e-4)


def test_missing_values_leave_gaps_and_are_not_zero(made, report):
    folder = made(done=8, wanted=8, score=lambda label, at: None if at in (4, 5) else 5.0 + at)
    found = report(folder)
    held = found.pieces("x-iteration.ocr.0.held")
    assert [len(piece) for piece in held] == [2, 2]
    assert [len(piece) for piece in found.pieces("x-iteration.ocr.0.raw")] == [3, 3]
    assert [len(piece) for piece in found.pieces("x-iteration.ocr.0.smooth")] == [3, 3]
    assert on_a_line([y for piece in held for _, y in piece], [5, 7, 11, 13])


def test_a_last_score_that_is_missing_is_said(made, report):
    assert "0.000 → missing" in report(made(score=lambda label, at: 0.0 if at < 4 else None)).text("numbers")


def test_long_runs_are_drawn_as_means_and_say_so(made, report):
    folder = made(done=2500, wanted=2500, every=500, score=lambda label, at: at**0.5)
    found = report(folder)
    [points] = found.pieces("x-iteration.ocr.0.raw")
    means = [np.mean([at**0.5 for at in range(start, min(start + 3, 2501))]) for start in range(1, 2501, 3)]
    assert len(points) == len(means)
    assert on_a_line([y for _, y in points], means)
    assert "training, means of 3 iterations" in found.text("curves")


def test_everything_that_people_write_is_escaped(made, painted, report, tmp_path):
    folder = made()
    for at in (0, 4):
        painted(folder, at, [NASTY])
    recipe = folder / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('name = "words"', f"name = {json.dumps(NASTY)}"))
    found = report(folder)
    assert found.all("h1")[0].text == NASTY
    assert found.all("p", "gallery", **{"class": "prompt"})[0].text == NASTY
    assert found.all("pre", **{"class": "toml"})[0].text == recipe.read_text()
    assert len(found.all("script")) == 1
    assert all(image.attributes["alt"].startswith(NASTY) for image in found.all("img"))


def test_the_slider_stops_at_the_evaluations_and_shows_the_last(made, painted, report):
    folder = made()
    for at in (0, 2, 4):
        painted(folder, at, ["one", "two"])
    found = report(folder)
    [slider] = found.all("input", type="range")
    assert (slider.attributes["data-moments"], slider.attributes["max"], slider.attributes["value"]) == ("0 2 4", "2", "2")
    images = found.all("img", "gallery")
    assert len(images) == 2 * (1 + 3)
    assert [
        image.attributes["data-at"] for image in images if "data-at" in image.attributes and "hidden" not in image.attributes
    ] == ["4"] * 2
    assert [image.attributes["alt"] for image in images[:2]] == ["one, before", "one, iteration 0"]
    assert len({image.attributes["src"] for image in images}) == 2 * 3  # before is iteration 0


def test_ten_evaluations_of_64_images_stay_under_five_megabytes(made, painted, report, tmp_path):
    folder = made(done=10, wanted=10, every=1)
    generator = np.random.default_rng(0)
    first = painted(folder, 1, [f"sign {number}" for number in range(64)], (192, 192))
    with Image.open(first) as sheet:  # noise is the worst that there is to compress
        about, size = sheet.info["vgrpo"], sheet.size[::-1]
    info = PngInfo()
    info.add_text("vgrpo", about)
    Image.fromarray(generator.integers(0, 256, (*size, 3), dtype=np.uint8)).save(first, pnginfo=info, compress_level=0)
    for at in range(2, 11):
        shutil.copy(first, first.with_name(f"{at:06d}.png"))
    found = report(folder)
    assert 1e6 < (tmp_path / "page.html").stat().st_size < 5e6
    cards = len(found.all("p", "gallery", **{"class": "prompt"}))
    assert 0 < cards < 64
    assert f"{cards} of 64 pictured images are shown" in found.text("gallery")


def test_a_run_without_pictures_has_all_the_rest(made, report):
    assert sections(report(made())) == ["numbers", "curves", "alerts", "costs", "recipe"]


def test_a_damaged_picture_and_one_of_other_prompts_are_left_out_and_named(made, painted, report):
    folder = made(every=1)
    for at, prompts in enumerate((["one"], ["two"], ["two"], ["two"], ["two"])):
        painted(folder, at, prompts)
    damaged = folder / "samples" / "000002.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    found = report(folder)
    assert "iteration 0, 2 is left out" in found.text("gallery")
    assert found.all("input", type="range")[0].attributes["data-moments"] == "1 3 4"


def test_a_run_that_is_going_or_was_stopped_says_how_far_it_is(made, painted, report):
    folder = made(done=3, wanted=9)
    painted(folder, 6, ["of a run that was taken back"])
    found = report(folder)
    assert "3 of 9 iterations so far, in 10 s: still going, or stopped" in found.all("p", **{"class": "lede"})[0].text
    assert "gallery" not in sections(found)


def test_a_run_that_has_been_evaluated_once_only_has_no_change(made, report):
    found = report(made(done=0, wanted=9))
    assert "+" not in found.text("numbers")
    assert len(found.pieces("x-seconds.ocr.0.held")[0]) == 1


def test_alerts_are_those_of_the_run(made, report):
    def score(label, at):
        return at if label == "ocr" else 1 - 0.2 * at

    folder, expected = made(score=score), []
    live = Alerts({"ocr": 0.5})
    for at in (0, 2, 4):
        now = {label: score(label, at) for label in ("ocr", "edge_density")}
        expected += [f"iteration {at} {alert}" for alert in live.evaluated(now, {"ocr": 0, "edge_density": 1})]
    assert len(expected) == 1
    assert [each.text for each in report(folder).all("li", "alerts")] == expected


def test_what_it_took_is_counted_by_iteration(made, report):
    found = report(made()).text("costs")
    assert "seconds per iteration 3.500 network evaluations per iteration 2,016 backward passes per iteration 1,152" in found
    assert "peak memory 2.04 GB seconds in all, without evaluation 14 network evaluations in all 8,064" in found


def test_it_says_how_to_do_it_again(made, report):
    folder = made()
    commands = [each.text for each in report(folder).all("pre", **{"class": "command"})]
    assert commands == [f"vgrpo run words --out {folder}", f"vgrpo run {folder}/recipe.toml"]


@pytest.mark.parametrize(
    ("seconds", "text", "ticks"),
    [
        (12, "48 s", ["0 s", "10 s", "20 s", "30 s", "40 s"]),
        (95, "6 min 20 s", ["0 min", "2 min", "4 min", "6 min"]),
        (5400, "6 h 0 min", ["0 h", "2 h", "4 h", "6 h"]),
    ],
)
def test_times_are_written_in_units_that_fit(made, report, seconds, text, ticks):
    folder = made()
    lines = [line | {"seconds": seconds * line["iteration"]} for line in metrics(folder)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = report(folder)
    assert f"4 iterations in {text}." in found.all("p", **{"class": "lede"})[0].text
    groups = [each for each in found.all("g", "curves") if each.attributes.get("id", "").startswith("x-seconds.ocr.tick")]
    assert [each.text.strip() for each in groups] == ticks


def test_a_folder_that_holds_no_run_is_explained(tmp_path, made):
    with pytest.raises(VgrpoError, match=r"not the folder of a run: No such file or directory: recipe\.toml"):
        write([tmp_path], tmp_path / "page.html")
    folder = made()
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(VgrpoError, match="nothing to report yet"):
        write([folder], tmp_path / "page.html")
