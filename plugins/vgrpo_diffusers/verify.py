"""Hold a loaded policy against its own pipeline: what the pipeline computes in two steps, the policy has to compute too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vgrpo_core import PluginError

from .policy import PipelinePolicy

PROMPTS = ("a cat on a chair", "a red sign")
FIRST_ORDER = ("FlowMatchEulerDiscreteScheduler", "DDIMScheduler")
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}  # of the largest value compared


class Step(NamedTuple):
    """What a pipeline hands to its scheduler in one step."""

    output: Tensor
    timestep: Tensor
    sample: Tensor


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
        self.steps.append(Step(model_output.detach().clone(), torch.as_tensor(timestep), sample.detach().clone()))
        return self.scheduler.step(model_output, timestep, sample, *args, **kwargs)


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
        compared(policy, "images", policy.decode(latents), images),
        gradients(policy, steps[0]),
    ]


def generators() -> list[torch.Generator]:
    """Return one generator a prompt."""
    return [torch.Generator().manual_seed(row) for row in range(len(PROMPTS))]


@torch.no_grad()
def recorded(policy: PipelinePolicy) -> tuple[list[Step], Tensor, Tensor]:
    """Run the pipeline itself for two steps: what its scheduler saw, its latents and its images."""

    def drawn(output_type: str) -> Tensor:
        again = {"generator": generators(), "output_type": output_type, "return_dict": False}
        images: Tensor = policy.pipe(prompt=list(PROMPTS), num_inference_steps=2, **again, **policy.call)[0]
        return images

    with recording(policy.pipe) as steps:
        latents = drawn("latent")
    return steps, latents, drawn("pt")


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
    """Compare initial latents."""
    return compared(policy, "initial latents", policy.noise(PROMPTS, generators()), first.sample)


@torch.no_grad()
def outputs(policy: PipelinePolicy, steps: list[Step]) -> str:
    """Compare the network's output at each step."""
    found = torch.stack([policy.predict(step.sample, step.timestep / 1000, PROMPTS) for step in steps])
    return compared(policy, f"network output at {len(steps)} steps", found, torch.stack([step.output for step in steps]))


@torch.no_grad()
def rows(policy: PipelinePolicy, steps: list[Step]) -> str:
    """Compare rows of different times with the same rows by themselves."""
    first, last = steps[0], steps[-1]
    latents = torch.stack([first.sample[0], last.sample[1]])
    times = torch.stack([first.timestep, last.timestep]).reshape(2) / 1000
    found = policy.predict(latents, times, PROMPTS)
    return compared(policy, "a time for each row", found, torch.stack([first.output[0], last.output[1]]))


def gradients(policy: PipelinePolicy, step: Step) -> str:
    """See that a gradient reaches every trained parameter and no other."""
    policy.predict(step.sample, step.timestep / 1000, PROMPTS).square().mean().backward()  # type: ignore[no-untyped-call]
    trained = policy.trainable()
    without = [name for name, parameter in trained.items() if parameter.grad is None]
    policy.module.zero_grad(set_to_none=True)
    if without:
        raise PluginError(f"no gradient reaches {len(without)} of {len(trained)} trained parameters", ", ".join(without[:3]))
    return f"pass: a gradient reaches each of {len(trained)} trained parameters"


def compared(policy: PipelinePolicy, what: str, found: Tensor, expected: Tensor) -> str:
    """Say how far two tensors are apart, as a share of the largest value; too far is a PluginError."""
    share = float((found.float() - expected.float()).abs().max() / expected.float().abs().max().clamp(min=1e-12))
    if not share <= TOLERANCE[policy.dtype]:
        apart = f"{what}: the policy differs from the pipeline by {share:.1e} of the largest value"
        allowed = f"allowed in {policy.dtype}: {TOLERANCE[policy.dtype]:.0e}"
        raise PluginError(apart, allowed, "this pipeline can't be trained as it is")
    return f"pass: {what}, largest difference {share:.1e}"
