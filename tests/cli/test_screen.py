from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

from vgrpo_cli.listing import columns, say_columns, wrapped
from vgrpo_cli.screen import Screen, number
from vgrpo_core.events import Evaluated, Iterated, Saved, Started, Warned


def told(*events, terminal, start=None, labels=("ocr", "color"), width=100, iterations=20):
    """What is printed of events."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, force_interactive=terminal, highlight=False, width=width)
    with Screen(console, dict.fromkeys(labels, 1.0), iterations, start or {}) as screen:
        for event in events:
            screen(event)
        if terminal:
            screen.bar.refresh()  # as it does four times a second
    return file.getvalue()


def iterated(iteration, **means):
    return Iterated({"iteration": iteration, **{f"reward/{label}/mean": mean for label, mean in means.items()}})


def evaluated(iteration, **scores):
    return Evaluated(iteration, scores, (), torch.zeros(0, 3, 1, 1))


RUN = (
    Started(Path("runs/x"), 0, 20),
    evaluated(0, ocr=0.5, color=0.55),
    iterated(1, ocr=0.51, color=None),
    Warned("[bold]one[/bold] monitor failed :smile:"),
    Saved(1, Path("runs/x/checkpoints/000001")),
    evaluated(2, ocr=0.571, color=0.7),
    iterated(2, ocr=0.52, color=0.6),
)


def test_without_a_terminal_there_is_one_plain_line_an_iteration():
    lines = re.sub(r"\d+\.\d s/iteration  \d:\d\d:\d\d left", "TIME", told(*RUN, terminal=False)).splitlines()
    assert lines == [
        "iteration 0  ocr 0.500  color 0.550  held out",
        "iteration 1/20  ocr 0.510  color missing  TIME",
        "warning: [bold]one[/bold] monitor failed :smile:",
        "iteration 2  ocr 0.571 (+0.071)  color 0.700 (+0.150)  held out",
        "iteration 2/20  ocr 0.520  color 0.600  TIME",
    ]


def test_on_a_terminal_a_bar_shows_the_iteration_and_goes_away():
    written = told(*RUN, terminal=True)
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", written)
    assert "iteration 2/20" in text
    assert "ocr 0.520  color 0.600" in text
    lines = [line for line in text.splitlines() if "/20" not in line and line.strip()]
    assert lines == [
        "iteration 0  ocr 0.500  color 0.550  held out",
        "warning: [bold]one[/bold] monitor failed :smile:",
        "iteration 2  ocr 0.571 (+0.071)  color 0.700 (+0.150)  held out",
    ]
    assert written.rstrip().endswith("\x1b[2K")  # the bar's line is cleared
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # and the cursor is back


def test_time_left_is_that_of_the_mean_iteration_so_far(monkeypatch):
    clock = iter([0.0, 100.0, 110.0, 114.0, 118.0])  # made, started, evaluated, and two iterations of 4 s
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    events = (Started(Path("runs/x"), 0, 20), evaluated(0, a=1.0), iterated(1, a=1.0), iterated(2, a=1.0))
    lines = told(*events, terminal=False, labels=("a",)).splitlines()
    assert lines[-2] == "iteration 1/20  a 1.000  4.0 s/iteration  0:01:16 left"
    assert lines[-1] == "iteration 2/20  a 1.000  4.0 s/iteration  0:01:12 left"


def test_a_resumed_run_counts_from_where_it_was(monkeypatch):
    clock = iter([0.0, 100.0, 104.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    events = (Started(Path("runs/x"), 10, 20), iterated(11, a=1.0), evaluated(15, a=0.75))
    first, second = told(*events, terminal=False, start={"a": 0.5}, labels=("a",)).splitlines()
    assert first == "iteration 11/20  a 1.000  4.0 s/iteration  0:00:36 left"
    assert second == "iteration 15  a 0.750 (+0.250)  held out"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((None, "missing"), (0.0, "0.000"), (0.5714, "0.571"), (-0.5, "-0.500")),
        *((12.34, "12.3"), (54321.7, "54,322"), (1.2e-4, "1.2e-04")),
    ],
)
def test_scores_are_written_in_about_four_figures(value, text):
    assert number(value) == text


def test_columns_line_up():
    rows = [("a", "bb", "c"), ("aaa", "b", "ccc")]
    assert columns(rows) == ["a    bb  c", "aaa  b   ccc"]
    assert columns(rows, right=True) == ["a    bb    c", "aaa   b  ccc"]
    assert columns([]) == []


@pytest.mark.parametrize("count", range(1, 8))
def test_the_bar_keeps_to_one_line_of_80_columns_and_shows_first_how_long_it_takes(count):
    labels = tuple(f"reward{index}" for index in range(count))
    events = (Started(Path("x"), 0, 200), iterated(100, **dict.fromkeys(labels, 0.5)))
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", told(*events, terminal=True, labels=labels, width=80, iterations=200))
    last = [line for line in re.split("[\r\n]", text) if "100/200" in line][-1]
    assert len(last) <= 80
    assert re.match(r"iteration 100/200 \S+ \d:\d\d:\d\d left  reward0 0.500", last)
    assert "…" not in last


def test_long_text_is_wrapped_on_a_terminal_and_whole_elsewhere():
    warning = Warned(" ".join(["word"] * 30))
    lines = told(warning, terminal=False, width=80).splitlines()
    assert lines == [f"warning: {warning.message}"]
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", told(warning, terminal=True, width=80))
    wide, *others = [line for line in re.split("[\r\n]+", text) if "word" in line]
    assert " ".join([wide, *(line.strip() for line in others)]) == f"warning: {warning.message}"
    assert all(line.startswith(" " * 9) for line in others)
    assert max(map(len, [wide, *others])) <= 80


def test_a_command_is_never_broken():
    command = "vgrpo run words --resume --out " + "long/" * 20
    assert wrapped(f"{'word ' * 20}go on with: {command}", 80)[-1] == f"  {command}"
    assert wrapped("short; go on with: vgrpo", 80) == ["short; go on with: vgrpo"]


def test_the_last_column_is_wrapped_inside_itself(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    say_columns([("name", "one two three four five six seven eight"), ("other", "short")])
    assert capsys.readouterr().out.splitlines() == ["name   one two three four five six seven", "       eight", "other  short"]
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    say_columns([("name", "one two three four five six seven eight")])
    assert capsys.readouterr().out == "name  one two three four five six seven eight\n"
