"""Hold a loaded policy against its own pipeline: what the pipeline computes in two steps, the policy has to compute too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vgrpo_core import PluginError

from .exceptions import exception
from .policy import PipelinePolicy

PROMPTS = ("a red cat", "a red dog")  # of one length: some pipelines pad a batch to the longest, which changes the others
FIRST_ORDER = ("FlowMatchEulerDiscreteScheduler", "DDIMScheduler", "EulerDiscreteScheduler")
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}  # of the largest value compared


class Step(NamedTuple):
    """What a pipeline hands to its scheduler in one step; the latents as the network sees them."""

    output: Tensor
    timestep: Tensor
    sample: Tensor
    result: Tensor


class Recorder:
    """Stand before a scheduler and note what its `step` is given; everything else is the scheduler's."""

    def __init__(self, scheduler: Any) -> None:
        self.__dict__.update(scheduler=scheduler, steps=[])

    def __getattr__(self, name: str) -> Any:
        """Ask the scheduler."""
        return getattr(self.scheduler, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Tell the scheduler."""
        setattr(self.scheduler, name, value)

    def step(self, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Note one step and take it."""
        scale = getattr(self.scheduler, "scale_model_input", lambda latents, timestep: latents)
        seen = scale(sample, timestep).detach().clone()  # schedulers with exploding variance keep latents in another scale
        output = model_output.detach().clone()
        result = self.scheduler.step(model_output, timestep, sample, *args, **kwargs)
        self.steps.append(Step(output, torch.as_tensor(timestep), seen, result[0].detach().clone()))
        return result


@contextmanager
def recording(pipe: Any) -> Iterator[list[Step]]:
    """Record the steps of a pipeline's calls."""
    scheduler, pipe.scheduler = pipe.scheduler, Recorder(pipe.scheduler)
    try:
        yield pipe.scheduler.steps
    finally:
        pipe.scheduler = scheduler


def verify(policy: PipelinePolicy) -> list[str]:
    """Return one line for each check that holds; the first that does not is a PluginError that says by how much."""
    steps, latents, images = recorded(policy)
    return [
        noise(policy, steps[0]),
        outputs(policy, steps),
        rows(policy, steps),
        trajectory(policy, steps, latents),
        compared(policy, "images", policy.frames(latents), images),
        gradients(policy, steps),
        *evaluation(policy),
    ]


def evaluation(policy: PipelinePolicy) -> list[str]:
    """Compare outputs with the arguments of evaluation, where it has its own."""
    if policy.evaluation.call == policy.training.call:
        return []
    with policy.evaluating():
        return [f"{outputs(policy, recorded(policy)[0])}, in evaluation"]


def generators() -> list[torch.Generator]:
    """Return one generator a prompt."""
    return [torch.Generator().manual_seed(row) for row in range(len(PROMPTS))]


@torch.no_grad()
def recorded(policy: PipelinePolicy) -> tuple[list[Step], Tensor, Tensor]:
    """Run the pipeline itself for two steps: what its scheduler saw, its latents and its images."""

    def drawn(output_type: str) -> Tensor:
        again = {"generator": generators(), "output_type": output_type, "return_dict": False}
        images: Tensor = policy.pipe(prompt=list(PROMPTS), num_inference_steps=2, **again, **policy.call_of(len(PROMPTS)))[0]
        return images

    with policy._autocast(policy.device):  # trained weights are float32 whatever the embeddings are
        with recording(policy.pipe) as steps:
            images = drawn("pt")
        return steps, steps[-1].result, images


@torch.no_grad()
def trajectory(policy: PipelinePolicy, steps: list[Step], latents: Tensor) -> str:
    """Compare where first-order steps along our times lead, for pipelines that take such steps themselves."""
    name = type(policy.pipe.scheduler).__name__
    if name not in FIRST_ORDER:
        return f"not compared: latents, for {name} takes other steps than Euler's"
    z, process, times = steps[0].sample.float(), policy.process, policy.schedule(2).times.to(steps[0].sample.device)
    for t, following in itertools.pairwise(times):
        output = policy.predict(z, t, PROMPTS)
        z = process.mix(process.data_from(output, z, t), process.noise_from(output, z, t), following)
    return compared(policy, "latents after 2 steps", z, latents)


@torch.no_grad()
def noise(policy: PipelinePolicy, first: Step) -> str:
    """Compare initial latents; those of a scheduler with exploding variance may be sigma times noise, 0.2 % less than ours."""
    allowed = max(5e-3, TOLERANCE[policy.dtype])
    return compared(policy, "initial latents", policy.noise(PROMPTS, generators()), first.sample, allowed)


def times_of(policy: PipelinePolicy, steps: list[Step]) -> Tensor:
    """Return the time of each step: what the scheduler was told, but for pipelines that tell it something else."""
    if exception(type(policy.pipe)).told:
        return policy.schedule(len(steps)).times[:-1]
    return torch.stack([step.timestep.reshape(()) for step in steps]) / 1000


@torch.no_grad()
def outputs(policy: PipelinePolicy, steps: list[Step]) -> str:
    """Compare the network's output at each step."""
    times = times_of(policy, steps)
    found = torch.stack([policy.predict(step.sample, t, PROMPTS) for step, t in zip(steps, times, strict=True)])
    return compared(policy, f"network output at {len(steps)} steps", found, torch.stack([step.output for step in steps]))


@torch.no_grad()
def rows(policy: PipelinePolicy, steps: list[Step]) -> str:
    """Compare rows of different times with the same rows by themselves."""
    return compared(policy, "a time for each row", mixed(policy, steps), torch.stack([steps[0].output[0], steps[-1].output[1]]))


def mixed(policy: PipelinePolicy, steps: list[Step]) -> Tensor:
    """Predict a row of the first step and one of the last together."""
    first, last = steps[0], steps[-1]
    return policy.predict(torch.stack([first.sample[0], last.sample[1]]), times_of(policy, steps)[[0, -1]], PROMPTS)


def gradients(policy: PipelinePolicy, steps: list[Step]) -> str:
    """See that a gradient reaches every trained parameter; where two networks share the times, rows of two times reach both."""
    mixed(policy, steps).square().mean().backward()  # type: ignore[no-untyped-call]
    trained = policy.trainable()
    without = [name for name, parameter in trained.items() if parameter.grad is None]
    policy.module.zero_grad(set_to_none=True)
    if not without:
        return f"pass: a gradient reaches each of {len(trained)} trained parameters"
    if matter(policy, steps, [trained[name] for name in without]):
        raise PluginError(f"no gradient reaches {len(without)} of {len(trained)} trained parameters", ", ".join(without[:3]))
    return f"pass: a gradient reaches each of {len(trained)} trained parameters but {len(without)}, which change nothing"


@torch.no_grad()
def matter(policy: PipelinePolicy, steps: list[Step], parameters: list[nn.Parameter]) -> bool:
    """Tell whether the output depends on some parameters: a last block may compute what nobody reads."""
    before, kept = mixed(policy, steps), [parameter.clone() for parameter in parameters]
    for parameter in parameters:
        parameter.add_(1.0)
    after = mixed(policy, steps)
    for parameter, value in zip(parameters, kept, strict=True):
        parameter.copy_(value)
    return not torch.equal(before, after)


def compared(policy: PipelinePolicy, what: str, found: Tensor, expected: Tensor, allowed: float | None = None) -> str:
    """Say how far two tensors are apart, as a share of the largest value; too far is a PluginError."""
    share = float((found.float() - expected.float()).abs().max() / expected.float().abs().max().clamp(min=1e-12))
    limit = TOLERANCE[policy.dtype] if allowed is None else allowed
    if not share <= limit:
        apart = f"{what}: the policy differs from the pipeline by {share:.1e} of the largest value"
        raise PluginError(apart, f"allowed in {policy.dtype}: {limit:.0e}", "this pipeline can't be trained as it is")
    return f"pass: {what}, largest difference {share:.1e}"
