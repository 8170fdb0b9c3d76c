"""Turn V-GRPO's parts off, one at a time: `python benchmarks/ablations.py [--only ENTRY ...]` writes docs/figures/ablations.{json,svg}.

Each entry is trained by `vgrpo compare` on the recipe `words`, at the recipe's own learning rate, for the same number of network
evaluations (a backward pass counts as two). Processes with different --only may share the work; whichever ends last writes all.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
ENTRIES = {
    "vgrpo": [],
    "own_pairs": ["shared=false"],
    "uniform_times": ["stratified=false"],
    "plain_error": ["adaptive=false"],
    "pairs_2": ["pairs=2"],
    "pairs_8": ["pairs=8"],
    "v_error": ['loss="v"'],
    "epsilon_error": ['loss="epsilon"'],
    "all_twice": ["split=false", "steps=2"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], choices=ENTRIES)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--budget", default="60000")
    parser.add_argument("--out", type=Path, default=Path("compare/ablations"))
    asked = parser.parse_args()
    entries = ",".join(f"{label}=vgrpo" for label in ENTRIES)
    sets = [f"{label}:objective.{key}" for label, keys in ENTRIES.items() for key in keys]
    words = ["--objectives", entries, "--seeds", asked.seeds, "--budget", asked.budget, "--out", str(asked.out)]
    words += [word for each in [*sets, "checkpoint.every=0"] for word in ("--set", each)]
    words += [word for label in asked.only for word in ("--only", label)]
    subprocess.run([sys.executable, "-m", "vgrpo_cli", "compare", "words", *words], check=True)
    shutil.copy(asked.out / "compare.json", FIGURES / "ablations.json")
    shutil.copy(asked.out / "compare.svg", FIGURES / "ablations.svg")


if __name__ == "__main__":
    main()
