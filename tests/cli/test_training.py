from __future__ import annotations

import pytest

from vgrpo_cli.training import granted_cores

LIMITS = [("200000 100000", 2), ("150000 100000", 2), ("50000 100000\n", 1), ("max 100000\n", 0)]


@pytest.mark.parametrize(("text", "cores"), LIMITS)
def test_a_container_s_share_of_the_cores_is_rounded_up(tmp_path, text, cores):
    limit = tmp_path / "cpu.max"
    limit.write_text(text)
    assert granted_cores(limit) == cores


def test_without_a_control_group_there_is_no_limit(tmp_path):
    assert granted_cores(tmp_path / "cpu.max") == 0
