from __future__ import annotations

import warnings

import pytest
import torch

from vgrpo_core import Prompt, Samples, Scores
from vgrpo_rewards.networks import Limit, Network, in_batches


class Mean(Network):
    name = "mean"

    def load(self, device):
        raise AssertionError


def test_a_reward_runs_where_the_model_trains_unless_it_is_told_otherwise():
    assert Mean().place(torch.device("cuda", 2)) == (torch.device("cuda", 2), torch.float32)
    assert Mean(device="cpu", dtype="bfloat16").place(torch.device("cuda")) == (torch.device("cpu"), torch.bfloat16)


@pytest.mark.parametrize("evidence", [False, True])
@pytest.mark.parametrize("count", [1, 4, 5])
def test_batches_of_any_size_give_the_scores_and_the_evidence_of_one(count, evidence):
    seen = []

    def score(samples):
        seen.append(len(samples))
        values = samples.images.mean((1, 2, 3))
        return Scores(values, [{"prompt": prompt.text} for prompt in samples.prompts]) if evidence else values

    samples = Samples(tuple(Prompt(str(row)) for row in range(count)), torch.rand(count, 3, 2, 2))
    found = in_batches(score, 2)(samples)
    assert max(seen) <= 2
    assert torch.equal(found.values, samples.images.mean((1, 2, 3)))
    assert list(found.evidence) == ([{"prompt": str(row)} for row in range(count)] if evidence else [])


def test_what_is_cut_off_a_text_is_counted_and_said_once():
    limit = Limit("pickscore", 77)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        limit.check([5, 77])
        limit.check([5, 80, 102])
        limit.check([200])
    assert [str(one.message) for one in caught] == [
        'reward "pickscore": 2 of 3 prompts are longer than the 77 tokens it reads, the longest by 25; the rest is cut off'
    ]
