from __future__ import annotations

import contextlib
import itertools

import pytest
import torch
from pydantic import ValidationError

import vgrpo_recipe as recipes
from vgrpo_core import checkpoint
from vgrpo_core.offers import Offer
from vgrpo_core.run import Stopped
from vgrpo_core.testing import check_light
from vgrpo_core.trainer import Trainer
from vgrpo_objectives import DiffusionNFT
from vgrpo_recipe.plan import Plan
from vgrpo_recipe.registry import Registry


@pytest.fixture
def ref(latents_reference):
    return latents_reference


@pytest.fixture
def problem(ref, toy):
    """Make a policy, a rollout with copies of other weights, and the networks of these copies."""

    def make(prediction="flow", apart=0.2, **given):
        torch.manual_seed(0)
        policy = toy.ToyPolicy(process=ref.process(prediction))
        networks = {name: ref.moved(policy.module, apart, seed) for seed, name in enumerate(("old", "reference"))}
        return policy, ref.rollout(policy, **given, **networks), networks

    return make


def start(policy, rollout, **options):
    options = {"pairs": 3, **options}
    return DiffusionNFT(**options).start(policy, rollout, 99)


def matching(ref, policy, rollout, row, pairs=3, grid=True):
    """The adaptive denoising loss of one sample under the weights."""
    found = [pair.matching(pair.output(policy.module)) for pair in ref.seen(policy, rollout, row, pairs, grid)]
    return sum(found) / pairs


# The loss, against its definition


@pytest.mark.parametrize(
    "options",
    [{}, {"beta": 0.1}, {"beta": 0.4, "kl": 0.5}, {"kl": 0.0, "grid": False}, {"advantage_clip": 1.0, "pairs": 1}],
    ids=str,
)
def test_loss_and_gradient_are_those_of_plain_loops(ref, problem, options):
    policy, rollout, networks = problem()
    update = start(policy, rollout, **options)
    ref.agrees(ref.steps(policy, update), ref.nft(policy, rollout, update.options, **networks), policy)


@pytest.mark.parametrize("prediction", ["epsilon", "v"])
def test_mixing_predicted_data_is_mixing_outputs_for_every_prediction_type(ref, problem, prediction):
    policy, rollout, networks = problem(prediction)
    update = start(policy, rollout, beta=0.3, kl=0.1, grid=False)
    ref.agrees(ref.steps(policy, update), ref.nft(policy, rollout, update.options, **networks), policy, 2e-4)


def test_later_steps_follow_the_definition_with_the_copies_as_they_were(ref, problem):
    policy, rollout, networks = problem()
    update = start(policy, rollout, steps=2, kl=0.5)
    ref.steps(policy, update, micro=2)
    policy.module.load_state_dict(ref.moved(policy.module, 0.1, 9).state_dict())
    spent = policy.evaluations
    found = ref.steps(policy, update, step=1, micro=4)
    assert policy.evaluations - spent == 6 * 3
    ref.agrees(found, ref.nft(policy, rollout, update.options, **networks), policy)


def test_times_are_those_of_a_rollout_of_as_many_steps_for_every_sample(ref, problem):
    policy, rollout, _ = problem()
    start(policy, rollout, pairs=5).loss(torch.tensor([4, 1]), 0)
    assert policy.seen[-1].tolist() == policy.schedule(5).times[:-1].tolist() * 2


def test_noise_differs_between_samples_and_not_between_micro_batches(problem):
    policy, rollout, _ = problem()
    forward = start(policy, rollout).forward
    whole, part = forward.noise(torch.arange(6)), forward.noise(torch.tensor([4, 1]))
    assert part.z.equal(whole.z[[4, 1]])
    drawn = (whole.z - (1 - whole.times).view(6, 3, 1, 1, 1) * rollout.latents.unsqueeze(1)).flatten(2) / whole.sigma
    flat = drawn.flatten(0, 1)
    assert all((a - b).abs().max() > 0.1 for a, b in itertools.combinations(flat, 2))


# Where old and new weights agree


@pytest.mark.parametrize(("options", "bound"), [({}, 5.0), ({"beta": 0.1}, 5.0), ({"advantage_clip": 0.8}, 0.8)], ids=str)
def test_at_the_old_weights_the_gradient_is_that_of_the_advantage_weighted_matching_loss(ref, problem, options, bound):
    """With r = 1/2 + A / 2c and d v+ = b dv = - d v-: c (r b - (1 - r) b) / b = c (2 r - 1) = A, so that the factor is 1."""
    policy, rollout, _ = problem(apart=0.0)
    slope = ref.steps(policy, start(policy, rollout, kl=0.0, **options))[1]
    clipped = [min(max(a, -bound), bound) for a in ref.ADVANTAGES]
    plain = sum(a * matching(ref, policy, rollout, row) for row, a in enumerate(clipped)) / 6
    ref.close(slope, ref.gradient(policy, plain), 1e-4)


