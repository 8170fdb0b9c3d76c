"""The tables of a comparison, as Markdown and for a terminal, from what compare.json holds. What was not reached is "-"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vgrpo_cli.listing import columns
from vgrpo_cli.screen import number

Row = Sequence[str]
Found = Mapping[str, Any]
UNITS = {"cost": "network evaluations", "seconds": "seconds of training"}


def page(found: Found) -> str:
    """Return compare.md."""
    parts = [f"# {found['name']}: {', '.join(entry['label'] for entry in found['entries'])}", about(found), markdown(scores(found))]
    for title, rows in tables(found):
        parts += [f"## {title}", markdown(rows)]
    return "\n\n".join([*parts, *notes(found)]) + "\n"


def terminal(found: Found) -> list[str]:
    """Return the tables as lines, with medians alone: the ranges of a few entries would be wider than a terminal."""
    lines = columns(scores(found), right=True)
    for title, rows in tables(found, ranges=False):
        lines += ["", title, *columns(rows, right=True)]
    return [*lines, *(line for note in notes(found) for line in ("", note))]


def tables(found: Found, *, ranges: bool = True) -> Iterator[tuple[str, list[Row]]]:
    """Yield the tables after that of the scores, with their titles."""
    first, *others = (entry["label"] for entry in found["entries"])
    how = "median (range)" if ranges else "median"
    if found["levels"]:
        for axis, unit in UNITS.items():
            reached = f"{unit.capitalize()} to reach a held-out score: {how}, and on how many seeds"
            yield reached, levels(found, axis, ranges=ranges)
        for axis, unit in UNITS.items() if others else ():
            speed = f"Speed against {first}, in {unit}: {how} over pairs of equal seeds"
            yield speed, levels(found, f"{axis}_speed", ranges=ranges)
    if any(entry["sweep"] for entry in found["entries"]):
        yield "Sweep: mean held-out score over the last third of evaluations", sweep(found)


def about(found: Found) -> str:
    """Say what was compared, and how."""
    budget, seeds = found["budget"], ", ".join(map(str, found["seeds"]))
    amount = f"{budget['amount']:,.0f} {'seconds' if budget['unit'] == 'seconds' else 'network evaluations'}"
    counted = "a backward pass counted as two" if budget["count"] == "all" else "forward passes only"
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    state = "" if found["complete"] else "\n\nNot complete yet: some runs are not over."
    return (
        f"Recipe `{found['recipe']}`, seeds {seeds}, {amount} a run in training ({counted}). The score is {formula(found)}, "
        f"of held-out prompts with fixed noise. Deviations are over seeds. {versions}.{state}"
    )


def formula(found: Found) -> str:
    """Write the weighted sum that entries are judged by."""
    terms = []
    for label, how in found["score"].items():
        inside = label if how["offset"] == 0 else f"({label}{how['offset'] / how['scale']:+g})"
        factor = how["weight"] * how["scale"]
        terms.append(inside if factor == 1 else f"{factor:g} {inside}")
    return " + ".join(terms)


def scores(found: Found) -> list[Row]:
    """Return the table of scores."""
    key = next((entry["sweep"]["key"] for entry in found["entries"] if entry["sweep"]), None)
    head = ["entry", *([key] if key else []), "final score", "best score", "cost", "seconds", "seeds"]
    return [head, *(_scores(entry, len(found["seeds"])) for entry in found["entries"])]


def _scores(entry: Found, seeds: int) -> Row:
    swept = [_chosen(entry["sweep"])] if entry["sweep"] else []
    figures = [_mean(entry["final"]), _mean(entry["best"])]
    spent = [_figure(entry[axis]["mean"]) if entry[axis] else "-" for axis in UNITS]
    whole = sum(not run["broken"] for run in entry["runs"])
    return [entry["label"], *swept, *figures, *spent, f"{whole} of {seeds}"]


def _chosen(sweep: Found) -> str:
    return f"{sweep['best'] or '-'}{' (edge)' if sweep['edge'] else ''}"


def _mean(mean: Found | None) -> str:
    if mean is None:
        return "-"
    return number(mean["mean"]) + (f" ± {number(mean['std'])}" if mean["std"] is not None else "")


def levels(found: Found, axis: str, *, ranges: bool = True) -> list[Row]:
    """Return where each entry reached each level, or how fast against the first one."""
    speed, seeds = axis.endswith("_speed"), len(found["seeds"])
    entries = found["entries"][1:] if speed else found["entries"]
    rows = [
        [f"{level:g}", *(_spread(entry["reached"][at][axis], seeds, speed, ranges) for entry in entries)]
        for at, level in enumerate(found["levels"])
    ]
    return [["score", *(entry["label"] for entry in entries)], *rows]


def _spread(spread: Found | None, seeds: int, speed: bool, ranges: bool) -> str:
    if spread is None:
        return "-"
    middle, low, high = (f"{spread[key]:.2f}x" if speed else _figure(spread[key]) for key in ("median", "low", "high"))
    if not ranges:
        return middle if spread["count"] == seeds else f"{middle} ({spread['count']} of {seeds})"
    inside = f" ({low} to {high})" if spread["count"] > 1 else ""
    return f"{middle}{inside}, {spread['count']} of {seeds}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def sweep(found: Found) -> list[Row]:
    """Return every entry's score of every value."""
    sweeps = {entry["label"]: entry["sweep"] for entry in found["entries"] if entry["sweep"]}
    key, values = next((each["key"], list(each["scores"])) for each in sweeps.values())
    rows = [[label, *(_tried(each, value) for value in values)] for label, each in sweeps.items()]
    return [[key, *values], *rows]


def _tried(sweep: Found, value: str) -> str:
    score = sweep["scores"][value]
    return "-" if score is None else number(score) + (" *" if value == sweep["best"] else "")


def notes(found: Found) -> list[str]:
    """Say what a reader has to know of these figures."""
    lines, budget = list[str](), found["budget"]
    if edges := [entry["label"] for entry in found["entries"] if entry["sweep"] and entry["sweep"]["edge"]]:
        lines.append(f"{', '.join(edges)}: the best value is at the edge of the sweep; a better one may lie beyond it.")
    for entry in found["entries"]:
        label = entry["label"]
        lines += [f"{label}, seed {run['seed']}: {run['ended']}" for run in entry["runs"] if run["ended"]]
        used = entry["cost" if budget["unit"] == "evaluations" else "seconds"]
        if used and used["mean"] > 1.05 * budget["amount"]:
            lines.append(f"{label}: runs took {used['mean'] / budget['amount']:.0%} of the budget.")
    return lines


def markdown(rows: Sequence[Row]) -> str:
    """Write rows as a table, the first one as its head; figures to the right."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---", *["---:"] * (len(head) - 1)], *body])
