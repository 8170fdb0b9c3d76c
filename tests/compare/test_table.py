from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from vgrpo_compare import plot, table


def spread(median, low, high, count=2):
    return {"median": median, "low": low, "high": high, "count": count}


def run(seed, scores, ended=None):
    curve = [{"iteration": at, "cost": 100.0 * at, "seconds": at + seed / 10, "score": score} for at, score in enumerate(scores)]
    return {"seed": seed, "ended": ended, "broken": bool(ended), "curve": curve, "iterations": 2}


@pytest.fixture
def found():
    """What compare.json holds of two entries, one of which broke on a seed."""
    missing = {"cost": None, "seconds": None, "cost_speed": None, "seconds_speed": None}
    mean = {"std": 0.0123, "count": 2}
    sweep = {"key": "optimizer.lr", "budget": 100, "seed": 2, "overrides": []}
    return {
        "name": "signs",
        "recipe": "signs.toml",
        "versions": {"vgrpo": "0.1.0"},
        "score": {
            "ocr": {"weight": 0.5, "scale": 1.0, "offset": 0.0},
            "look": {"weight": 1.0, "scale": 0.1, "offset": -2.0},
            "ink": {"weight": 1.0, "scale": 1.0, "offset": 0.0},
        },
        "budget": {"amount": 200.0, "unit": "evaluations", "count": "all"},
        "seeds": [0, 1],
        "levels": [0.6, 0.65],
        "complete": True,
        "entries": [
            {
                "label": "vgrpo",
                "sweep": {**sweep, "scores": {"1e-4": 0.51, "3e-4": 0.6, "1e-3": 0.55}, "best": "3e-4", "edge": False},
                "final": {"mean": 0.7, **mean},
                "best": {"mean": 0.71, **mean},
                "cost": {"mean": 200.0, **mean},
                "seconds": {"mean": 12.34, **mean},
                "reached": [
                    {"level": 0.6, "cost": spread(12345.6, 10000, 14000), "seconds": spread(1.25, 1, 1.5)},
                    {"level": 0.65, "cost": spread(20000, 20000, 20000, 1), "seconds": spread(2, 2, 2, 1), "cost_speed": None},
                ],
                "runs": [run(0, [0.5, 0.6, 0.7]), run(1, [0.5, 0.62, 0.7])],
            },
            {
                "label": "other",
                "sweep": {**sweep, "scores": {"1e-4": None, "3e-4": 0.4, "1e-3": 0.55}, "best": "1e-3", "edge": True},
                "final": {"mean": 0.6, "std": None, "count": 1},
                "best": {"mean": 0.6, "std": None, "count": 1},
                "cost": {"mean": 260.0, **mean},
                "seconds": {"mean": 1234.5, **mean},
                "reached": [
                    {"level": 0.6, "cost": spread(200, 200, 200, 1), "seconds": spread(3, 3, 3, 1),
                     "cost_speed": spread(0.5, 0.4, 0.6), "seconds_speed": spread(2, 2, 2, 1)},
                    {"level": 0.65, **missing},
                ],
                "runs": [run(0, [0.5, 0.55, 0.6]), run(1, [0.5, 0.4], "the gradient was not finite 3 times in a row")],
            },
        ],
    }  # fmt: skip


