"""A loaded pipeline as a policy: each primitive is the pipeline's own `__call__` with a stand-in for its scheduler."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from vgrpo_core import PluginError, Policy, Schedule

from .embeddings import Embeddings, Uneven
from .exceptions import exception
from .lean import denoisers, lean
from .lora import save_lora
from .noising import process_of, schedule_of, timesteps_at
from .precision import float32_calls
from .standin import standing_in

NEGATIVE = ("negative_prompt", "negative_prompt_2", "negative_prompt_3", "negative_prompt_4")  # not all take one for all rows


@dataclass
class Mode:
    """The arguments of every call of a pipeline, and what it has said with them: they may change its times."""

    call: Mapping[str, Any]
    schedules: dict[int, Schedule] = field(default_factory=dict)
    shift: float | None = None


class PipelinePolicy(Policy):
    """Run a pipeline for zero steps to draw noise or to decode, for one step to predict.

    `call` holds the arguments of every call: size, guidance and whatever the recipe adds; `eval_call` those of evaluation.
    """

    def __init__(self, pipe: Any, call: Mapping[str, Any], dtype: torch.dtype, eval_call: Mapping[str, Any] | None = None) -> None:
        self.pipe, self.dtype = pipe, dtype
        self.mode = self.training = Mode(call)
        self.evaluation = Mode(call if eval_call is None else eval_call)
        self.run = type(pipe).__call__.__wrapped__  # type: ignore[attr-defined]  # the function under torch.no_grad, so that gradients flow
        self.process = process_of(pipe.scheduler)
        self.denoisers = denoisers(pipe)
        self.module = nn.ModuleDict(self.denoisers) if len(self.denoisers) > 1 else next(iter(self.denoisers.values()))
        lean(pipe)
        pipe.encode_prompt = Embeddings(pipe.encode_prompt, pipe.components)
        self.exception = exception(type(pipe))
        if self.exception.prepare_latents:
            pipe.prepare_latents = self.exception.prepare_latents(pipe)
        if self.exception.mend:
            self.exception.mend(pipe)

    @property
    def call(self) -> Mapping[str, Any]:
        """Return the arguments of every call, as they are now."""
        return self.mode.call

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Call the pipeline as evaluation asks; with guidance it combines its outputs itself."""
        outside, self.mode = self.mode, self.evaluation
        try:
            yield
        finally:
            self.mode = outside

    @property
    def device(self) -> torch.device:
        """Return where the denoiser is."""
        return next(self.module.parameters()).device

    def output(self, z: Tensor, t: Tensor, prompts: Sequence[str]) -> Tensor:
        """Take one step at timestep 1000 t, in one call where the pipeline can."""
        if t.ndim and self.exception.one_time(self.pipe):
            return self._apart(z, t, prompts, [t.eq(time).nonzero().flatten().tolist() for time in torch.unique(t)])
        try:
            return self._step(z, t, prompts)
        except Uneven as uneven:
            return self._apart(z, t, prompts, uneven.groups)

    def _apart(self, z: Tensor, t: Tensor, prompts: Sequence[str], groups: Sequence[list[int]]) -> Tensor:
        """Take the step for each group of rows by itself."""
        if isinstance(next(iter(self.denoisers.values())), FSDPModule):
            what = f"{type(self.pipe).__name__} has to be called more than once for some rows, which sharded ranks can't wait for"
            raise PluginError(what, "prompts of different lengths, or times of two networks", "Leave run.shard out.")
        outputs = []
        for rows in groups:
            times = t[rows] if t.ndim else t
            one = times[0] if t.ndim and bool((times == times[0]).all()) else times
            outputs.append(self.output(z[rows], one, [prompts[row] for row in rows]))
        order = torch.tensor([row for rows in groups for row in rows]).argsort()
        return torch.cat(outputs)[order.to(z.device)]

    def _step(self, z: Tensor, t: Tensor, prompts: Sequence[str]) -> Tensor:
        """Keep what the pipeline's scheduler would be handed."""
        timesteps = timesteps_at(self._told(t), self.process).to(z.device).reshape(1, -1)
        at = timesteps if t.ndim else timesteps[0]
        with standing_in(self.pipe, at) as standin, float32_calls(self.pipe), self._autocast(z.device):
            self._call(prompts, latents=z, num_inference_steps=1, output_type="latent")
        assert standin.output is not None
        return standin.output

    def noise(self, prompts: Sequence[str], generators: Sequence[torch.Generator]) -> Tensor:
        """Take no step: the pipeline's own initial latents."""
        latents: Tensor = self._still([""] * len(prompts), generator=list(generators), output_type="latent")
        kept: Tensor = getattr(self.pipe.prepare_latents, "kept", latents)
        return kept.float()

    def decode(self, latents: Tensor) -> Tensor:
        """Take no step from finished latents: the pipeline's own images; of a video, the middle frame."""
        frames = self.frames(latents)
        return frames[:, frames.shape[1] // 2] if frames.ndim == 5 else frames

    def frames(self, latents: Tensor) -> Tensor:
        """Return all that the pipeline decodes: images [B, 3, H, W], or videos [B, F, 3, H, W]."""
        images: Tensor = self._still([""] * len(latents), latents=latents.float(), output_type="pt")
        return images.float()

    def schedule(self, steps: int) -> Schedule:
        """Let the pipeline set its scheduler's timesteps, with its own sigmas and shift."""
        known = self.mode.schedules
        if steps not in known:
            scheduler = copy.deepcopy(self.pipe.scheduler)
            scheduler.set_timesteps(**self._asked(steps))
            known[steps] = schedule_of(scheduler, self.process, steps, self._told)
        return known[steps]

    def export(self, folder: Path) -> None:
        """Write LoRA weights as `load_lora_weights` reads them, or the trained component as `from_pretrained` reads it."""
        for component, module in self.denoisers.items():
            if hasattr(module, "peft_config"):
                save_lora(self.pipe, component, folder)
            else:
                module.save_pretrained(folder / component)  # type: ignore[operator]

    def _told(self, times: Tensor) -> Tensor:
        """Return what the network is told of times, as timestep / 1000."""
        if self.exception.told is None:
            return times
        if self.mode.shift is None:
            self.mode.shift = float(self._asked(1)["mu"])
        return self.exception.told(times.double(), self.mode.shift)

    def _asked(self, steps: int) -> dict[str, Any]:
        """Let the pipeline say how it would set its scheduler's timesteps."""
        with standing_in(self.pipe, []) as standin, torch.no_grad():
            self._call([""], num_inference_steps=steps, output_type="latent")
        return standin.asked

    def _still(self, prompts: Sequence[str], **arguments: Any) -> Any:
        with standing_in(self.pipe, []), float32_calls(self.pipe), torch.no_grad():
            return self._call(prompts, num_inference_steps=1, **arguments)[0]

    def _call(self, prompts: Sequence[str], **arguments: Any) -> Any:
        return self.run(self.pipe, prompt=list(prompts), return_dict=False, **self.call_of(len(prompts)), **arguments)

    def call_of(self, rows: int) -> dict[str, Any]:
        """Return the arguments of a call of some rows, with a negative prompt for each."""
        own = {name: [text] * rows for name, text in self.call.items() if name in NEGATIVE and isinstance(text, str)}
        return {**self.call, **own}

    def _autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, self.dtype, enabled=self.dtype != torch.float32)
