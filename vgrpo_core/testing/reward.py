"""Check a reward: the same image gets the same number, whatever it is judged with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..plugin import Prompt, Reward
from ..samples import Samples, Scores
from .light import check_light
from .plugin import check_class, expect, home

if TYPE_CHECKING:
    from ..plugin import Score

PROMPTS = (
    Prompt('a red sign that says "open"', {"text": "open", "color": "red"}),
    Prompt("two dogs on a beach"),
    Prompt(""),
    Prompt("a street with " + " and ".join(["a green door"] * 40)),  # more than text encoders read
)


def check_reward(reward: Reward, samples: Samples | None = None, device: str = "cpu", *, tolerance: float = 1e-4) -> None:
    """Check what vgrpo relies on in a reward, loading it twice; an AssertionError says what does not hold.

    `samples` are two or more that it can judge, best with different scores; by default four pictures of soft noise, 96 x 128: one
    with a text and a colour to find, one without a prompt, one with a prompt longer than encoders read. Scores have to be
    float [B], finite or NaN and not all NaN; exactly the same in a second call and after a second `load`; in any order and one by
    one the same up to `tolerance`, absolute and relative. Images have to be left as they were; evidence has to be one table a
    sample, ready for JSON. Unknown options are refused, what it `requires` is installed, and importing its module is light.
    """
    check_class("reward", type(reward))
    who, given = f'reward "{reward.name}"', _placed(examples() if samples is None else samples, device)
    expect(len(given) > 1, f"{who}: one sample proves little; give two or more")
    score = reward.load(torch.device(device))
    values = _values(who, score, given)
    expect(not bool(values.isnan().all()), f"{who}: every score is missing (NaN); give `samples` that it can judge")
    expect(_same(_values(who, score, given), values), f"{who}: a second call scores the same samples differently")
    _check_company(who, score, given, values, tolerance)
    again = _values(who, reward.load(torch.device(device)), given)
    expect(_same(again, values), f"{who}: loaded again, it scores the same samples differently, so that a run can't be resumed")
    if module := home(reward):
        check_light(module)


def examples() -> Samples:
    """Return four pictures of soft noise, from dark to bright, with prompts short, missing and long: images [4, 3, 96, 128]."""
    coarse = torch.rand(len(PROMPTS), 3, 6, 8, generator=torch.Generator().manual_seed(0))
    soft = torch.nn.functional.interpolate(coarse, scale_factor=16, mode="bilinear")
    return Samples(PROMPTS, soft * torch.linspace(0.25, 1, len(PROMPTS)).view(-1, 1, 1, 1))


def _placed(samples: Samples, device: str) -> Samples:
    return Samples(samples.prompts, samples.images.to(device))


def _check_company(who: str, score: Score, samples: Samples, values: Tensor, tolerance: float) -> None:
    """Check that a sample's score does not depend on its place in a batch, nor on what else is in it."""
    backwards = Samples(samples.prompts[::-1], samples.images.flip(0))
    flipped = _values(who, score, backwards).flip(0)
    expect(_close(flipped, values, tolerance), f"{who}: in another order the samples score {_few(flipped)}, not {_few(values)}")
    alone = torch.cat([_values(who, score, part) for part in samples.split(1)])
    expect(_close(alone, values, tolerance), f"{who}: one by one the samples score {_few(alone)}, together {_few(values)}")


def _values(who: str, score: Score, samples: Samples) -> Tensor:
    """Score as a run does and check the form of what comes back: float64 [B] on the CPU."""
    before = samples.images.clone()
    with torch.no_grad():
        found = score(samples)
    expect(torch.equal(samples.images, before), f"{who} changes the images that it is given: work on a copy")
    values, evidence = found if isinstance(found, Scores) else (found, ())
    _check_form(who, values, len(samples))
    _check_evidence(who, evidence, len(samples))
    return values.cpu().double()


def _check_form(who: str, values: object, count: int) -> None:
    expect(isinstance(values, Tensor), f"{who} returns {type(values).__name__}, not a tensor or Scores")
    assert isinstance(values, Tensor)  # for the type checker
    expect(values.shape == (count,), f"{who} returns shape {list(values.shape)} for {count} samples, not [{count}]")
    wide = values.dtype in (torch.float32, torch.float64)
    expect(wide, f"{who} returns {str(values.dtype).removeprefix('torch.')}, not float32: coarse numbers make ties")
    expect(not bool(values.isinf().any()), f"{who} returns an infinite score; what can't be judged is NaN")


def _check_evidence(who: str, evidence: Sequence[Mapping[str, Any]], count: int) -> None:
    expect(len(evidence) in (0, count), f"{who} returns evidence on {len(evidence)} of {count} samples")
    expect(all(isinstance(table, Mapping) for table in evidence), f"{who} returns evidence that is not one table a sample")
    try:
        json.dumps([dict(table) for table in evidence], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{who} returns evidence that JSON can't hold: {error}") from error


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(torch.inf), other.nan_to_num(torch.inf))


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def _few(values: Tensor) -> str:
    return ", ".join(f"{value:.6g}" for value in values[:4].tolist()) + (", ..." if len(values) > 4 else "")
