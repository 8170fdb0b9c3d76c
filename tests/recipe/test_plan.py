from __future__ import annotations

import itertools

import pytest

from vgrpo_core import PluginError


@pytest.mark.parametrize(("every", "written"), [(0, 1), (10, 2), (6, 4), (50, 1)])
def test_checkpoints_are_counted_with_the_last(plan, every, written):
    assert plan(f"checkpoint.every={every}").checkpoints == written


@pytest.mark.parametrize(("share", "group", "silent"), [(0.18, 2, 0.70), (0.18, 4, 0.45), (0.18, 8, 0.20), (0.18, 16, 0.04)])
def test_r011_the_share_of_groups_without_signal_is_that_of_all_equal_outcomes(plan, share, group, silent):
    found = plan(f"batch.group={group}").silent(share)
    assert found == pytest.approx(silent, abs=0.006)
    equal = [outcome for outcome in itertools.product((0, 1), repeat=group) if len(set(outcome)) == 1]
    assert found == pytest.approx(sum(share ** sum(o) * (1 - share) ** (group - sum(o)) for o in equal))


def test_a_source_without_prompts_or_that_fails_is_refused(plan, monkeypatch):
    with pytest.raises(PluginError, match='prompts "numbers" has none'):
        plan("prompts.count=0")
    prompts = type(plan().recipe.prompts[0].plugin)
    monkeypatch.setattr(prompts, "load", lambda self: [][1])
    with pytest.raises(PluginError, match='prompts "numbers" could not be loaded\n  IndexError: list index out of range'):
        plan()
