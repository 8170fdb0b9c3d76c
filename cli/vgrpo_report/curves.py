"""Curves of rewards as SVG that takes its colours from the page. Missing values are gaps."""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vgrpo_core.events import Metrics

from .read import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXES = {"iteration": "iteration", "evaluations": "network evaluations", "seconds": "time of training"}
"""What x may be, by key of metrics.jsonl; the page shows one of them at a time."""

UNITS: dict[str, list[tuple[float, str]]] = {
    "iteration": [(1, "")],
    "evaluations": [(1e9, " G"), (1e6, " M"), (1e3, " k"), (1, "")],
    "seconds": [(86400, " d"), (3600, " h"), (60, " min"), (1, " s")],
}
COLOURS = 8  # of runs, in the style sheet
WIDTH, HEIGHT = 380, 220  # points; narrow, so that text stays legible on a telephone
INK, GRID = "#a1b2f0", "#a1b2f1"  # stand for variables of the style sheet, as does each run's colour
MOST = 1000  # points of the curves of one kind in a chart, of all runs together; more are averaged
FEW = 60  # points that get marks of their own
STYLES = {"raw": (1.0, 0.3, 2.5), "smooth": (1.4, 0.6, 0.0), "held": (2.0, 1.0, 5.0)}  # width, opacity, size of marks in points
NAMES = re.compile(r' id="(?:figure|axes|patch|line2d|text|matplotlib\.axis|xtick|ytick|LineCollection)_\d+"')


class Chart(NamedTuple):
    """What a figure shows: a key of metrics.jsonl for training, one for held-out prompts; either may be None."""

    title: str
    training: str | None = None
    held_out: str | None = None


class Curve(NamedTuple):
    """Points of a line, float64, NaN where missing."""

    x: np.ndarray
    y: np.ndarray


def trained(runs: Sequence[Run]) -> list[Chart]:
    """Give a chart to every reward that one of the runs trained on."""
    labels = dict.fromkeys(reward.label for run in runs for reward in run.rewards)
    return [Chart(label, f"reward/{label}/mean", f"eval/{label}/mean") for label in labels]


def watched(runs: Sequence[Run]) -> list[Chart]:
    """Give a chart to what was watched only, and to what groups of images are like."""
    mine = {reward.label for run in runs for reward in run.rewards}
    labels = dict.fromkeys(label for run in runs for label in run.labels if label not in mine)
    groups = [Chart("diversity in a group", "group/diversity"), Chart("groups without a signal", "group/zero_std_fraction")]
    return [Chart(label, held_out=f"eval/{label}/mean") for label in labels] + groups


