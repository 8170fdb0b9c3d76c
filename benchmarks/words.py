"""Time the recipe `words` as a user runs it and keep its figures: `python benchmarks/words.py` writes docs/figures/words.json.

Three seeds as shipped, and one run of twice the iterations, each a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vgrpo_core.folder import evaluated

FIGURES = Path(__file__).parent.parent / "docs" / "figures" / "words.json"
RUNS = [["run.seed=0"], ["run.seed=1"], ["run.seed=2"], ["run.seed=0", "run.iterations=80"]]


def measure(overrides: list[str]) -> dict:
    """Run the command and return its summary, its curve of held-out means and its wall-clock time in seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        sets = [word for override in overrides for word in ("--set", override)]
        start = time.monotonic()
        subprocess.run([sys.executable, "-m", "vgrpo_cli", "run", "words", "--out", str(out), *sets], check=True)
        wall = time.monotonic() - start
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        versions = json.loads((out / "manifest.json").read_text())["versions"]
        summary = json.loads((out / "summary.json").read_text())
    judged = [(line["iteration"], evaluated(line)) for line in lines if evaluated(line)]
    curve = {label: [[iteration, means[label]] for iteration, means in judged] for label in summary["start"]}
    return {"overrides": overrides, "wall_seconds": round(wall, 1), "cores": os.cpu_count(), "torch": versions["torch"], "curve": curve, **summary}


if __name__ == "__main__":
    FIGURES.write_text(json.dumps([measure(overrides) for overrides in RUNS], indent=1) + "\n")
