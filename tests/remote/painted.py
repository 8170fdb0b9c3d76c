"""Rewards that tests serve from this file: pictures of one colour, and the number that the colour writes."""

import time

import torch

from vgrpo_core import PluginError, Reward, Scores


class Number(Reward):
    """Read red + 256 green + 65536 blue off a picture of one colour; a picture of several is missing."""

    name = "number"
    times: float = 1.0

    def load(self, device):
        print("a plugin may print")
        return self._score

    def _score(self, samples):
        print("at any time")
        pixels = torch.from_numpy(samples.pixels()).flatten(1, 2).double()
        first = pixels[:, 0]
        values = self.times * (first @ torch.tensor([1.0, 256.0, 65536.0], dtype=torch.float64))
        values[(pixels != first[:, None]).any(1).any(1)] = torch.nan
        pairs = zip(samples.prompts, first.tolist(), strict=True)
        return Scores(values, [{"prompt": prompt.text, "colour": row} for prompt, row in pairs])


class Level(Reward):
    """Mean level of the picture in 8 bits; it fails from call `fails_at` on."""

    name = "level"
    fails_at: int = 0

    def load(self, device):
        calls = iter(range(1, 10**9))

        def score(samples):
            if next(calls) >= (self.fails_at or 10**9):
                raise ConnectionError("the GPU is gone")
            return torch.from_numpy(samples.pixels()).double().mean((1, 2, 3)).float()

        return score


class Slow(Number):
    """As Number, `seconds` later."""

    name = "slow"
    seconds: float = 3600.0

    def _score(self, samples):
        time.sleep(self.seconds)
        return super()._score(samples)


class Broken(Reward):
    """A reward whose weights are missing."""

    name = "broken"

    def load(self, device):
        raise PluginError("no weights at /weights.pt", fix="Download them.")
