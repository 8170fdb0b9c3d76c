"""Change one part of V-GRPO at a time: `python benchmarks/ablations.py [ablations | study | pairs]` writes docs/figures/NAME.json.

`ablations` turns parts off, as the paper's ablation does; `study` asks what keeps a long run up, and `pairs` what fewer pairs do
for V-GRPO and for others, both on words that no other figure is made of.
Each entry is trained by `vgrpo compare` on the recipe `words`, at the recipe's own learning rate unless it sets one, for the same number
of network evaluations (a backward pass counts as two). Processes with different --only may share the work; the last to end writes all.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
OTHERS = ["objective.kl=0", "optimizer.lr=6e-4"]  # the best rate of DiffusionNFT and AWM in docs/benchmark.md
TABLES = {
    "ablations": {
        "vgrpo": [],
        "own_pairs": ["objective.shared=false"],
        "uniform_times": ["objective.stratified=false"],
        "plain_error": ["objective.adaptive=false"],
        "pairs_2": ["objective.pairs=2"],
        "pairs_8": ["objective.pairs=8"],
        "v_error": ['objective.loss="v"'],
        "epsilon_error": ['objective.loss="epsilon"'],
        "all_twice": ["objective.split=false", "objective.steps=2"],
    },
    "study": {
        "vgrpo": [],
        "all_twice": ["objective.split=false", "objective.steps=2"],
        "one_step": ["objective.split=false", "objective.steps=1", "objective.soft_clip=3.0", "optimizer.lr=6e-4"],
        "soft_clip": ["objective.soft_clip=3.0"],
        "tight_clip": ["objective.clip=3e-3"],
        "loose_clip": ["objective.clip=3e-2"],
        "kl": ["objective.kl=0.3"],
        "span": ["objective.span=[0.1,1.0]"],
        "low_rate": ["optimizer.lr=1.5e-4"],
        "no_warmup": ["optimizer.warmup=0"],
        "ema": ["optimizer.ema=0.9"],
        "top": ["objective.top=0.5"],
    },
    "pairs": {
        "vgrpo": [],
        "vgrpo_2": ["objective.pairs=2"],
        "vgrpo_1": ["objective.pairs=1"],
        "nft=diffusion_nft": [*OTHERS, "objective.pairs=6"],
        "nft_2=diffusion_nft": [*OTHERS, "objective.pairs=2", "objective.grid=false"],
        "awm=awm": [*OTHERS, "objective.pairs=6"],
        "awm_2=awm": [*OTHERS, "objective.pairs=2"],
    },
}
CHOICE = ["--seeds", "7", "--budget", "86400", "--set", "eval.prompts.split=validation"]
HOW = {
    "ablations": ["--seeds", "0,1,2", "--budget", "60000"],
    "study": CHOICE,
    "pairs": CHOICE,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", default="ablations", choices=TABLES)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    table, out = TABLES[asked.table], asked.out or Path("compare") / asked.table
    sets = [f"{entry.partition('=')[0]}:{key}" for entry, keys in table.items() for key in keys]
    words = ["--objectives", ",".join(entry if "=" in entry else f"{entry}=vgrpo" for entry in table), *HOW[asked.table], "--out", str(out)]
    words += [word for each in [*sets, "checkpoint.every=0"] for word in ("--set", each)]
    words += [word for label in asked.only for word in ("--only", label)]
    subprocess.run([sys.executable, "-m", "vgrpo_cli", "compare", "words", *words], check=True)
    shutil.copy(out / "compare.json", FIGURES / f"{asked.table}.json")


if __name__ == "__main__":
    main()