@pytest.mark.parametrize("beta", [1.0, 0.1])
def test_at_the_old_weights_the_loss_is_that_of_matching_whatever_the_advantages(ref, problem, beta):
    policy, rollout, _ = problem(apart=0.0)
    loss, _ = ref.steps(policy, start(policy, rollout, beta=beta))
    ref.close(torch.tensor(loss), 5 / beta * sum(matching(ref, policy, rollout, row) for row in range(6)) / 6)


def test_the_kl_term_vanishes_at_the_reference(ref, problem):
    policy, rollout, _ = problem()
    rollout.copies.add("reference")
    with_kl, without = (ref.steps(policy, start(policy, rollout, kl=kl)) for kl in (7.0, 0.0))
    assert with_kl[0] == without[0] and with_kl[1].equal(without[1])
    rollout.copies.kept["reference"]["outer.bias"] += 0.01
    assert ref.steps(policy, start(policy, rollout, kl=7.0))[0] > without[0]


def test_a_sample_without_advantage_is_drawn_to_the_old_weights(ref, problem):
    policy, rollout, networks = problem(advantages=(0.0,) * 6)
    update = start(policy, rollout, kl=0.0)
    assert update.rows(0).tolist() == [*range(6)]
    loss, slope = ref.steps(policy, update)
    assert slope.norm() > 0
    policy.module.load_state_dict(networks["old"].state_dict())
    at_old, flat = ref.steps(policy, start(policy, rollout, kl=0.0))
    assert at_old < loss and flat.norm() < 1e-5 * slope.norm()


# Rows and micro-batches


@pytest.mark.parametrize("micro", [1, 4])
def test_the_size_of_micro_batches_changes_the_gradient_by_rounding_only(ref, problem, micro):
    policy, rollout, _ = problem()
    whole, parts = (ref.steps(policy, start(policy, rollout, kl=0.5), micro=size) for size in (6, micro))
    assert parts[0] == pytest.approx(whole[0], rel=1e-5)
    ref.close(parts[1], whole[1])


def test_samples_that_nothing_could_judge_take_no_part(ref, problem):
    policy, rollout, networks = problem(valid=[True, True, False, True, True, True])
    update = start(policy, rollout)
    assert update.rows(0).tolist() == [0, 1, 3, 4, 5]
    ref.agrees(ref.steps(policy, update), ref.nft(policy, rollout, update.options, **networks), policy)


def test_a_row_that_only_keeps_sharded_ranks_in_step_costs_one_pass_and_is_finite(problem):
    policy, rollout, _ = problem(valid=[False, True, True, True, True, True])
    update = start(policy, rollout, steps=2)
    update.loss(update.rows(0), 0)
    spent = policy.evaluations
    assert update.loss(torch.tensor([0]), 1)[0].isfinite() and policy.evaluations - spent == 3


# The copies


def test_the_decays_are_those_of_the_paper():
    slow, delayed = DiffusionNFT(), DiffusionNFT(decay="delayed", kl=0.0)
    assert [slow.copies(k)["old"] for k in (0, 1, 200, 500, 2000)] == pytest.approx([0, 0.001, 0.2, 0.5, 0.5])
    assert [delayed.copies(k)["old"] for k in (1, 75, 76, 100, 300)] == pytest.approx([0, 0, 0.0075, 0.1875, 0.999])
    assert slow.copies(9)["reference"] == 1 and delayed.copies(9).keys() == {"old"}
    short = DiffusionNFT(decay="delayed", decay_wait=2, decay_rate=0.1, decay_max=0.25)
    assert [short.copies(k)["old"] for k in (1, 2, 3, 4, 5, 9)] == pytest.approx([0, 0, 0.1, 0.2, 0.25, 0.25])


def test_the_drawing_policy_is_the_moving_average_of_the_weights_and_the_reference_stays(trainer):
    made = trainer("diffusion_nft", "objective.pairs=2", "objective.decay_rate=0.3")
    history = [{key: value.clone() for key, value in made.policy.state().items()}]
    for _ in range(3):
        made.train()
        history.append({key: value.clone() for key, value in made.policy.state().items()})
    shares = [0.3 * 0.5 * 0.5, 0.7 * 0.5 * 0.5, 0.5 * 0.5, 0.5]  # decays 0.3, 0.5 and 0.5
    for key, start_value in history[0].items():
        expected = sum(share * weights[key] for share, weights in zip(shares, history, strict=True))
        torch.testing.assert_close(made.copies.kept["old"][key], expected)
        assert made.copies.kept["reference"][key].equal(start_value)


def shift(tensors):
    for value in tensors.values():
        value += 0.3


