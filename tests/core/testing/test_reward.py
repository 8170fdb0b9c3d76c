"""A good reward passes its check, and one that breaks a single promise fails with the sentence about it."""

from __future__ import annotations

import math

import pytest
import torch

from vgrpo_core import Prompt, Samples, Scores
from vgrpo_core.testing import check_reward


def mean(samples):
    return samples.images.mean(dim=(1, 2, 3))


def with_evidence(evidence):
    return lambda samples: Scores(mean(samples), evidence(len(samples)))


def counting():
    calls = iter(range(99))
    return lambda samples: mean(samples) + next(calls)


def fresh():
    weight = torch.rand(())
    return lambda samples: mean(samples) * weight


SCORES = {
    "one number for all": (lambda: lambda s: s.images.mean(), r"returns shape \[\] for 4 samples, not \[4\]"),
    "a column": (lambda: lambda s: mean(s)[:, None], r"returns shape \[4, 1\] for 4 samples"),
    "a list": (lambda: lambda s: mean(s).tolist(), "returns list, not a tensor"),
    "whole numbers": (lambda: lambda s: (255 * mean(s)).int(), "returns int32, not float32"),
    "half precision": (lambda: lambda s: mean(s).bfloat16(), "returns bfloat16, not float32"),
    "infinite": (lambda: lambda s: (mean(s) > 0.3).log(), "returns an infinite score"),
    "nothing judged": (lambda: lambda s: mean(s) * math.nan, r"every score is missing \(NaN\); give `samples`"),
    "images in place": (lambda: lambda s: s.images.clamp_(max=0.5).mean((1, 2, 3)), "changes the images"),
    "random": (lambda: lambda s: mean(s) + torch.rand(len(s)), "a second call scores the same samples differently"),
    "history": (counting, "a second call scores the same samples differently"),
    "random weights": (fresh, "loaded again, it scores the same samples differently"),
    "place": (lambda: lambda s: mean(s) + torch.arange(len(s)), "in another order the samples score"),
    "batch statistics": (lambda: lambda s: mean(s) - mean(s).mean(), "one by one the samples score 0, 0, 0, 0, together"),
    "missing alone": (lambda: lambda s: mean(s) if len(s) > 1 else mean(s) * math.nan, "one by one the samples score nan"),
    "evidence missing": (lambda: with_evidence(lambda count: [{}] * (count - 1)), "evidence on 3 of 4 samples"),
    "evidence no table": (lambda: with_evidence(lambda count: ["read"] * count), "not one table a sample"),
    "evidence of tensors": (lambda: with_evidence(lambda count: [{"box": torch.ones(4)}] * count), "JSON can't hold: .*Tensor"),
    "evidence with NaN": (lambda: with_evidence(lambda count: [{"area": math.nan}] * count), "JSON can't hold"),
}


def test_a_good_reward_passes(good):
    check_reward(good.Bright())


def test_a_reward_with_evidence_and_gaps_passes(good):
    class Sparse(good.Bright):
        """Mean brightness of prompts that are there."""

        def load(self, device):
            evidence = lambda samples: [{"prompt": p.text, "box": [0, 1]} for p in samples.prompts]  # noqa: E731
            gaps = lambda samples: torch.tensor([0.0 if p.text else math.nan for p in samples.prompts])  # noqa: E731
            return lambda samples: Scores(mean(samples) + gaps(samples), evidence(samples))

    Sparse.__module__ = good.__name__
    check_reward(Sparse())


@pytest.mark.parametrize(("make", "sentence"), SCORES.values(), ids=SCORES)
def test_a_score_that_breaks_a_promise_fails_with_its_sentence(good, make, sentence, fails):
    class Broken(good.Bright):
        """Broken in one way."""

        def load(self, device):
            return make()

    fails(check_reward, Broken(), f'reward "bright".*{sentence}')


def test_a_score_off_by_less_than_the_tolerance_passes_and_by_more_fails(good, fails):
    class Rough(good.Bright):
        """Sums in an order that depends on the batch."""

        def load(self, device):
            return lambda samples: mean(samples) + 0.001 * (len(samples) == 1)

    Rough.__module__ = good.__name__
    check_reward(Rough(), tolerance=1e-2)
    fails(check_reward, Rough(), "one by one")


def test_the_samples_given_are_the_samples_judged(good, fails):
    class Named(good.Bright):
        """Brightness of what has a name."""

        def load(self, device):
            return lambda samples: mean(samples) * torch.tensor([p.metadata.get("name", math.nan) for p in samples.prompts])

    Named.__module__ = good.__name__
    own = Samples((Prompt("a", {"name": 1.0}), Prompt("b", {"name": 2.0})), torch.rand(2, 3, 8, 8))
    fails(check_reward, Named(), "every score is missing")
    check_reward(Named(), own)
    fails(check_reward, Named(), "one sample proves little", samples=next(own.split(1)))


def test_a_reward_from_a_heavy_module_fails(heavy, fails):
    fails(check_reward, heavy.Bright(), 'importing "heavy_plugins" imports numpy')
