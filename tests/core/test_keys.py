from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vgrpo_core
from vgrpo_core.keys import Purpose, epoch_order, generator, prompt_index, seed


def prompt_indices(run, iteration, prompts, count):
    """Return the rows that an iteration draws from one set."""
    return [prompt_index(run, place, count) for place in range((iteration - 1) * prompts, iteration * prompts)]


RUNS = st.integers(0, 2**63 - 1)


@given(run=RUNS, place=st.lists(st.integers(0, 10**6), max_size=3))
def test_equal_places_have_equal_seeds_that_fit_a_generator(run, place):
    assert seed(run, "noise", *place) == seed(run, "noise", *place)
    assert 0 <= seed(run, "noise", *place) < 2**63


def test_every_run_purpose_and_place_has_its_own_seed():
    places = [(), *((a,) for a in range(12)), *((a, b) for a in range(12) for b in range(12)), (1, 1, 1), (11, 1), (1, 11)]
    seeds = {seed(run, purpose, *place) for run in (0, 1, 11) for purpose in get_args(Purpose) for place in dict.fromkeys(places)}
    assert len(seeds) == 3 * len(get_args(Purpose)) * len(dict.fromkeys(places))


def test_a_seed_is_the_same_in_every_version_and_process():
    assert seed(0, "noise", 1, 2, 3) == 0xE0408F1E92C07851 >> 1  # printf 0:noise:1:2:3 | b2sum -l 64


def test_r083_nothing_is_drawn_from_the_global_generator():
    before = torch.get_rng_state()
    first = torch.randn(3, generator=generator(0, "noise", 1))
    prompt_indices(0, 1, 2, 5)
    assert torch.get_rng_state().equal(before)
    torch.manual_seed(99)
    assert torch.randn(3, generator=generator(0, "noise", 1)).equal(first)


def test_r083_the_core_seeds_the_global_generator_once_at_start_up():
    lines = [
        (path.name, line.strip())
        for path in Path(vgrpo_core.__file__).parent.glob("*.py")
        for line in path.read_text().splitlines()
        if "manual_seed" in line and "Generator()" not in line
    ]
    assert [name for name, _ in lines] == ["trainer.py"]
    assert '"start-up"' in lines[0][1]


@given(run=RUNS, epoch=st.integers(0, 50), count=st.integers(1, 40))
def test_one_pass_visits_every_prompt_once(run, epoch, count):
    assert sorted(epoch_order(run, epoch, count).tolist()) == list(range(count))


def test_passes_differ_from_each_other_and_runs_from_each_other():
    orders = {tuple(epoch_order(run, epoch, 30).tolist()) for run in range(3) for epoch in range(3)}
    assert len(orders) == 9


@given(run=RUNS, prompts=st.integers(1, 12), count=st.integers(1, 12))
def test_iterations_walk_through_the_passes_without_a_gap(run, prompts, count):
    walked = [index for iteration in range(1, 7) for index in prompt_indices(run, iteration, prompts, count)]
    passes = [index for epoch in range(6 * prompts // count + 1) for index in epoch_order(run, epoch, count).tolist()]
    assert walked == passes[: 6 * prompts]


@given(run=RUNS, prompts=st.integers(1, 7), count=st.integers(1, 7))
def test_prompts_are_drawn_equally_often_but_for_the_last_pass(run, prompts, count):
    counts = Counter(index for iteration in range(1, 10) for index in prompt_indices(run, iteration, prompts, count))
    often = [counts[index] for index in range(count)]
    assert max(often) - min(often) <= 1


def test_r081_eight_steps_draw_what_five_and_three_draw_across_a_pass():
    whole = [prompt_indices(3, step, 2, 5) for step in range(1, 9)]
    first, rest = [prompt_indices(3, step, 2, 5) for step in range(1, 6)], [prompt_indices(3, step, 2, 5) for step in range(6, 9)]
    assert first + rest == whole
    assert sorted(index for step in whole[:5] for index in step) == sorted([*range(5)] * 2)
    assert len(set(whole[0] + whole[1] + whole[2][:1])) == 5  # step 3 ends one pass and begins the next


@pytest.mark.parametrize("iteration", [1, 2, 77])
def test_prompts_of_an_iteration_do_not_depend_on_earlier_ones(iteration):
    alone = prompt_indices(5, iteration, 4, 9)
    for other in range(1, 80):
        prompt_indices(5, other, 4, 9)
    assert prompt_indices(5, iteration, 4, 9) == alone
