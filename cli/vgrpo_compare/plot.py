"""The picture of a comparison: held-out score against cost and against seconds, with a band over seeds."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vgrpo_core import PluginError

from .table import Found, formula

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito's, for all kinds of sight
DASHES, MARKS = ("-", "--", "-.", ":"), "osD^vPX"
STYLE: Mapping[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "vgrpo",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


class Band(NamedTuple):
    """An entry's curve over seeds, one value an evaluation."""

    places: list[float]
    middle: list[float]
    low: list[float]
    high: list[float]


def check() -> None:
    """Refuse to begin without what draws the picture."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise PluginError("vgrpo compare needs matplotlib, which is not installed", 'Run: pip install "vgrpo[plot]"')


def band(runs: Sequence[Found], axis: str) -> Band:
    """Average the evaluations of equal iterations over the seeds that have them; the band is their range."""
    points = [point for run in runs for point in run["curve"] if point["score"] is not None]
    found = Band([], [], [], [])
    for iteration in sorted({point["iteration"] for point in points}):
        here = [point for point in points if point["iteration"] == iteration]
        scores, places = [point["score"] for point in here], [point[axis] for point in here]
        means = [sum(values) / len(values) for values in (places, scores)]
        for column, value in zip(found, (*means, min(scores), max(scores)), strict=True):
            column.append(value)
    return found


def draw(found: Found) -> dict[str, bytes]:
    """Return the picture as compare.png and compare.svg."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(dict(STYLE)):
        figure = Figure(figsize=(10, 4.4), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, 2, sharey=True)
        counted = "a backward counts as two" if found["budget"]["count"] == "all" else "forward passes"
        titles = {"cost": f"network evaluations in training ({counted})", "seconds": "seconds of training"}
        for panel, (axis, title) in zip(panels, titles.items(), strict=True):
            _panel(panel, found, axis, title)
        panels[0].set_ylabel(f"held-out score: {formula(found)}")
        handles, labels = panels[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5), frameon=False)
        return {name: _bytes(figure, name) for name in ("compare.png", "compare.svg")}


def _panel(panel: Any, found: Found, axis: str, title: str) -> None:
    for at, entry in enumerate(found["entries"]):
        curve, colour = band(entry["runs"], axis), COLOURS[at % len(COLOURS)]
        if not curve.places:
            continue
        seeds = len(entry["runs"])
        panel.fill_between(curve.places, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
        style = {"color": colour, "linestyle": DASHES[at % len(DASHES)], "marker": MARKS[at % len(MARKS)], "markersize": 4}
        panel.plot(curve.places, curve.middle, **style, label=f"{entry['label']} ({seeds} seed{'s' if seeds > 1 else ''})")
        for run in entry["runs"]:
            if run["broken"] and run["curve"]:
                panel.plot(run["curve"][-1][axis], run["curve"][-1]["score"], "x", color=colour, markersize=10, markeredgewidth=2)
    panel.set_xlabel(title)
    panel.set_xlim(left=0)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def _bytes(figure: Any, name: str) -> bytes:
    buffer, kind = io.BytesIO(), name.rpartition(".")[2]
    figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return buffer.getvalue()
