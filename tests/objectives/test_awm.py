from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from vgrpo_core import checkpoint
from vgrpo_core.run import Stopped
from vgrpo_objectives import AWM
from vgrpo_objectives.awm_update import log_probability
from vgrpo_objectives.forward_process import Noised
from vgrpo_recipe.plan import Plan

FREE = {"kl": 0.0, "kl_ema": 0.0}


@pytest.fixture
def ref(latents_reference):
    return latents_reference


@pytest.fixture
def problem(ref, toy):
    """Make a policy, a rollout with copies of other weights, and the networks of these copies."""

    def make(prediction="flow", apart=0.2, **given):
        torch.manual_seed(0)
        policy = toy.ToyPolicy(process=ref.process(prediction))
        networks = {name: ref.moved(policy.module, apart, seed) for seed, name in enumerate(("reference", "ema"))}
        return policy, ref.rollout(policy, **given, **networks), networks

    return make


def start(policy, rollout, **options):
    options = {"pairs": 3, **options}
    return AWM(**options).start(policy, rollout, 99)


# The loss, against its definition

OPTIONS = [
    *({"weight": weight} for weight in ("1", "t", "t2", "huber")),
    *({"ratio": "mean", "kl": 0.5}, {"kl": 0.0, "kl_ema": 0.3, "power": 0.5}, {"advantage_clip": 0.8, "span": (0.3, 0.6)}),
    {"pairs": 1, "weight": "t", "kl_ema": 0.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_loss_and_gradient_of_the_first_step_are_those_of_plain_loops(ref, problem, options):
    policy, rollout, networks = problem()
    update = start(policy, rollout, **options)
    ref.agrees(ref.steps(policy, update), ref.awm(policy, rollout, update.options, policy.module, **networks), policy)


@pytest.mark.parametrize("options", [*OPTIONS, {"clip": 0.02}, {"clip": 0.02, "ratio": "mean"}, {"clip": None}], ids=str)
def test_later_steps_follow_the_definition_with_the_old_weights_ratio(ref, problem, options):
    policy, rollout, networks = problem()
    update = start(policy, rollout, steps=2, **options)
    ref.steps(policy, update, micro=2)
    old = ref.moved(policy.module, 0.0, 0)
    policy.module.load_state_dict(ref.moved(policy.module, 0.1, 9).state_dict())
    spent = policy.evaluations
    found = ref.steps(policy, update, step=1, micro=4)
    assert policy.evaluations - spent == 6 * update.options.pairs
    ref.agrees(found, ref.awm(policy, rollout, update.options, old, **networks), policy, 1e-4)


@pytest.mark.parametrize("prediction", ["epsilon", "v"])
def test_a_model_of_diffusion_is_matched_in_its_own_velocity(ref, problem, prediction):
    policy, rollout, networks = problem(prediction)
    update = start(policy, rollout, weight="t", span=(0.2, 0.9))
    ref.agrees(ref.steps(policy, update), ref.awm(policy, rollout, update.options, policy.module, **networks), policy, 1e-3)


@given(error=st.floats(1e-3, 10), t=st.floats(0.01, 1))
def test_the_huber_loss_with_power_one_is_the_weight_t(error, t):
    noised = Noised([0], torch.zeros(1, 2), torch.tensor([[t]]), torch.zeros(1, 1, 2), torch.tensor([[[t]]]))
    data = torch.full((1, 1, 2), error * t)  # whose velocity errs by `error`
    assert log_probability(data, noised, "huber", 1.0).item() == pytest.approx(-t * error**2, rel=1e-5)
    assert log_probability(data, noised, "t", 0.25).item() == pytest.approx(-t * error**2, rel=1e-5)


@pytest.mark.parametrize("error", [0.0, 1e-6, 1.0])
def test_the_huber_loss_has_a_finite_slope_down_to_no_error(error):
    noised = Noised([0], torch.zeros(1, 2), torch.ones(1, 1), torch.zeros(1, 1, 2), torch.ones(1, 1, 1))
    data = torch.full((1, 1, 2), error, requires_grad=True)
    value = log_probability(data, noised, "huber", 0.25)
    value.sum().backward()
    assert value.item() <= 0 and data.grad.isfinite().all()


# Where old and new weights agree


@pytest.mark.parametrize("ratio", ["pair", "mean"])
def test_the_first_gradient_is_that_of_advantage_weighted_flow_matching(ref, problem, ratio):
    policy, rollout, _ = problem()
    slope = ref.steps(policy, start(policy, rollout, weight="1", ratio=ratio, **FREE))[1]
    plain = 0
    for row, advantage in enumerate(ref.ADVANTAGES):
        for pair in ref.seen(policy, rollout, row, 3, grid=False):
            error = pair.output(policy.module) - (pair.noise - pair.x)
            plain = plain + advantage / 5 * error.square().mean() / 3 / 6
    ref.close(slope, ref.gradient(policy, plain))


def test_in_the_first_step_the_ratio_is_one_to_the_last_bit_and_costs_nothing(problem):
    policy, rollout, _ = problem()
    update = start(policy, rollout, **FREE)
    loss, found = update.loss(update.rows(0), 0)
    assert (found["ratio"] == 1).all() and policy.evaluations == policy.backwards == 6 * 3
    assert loss.item() == pytest.approx(-rollout.advantages.mean().item() / 5, abs=1e-6)


def test_the_kl_terms_vanish_at_their_copies_and_nowhere_else(ref, problem):
    policy, rollout, _ = problem()
    loss, slope = ref.steps(policy, start(policy, rollout, **FREE))
    for copy, option in (("reference", "kl"), ("ema", "kl_ema")):
        assert ref.steps(policy, start(policy, rollout, **{**FREE, option: 7.0}))[0] > loss
        rollout.copies.add(copy)
        held, held_slope = ref.steps(policy, start(policy, rollout, **{**FREE, option: 7.0}))
        assert held == loss and held_slope.equal(slope)


# Rows and micro-batches


@pytest.mark.parametrize("micro", [1, 4])
def test_the_size_of_micro_batches_changes_the_gradient_by_rounding_only(ref, problem, micro):
    policy, rollout, _ = problem()
    whole, parts = (ref.steps(policy, start(policy, rollout, kl=0.5), micro=size) for size in (6, micro))
    assert parts[0] == pytest.approx(whole[0], rel=1e-5)
    ref.close(parts[1], whole[1])


def test_rows_are_valid_and_have_an_advantage_unless_a_kl_term_holds_all(problem):
    policy, rollout, _ = problem(advantages=(1.0, -1.0, 0.0, 0.0, 0.0, 0.0), valid=[True, True, False, True, True, True])
    assert start(policy, rollout, **FREE).rows(0).tolist() == [0, 1]
    assert start(policy, rollout, kl=0.0).rows(0).tolist() == start(policy, rollout, kl_ema=0.0).rows(0).tolist() == [0, 1, 3, 4, 5]


def test_the_mean_is_over_valid_samples_also_where_some_have_no_gradient(ref, problem):
    policy, rollout, networks = problem(advantages=(1.0, -1.0, 0.0, 0.0, 0.0, 0.0), valid=[True, True, False, True, True, True])
    update = start(policy, rollout, **FREE)
    ref.agrees(ref.steps(policy, update), ref.awm(policy, rollout, update.options, policy.module, **networks), policy)


def test_a_row_that_only_keeps_sharded_ranks_in_step_costs_one_pass_and_is_finite(problem):
    policy, rollout, _ = problem(valid=[False, True, True, True, True, True])
    update = start(policy, rollout, steps=2)
    update.loss(update.rows(0), 0)
    spent = policy.evaluations
    assert update.loss(torch.tensor([0]), 1)[0].isfinite() and policy.evaluations - spent == 3


def test_a_single_step_keeps_nothing(problem):
    policy, rollout, _ = problem()
    one, two = start(policy, rollout), start(policy, rollout, steps=2)
    for update in (one, two):
        update.loss(update.rows(0), 0)
    assert not one.forward.kept and len(two.forward.kept) == 6 * 3


def test_clipped_ratios_are_counted(problem, ref):
    policy, rollout, _ = problem()
    update = start(policy, rollout, steps=2, clip=0.02)
    assert (update.loss(update.rows(0), 0)[1]["ratio/clip_fraction"] == 0).all()
    policy.module.load_state_dict(ref.moved(policy.module, 0.1, 9).state_dict())
    shares = update.loss(update.rows(1), 1)[1]["ratio/clip_fraction"] * 3
    assert shares.round().tolist() == pytest.approx(shares.tolist(), abs=1e-5) and shares.max() > 0


# The copies


def test_the_average_follows_with_the_decay_of_the_paper_and_the_reference_stays(trainer):
    assert [AWM().copies(k)["ema"] for k in (0, 1, 100, 300, 900)] == pytest.approx([0, 0.001, 0.1, 0.3, 0.3])
    made = trainer("awm", "objective.pairs=2", "objective.ema_rate=0.2")
    history = [{key: value.clone() for key, value in made.policy.state().items()}]
    for _ in range(3):
        made.train()
        history.append({key: value.clone() for key, value in made.policy.state().items()})
    shares = [0.2 * 0.3 * 0.3, 0.8 * 0.3 * 0.3, 0.7 * 0.3, 0.7]  # decays 0.2, 0.3 and 0.3
    for key, start_value in history[0].items():
        expected = sum(share * weights[key] for share, weights in zip(shares, history, strict=True))
        torch.testing.assert_close(made.copies.kept["ema"][key], expected)
        assert made.copies.kept["reference"][key].equal(start_value)


@pytest.mark.parametrize(("options", "copies"), [({"kl": 0.0}, {"ema"}), ({"kl_ema": 0.0}, {"reference"}), (FREE, set())], ids=str)
def test_a_copy_without_a_term_is_not_kept(options, copies):
    assert AWM(**options).copies(0).keys() == copies


def test_a_resumed_run_goes_on_bit_equal(go):
    options = ("objective.pairs=2", "objective.ema_rate=0.1", "checkpoint.every=2")
    whole = go("whole", "awm", *options)
    with pytest.raises(Stopped):
        go("parts", "awm", *options, stop_after=3)
    parts = go("parts", "awm", *options, resume=True)
    first, second = (checkpoint.load(folder / "checkpoints" / "000006") for folder in (whole, parts))
    assert {key.rpartition("/")[2] for key in first.copies} == {"ema", "reference"}
    for part in ("weights", "optimizer", "copies"):
        one, other = getattr(first, part), getattr(second, part)
        assert one.keys() == other.keys() and all(other[key].equal(value) for key, value in one.items())


# Whole runs


@pytest.mark.parametrize(
    "options", [[], ["objective.kl=0"], ["objective.kl=0", "objective.kl_ema=0"], ["objective.steps=3"]], ids=str
)
def test_what_is_spent_is_what_the_plan_says(trainer, options):
    made = trainer("awm", "objective.pairs=2", *options)
    line, plan = made.train(), Plan.of(made.recipe)
    assert line["evaluations"] == made.policy.evaluations == plan.evaluations
    assert made.policy.backwards == 8 * 2 * made.recipe.objective.steps


def test_a_line_has_ratio_surrogate_and_both_distances(trainer):
    line = trainer("awm", "objective.pairs=2").train()
    assert line["ratio/mean"] == 1 and line["surrogate/mean"] > 0 and line["ratio/clip_fraction"] == 0
    assert line["kl/reference"] == line["kl/ema"] == 0


@pytest.mark.parametrize("weight", ["1", "huber"])
def test_training_raises_the_reward(trainer, weight):
    made = trainer("awm", f"objective.weight='{weight}'", "batch.group=16", "run.iterations=30")
    means = [made.train()["reward/red/mean"] for _ in range(30)]
    assert sum(means[-5:]) / 5 > sum(means[:5]) / 5 + 0.05


@pytest.mark.parametrize(
    "wrong",
    [
        *({"pairs": 0}, {"weight": "t3"}, {"power": 0.0}, {"ratio": "sum"}, {"clip": 0.0}, {"advantage_clip": 0.0}, {"kl": -1.0}),
        *({"kl_ema": -1.0}, {"ema_max": 1.1}, {"span": (0.5, 0.5)}, {"beta": 1.0}),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValidationError):
        AWM(**wrong)
