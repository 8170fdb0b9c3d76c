"""What a run shows: a bar where there is a terminal, one line an iteration where there is none, and one line an evaluation."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from vgrpo_core.events import Evaluated, Event, Iterated, Metrics, Started, Warned
from vgrpo_recipe.layout import WATCHED

from .alerts import Alerts
from .listing import columns, wrapped

SHOW_CURSOR, CLEAR_LINE = "\x1b[?25h", "\r\x1b[2K"
HANG = 9  # columns: of what follows a label, or "warning: "
BAR = 3  # columns that are kept for the bar and the blanks around it


class Screen:
    """Listen to a run and print it. Text has no markup; it is wrapped on a terminal, and nowhere else."""

    def __init__(self, console: Console, rewards: Mapping[str, float], iterations: int, start: Mapping[str, float | None]) -> None:
        """Show the rewards, given with their weights, and evaluations against the scores `start`, which may still be empty."""
        self.console, self.labels, self.iterations, self.start = console, list(rewards), iterations, dict(start)
        self.alerts = Alerts(rewards)
        self.first, self.done, self.since = 0, 0, time.monotonic()
        parts = [TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[status]}", markup=False)]
        self.bar = Progress(*parts, console=console, transient=True, refresh_per_second=4)
        self.task = self.bar.add_task("", status="", total=iterations)

    def __enter__(self) -> Self:
        """Wait for the run to start."""
        return self

    def __exit__(self, *error: object) -> None:
        """Take the bar away."""
        if self.console.is_interactive:  # elsewhere there is none, and to stop it would print an empty line
            self.bar.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case Started():
                self._start(event)
            case Iterated():
                self._iterated(event.metrics)
            case Evaluated():
                self._evaluated(event)
            case Warned():
                self.say(f"warning: {event.message}", "yellow")

    def say(self, line: str, style: str = "") -> None:
        """Print one line."""
        for part in wrapped(line, self.console.width, HANG) if self.console.is_terminal else [line]:
            self.console.print(Text(part, style), soft_wrap=True)

    def interrupted(self) -> None:
        """Say what a signal leads to. Written past all buffers and locks, which the interrupted code may hold."""
        what = f"finishing iteration {min(self.done + 1, self.iterations)}, then saving; press again to quit at once"
        start, end = (CLEAR_LINE, SHOW_CURSOR) if self.console.is_interactive else ("", "")
        os.write(self.console.file.fileno(), f"{start}{what}\n{end}".encode())

    def _start(self, event: Started) -> None:
        self.first = self.done = event.iteration
        self.since = time.monotonic()
        status = "" if event.iteration else "evaluating"
        self.bar.update(self.task, completed=self.done, description=self._where(), status=status)
        if self.console.is_interactive:
            self.bar.start()

    def _iterated(self, metrics: Metrics) -> None:
        self.done = int(metrics["iteration"] or 0)
        each = (time.monotonic() - self.since) / (self.done - self.first)
        left = timedelta(seconds=round(each * (self.iterations - self.done)))
        scores = [f"{label} {number(metrics[f'reward/{label}/mean'])}" for label in self.labels]
        pace = f"{each:.1f} s/iteration"
        status = self._beside_bar([f"{left} left", *scores, pace])
        self.bar.update(self.task, completed=self.done, description=self._where(), status=status)
        if not self.console.is_interactive:
            self.say("  ".join([self._where(), *scores, pace, f"{left} left"]))
        for alert in self.alerts.iterated(metrics):
            self.say(f"warning: {alert}", "yellow")

    def _beside_bar(self, parts: Sequence[str]) -> str:
        """Join what has room on the line of the bar, which neither wraps nor pushes the first parts out."""
        room = self.console.width - len(self._where()) - BAR
        while len("  ".join(parts)) > room and len(parts) > 1:
            parts = parts[:-1]
        return "  ".join(parts)

    def _where(self) -> str:
        return f"iteration {self.done}/{self.iterations}"

    def _evaluated(self, event: Evaluated) -> None:
        self.start = self.start or dict(event.scores)
        if event.iteration == self.first:
            self.since = time.monotonic()
            self.bar.update(self.task, status="")
        shown = {label: value for label, value in event.scores.items() if self.shows(label)}
        scores = [self._compared(label, value, event.iteration) for label, value in shown.items()]
        self.say("  ".join([f"iteration {event.iteration}", *scores, "held out"]), "bold")
        for alert in self.alerts.evaluated(event.scores, self.start):
            self.say(f"warning: {alert}", "yellow")

    def shows(self, label: str) -> bool:
        """Tell whether a label has its place on the screen; what is watched by default has it in metrics.jsonl alone."""
        return label in self.labels or label not in WATCHED

    def _compared(self, label: str, value: float | None, iteration: int) -> str:
        start = self.start.get(label)
        gain = f" ({number(value - start, sign='+')})" if iteration and value is not None and start is not None else ""
        return f"{label} {number(value)}{gain}"

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Print how held-out prompts were judged at the start, at the end and at best."""
        moments = ("start", "final", "best")
        shown = [label for label in summary["start"] if self.shows(label)]
        rows = [[label, *(number(summary[moment].get(label)) for moment in moments)] for label in shown]
        done = f"{summary['iterations']} iteration{'s' if summary['iterations'] != 1 else ''}"
        work = f"{done} in {summary['seconds']:.0f} s, {summary['evaluations']:,} network evaluations"
        for line in ["", *columns([["held out", *moments], *rows], right=True), "", work]:
            self.say(line)


def number(value: float | None, sign: str = "") -> str:
    """Write a score in about four figures."""
    if value is None:
        return "missing"
    size = abs(value)
    form = ",.0f" if size >= 1000 else ".1f" if size >= 10 else ".3f" if size >= 0.001 or size == 0 else ".1e"
    return format(value, sign + form)
