from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from vgrpo_core import RunError, checkpoint
from vgrpo_core.copies import AVERAGE, Copies
from vgrpo_core.optimizer import Optimizer, rate


@pytest.fixture
def make(recipe):
    """Make an optimizer of two small parameters."""

    def optimizer(*overrides):
        parameters = {"first": nn.Parameter(torch.tensor([1.0, -2.0])), "inner.second": nn.Parameter(torch.ones(2, 2))}
        return Optimizer(recipe(*overrides), Copies(parameters))

    return optimizer


def push(optimizer, *values):
    for parameter, value in zip(optimizer.parameters, values, strict=True):
        parameter.grad = torch.full_like(parameter, value)


def test_a_rate_without_warm_up_and_decay_is_constant():
    assert [rate(i, 9, warmup=0, decay="none") for i in range(1, 10)] == [1.0] * 9


def test_a_warm_up_rises_linearly_to_the_whole_rate():
    assert [rate(i, 10, warmup=3, decay="none") for i in range(1, 6)] == [0.25, 0.5, 0.75, 1, 1]


@given(iterations=st.integers(2, 500), data=st.data())
def test_decays_have_their_closed_forms_after_the_warm_up(iterations, data):
    warmup = data.draw(st.integers(0, iterations - 1))
    iteration = data.draw(st.integers(warmup + 1, iterations))
    share = (iteration - warmup) / (iterations - warmup)
    assert rate(iteration, iterations, warmup=warmup, decay="linear") == pytest.approx(1 - 0.9 * share)
    assert rate(iteration, iterations, warmup=warmup, decay="cosine") == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi * share)))


@pytest.mark.parametrize("decay", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 4])
def test_a_decay_never_rises_and_ends_at_a_tenth(decay, warmup):
    rates = [rate(i, 20, warmup=warmup, decay=decay) for i in range(warmup + 1, 21)]
    assert rates == sorted(rates, reverse=True) and rates[-1] == pytest.approx(0.1)
    assert rate(25, 20, warmup=warmup, decay=decay) == pytest.approx(0.1)


def test_a_run_that_is_all_warm_up_never_divides_by_zero():
    assert rate(5, 5, warmup=5, decay="cosine") == pytest.approx(5 / 6)


def test_a_step_is_one_of_adamw(make):
    optimizer = make("optimizer.lr=0.1", "optimizer.weight_decay=0.5", "optimizer.max_grad_norm=99")
    before = [parameter.detach().clone() for parameter in optimizer.parameters]
    push(optimizer, 3.0, -0.25)
    found = optimizer.step(1)
    assert found == {"grad/norm": pytest.approx(math.sqrt(2 * 9 + 4 / 16)), "grad/refused": 0}
    # a first step of Adam is lr * sign(gradient)
    for parameter, old, sign in zip(optimizer.parameters, before, (1, -1), strict=True):
        torch.testing.assert_close(parameter.detach(), old * (1 - 0.1 * 0.5) - 0.1 * sign)
        assert parameter.grad is None


def test_the_rate_of_an_iteration_is_the_schedules(make):
    optimizer = make("optimizer.lr=0.1", "optimizer.warmup=3", "run.iterations=6")
    before = optimizer.parameters[0].detach().clone()
    push(optimizer, 1.0, 1.0)
    optimizer.step(2)
    torch.testing.assert_close(optimizer.parameters[0].detach(), before - 0.1 * 2 / 4)


