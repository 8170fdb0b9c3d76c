"""Check an objective on small rollouts: what it spends, which rows it uses, and that its gradient is that of the rows alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import PluginError, reason
from ..plugin import Objective, Sampler, Update
from ..rollout import Rollout
from .light import check_light
from .plugin import check_class, expect, home
from .sampler import Toy, toys
from .small import GROUP, Scene

ITERATIONS = (0, 1, 2, 10, 100, 10_000)


def check_objective(objective: Objective, sampler: Sampler | None = None, *, tolerance: float = 1e-3) -> list[str]:
    """Check an objective on a small model and return which it refuses; an AssertionError says what does not hold.

    The models are those of `check_sampler`: "flow/flow" names one. Each has to be learned from or refused with a PluginError, and
    one at least learned from. `sampler` draws the rollouts; an objective with `noisy_steps` needs one that has as many. Rows are
    valid ones, each once. A loss is finite and carries a gradient; statistics are one number a row and carry none. An update
    spends as many forward evaluations as `evaluations` says, and a loss sends no more rows through the network with a gradient
    than `rows_per_sample` says. The gradient is the same whatever the micro-batches and the number of ranks, up to `tolerance` of
    its largest value, and to the last bit in a second update. Weights and rollout are left as they were. `behaviour` is one of the
    `copies`, whose decays are from 0 to 1. Importing its module is light.
    """
    check_class("objective", type(objective))
    who = f'objective "{objective.name}"'
    _check_copies(who, objective)
    given = getattr(sampler, "noisy_steps", 0)
    expect(objective.noisy_steps <= given, f"{who} learns from {objective.noisy_steps} noisy steps, and `sampler` has {given}")
    known = toys()
    refused = [toy.name for toy in known if not _learns(objective, sampler, toy, tolerance)]
    expect(len(refused) < len(known), f"{who} refuses every process")
    if module := home(objective):
        check_light(module)
    return refused


def _check_copies(who: str, objective: Objective) -> None:
    kept, drawing = objective.copies(0), objective.behaviour
    expect(drawing is None or drawing in kept, f'{who}: "{drawing}" is to draw rollouts, and is none of `copies(0)`')
    for iteration in ITERATIONS:
        decays = objective.copies(iteration)
        new = sorted(decays.keys() - kept.keys())
        expect(not new, f"{who}: `copies({iteration})` names {', '.join(new)}, which `copies(0)` does not: it is never made")
        wrong = [f"{copy} {decay:g}" for copy, decay in decays.items() if not 0 <= decay <= 1]
        expect(not wrong, f"{who}: `copies({iteration})` has decays that are not from 0 to 1: {', '.join(wrong)}")


def _learns(objective: Objective, sampler: Sampler | None, toy: Toy, tolerance: float) -> bool:
    """Check an objective on one toy; False where it, or the sampler, refuses."""
    who = f'objective "{objective.name}" on {toy.name}'
    try:
        scene = Scene.of(objective, sampler, toy)
        whole = _Taken.of(who, objective, scene, len(scene.rollout.prompts))
    except PluginError:
        return False
    _check_spent(who, objective, whole, len(scene.rollout.prompts))
    _check_repeated(who, objective, scene, whole)
    gaps = scene.judged(flat=range(GROUP, 2 * GROUP), unknown=[1])
    for each in (scene, gaps):
        _check_parts(who, objective, each, tolerance)
    _Taken.of(who, objective, scene.judged(flat=range(len(scene.rollout.prompts))), 3)
    _Taken.of(who, objective, scene.judged(unknown=range(len(scene.rollout.prompts))), 3)
    return True


@dataclass
class _Taken:
    """What the gradient steps of a rollout came to."""

    evaluations: int
    losses: Tensor
    """[steps]."""
    gradients: Tensor
    """[steps, parameters]."""

    @classmethod
    def of(cls, who: str, objective: Objective, scene: Scene, samples: int) -> _Taken:
        """Take the steps as a run does, at most `samples` rows at a time; the weights move by the same amounts every time."""
        policy, rollout = scene.policy, scene.rollout
        before, kept, given = policy.evaluations, _copied(policy.state()), _tensors(rollout)
        update = objective.start(policy, rollout, samples)
        names = list(update.statistics)
        expect(len(set(names)) == len(names), f"{who}: a name in `statistics` is there twice: {', '.join(names)}")
        expect(_same(policy.state(), kept), f"{who}: `start` changes the weights")
        found = [_step(who, objective, scene, update, step, samples) for step in range(objective.steps)]
        expect(_same(_tensors(rollout), given), f"{who} changes the rollout that it is given")
        policy.restore(kept)
        losses, gradients = zip(*found, strict=True)
        return cls(policy.evaluations - before, torch.tensor(losses), torch.stack(gradients))


def _step(who: str, objective: Objective, scene: Scene, update: Update, step: int, samples: int) -> tuple[float, Tensor]:
    """Return loss and gradient of a step, and move the weights."""
    policy, rollout, total = scene.policy, scene.rollout, 0.0
    rows, kept = update.rows(step), _copied(policy.state())
    _check_rows(who, rows, rollout, step)
    for part, _ in rollout.rounds(rows, samples):
        passed = policy.backwards
        loss, found = update.loss(part, step)
        most, passed = len(part) * objective.rows_per_sample, policy.backwards - passed
        sent = f"{who}: the loss of {len(part)} samples sends {passed} rows through the network with a gradient"
        expect(passed <= most, f"{sent}, and `rows_per_sample` says {most}")
        _check_loss(who, loss, found, list(update.statistics), len(part))
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    expect(_same(policy.state(), kept), f"{who}: `loss` changes the weights")
    slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.trainable().values()]
    policy.module.zero_grad(set_to_none=True)
    policy.move(1 + step)
    return total, torch.cat([slope.flatten() for slope in slopes])


def _check_rows(who: str, rows: Tensor, rollout: Rollout, step: int) -> None:
    expect(rows.ndim == 1 and rows.dtype == torch.int64, f"{who}: `rows({step})` is {rows.dtype} {list(rows.shape)}, not int64 [R]")
    count = len(rollout.prompts)
    expect(bool(((rows >= 0) & (rows < count)).all()), f"{who}: `rows({step})` has indices beyond the {count} samples")
    expect(len(set(rows.tolist())) == len(rows), f"{who}: `rows({step})` has a sample twice")
    wrong = f"{who}: `rows({step})` has samples that no reward could judge: leave out those that are not `rollout.valid`"
    expect(bool(rollout.valid[rows].all()), wrong)


def _check_loss(who: str, loss: Tensor, found: dict[str, Tensor], names: list[str], count: int) -> None:
    expect(loss.ndim == 0, f"{who}: the loss has shape {list(loss.shape)}; it has to be one number")
    expect(bool(loss.isfinite()), f"{who}: the loss is {loss.item():g}")
    expect(loss.requires_grad, f"{who}: the loss carries no gradient")
    missing = [name for name in names if name not in found]
    expect(not missing, f"{who}: `loss` leaves out statistics that it announces: {', '.join(missing)}")
    for name in names:
        shape = list(found[name].shape)
        expect(shape == [count], f"{who}: statistic {name} has shape {shape} for {count} rows, not [{count}]")
        expect(not found[name].requires_grad, f"{who}: statistic {name} carries a gradient: detach it")


def _check_spent(who: str, objective: Objective, taken: _Taken, count: int) -> None:
    each, said = taken.evaluations / count, float(objective.evaluations)
    wrong = f"{who} spends {each:g} forward evaluations a sample, and `evaluations` is {said:g}"
    expect(abs(each - said) <= 1e-6 * max(1.0, said), wrong)
    expect(bool(taken.gradients[0].any()), f"{who}: the first step has no gradient, though all advantages differ")
    expect(bool(taken.gradients.isfinite().all()), f"{who}: the gradient is not finite")


def _check_repeated(who: str, objective: Objective, scene: Scene, whole: _Taken) -> None:
    """Update once more, with the global generator elsewhere."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        again = _Taken.of(who, objective, scene, len(scene.rollout.prompts))
    same = again.losses.equal(whole.losses) and again.gradients.equal(whole.gradients)
    expect(same, f"{who}: a second update on the same rollout differs: draw from `rollout.key(row)` alone, and keep nothing")


