"""The page: what a report says, in its order, and the template that it goes into."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vgrpo_cli.alerts import FALL
from vgrpo_cli.screen import number
from vgrpo_recipe.layout import WATCHED

from . import curves, samples
from .pictures import gallery
from .read import Reward, Run, differences, named


class Headline(NamedTuple):
    """A reward before and after, held out."""

    label: str
    weight: str | None
    before: str
    after: str
    change: str
    verdict: str
    """`better`, `worse`, or nothing where there is no telling."""
    best: str


def render(runs: Sequence[Run]) -> str:
    """Return the whole page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    names = named(runs)
    loader = FileSystemLoader(Path(__file__).with_name("template"))
    jinja = Environment(autoescape=True, loader=loader, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    charts = {
        kind: [(chart.title, Markup(curves.draw(chart, runs))) for chart in found if any(_known(chart, run) for run in runs)]
        for kind, found in (("trained", curves.trained(runs)), ("watched", curves.watched(runs)))
    }
    return jinja.get_template("page.html").render(
        title=" and ".join(names) if len(runs) < 4 else f"{len(runs)} runs",
        runs=[about(run, name) for run, name in zip(runs, names, strict=True)],
        axes=curves.AXES,
        charts=charts,
        averaged=curves.averaged(max(run.done for run in runs), curves.most(runs)),
        gallery=gallery(runs, names),
        extremes=samples.extremes(runs[0]) if len(runs) == 1 else None,
        differences=differences(runs),
        fall=f"{FALL:.0%}",
    )


def about(run: Run, name: str) -> dict[str, Any]:
    """Collect what the page says of one run."""
    return {
        "name": name,
        "model": run.manifest["backbone"]["what"],
        "rewards": run.rewards,
        "progress": _progress(run),
        "headlines": headlines(run),
        "alerts": list(run.alerts()),
        "costs": costs(run),
        "recipe": run.recipe,
        "versions": {"python": run.manifest["python"]} | dict(run.manifest["versions"]),
        "platform": run.manifest["platform"],
        "plugins": run.manifest["plugins"],
        "command": _command(run.manifest["argv"], run.manifest["backbone"].get("ranks", 1)),
        "again": shlex.join(["vgrpo", "run", str(run.path / "recipe.toml")]),
    }


def headlines(run: Run) -> list[Headline]:
    """Compare the first evaluation with the last: what was trained, then what the recipe asked to watch."""
    rewards: dict[str, Reward | None] = {reward.label: reward for reward in run.rewards}
    rewards |= {label: None for label in run.labels if label not in rewards and label not in WATCHED}
    return [_headline(run, label, reward) for label, reward in rewards.items()]


def costs(run: Run) -> list[tuple[str, str]]:
    """Say what an iteration took, as far as it is known."""
    peaks = [value for line in run.lines if (value := line.get("memory/peak_gb")) is not None]
    each = {
        "seconds per iteration": (run.spent("seconds"), number),
        "network evaluations per iteration": (run.spent("evaluations"), "{:,.0f}".format),
        "backward passes per iteration": (run.spent("backwards"), "{:,.0f}".format),
        "peak memory": (max(peaks, default=None), "{:.2f} GB".format),
        "seconds in all, without evaluation": (run.lines[-1].get("seconds"), "{:,.0f}".format),
        "network evaluations in all": (run.lines[-1].get("evaluations"), "{:,.0f}".format),
    }
    return [(what, write(value)) for what, (value, write) in each.items() if value is not None]


def _headline(run: Run, label: str, reward: Reward | None) -> Headline:
    (_, first), (last, final) = run.evaluated[0], run.evaluated[-1]
    before, after = first.get(label), final.get(label)
    gain = None if before is None or after is None or not last else after - before
    good = gain * reward.factor if reward and gain else 0.0
    best = run.best(label)
    return Headline(
        label=label,
        weight=reward.weight if reward else None,
        before=number(before),
        after=number(after),
        change="" if gain is None else number(gain, sign="+"),
        verdict="better" if good > 0 else "worse" if good < 0 else "",
        best=f"best {number(best[1])} at iteration {best[0]}" if best and best[0] != last else "",
    )


def _known(chart: curves.Chart, run: Run) -> bool:
    return any(line.get(key) is not None for key in (chart.training, chart.held_out) if key for line in run.lines)


def _progress(run: Run) -> str:
    seconds = run.lines[-1].get("seconds") or 0.0
    took = _duration(round(seconds))
    if run.done < run.wanted:
        return f"{run.done} of {run.wanted} iterations so far, in {took}: still going, or stopped"
    return f"{run.done} iterations in {took}"


def _duration(seconds: int) -> str:
    """Write a time in its two largest units."""
    minutes, hours = seconds // 60, seconds // 3600
    if minutes < 2:
        return f"{seconds} s"
    return f"{minutes} min {seconds % 60} s" if hours < 2 else f"{hours} h {minutes % 60} min"


def _command(argv: Sequence[str], ranks: int) -> str:
    """Write the command as it was typed, whatever folder its program is in."""
    if ranks > 1:
        return shlex.join(["torchrun", "--nproc_per_node", str(ranks), "-m", "vgrpo_cli", *argv[1:]])
    program = Path(argv[0]).name
    return shlex.join([*(["python", "-m", "vgrpo_cli"] if program == "__main__.py" else [program]), *argv[1:]])
