"""The training run. `Trainer.iterate` is one iteration, readable top to bottom."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import metrics
from .advantages import Advantages, combine
from .checkpoint import Checkpoint, begin
from .copies import AVERAGE, Copies
from .errors import NoSignal
from .events import Evaluated, Listener, Metrics, Warned
from .keys import seed
from .optimizer import Optimizer
from .plugin import Prompt, Sampler, Update
from .prompts import Pool, load_prompts
from .ranks import Ranks
from .recipe import Recipe
from .rollout import Collected, Draws, Rollout, collect, draws
from .scoring import Judge, asked, load, scaled

IDLE_LIMIT = 5  # iterations without any advantage before the run stops
SHOWN = 64  # held-out images kept for pictures


class Trainer:
    """Compose what a recipe declares, and train it. Loading writes nothing."""

    def __init__(self, recipe: Recipe, device: torch.device, listener: Listener, ranks: Ranks | None = None) -> None:
        self.recipe, self.device, self.tell, self.ranks = recipe, device, listener, ranks or Ranks()
        self.prompts, self.held_out = Pool(recipe.prompts), load_prompts(recipe.eval.prompts)
        with self.ranks.first():
            self.judges = [load(entry, device) for entry in recipe.rewards]
            self.monitors = [load(entry, device, monitor=True) for entry in recipe.eval.rewards]
            torch.manual_seed(seed(recipe.run.seed, "start-up"))  # for fresh adapters; nothing else draws from the global generator
            self.policy = recipe.backbone.load(device)
        if recipe.run.shard:
            self.ranks.shard(self.policy.module)
        if recipe.run.init:
            begin(self.policy, recipe.run.init)
        self.copies = Copies(self.policy.trainable())
        for copy in recipe.objective.copies(0):
            self.copies.add(copy)
        self.optimizer = Optimizer(recipe, self.copies)
        self.done, self.evaluations, self.backwards, self.seconds, self.idle = 0, 0, 0, 0.0, 0
        self.line: Metrics = {"iteration": 0, "seconds": 0.0, "evaluations": 0, "backwards": 0}
        self.moved = False  # whether the weights are no longer those of iteration `done`

    def train(self) -> Metrics:
        """Do the next iteration and return its line of metrics.jsonl."""
        start, policy = time.perf_counter(), self.policy
        before = policy.evaluations, policy.backwards
        line = self.iterate(self.done + 1)
        self.done, self.moved = self.done + 1, False
        found = self.ranks.gather((policy.evaluations - before[0], policy.backwards - before[1], metrics.peak(self.device)))
        evaluations, backwards, peaks = zip(*found, strict=True)
        self.seconds += time.perf_counter() - start
        self.evaluations, self.backwards = self.evaluations + sum(evaluations), self.backwards + sum(backwards)
        spent = {"seconds": round(self.seconds, 3), "evaluations": self.evaluations, "backwards": self.backwards}
        self.line = {"iteration": self.done, **spent, **line, "memory/peak_gb": round(max(peaks), 3)}
        return self.line

    def iterate(self, iteration: int) -> Metrics:
        """Draw, judge, compare in groups, take the gradient steps."""
        recipe, batch = self.recipe, self.recipe.batch
        chosen = self.prompts.draw(recipe.run.seed, iteration, batch.prompts)
        rows = draws(recipe.run.seed, "noise", chosen, batch.group, iteration)
        with self.copies.inside(recipe.objective.behaviour):
            drawn = self.collect(recipe.sampler, self.judges, rows)
        advantages, line = self.compare(iteration, rows.prompts, drawn)
        values, valid = advantages.values.flatten().float(), advantages.valid.flatten()
        rollout = Rollout(rows.seed, iteration, batch.group, rows.prompts, drawn.latents, values, valid,
                          self.ranks, self.copies, drawn.trajectory)  # fmt: skip
        sketches = self.ranks.spread(metrics.sketch(drawn.latents), rollout.own, len(rows))
        line["group/diversity"] = metrics.diversity(sketches, batch.group)
        samples = recipe.objective.samples_in(batch.micro)
        update = self.ranks.together(lambda: recipe.objective.start(self.policy, rollout, samples))
        for step in range(recipe.objective.steps):
            line |= self.step(update, rollout, step, samples)
        for copy, decay in recipe.objective.copies(iteration).items():
            self.copies.follow(copy, decay)
        return line

    def collect(self, sampler: Sampler, judges: list[Judge], rows: Draws, keep: int = 0) -> Collected:
        """Draw and judge this rank's rows: its own latents and images, the scores of all."""
        own = self.ranks.share(len(rows))
        options = {"micro": self.recipe.batch.micro, "keep": max(0, keep - own.start)}
        drawn = self.ranks.together(lambda: collect(self.policy, sampler, judges, rows.of(own), **options))
        scores = self.ranks.spread(torch.stack(list(drawn.scores.values())), own, len(rows))
        return drawn._replace(scores=dict(zip(drawn.scores, scores, strict=True)))

    def compare(self, iteration: int, prompts: Sequence[Prompt], drawn: Collected) -> tuple[Advantages, Metrics]:
        """Turn scores into advantages; stop when nothing has had one for five iterations."""
        recipe = self.recipe
        scores = scaled(drawn.scores, recipe.rewards)
        grouped = {label: values.view(-1, recipe.batch.group) for label, values in scores.items()}
        weights = {entry.label: entry.weight_at(iteration) for entry in recipe.rewards}
        advantages = combine(grouped, weights, use=recipe.combine.use, scale=recipe.combine.scale)
        line = metrics.of_scores(asked(self.judges, prompts, drawn.scores), prefix="reward")
        line |= metrics.of_scaled(scores, recipe.rewards, iteration)
        line |= metrics.of_advantages(advantages)
        self.idle = 0 if bool(advantages.values.any()) else self.idle + 1
        if self.idle >= IDLE_LIMIT:
            means = ", ".join(f"{key} {'missing' if mean is None else mean}" for key, mean in line.items() if key.endswith("/mean"))
            raise NoSignal(f"every advantage was 0 in {IDLE_LIMIT} iterations: all rewards of a group equal or missing ({means})")
        return advantages, line

    def step(self, update: Update, rollout: Rollout, step: int, samples: int) -> Metrics:
        """Take one gradient step in micro-batches of `samples`; the gradient does not depend on their size."""
        rows = update.rows(step)
        if not len(rows):  # no sample has an advantage, so there is no gradient
            return {}
        found = self.ranks.together(lambda: self.accumulate(update, rollout, rows, step, samples))
        self.moved = True
        self.ranks.add_gradients(self.optimizer.parameters)
        values = self.ranks.spread(found, rollout.own, len(rollout.prompts))
        statistics = dict(zip(update.statistics, values, strict=True))
        return self.optimizer.step(rollout.iteration) | metrics.of_update(statistics, rows, rollout.group)

    def accumulate(self, update: Update, rollout: Rollout, rows: Tensor, step: int, samples: int) -> Tensor:
        """Add this rank's part of the gradient to its parameters; return the statistics of its rows, NaN where not in `rows`."""
        own, parts = rollout.own, list[tuple[Tensor, Tensor]]()
        for part, counts in rollout.rounds(rows, samples):
            loss, found = update.loss(part, step)
            (loss if counts else 0 * loss).backward()  # type: ignore[no-untyped-call]
            if counts:
                parts.append((part - own.start, torch.stack([found[name] for name in update.statistics])))
        values = torch.full((len(update.statistics), len(own)), torch.nan, dtype=torch.float64)
        for part, known in parts:
            values[:, part] = known.double().cpu()
        return values

    def evaluate(self) -> Metrics:
        """Draw the held-out prompts with their fixed noise and judge them; not counted in `evaluations` and `seconds`."""
        options = self.recipe.eval
        rows = draws(options.seed, "eval", self.held_out, options.samples)
        judges: list[Judge] = [*self.judges, *self.monitors]
        with self.copies.inside(AVERAGE), self.policy.evaluating():
            drawn = self.collect(options.sampler, judges, rows, SHOWN)
        line = metrics.of_scores(asked(judges, rows.prompts, drawn.scores), prefix="eval")
        self.report_gaps()
        shown = self.ranks.gather((drawn.images, drawn.evidence))
        images = torch.stack([image for images, _ in shown for image in images])
        means = {judge.label: line[f"eval/{judge.label}/mean"] for judge in judges}
        judged = {label: values[: len(images)] for label, values in drawn.scores.items()}
        evidence = {label: [table for _, tables in shown for table in tables[label]] for label in judged}
        self.tell(Evaluated(self.done, means, rows.prompts[: len(images)], images, judged, evidence))
        return line

    def report_gaps(self) -> None:
        """Say which monitors failed on some rank since the last time."""
        failures = [f"{judge.source} left a gap: {failure}" for judge in self.monitors for failure in judge.failures]
        for judge in self.monitors:
            judge.failures.clear()
        for failure in [each for part in self.ranks.gather(failures) for each in part]:
            self.tell(Warned(failure))

    def describe(self) -> dict[str, Any]:
        """Say for the manifest what was loaded, and the times [steps + 1] that the sampler visits."""
        schedule = self.policy.schedule(self.recipe.sampler.steps)
        size = sum(parameter.numel() for parameter in self.policy.trainable().values())
        return {"what": self.recipe.backbone.describe(), "trainable": size, "times": schedule.times.tolist()}

    def state(self) -> Checkpoint:
        """Return everything that the next iteration depends on."""
        spent = {"evaluations": self.evaluations, "backwards": self.backwards, "seconds": self.seconds}
        counts = {"iteration": self.done, "idle": self.idle, "refused": self.optimizer.refused}
        return Checkpoint(self.policy.state(), self.optimizer.state(), self.copies.state(), {**counts, **spent, "line": self.line})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to what `state` returned."""
        self.policy.restore(checkpoint.weights)
        self.optimizer.restore(checkpoint.optimizer)
        self.copies.restore(checkpoint.copies)
        state = checkpoint.state
        self.evaluations, self.backwards, self.seconds = state["evaluations"], state["backwards"], state["seconds"]
        self.done, self.line, self.idle, self.optimizer.refused = (state[key] for key in ("iteration", "line", "idle", "refused"))