def draw(chart: Chart, runs: Sequence[Run]) -> str:
    """Return one SVG with a chart over each of `AXES`: what belongs to an axis is in groups whose id starts with "x-KEY".

    Every line is a group with the id "x-KEY.CHART.RUN.PART"; the parts are `raw`, `smooth` and `held`.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of its caches of fonts
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": chart.title, "path.simplify": False}):
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72))
        figure.patch.set_visible(False)
        axes = figure.add_axes((0.13, 0.1, 0.84, 0.87))
        for key in AXES:
            span = max((line[key] or 0 for run in runs for line in run.lines), default=0) or 1
            for number, run in enumerate(runs):
                lines = {part: (x / span, y) for part, (x, y) in _curves(chart, key, run, most(runs)).items()}
                _draw(axes, lines, f"x-{key}.{_word(chart.title)}.{number}", number)
            _ticks(axes, key, _word(chart.title), span)
        _dress(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(file.getvalue(), f"{chart.title} over {', '.join(AXES.values())}")


def curve(lines: Sequence[Metrics], x: str, y: str) -> Curve:
    """Take the lines that have the key `y`; null is NaN."""
    points = [(line[x], line[y]) for line in lines if y in line]
    values = np.array([[math.nan if value is None else value for value in point] for point in points], dtype=float)
    return Curve(*values.reshape(-1, 2).T)


def most(runs: Sequence[Run]) -> int:
    """Return how many points a curve may have, so that the page stays small."""
    return max(50, MOST // len(runs))


def thinned(curve: Curve, most: int) -> Curve:
    """Average runs of neighbours so that at most `most` points are left; those of a run that are missing are left out."""
    size = averaged(len(curve.x), most)
    if size <= 1:
        return curve
    starts = range(0, len(curve.x), size)
    return Curve(*(np.array([_mean(part[start : start + size]) for start in starts]) for part in curve))


def averaged(points: int, most: int) -> int:
    """Return how many points become one."""
    return -(-points // most)


def smoothed(values: np.ndarray) -> np.ndarray:
    """Average each value with its neighbours, a twentieth of all to each side; what is missing stays missing."""
    reach = max(1, min(25, len(values) // 20))
    means = [_mean(values[max(0, at - reach) : at + reach + 1]) for at in range(len(values))]
    return np.where(np.isnan(values), np.nan, means)


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _curves(chart: Chart, key: str, run: Run, most: int) -> dict[str, Curve]:
    """Return what there is to draw of a run over `key`, by part."""
    found = dict[str, Curve]()
    if chart.training:
        raw = thinned(curve(run.lines, key, chart.training), most)
        found |= {"raw": raw, "smooth": Curve(raw.x, smoothed(raw.y))}
    if chart.held_out:
        found["held"] = thinned(curve(run.lines, key, chart.held_out), most)
    return found


def _draw(axes: Axes, lines: Mapping[str, tuple[np.ndarray, np.ndarray]], name: str, number: int) -> None:
    """Draw one run: training pale and smoothed, held out strong; few points are marked."""
    for part, (x, y) in lines.items():
        width, alpha, size = STYLES[part]
        marker = "o" if size and len(x) <= FEW else ""
        axes.plot(
            x, y, color=f"#a1b2{number % COLOURS:02x}", alpha=alpha, linewidth=width, marker=marker, markersize=size,
            markeredgewidth=0, clip_on=False, solid_capstyle="round", gid=f"{name}.{part}",
        )  # fmt: skip


def _dress(axes: Axes) -> None:
    """Leave what it takes to read the values of y: an axis of matplotlib's costs more than all lines."""
    from matplotlib.ticker import MaxNLocator

    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.xaxis.set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0, labelsize=10, labelcolor=INK, pad=5)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlim(-0.02, 1.02)
    axes.margins(y=0.08)
    if np.ptp(axes.dataLim.intervaly) == 0:  # nothing moves: half a unit around it would look like noise
        axes.set_ylim(bottom=min(0.0, axes.dataLim.y0), top=max(1.0, 2 * axes.dataLim.y0))


def _ticks(axes: Axes, key: str, title: str, span: float) -> None:
    """Write round values of x below the chart, in the largest unit that fits twice."""
    from matplotlib.ticker import MaxNLocator

    unit, name = next((each for each in UNITS[key] if span >= 2 * each[0]), (1, UNITS[key][-1][1]))
    place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "top", "fontsize": 10, "color": INK}
    for value in MaxNLocator(5, integer=key == "iteration", steps=[1, 2, 5, 10]).tick_values(0, span / unit):
        if 0 <= value * unit <= 1.001 * span:
            axes.text(value * unit / span, -0.04, f"{value:,.6g}{name}", gid=f"x-{key}.{title}.tick{value:g}", **place)


def _word(title: str) -> str:
    return re.sub(r"[^\w+-]", "_", title)


def _inline(svg: str, title: str) -> str:
    """Make a file of matplotlib part of a page: no prolog, no fixed size, no names that others have too, the page's colours."""
    from html import escape

    svg = NAMES.sub("", svg[svg.index("<svg") :])
    svg = re.sub(r"^<svg[^>]*>", f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">', svg, count=1)
    svg = re.sub(r"<style.*?</style>|font-family: [^;\"]*; ", "", svg, flags=re.DOTALL)  # which would be the whole page's
    svg = svg.replace(INK, "var(--muted)").replace(GRID, "var(--grid)")
    svg = re.sub(r"#a1b2(0\d)", lambda found: f"var(--run-{int(found[1])})", svg)
    return re.sub(r"\s*\n\s*", "\n", svg).strip()
