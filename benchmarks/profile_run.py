"""Profile a whole `vgrpo run words` with py-spy: `python benchmarks/profile_run.py` writes docs/figures/profile.json (pip install py-spy).

py-spy looks at the main thread fifty times a second, from the start of Python to its end. A sample counts for the first of PARTS
that one of its frames belongs to, so that the parts add up to the run. Rewards run in a thread of their own; what the main thread
waits for them is a part.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

FIGURES = Path(__file__).parent.parent / "docs" / "figures" / "profile.json"
RATE = 50  # samples a second
PARTS = {
    "imports": r"_find_and_load|import_module",
    "held-out evaluations": r"Trainer\.evaluate ",
    "report, pictures": r"\(vgrpo_report/|\(vgrpo_cli/pictures",
    "checkpoints, export": r"\(vgrpo_core/checkpoint|\.export ",
    "loading": r"Trainer\.__init__ ",
    "text encoders": r"encode_prompt",
    "decode": r"autoencoder_kl|vae\.py",
    "backward": r"_engine_run_backward|\(torch/_tensor\.py",
    "optimizer": r"\(vgrpo_core/optimizer",
    "network of the surrogate": r"\(vgrpo_core/surrogate.*transformer_sd3",
    "network of the rollout": r"transformer_sd3",
    "rest of the surrogate": r"\(vgrpo_core/surrogate|Trainer\.accumulate ",
    "waiting for rewards": r"collect \(vgrpo_core/rollout\.py.*threading\.py",
    "rest of the rollout": r"\(vgrpo_core/rollout\.py",
}


def profile(folder: Path) -> list[str]:
    """Run the recipe under py-spy and return a line for each stack of frames."""
    command = [sys.executable, "-m", "vgrpo_cli", "run", "words", "--out", str(folder / "run")]
    found = folder / "stacks.txt"
    subprocess.run(["py-spy", "record", "--idle", "-r", str(RATE), "-f", "raw", "-t", "-o", str(found), "--", *command], check=True)
    return found.read_text(encoding="utf-8").splitlines()


def shares(stacks: list[str]) -> dict[str, float]:
    """Return the share of each part in the samples of the main thread."""
    counts: Counter[str] = Counter()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        if "MainThread" in stack:
            counts[next((name for name, frame in PARTS.items() if re.search(frame, stack)), "anything else")] += int(count)
    return {name: counts[name] / counts.total() for name in (*PARTS, "anything else")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stacks", type=Path, help="a file that py-spy has written; nothing is run then")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stacks = asked.stacks.read_text(encoding="utf-8").splitlines() if asked.stacks else profile(Path(folder))
    found = {name: float(f"{share:.3g}") for name, share in shares(stacks).items()}
    print(json.dumps(found, indent=1))
    FIGURES.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
