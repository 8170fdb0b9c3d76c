"""What a recipe will cost, multiplied out before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from vgrpo_core import RecipeError
from vgrpo_core.prompts import load_prompts
from vgrpo_core.recipe import Recipe, moments


def begun(path: Path) -> bool:
    """Tell whether a run can begin with `path`: a checkpoint, a folder of some, or a run that has one."""
    return any(next(path.glob(f"{inside}state.json"), None) for inside in ("", "[0-9]*/", "checkpoints/[0-9]*/"))


def unbegun(recipe: Recipe) -> Recipe:
    """Return a recipe for the model as it is: it does not begin with what another run learned."""
    return replace(recipe, run=recipe.run.model_copy(update={"init": None}))


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
        """Count the prompts and check that every rank gets images; a RecipeError says what would do."""
        plan = cls(recipe, ranks, len(load_prompts(recipe.prompts)), len(load_prompts(recipe.eval.prompts)))
        drawn = {"[batch]": plan.images, "[eval]": plan.held_out * recipe.eval.samples}
        if ranks > plan.images:
            what = f"[batch] {plan.images} images an iteration are too few for {ranks} ranks; start {plan.images} at most"
            raise RecipeError([f"{recipe.path}: {what}"])
        if recipe.optimizer.bits == 8 and find_spec("bitsandbytes") is None:
            raise RecipeError([f'{recipe.path}: optimizer.bits = 8 needs bitsandbytes; run: pip install "vgrpo[8bit]"'])
        if recipe.run.shard and (torn := [f"{table} {images}" for table, images in drawn.items() if images % ranks]):
            what = f"with run.shard all of {ranks} ranks have to draw equally many images; found {' and '.join(torn)} images"
            raise RecipeError([f"{recipe.path}: {what}"])
        return plan

    def ready(self) -> None:
        """See that what the run begins with is there; a RecipeError says what it may be."""
        init = self.recipe.run.init
        if init and not begun(init):
            what = f"run.init is {init}, and no run with a checkpoint is there"
            raise RecipeError([f"{self.recipe.path}: {what}; name a run's folder, its best/, or one of its checkpoints"])

    @property
    def images(self) -> int:
        """Count the images per iteration."""
        return self.recipe.batch.prompts * self.recipe.batch.group

    @property
    def evaluations(self) -> float:
        """Count the evaluations per iteration, in the rollout and the update."""
        return self.images * (self.recipe.sampler.rollout_evaluations + self.recipe.objective.evaluations)

    @property
    def micro(self) -> int:
        """Count the samples in a micro-batch of the update."""
        return self.recipe.objective.samples_in(self.recipe.batch.micro)

    @property
    def rounds(self) -> int:
        """Count the evaluations of held-out prompts: at the start, every so often, and at the end."""
        return len({0, *moments(self.recipe.eval.every, self.recipe.run.iterations)})

    @property
    def checkpoints(self) -> int:
        """Count the checkpoints that are written."""
        return len(moments(self.recipe.checkpoint.every, self.recipe.run.iterations))

    def silent(self, share: float) -> float:
        """Return the share of groups without signal from a 0/1 reward that `share` of all images earn."""
        group = self.recipe.batch.group
        return share**group + (1 - share) ** group
