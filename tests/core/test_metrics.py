from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
import torch

from vgrpo_core.advantages import combine
from vgrpo_core.metrics import diversity, of_advantages, of_scaled, of_scores, of_update, peak, sketch, variation_in_group
from vgrpo_core.recipe import RewardEntry
from vgrpo_core.scoring import scaled

NAN = math.nan


def entry(label, scale=1.0, offset=0.0):
    return RewardEntry(label, 1.0, scale, offset, plugin=None, offer=None)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_r004_native_and_scaled_means_stand_side_by_side():
    scores, entries = {"pick": tensor(22.0, 22.2)}, [entry("pick", 1 / 26)]
    assert of_scores(scores, prefix="reward")["reward/pick/mean"] == pytest.approx(22.1)
    assert of_scaled(scaled(scores, entries), entries, 1)["reward/pick/scaled"] == pytest.approx(0.85)


def test_scale_and_offset_apply_in_this_order():
    assert scaled({"a": tensor(1, 2)}, [entry("a", 3, -5)])["a"].tolist() == [-2, 1]


def test_a_reward_without_scale_and_offset_has_no_scaled_mean():
    assert of_scaled({"a": tensor(1, 2)}, [entry("a")], 1) == {}


def test_r006_scores_below_zero_keep_their_sign():
    scores = (-2.3, -0.1, 0.4, 0.5)
    found = of_scores({"a": tensor(*scores)}, prefix="reward")
    assert found["reward/a/mean"] == pytest.approx(statistics.mean(scores))
    assert found["reward/a/std"] == pytest.approx(statistics.pstdev(scores))


def test_missing_scores_are_counted_and_left_out():
    assert of_scores({"a": tensor(1, NAN, 3, NAN)}, prefix="eval") == {"eval/a/mean": 2, "eval/a/std": 1, "eval/a/missing": 2}


@pytest.mark.filterwarnings("error")
def test_what_is_not_known_is_null_and_never_zero():
    found = of_scores({"a": tensor(NAN, NAN)}, prefix="reward") | of_scaled({"b": tensor(NAN)}, [entry("b", 2.0)], 1)
    assert found == {"reward/a/mean": None, "reward/a/std": None, "reward/a/missing": 2, "reward/b/scaled": None}
    found |= of_advantages(combine({"a": torch.full((2, 3), NAN)}, {"a": 1.0}))
    assert found["advantage/std"] is None and found["advantage/max_abs"] is None and found["advantage/missing"] == 6
    json.dumps(found, allow_nan=False)


def test_r018_the_spread_of_advantages_is_logged_and_their_mean_is_not():
    found = of_advantages(combine({"a": tensor(1, 1, 0, 4, NAN, 2).view(3, 2)}, {"a": 1.0}))
    valid = [0, 0, -1, 1]
    assert found == {
        "group/zero_std_fraction": pytest.approx(2 / 3),
        "advantage/std": pytest.approx(statistics.pstdev(valid)),
        "advantage/max_abs": 1,
        "advantage/missing": 2,
        "advantage/a/share": 1,
        "advantage/a/correlation": pytest.approx(1),
    }


def test_statistics_of_an_update_are_those_of_its_rows():
    rows = torch.tensor([0, 1, 2, 5])
    none = math.nan
    found = {"ratio": torch.tensor([1.0, 3, 2, none, none, 4]), "ratio/clip_fraction": torch.tensor([0.0, 1, 0, none, none, 0])}
    assert of_update(found, rows, group=3) == {
        "ratio/mean": 2.5,
        "ratio/min": 1,
        "ratio/max": 4,
        "ratio/cv_in_group": pytest.approx(statistics.pstdev([1, 3, 2]) / 2),  # rows 3 and 4 are not known, so only the first group
        "ratio/clip_fraction": 0.25,
    }


def test_variation_inside_groups_is_the_mean_of_their_deviation_over_their_mean():
    groups = [[1.0, 3.0], [5.0, 5.0], [10.0, 30.0]]
    expected = statistics.mean(statistics.pstdev(group) / statistics.mean(group) for group in groups)
    assert variation_in_group(torch.tensor(groups).flatten(), 2) == pytest.approx(expected)
    assert variation_in_group(torch.full((4,), NAN), 2) is None


def test_diversity_is_the_deviation_inside_groups_and_falls_to_nothing_where_images_are_alike():
    groups = torch.randn(5, 6, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    expected = statistics.mean(group.flatten(1).var(0, correction=0).mean().sqrt().item() for group in groups)
    assert diversity(sketch(groups.flatten(0, 1)), 6) == pytest.approx(expected)
    alike = groups[:, :1].expand(-1, 6, -1, -1, -1)
    assert diversity(sketch(alike.flatten(0, 1)), 6) == pytest.approx(0, abs=1e-6)


def test_a_sketch_of_large_latents_takes_256_coordinates_at_most():
    assert sketch(torch.randn(2, 16, 64, 64)).shape == (256, 2)
    assert sketch(torch.randn(2, 257, 1)).shape[0] <= 256


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="Linux says its own peak")
def test_the_peak_on_the_cpu_is_what_the_system_says():
    status = Path("/proc/self/status").read_text()
    most = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak(torch.device("cpu")) == pytest.approx(most / 1e9, rel=0.05)


def test_the_peak_on_a_cuda_device_is_that_of_pytorch_s_allocator(monkeypatch):
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", {cuda: 3e9}.__getitem__)
    assert peak(cuda) == 3