def test_the_page_has_every_figure_and_a_dash_for_what_was_not_reached(found):
    lines = table.page(found).splitlines()
    assert "| entry | optimizer.lr | final score | best score | cost | seconds | seeds |" in lines
    assert "| vgrpo | 3e-4 | 0.700 ± 0.012 | 0.710 ± 0.012 | 200 | 12.3 | 2 of 2 |" in lines
    assert "| other | 1e-3 (edge) | 0.600 | 0.600 | 260 | 1,234 | 1 of 2 |" in lines
    assert "| 0.6 | 12,346 (10,000 to 14,000), 2 of 2 | 200, 1 of 2 |" in lines
    assert "| 0.6 | 1.25 (1 to 1.5), 2 of 2 | 3, 1 of 2 |" in lines
    assert "| 0.65 | 20,000, 1 of 2 | - |" in lines
    assert "| 0.6 | 0.50x (0.40x to 0.60x), 2 of 2 |" in lines
    assert "| 0.65 | - |" in lines
    assert "| vgrpo | 0.510 | 0.600 * | 0.550 |" in lines
    assert "| other | - | 0.400 | 0.550 * |" in lines
    assert "other: the best value is at the edge of the sweep; a better one may lie beyond it." in lines
    assert "other, seed 1: the gradient was not finite 3 times in a row" in lines
    assert "other: runs took 130% of the budget." in lines
    assert not any(word in table.page(found) for word in ("None", "nan"))


def test_the_terminal_shows_the_tables_of_the_page_with_medians_alone_and_the_seeds_where_some_are_missing(found):
    page = [line for line in table.page(found).splitlines() if line.startswith("|") and "---" not in line and " of " not in line]
    shown = [line.split() for line in table.terminal(found)]
    assert all(line.replace("|", "").split() in shown for line in page)
    rows = ["vgrpo 3e-4 0.700 ± 0.012 0.710 ± 0.012 200 12.3 2 of 2", "other 1e-3 (edge) 0.600 0.600 260 1,234 1 of 2"]
    rows += ["0.6 12,346 200 (1 of 2)", "0.65 20,000 (1 of 2) -", "0.6 0.50x"]
    for row in rows:
        assert row.split() in shown, row
    assert max(map(len, table.terminal(found))) <= 100


def test_the_score_is_written_as_the_sum_that_it_is(found):
    assert table.formula(found) == "0.5 ocr + 0.1 (look-20) + ink"  # 0.1 look - 2


def test_without_levels_or_a_sweep_their_tables_are_left_out(found):
    found["levels"] = []
    for entry in found["entries"]:
        entry.update(sweep=None, reached=[])
    page = table.page(found)
    assert "##" not in page and "optimizer.lr" not in page
    assert plot.draw(found)


def test_a_page_of_unfinished_runs_says_so(found):
    found["complete"] = False
    assert "Not complete yet" in table.page(found)


def test_a_band_is_the_range_over_seeds_around_their_mean(found):
    curve = plot.band(found["entries"][0]["runs"], "seconds")
    assert curve.places == pytest.approx([0.05, 1.05, 2.05])
    assert curve.middle == pytest.approx([0.5, 0.61, 0.7])
    assert (curve.low, curve.high) == ([0.5, 0.6, 0.7], [0.5, 0.62, 0.7])
    assert plot.band([run(0, [0.5, None, 0.7])], "cost").places == [0, 200]


def test_the_picture_has_both_panels_every_entry_and_text_that_stays_text(found):
    files = plot.draw(found)
    svg = files["compare.svg"].decode()
    for text in (
        "vgrpo (2 seeds)",
        "other (2 seeds)",
        "network evaluations in training (a backward counts as two)",
        "seconds of training",
    ):
        assert f">{text}<" in svg
    assert "held-out score: 0.5 ocr" in svg
    assert files == plot.draw(found)
    pixels = np.asarray(Image.open(io.BytesIO(files["compare.png"])).convert("RGB")).reshape(-1, 3)
    for colour in plot.COLOURS[:2]:
        assert (pixels == [int(colour[at : at + 2], 16) for at in (1, 3, 5)]).all(1).sum() > 100


def test_nothing_is_drawn_of_an_entry_without_runs(found):
    for entry in found["entries"]:
        entry.update(runs=[], final=None, best=None, cost=None, seconds=None)
    assert plot.draw(found)["compare.png"]
    assert "| vgrpo | 3e-4 | - | - | - | - | 0 of 2 |" in table.page(found)


def test_without_matplotlib_the_way_to_install_it_is_said(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(plot.PluginError, match=r'pip install "vgrpo\[plot\]"'):
        plot.check()
