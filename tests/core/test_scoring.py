from __future__ import annotations

import math

import pytest
import torch

from vgrpo_core import PluginError, Prompt, RunError, Samples, Scores
from vgrpo_core.recipe import RewardEntry
from vgrpo_core.schema import Gate
from vgrpo_core.scoring import Judge, asked, scaled

SOURCE = 'reward "ocr" (vgrpo 0.1.0)'


@pytest.fixture
def samples():
    return Samples((Prompt('a "word"'), Prompt("b"), Prompt("c")), torch.rand(3, 3, 2, 2))


def judge(score, **options):
    return Judge("ocr", SOURCE, score, **options)


def raiser(error):
    def score(samples):
        raise error

    return score


def test_scores_come_out_as_doubles_on_the_cpu(samples):
    found = judge(lambda samples: torch.tensor([1, 2, 3], dtype=torch.int32)).examine(samples).values
    assert found.tolist() == [1, 2, 3] and found.dtype == torch.float64 and found.device.type == "cpu"


def test_scores_keep_what_a_double_holds(samples):
    values = [0.1, 1 / 3, 22.123456789]
    assert judge(lambda samples: torch.tensor(values, dtype=torch.float64)).examine(samples).values.tolist() == values


def test_scores_below_zero_and_above_one_are_left_alone(samples):
    assert judge(lambda samples: torch.tensor([-2.5, 0.0, 26.0])).examine(samples).values.tolist() == [-2.5, 0, 26]


def test_what_is_not_finite_is_missing(samples):
    found = judge(lambda samples: torch.tensor([math.inf, -math.inf, math.nan])).examine(samples).values
    assert found.isnan().all()
    found = judge(lambda samples: torch.tensor([0.5, math.inf, 0.25])).examine(samples).values
    assert found[[0, 2]].tolist() == [0.5, 0.25] and math.isnan(found[1])


def test_scoring_takes_no_gradient(samples):
    assert judge(lambda samples: torch.full((3,), float(torch.is_grad_enabled()))).examine(samples).values.tolist() == [0, 0, 0]
    weight = torch.ones(1, requires_grad=True)
    assert not judge(lambda samples: weight * samples.images.mean((1, 2, 3))).examine(samples).values.requires_grad
    assert not judge(lambda samples: weight.expand(3)).examine(samples).values.requires_grad


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), (1, 3), ()])
def test_scores_of_another_shape_stop_the_run(samples, shape):
    with pytest.raises(RunError, match=rf"ValueError: returned shape \[{', '.join(map(str, shape))}\] for 3 samples"):
        judge(lambda samples: torch.zeros(shape)).examine(samples)


@pytest.mark.parametrize("nothing", [None, "0.5", [0.5, None, 1.0], {}], ids=repr)
def test_r024_what_is_no_number_stops_the_run_and_is_never_made_one(samples, nothing):
    with pytest.raises(RunError, match=r'reward "ocr" \(vgrpo 0\.1\.0\) failed'):
        judge(lambda samples: nothing).examine(samples)


def test_r022_a_failing_training_reward_names_itself_its_samples_and_the_error(samples):
    error = ConnectionError("no route to host")
    with pytest.raises(RunError) as caught:
        judge(raiser(error)).examine(samples)
    assert str(caught.value) == f"{SOURCE} failed on 3 samples, first prompt 'a \"word\"': ConnectionError: no route to host"
    assert caught.value.__cause__ is error
    assert caught.value.exit_code == 1


def test_what_a_reward_says_to_people_reaches_them_in_its_own_words(samples):
    error = PluginError('reward "ocr" lacks its models', fix="Run: pip install")
    with pytest.raises(PluginError) as caught:
        judge(raiser(error)).examine(samples)
    assert caught.value is error


def test_r021_a_failing_monitor_leaves_a_gap_and_is_remembered(samples):
    monitor = judge(raiser(ConnectionError("no route to host")), monitor=True)
    found = monitor.examine(samples).values
    assert found.shape == (3,) and found.dtype == torch.float64 and found.isnan().all()
    assert monitor.failures == ["ConnectionError: no route to host"]
    monitor.examine(samples)
    assert len(monitor.failures) == 2


def test_a_monitor_with_scores_of_another_shape_leaves_a_gap(samples):
    monitor = judge(lambda samples: torch.zeros(2), monitor=True)
    assert monitor.examine(samples).values.isnan().all() and "shape [2]" in monitor.failures[0]


def test_being_interrupted_is_no_failure_of_a_monitor(samples):
    with pytest.raises(KeyboardInterrupt):
        judge(raiser(KeyboardInterrupt()), monitor=True).examine(samples)


def test_what_a_number_was_made_from_comes_with_it(samples):
    evidence = [{"read": str(row)} for row in range(len(samples))]
    found = judge(lambda s: Scores(torch.arange(len(s)), evidence)).examine(samples)
    assert found.evidence == evidence
    assert found.values.tolist() == list(range(len(samples)))


def test_evidence_on_other_samples_than_those_scored_stops_the_run(samples):
    with pytest.raises(RunError, match=f"evidence on 1 of {len(samples)} samples"):
        judge(lambda s: Scores(torch.zeros(len(s)), [{}])).examine(samples)


def tagged():
    prompts = tuple(Prompt(str(row), tags=frozenset(tags)) for row, tags in enumerate([["ocr"], [], ["ocr", "short"], ["other"]]))
    return Samples(prompts, torch.rand(4, 3, 2, 2))


def test_a_reward_for_tagged_prompts_sees_no_others_and_is_missing_there():
    seen = []

    def score(samples):
        seen.extend(prompt.text for prompt in samples.prompts)
        return Scores(torch.tensor([5.0, 7.0]), [{"read": prompt.text} for prompt in samples.prompts])

    made, samples = judge(score, on=("ocr",)), tagged()
    found = made.examine(samples)
    assert seen == ["0", "2"]
    assert found.values.nan_to_num(-1).tolist() == [5, -1, 7, -1]
    assert found.evidence == [{"read": "0"}, {}, {"read": "2"}, {}]
    assert asked([made], samples.prompts, {made.label: found.values})[made.label].tolist() == [5, 7]


def test_a_reward_is_not_asked_where_no_prompt_has_its_tag():
    found = judge(raiser(ValueError("asked")), on=("none",)).examine(tagged()).values
    assert found.isnan().all() and len(found) == 4


def entry(label, **options):
    return RewardEntry(label, options.pop("weight", 1.0), options.pop("scale", 1.0), 0.0, None, None, **options)


def test_a_gated_reward_counts_only_where_the_other_ones_native_score_lies_in_its_range():
    nan = torch.nan
    scores = {"ocr": torch.tensor([0.4, 0.5, 0.6, 0.95, nan]), "pick": torch.tensor([1.0, 2, 3, 4, 5])}
    gate = Gate(reward="ocr", above=0.5, below=0.9)
    found = scaled(scores, [entry("ocr", scale=100.0), entry("pick", gate=gate)])
    assert found["pick"].nan_to_num(-1).tolist() == [-1, -1, 3, -1, -1]
    assert found["ocr"].nan_to_num(-1).tolist() == pytest.approx([40, 50, 60, 95, -1])


@pytest.mark.parametrize(("iteration", "weight"), [(0, 1.0), (1, 0.992), (50, 0.6), (100, 0.2), (999, 0.2)])
def test_a_weight_moves_linearly_between_its_points_and_stays_beyond_them(iteration, weight):
    assert entry("a", weight=((0, 1.0), (100, 0.2))).weight_at(iteration) == pytest.approx(weight)
    assert entry("a", weight=3.5).weight_at(iteration) == 3.5
