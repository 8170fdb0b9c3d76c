"""What a plugin is: a frozen class whose fields are its options and whose `load` or `start` makes the real object.

Cheap to import: torch appears in annotations only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .policy import Policy
    from .process import Schedule
    from .rollout import Rollout
    from .samples import Samples, Scores

    Score = Callable[[Samples], Tensor | Scores]
    Predict = Callable[[Tensor, Tensor], Tensor]
    Draw = Callable[[int], Tensor]


@dataclass(frozen=True)
class Asset:
    """Something that a plugin reads from disk or fetches from a hub: what to copy to a machine without a network."""

    name: str
    """Hub id, or hub id and file."""
    size: float
    """In GB, rounded."""
    licence: str


class Plugin(BaseModel):
    """Hold the options of one part of a run; unknown options are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    """How recipes call it."""
    requires: ClassVar[tuple[str, ...]] = ()
    """Importable modules that `load` needs; checked before anything heavy is imported."""
    extra: ClassVar[str] = ""
    """What to `pip install` when one of them is missing, such as "vgrpo[ocr]"."""

    def assets(self) -> Sequence[Asset]:
        """List what `load` will read that did not come with a package, for these options."""
        return ()


@dataclass(frozen=True)
class Prompt:
    """One text to draw, with what rewards need to know about it (the word to write, the colour asked for, ...)."""

    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    """Those of its metadata (`tag` or `tags`) and of its set in the recipe, once it is loaded."""


class Prompts(Plugin):
    """A source of prompts."""

    @abstractmethod
    def load(self) -> Sequence[Prompt]:
        """Return all prompts, in an order that depends on the options alone."""


class Backbone(Plugin):
    """A generative model to train."""

    @abstractmethod
    def load(self, device: torch.device) -> Policy:
        """Load the weights and return the policy."""

    def describe(self) -> str:
        """Say in one line what `load` will load, without loading it."""
        return self.name

    def notes(self) -> list[str]:
        """Say what else of it a plan should show: one line each."""
        return []

    def memory(self) -> list[str]:
        """Say what memory it will take, in lines of text, without loading any weights; nothing where that is not known."""
        return []

    def verify(self, policy: Policy) -> list[str]:
        """Hold a loaded policy against the model itself: one line a check that holds; a PluginError for one that does not."""
        return []


class Sampler(Plugin):
    """A way from noise to finished latents; it sees a function, never a model."""

    steps: int = Field(default=16, ge=1, description="steps from noise to data")

    @property
    def evaluations(self) -> int:
        """Count the network evaluations per sample."""
        return self.steps

    @property
    def rollout_evaluations(self) -> float:
        """Count them in a rollout of training, where they differ: on average over iterations."""
        return self.evaluations

    @abstractmethod
    def sample(self, predict: Predict, noise: Tensor, schedule: Schedule) -> Tensor:
        """Integrate from `noise` [B, *D] along `schedule` and return finished latents [B, *D].

        `predict(z, t)` returns the network's output [B, *D] for latents `z` at time `t` (a scalar tensor or one value a row).
        """


class Trajectory(NamedTuple):
    """What a stochastic sampler returns: latents, and the K steps on the way to them that drew noise; float32."""

    latents: Tensor
    """[B, *D], finished."""
    before: Tensor
    """[B, K, *D]: before each of the steps."""
    after: Tensor
    """[B, K, *D]: after each of them, drawn from a Gaussian."""
    mean: Tensor
    """[B, K, *D]: of that Gaussian, under the weights that drew."""
    std: Tensor
    """[K]: its deviation."""
    times: Tensor
    """[K, 2]: before and after the step."""
    transition: Callable[[Tensor, Tensor, int], Tensor]
    """`transition(output, z, k)` gives that mean [R, *D] for a network output at latents `z` before step k."""


class StochasticSampler(Sampler):
    """A sampler whose rollouts draw noise on the way, for objectives that learn from single steps; evaluation takes `sample`."""

    same_start: bool = Field(default=False, description="start all samples of a prompt from the same noise")

    @property
    @abstractmethod
    def noisy_steps(self) -> int:
        """Count the steps that draw noise: K."""

    @abstractmethod
    def explore(self, predict: Predict, noise: Tensor, schedule: Schedule, draw: Draw, iteration: int) -> Trajectory:
        """Go from `noise` to finished latents and keep the steps that drew noise.

        `draw(step)` returns standard normal noise [B, *D] for a step of the schedule, the same each time.
        """


class Reward(Plugin):
    """A judge of images."""

    range: ClassVar[str] = ""
    """Which values are usual, such as "about 18 to 26"; for people."""
    text_limit: ClassVar[int | None] = None
    """How many tokens of a prompt it reads, where that is bounded."""

    @abstractmethod
    def load(self, device: torch.device) -> Score:
        """Return the function that scores `Samples`: float [B], in native units; NaN where it can't judge.

        It may return `Scores` instead, which hold what each number was made from besides.
        """


class Update(Protocol):
    """What an objective knows of one rollout while the trainer takes its gradient steps."""

    statistics: Sequence[str]
    """The names of what `loss` has to log."""

    def rows(self, step: int) -> Tensor:
        """Return the indices of the samples that gradient step `step` uses, of all ranks: equal on each."""

    def loss(self, rows: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what `rows` of this rank add to the step's mean loss, and each of the statistics: [len(rows)]."""


class Objective(Plugin):
    """What a gradient step minimises."""

    behaviour: ClassVar[str | None] = None
    """The copy of the weights that draws rollouts; without one, the weights themselves."""

    steps: int = Field(default=1, ge=1, description="gradient steps per rollout")

    @property
    def noisy_steps(self) -> int:
        """Count the steps of a stochastic sampler that it learns from; with none, it learns from finished latents alone."""
        return 0

    def copies(self, iteration: int) -> Mapping[str, float]:
        """Name the copies of the weights that it keeps, with the decay of each after an iteration; 1 leaves a copy as it is."""
        return {}

    @property
    @abstractmethod
    def evaluations(self) -> float:
        """Count the forward evaluations per sample and iteration in the update."""

    @property
    @abstractmethod
    def rows_per_sample(self) -> int:
        """Count the network rows that one sample fills in an update's micro-batch."""

    def samples_in(self, micro: int) -> int:
        """Count the samples that fit an update's micro-batch of `micro` rows; never none."""
        return max(1, micro // self.rows_per_sample)

    @abstractmethod
    def start(self, policy: Policy, rollout: Rollout, micro: int) -> Update:
        """Prepare the gradient steps of one rollout, at most `micro` samples at a time."""