def test_rollouts_are_drawn_by_old_and_evaluations_by_the_weights(trainer):
    made, shifted_old, shifted_weights = (trainer("diffusion_nft", "objective.pairs=2") for _ in range(3))
    shift(shifted_old.copies.kept["old"])
    shift(shifted_weights.policy.state())
    assert shifted_old.evaluate() == made.evaluate() != shifted_weights.evaluate()
    scores = [each.train()["reward/red/mean"] for each in (made, shifted_old, shifted_weights)]
    assert scores[0] == scores[2] != scores[1]
    old_everywhere = trainer("diffusion_nft", "objective.pairs=2")
    shift(old_everywhere.policy.state())
    shift(old_everywhere.copies.kept["old"])
    assert old_everywhere.train()["reward/red/mean"] == scores[1]


def test_a_resumed_run_goes_on_bit_equal(go):
    options = ("objective.pairs=2", "objective.decay_rate=0.2", "checkpoint.every=2", "optimizer.ema=0.9")
    whole = go("whole", "diffusion_nft", *options)
    with contextlib.suppress(Stopped):
        go("parts", "diffusion_nft", *options, stop_after=3)
    parts = go("parts", "diffusion_nft", *options, resume=True)
    first, second = (checkpoint.load(folder / "checkpoints" / "000006") for folder in (whole, parts))
    assert {key.rpartition("/")[2] for key in first.copies} == {"old", "reference", "average"}
    for part in ("weights", "optimizer", "copies"):
        one, other = getattr(first, part), getattr(second, part)
        assert one.keys() == other.keys() and all(other[key].equal(value) for key, value in one.items())


# Whole runs


@pytest.mark.parametrize("options", [[], ["objective.kl=0"], ["objective.steps=2"]], ids=str)
def test_what_is_spent_is_what_the_plan_says(trainer, options):
    made = trainer("diffusion_nft", "objective.pairs=2", *options)
    before = made.policy.evaluations, made.policy.backwards
    line, plan = made.train(), Plan.of(made.recipe)
    assert line["evaluations"] == made.policy.evaluations - before[0] == plan.evaluations
    assert made.policy.backwards - before[1] == 8 * 2 * made.recipe.objective.steps


def test_a_line_has_the_two_losses_and_the_distance_to_the_reference(trainer):
    line = trainer("diffusion_nft", "objective.pairs=2").train()
    assert line["loss/positive"] > 0 and line["loss/negative"] > 0 and line["kl/reference"] == 0


def test_training_raises_the_reward(trainer):
    made = trainer("diffusion_nft", "objective.pairs=3", "batch.group=16", "run.iterations=30")
    means = [made.train()["reward/red/mean"] for _ in range(30)]
    assert sum(means[-5:]) / 5 > sum(means[:5]) / 5 + 0.05


GLYPHS = """\
[run]
iterations = 1
[backbone]
use = "diffusers"
model = "builtin:glyphs"
size = [24, 64]
call = { max_sequence_length = 1 }
[sampler]
use = "dpmsolver++"
steps = 2
[prompts]
use = "words"
[batch]
prompts = 1
group = 3
[objective]
use = "diffusion_nft"
pairs = 2
[optimizer]
lr = 1e-2
[[reward]]
use = "brightness"
"""


def test_under_lora_the_copies_are_adapters_and_the_reference_is_the_model_without_any(tmp_path):
    offers = (*Registry.discover().offers, Offer("objective", "diffusion_nft", DiffusionNFT, "here", "0"))
    path = tmp_path / "glyphs.toml"
    path.write_text(GLYPHS.replace("diffusion_nft", "here/diffusion_nft"))
    adapted, plain = (
        Trainer(recipes.load(path, overrides, Registry(offers)), torch.device("cpu"), lambda event: None)
        for overrides in (["backbone.lora={rank=2}"], [])
    )
    line = adapted.train()
    assert line["grad/norm"] > 0 and line["evaluations"] == Plan.of(adapted.recipe).evaluations
    assert all("lora" in name for name in adapted.copies.kept["old"])
    prompts = [plain.prompts.draw(0, 1, 1)[0].text]
    z = plain.policy.noise(prompts, [torch.Generator().manual_seed(0)])
    with torch.no_grad():
        expected, trained = (each.policy.output(z, torch.tensor(0.7), prompts) for each in (plain, adapted))
        with adapted.copies.inside("reference"):
            reference = adapted.policy.output(z, torch.tensor(0.7), prompts)
    torch.testing.assert_close(reference, expected)
    assert (trained - expected).abs().max() > 1e-3


@pytest.mark.parametrize(
    "wrong", [{"pairs": 0}, {"beta": 0.0}, {"kl": -1.0}, {"decay": "fast"}, {"decay_max": 1.5}, {"clip": 0.1}], ids=str
)
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValidationError):
        DiffusionNFT(**wrong)


def test_importing_it_imports_nothing_heavy():
    check_light("vgrpo_objectives.diffusion_nft")