def test_a_long_gradient_is_shortened_and_its_own_norm_is_logged(make):
    optimizer = make("optimizer.max_grad_norm=0.5")
    push(optimizer, 3.0, 4.0)
    seen = []
    optimizer.adamw.register_step_pre_hook(lambda *_: seen.extend(p.grad.clone() for p in optimizer.parameters))
    norm = math.sqrt(2 * 9 + 4 * 16)
    assert optimizer.step(1)["grad/norm"] == pytest.approx(norm)
    torch.testing.assert_close(seen[0], torch.full((2,), 3.0 * 0.5 / norm), rtol=1e-4, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_refused_and_leaves_no_trace(make, value):
    optimizer = make()
    push(optimizer, 1.0, 1.0)
    optimizer.step(1)
    weights, state = [p.detach().clone() for p in optimizer.parameters], {k: v.clone() for k, v in optimizer.state().items()}
    push(optimizer, 1.0, value)
    assert optimizer.step(2) == {"grad/norm": None, "grad/refused": 1}
    assert all(p.detach().equal(old) and p.grad is None for p, old in zip(optimizer.parameters, weights, strict=True))
    assert all(value.equal(state[name]) for name, value in optimizer.state().items())


def test_three_refusals_in_a_row_stop_the_run(make):
    optimizer = make()
    for _ in range(2):
        push(optimizer, math.nan, 1.0)
        optimizer.step(1)
    push(optimizer, math.nan, 1.0)
    with pytest.raises(RunError, match="not finite 3 times in a row") as caught:
        optimizer.step(1)
    assert caught.value.exit_code == 1


def test_a_finite_gradient_in_between_starts_the_count_again(make):
    optimizer = make()
    for value in (math.nan, math.nan, 1.0, math.nan, math.nan):
        push(optimizer, value, 1.0)
        found = optimizer.step(1)
    assert found["grad/refused"] == 2


def test_state_is_named_after_parameters_and_goes_back_bit_equal(make):
    first, second = make(), make()
    for step in range(1, 4):
        push(first, 0.3 * step, -1.0)
        first.step(step)
    state = first.state()
    assert state.keys() == {f"{name}/{what}" for name in ("first", "inner.second") for what in ("step", "exp_avg", "exp_avg_sq")}
    second.restore({name: value.clone() for name, value in state.items()})
    assert all(value.equal(state[name]) for name, value in second.state().items())
    for parameter, other in zip(second.parameters, first.parameters, strict=True):
        parameter.data.copy_(other)
    for optimizer in (first, second):
        push(optimizer, -2.0, 0.1)
        optimizer.step(4)
    assert all(a.equal(b) for a, b in zip(first.parameters, second.parameters, strict=True))


def test_the_state_of_an_optimizer_that_never_stepped_is_empty(make):
    first = make()
    assert first.state() == {}
    first.restore({})
    assert first.state() == {}


def test_the_average_follows_each_step_and_is_the_closed_form_of_what_the_weights_were(make):
    optimizer = make("optimizer.ema=0.9")
    expected = [parameter.detach().clone() for parameter in optimizer.parameters]
    for step in range(1, 5):
        push(optimizer, 0.3 * step, -1.0)
        optimizer.step(step)
        pairs = zip(expected, optimizer.parameters, strict=True)
        expected = [0.9 * average + 0.1 * parameter.detach() for average, parameter in pairs]
    for average, value in zip(optimizer.copies.kept[AVERAGE].values(), expected, strict=True):
        torch.testing.assert_close(average, value)


def test_a_refused_step_leaves_the_average_alone(make):
    optimizer = make("optimizer.ema=0.9")
    push(optimizer, math.nan, 1.0)
    before = {name: average.clone() for name, average in optimizer.copies.kept[AVERAGE].items()}
    optimizer.step(1)
    assert all(average.equal(before[name]) for name, average in optimizer.copies.kept[AVERAGE].items())


def test_without_a_decay_no_average_is_kept(make):
    optimizer = make()
    push(optimizer, 1.0, 1.0)
    optimizer.step(1)
    assert optimizer.copies.kept == {}


def test_moments_of_8_bits_of_two_parameters_are_saved_and_read_again(recipe, tmp_path):
    pytest.importorskip("bitsandbytes")
    optimizer = Optimizer(recipe("optimizer.bits=8"), Copies({name: nn.Parameter(torch.linspace(-1, 1, 5000)) for name in "ab"}))
    push(optimizer, 1.0, -1.0)
    optimizer.step(1)
    state = optimizer.state()
    found = checkpoint.load(checkpoint.save(tmp_path, checkpoint.Checkpoint({}, state, {}, {"iteration": 1}), keep=1)).optimizer
    assert found.keys() == state.keys() and all(found[key].equal(value) for key, value in state.items())


def test_moments_of_8_bits_step_as_bitsandbytes_does_and_go_back_bit_equal(recipe):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    made = [{"large": nn.Parameter(torch.linspace(-1, 1, 5000)), "small": nn.Parameter(torch.ones(3))} for _ in range(3)]
    first, second = (Optimizer(recipe("optimizer.bits=8"), Copies(each)) for each in made[:2])  # small ones keep 32 bits
    o, other = first.options, list(made[2].values())
    reference = bitsandbytes.optim.AdamW8bit(other, lr=o.lr, betas=o.betas, weight_decay=o.weight_decay)
    for step in range(1, 4):
        for each in (*first.parameters, *other):
            each.grad = torch.linspace(-step, 1, len(each))
        nn.utils.clip_grad_norm_(other, o.max_grad_norm)
        first.step(step)
        reference.step()
    assert all(a.equal(b) for a, b in zip(first.parameters, other, strict=True))
    assert first.state()["large/state1"].dtype == torch.uint8
    second.restore({name: value.clone() for name, value in first.state().items()})
    for parameter, trained in zip(second.parameters, first.parameters, strict=True):
        parameter.data.copy_(trained)
    for optimizer in (first, second):
        push(optimizer, -2.0, 0.1)
        optimizer.step(4)
    assert all(a.equal(b) for a, b in zip(first.parameters, second.parameters, strict=True))
