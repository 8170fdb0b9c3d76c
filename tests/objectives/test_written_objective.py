"""The objective that docs/objectives.md writes trains."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "objectives.md"


def test_the_objective_of_the_docs_raises_the_reward_and_costs_what_it_says(trainer, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    path = tmp_path / "reward_weighted.py"
    path.write_text(next(block for block in blocks if "class RewardWeighted(Objective)" in block), encoding="utf-8")
    made = trainer(f"{path}:RewardWeighted", "batch.group=16", "run.iterations=30")
    lines = [made.train() for _ in range(30)]
    means = [line["reward/red/mean"] for line in lines]
    assert lines[0]["evaluations"] == 2 * 16 * (3 + 1) and lines[0]["error/mean"] > 0
    assert sum(means[-5:]) / 5 > sum(means[:5]) / 5 + 0.05
