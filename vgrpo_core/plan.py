"""What a recipe will cost, multiplied out before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import PluginError, RecipeError, VgrpoError
from .plugin import Prompt, Prompts
from .recipe import Recipe, RewardEntry
from .registry import reason


@dataclass(frozen=True)
class Plan:
    """Every number that follows from a recipe. An evaluation is one row sent forward through the network."""

    recipe: Recipe
    ranks: int
    prompts: int
    """How many there are to train on."""
    held_out: int
    """How many there are to evaluate."""

    @classmethod
    def of(cls, recipe: Recipe, ranks: int = 1) -> Plan:
        """Count the prompts and check that they divide over `ranks`; a RecipeError says what would."""
        batch = recipe.batch.prompts
        if batch % ranks:
            below, divisors = batch // ranks * ranks, [n for n in range(1, batch + 1) if batch % n == 0]
            numbers = " or ".join(str(n) for n in (below, below + ranks) if n)
            what = f"prompts is {batch}, which does not divide over {ranks} ranks: a group may not be torn apart"
            valid = f"set prompts to {numbers}, or start a number of ranks that divides {batch}: {', '.join(map(str, divisors))}"
            raise RecipeError([f"{recipe.path}: [batch] {what}; {valid}"])
        return cls(recipe, ranks, len(load_prompts(recipe.prompts)), len(load_prompts(recipe.eval.prompts)))

    @property
    def images(self) -> int:
        """Count the images per iteration."""
        return self.recipe.batch.prompts * self.recipe.batch.group

    @property
    def evaluations(self) -> float:
        """Count the evaluations per iteration, in the rollout and the update."""
        return self.images * (self.recipe.sampler.evaluations + self.recipe.objective.evaluations)

    @property
    def micro(self) -> int:
        """Count the samples in a micro-batch of the update."""
        return max(1, self.recipe.batch.micro // self.recipe.objective.rows_per_sample)

    @property
    def rounds(self) -> int:
        """Count the evaluations of held-out prompts: at the start, every so often, and at the end."""
        return len({0, *self._moments(self.recipe.eval.every)})

    @property
    def checkpoints(self) -> int:
        """Count the checkpoints that are written."""
        return len(self._moments(self.recipe.checkpoint.every))

    def _moments(self, every: int) -> set[int]:
        end = self.recipe.run.iterations
        return {end, *(range(every, end, every) if every else ())}

    def silent(self, share: float) -> float:
        """Return the share of groups without signal from a 0/1 reward that `share` of all images earn."""
        group = self.recipe.batch.group
        return share**group + (1 - share) ** group

    def lines(self) -> list[str]:
        """Say all of it to people."""
        topics = {"load": self._loads(), "iteration": self._iteration(), "run": self._run(), "eval": self._eval()}
        return [f"{topic if not at else '':<10} {line}" for topic, lines in topics.items() for at, line in enumerate(lines)]

    def _loads(self) -> list[str]:
        recipe = self.recipe
        plain = {"sampler": recipe.sampler, "prompts": recipe.prompts, "objective": recipe.objective}
        kinds = {offer.plugin: offer for offer in recipe.offers}
        return [
            f"backbone {recipe.backbone.describe()} ({kinds[type(recipe.backbone)].source})",
            *(f"{kind} {plugin.name} ({kinds[type(plugin)].source})" for kind, plugin in plain.items()),
            *(f"reward {_named(entry)}, weight {entry.weight:g}" for entry in recipe.rewards),
            *(f"monitor {_named(entry)}" for entry in recipe.eval.rewards),
        ]

    def _iteration(self) -> list[str]:
        images, batch, combine = self.images, self.recipe.batch, self.recipe.combine
        sampler, objective = self.recipe.sampler, self.recipe.objective
        over = f", {images // self.ranks:,} on each of {self.ranks} ranks" if self.ranks > 1 else ""
        order = {"normalize_then_sum": "each reward, then the weighted sum", "sum_then_normalize": "the weighted sum of rewards"}
        rows = f"{self.micro} x {objective.rows_per_sample} = {self.micro * objective.rows_per_sample} rows in the update"
        return [
            f"{batch.prompts} prompts x {batch.group} samples = {images:,} images{over}",
            f"rollout: {images:,} images x {sampler.evaluations} evaluations = {images * sampler.evaluations:,}, guidance none",
            f"update: {images:,} images x {_n(objective.evaluations)} evaluations = {_n(images * objective.evaluations)}, "
            f"{_count(objective.steps, 'gradient step')}",
            f"micro-batch: at most {batch.micro} rows: {_count(batch.micro, 'sample')} in the rollout, {rows}",
            f"advantages: centre group, scale {combine.scale}, of {order[combine.use]}",
            f"no signal: in {self.silent(0.2):.1%} of groups of {batch.group}, for a 0/1 reward that 20 % of images earn",
        ]

    def _run(self) -> list[str]:
        recipe, iterations = self.recipe, self.recipe.run.iterations
        steps, drawn = recipe.objective.steps, recipe.batch.prompts * iterations
        return [
            f"{iterations} iterations x {_n(self.evaluations)} evaluations = {_n(iterations * self.evaluations)}",
            f"{iterations} iterations x {_count(steps, 'gradient step')} = {iterations * steps:,}",
            f"{drawn:,} prompts drawn from {self.prompts:,}: {drawn / self.prompts:.2g} times each",
            f"{_count(self.checkpoints, 'checkpoint')}, the newest {recipe.checkpoint.keep} kept",
        ]

    def _eval(self) -> list[str]:
        options = self.recipe.eval
        images, each = self.held_out * options.samples, options.sampler.evaluations
        source = "training prompts, none held out" if options.prompts == self.recipe.prompts else "held-out prompts"
        return [
            f"{self.held_out:,} {source} x {_count(options.samples, 'sample')} = {images:,} images",
            f"{_count(self.rounds, 'round')} x {images:,} images x {each} evaluations = {self.rounds * images * each:,}",
        ]


def load_prompts(prompts: Prompts) -> tuple[Prompt, ...]:
    """Load prompts; a source that fails or is empty is a PluginError."""
    try:
        loaded = tuple(prompts.load())
    except VgrpoError:
        raise
    except Exception as error:
        raise PluginError(f'prompts "{prompts.name}" could not be loaded', reason(error)) from error
    if not loaded:
        raise PluginError(f'prompts "{prompts.name}" has none', fix="Look at its options in the recipe.")
    return loaded


def _named(entry: RewardEntry) -> str:
    label = "" if entry.label == entry.offer.name else f' as "{entry.label}"'
    return f"{entry.offer.name} ({entry.offer.source}){label}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def _n(value: float) -> str:
    return f"{value:,.10g}"
