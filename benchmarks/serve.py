"""Measure a reward behind HTTP: `python benchmarks/serve.py [REWARD] [--clients N] [--images N] [--size N] [--batch N]`.

A server is started on this machine, and N clients send it noise, each one request at a time. It prints JSON: the time from a request to
its scores, encoding and decoding included, the images per second of all clients together, and those of the same reward called directly.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vgrpo_core import Prompt, Samples
from vgrpo_recipe.choice import choose
from vgrpo_recipe.registry import Registry
from vgrpo_remote import Remote, process

if TYPE_CHECKING:
    from vgrpo_core.plugin import Score

TOKEN = "VGRPO_BENCHMARK_TOKEN"


def noise(count: int, size: int) -> Samples:
    """Draw 8-bit images."""
    images = torch.randint(256, (count, 3, size, size), generator=torch.Generator().manual_seed(0)).float() / 255
    return Samples(tuple(Prompt(f'a sign that says "{row}"') for row in range(count)), images)


def seconds(score: Score, samples: Samples, batch: int) -> list[float]:
    """Score in requests of `batch` images and return how long each took."""
    taken = []
    for part in samples.split(batch):
        start = time.perf_counter()
        score(part)
        taken.append(time.perf_counter() - start)
    return taken


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reward", nargs="?", default="jpeg_size")
    for name, default in {"clients": 8, "images": 2000, "size": 64, "batch": 10}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    samples = noise(asked.images, asked.size)
    child = process.start(sys.executable, asked.reward, {}, "cpu", 600)
    os.environ[TOKEN] = child.token
    remote = Remote(reward=asked.reward, url=child.url, token_env=TOKEN, batch=asked.batch, parallel=1)
    clients = [remote.load(torch.device("cpu")) for _ in range(asked.clients)]
    for score in clients:
        score(next(samples.split(asked.batch)))
    start = time.perf_counter()
    with ThreadPoolExecutor(asked.clients) as pool:
        shares = samples.split(-(-asked.images // asked.clients))
        taken = [each for one in pool.map(seconds, clients, shares, [asked.batch] * asked.clients) for each in one]
    elapsed = time.perf_counter() - start
    direct = choose(Registry.discover(), "reward", asked.reward, Path.cwd()).plugin().load(torch.device("cpu"))
    percentiles = statistics.quantiles(taken, n=20)
    found = {
        **vars(asked),
        "latency_ms": {"p50": round(1000 * percentiles[9], 1), "p95": round(1000 * percentiles[18], 1)},
        "images_per_second": round(asked.images / elapsed),
        "images_per_second_direct": round(asked.images / sum(seconds(direct, samples, asked.batch))),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