def _check_parts(who: str, objective: Objective, scene: Scene, tolerance: float) -> None:
    """Check that the gradient depends neither on micro-batches nor on how rows are spread over ranks."""
    whole = _Taken.of(who, objective, scene, len(scene.rollout.prompts)).gradients
    for samples in (1, 3):
        parts = _Taken.of(who, objective, scene, samples).gradients
        what = f"{who}: micro-batches of {samples} change the gradient: a loss has to be what its rows add to the step's mean"
        expect(_close(parts, whole, tolerance), what)
    ranks = torch.stack([_of_rank(who, objective, scene, rank) for rank in range(2)]).sum(0)
    expect(_close(ranks, whole, tolerance), f"{who}: the gradients of two ranks do not add up to that of one")


def _of_rank(who: str, objective: Objective, scene: Scene, rank: int) -> Tensor:
    try:
        return _Taken.of(who, objective, scene.of_rank(rank, 2), 3).gradients
    except (IndexError, RuntimeError, ValueError) as error:
        what = f"{who} fails where two ranks share the rows ({reason(error)}): a rank has the latents of `rollout.own` alone"
        raise AssertionError(what) from error


def _tensors(rollout: Rollout) -> dict[str, Tensor]:
    """Copy what a rollout holds."""
    parts = {"latents": rollout.latents, "advantages": rollout.advantages, "valid": rollout.valid}
    if steps := rollout.trajectory:
        parts |= {name: getattr(steps, name) for name in ("before", "after", "mean", "std", "times")}
    return _copied(parts | rollout.copies.state())


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(other[name].equal(tensor) for name, tensor in one.items())


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return float((one - other).abs().max()) <= tolerance * float(other.abs().max())
