"""What `vgrpo check` prints."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from vgrpo_core.recipe import PromptSet, RewardEntry
from vgrpo_recipe.plan import Plan, begun


def lines(plan: Plan) -> list[str]:
    """Say to people what a recipe loads and costs, every number multiplied out."""
    topics = {"load": _loads(plan), "iteration": _iteration(plan), "run": _run(plan), "eval": _eval(plan)}
    return [f"{topic if not at else '':<10} {line}" for topic, lines in topics.items() for at, line in enumerate(lines)]


def _loads(plan: Plan) -> list[str]:
    recipe = plan.recipe
    total = sum(each.share for each in recipe.prompts)
    kinds = {offer.plugin: offer for offer in recipe.offers}
    return [
        f"backbone {recipe.backbone.describe()} ({kinds[type(recipe.backbone)].source})",
        *recipe.backbone.notes(),
        *_begins(recipe.run.init),
        f"sampler {recipe.sampler.name} ({kinds[type(recipe.sampler)].source})",
        *(f"prompts {each.plugin.name} ({kinds[type(each.plugin)].source}){_share(each, total)}" for each in recipe.prompts),
        f"objective {recipe.objective.name} ({kinds[type(recipe.objective)].source})",
        *(f"reward {_named(entry)}, weight {weight(entry)}{_where(entry)}" for entry in recipe.rewards),
        *(f"monitor {_named(entry)}" for entry in recipe.eval.rewards),
    ]


def _begins(init: Path | None) -> list[str]:
    return [f"weights of {init}{'' if begun(init) else ', which is not there yet'}"] if init else []


def _iteration(plan: Plan) -> list[str]:
    images, batch, combine = plan.images, plan.recipe.batch, plan.recipe.combine
    sampler, objective = plan.recipe.sampler, plan.recipe.objective
    each = dict.fromkeys((images // plan.ranks, -(-images // plan.ranks)))
    over = f", {' or '.join(f'{n:,}' for n in each)} on each of {plan.ranks} ranks" if plan.ranks > 1 else ""
    order = {"normalize_then_sum": "each reward, then the weighted sum", "sum_then_normalize": "the weighted sum of rewards"}
    rows = f"{plan.micro} x {objective.rows_per_sample} = {plan.micro * objective.rows_per_sample} rows in the update"
    return [
        f"{batch.prompts} prompts x {batch.group} samples = {images:,} images{over}",
        f"rollout: {images:,} images x {_n(sampler.rollout_evaluations)} evaluations = {_n(images * sampler.rollout_evaluations)}",
        f"update: {images:,} images x {_n(objective.evaluations)} evaluations = {_n(images * objective.evaluations)}, "
        f"{_count(objective.steps, 'gradient step')}",
        f"micro-batch: at most {batch.micro} rows: {_count(batch.micro, 'sample')} in the rollout, {rows}",
        f"advantages: centre group, scale {combine.scale}, of {order[combine.use]}",
        f"no signal: in {plan.silent(0.2):.1%} of groups of {batch.group}, for a 0/1 reward that 20 % of images earn",
    ]


def _run(plan: Plan) -> list[str]:
    recipe, iterations = plan.recipe, plan.recipe.run.iterations
    steps, drawn = recipe.objective.steps, recipe.batch.prompts * iterations
    return [
        f"{iterations} iterations x {_n(plan.evaluations)} evaluations = {_n(iterations * plan.evaluations)}",
        f"{iterations} iterations x {_count(steps, 'gradient step')} = {iterations * steps:,}",
        f"{drawn:,} prompts drawn from {plan.prompts:,}: {drawn / plan.prompts:.2g} times each",
        f"{_count(plan.checkpoints, 'checkpoint')}, the newest {recipe.checkpoint.keep} kept",
    ]


def _eval(plan: Plan) -> list[str]:
    options = plan.recipe.eval
    images, each = plan.held_out * options.samples, options.sampler.evaluations
    source = "training prompts, none held out" if options.prompts == plan.recipe.prompts else "held-out prompts"
    return [
        f"{plan.held_out:,} {source} x {_count(options.samples, 'sample')} = {images:,} images",
        f"{_count(plan.rounds, 'round')} x {images:,} images x {each} evaluations = {plan.rounds * images * each:,}",
    ]


def weight(entry: RewardEntry) -> str:
    """Write a weight, or the points that it moves between."""
    if isinstance(entry.weight, tuple):
        return ", ".join(f"{value:g} at {iteration}" for iteration, value in entry.weight)
    return f"{entry.weight:g}"


def _share(each: PromptSet, total: float) -> str:
    tag = f', tag "{each.tag}"' if each.tag else ""
    return f", {each.share / total:.0%} of each iteration{tag}" if each.share != total else tag


def _where(entry: RewardEntry) -> str:
    on = f", on prompts tagged {' or '.join(entry.on)}" if entry.on else ""
    if not entry.gate:
        return on
    bounds = [f"{word} {bound:g}" for word, bound in (("above", entry.gate.above), ("below", entry.gate.below)) if isfinite(bound)]
    return f"{on}, where {entry.gate.reward} is {' and '.join(bounds)}"


def _named(entry: RewardEntry) -> str:
    label = "" if entry.label == entry.offer.name else f' as "{entry.label}"'
    return f"{entry.offer.name} ({entry.offer.source}){label}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def _n(value: float) -> str:
    return f"{value:,.10g}"
