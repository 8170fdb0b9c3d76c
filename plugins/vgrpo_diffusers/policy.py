"""A loaded pipeline as a policy: each primitive is the pipeline's own `__call__` with a stand-in for its scheduler."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vgrpo_core import Policy, Schedule

from .embeddings import Embeddings, Uneven
from .exceptions import exception
from .lora import SECOND, save_lora
from .noising import process_of, schedule_of, timesteps_at
from .precision import float32_calls
from .standin import standing_in

NEGATIVE = ("negative_prompt", "negative_prompt_2", "negative_prompt_3", "negative_prompt_4")  # not all take one for all rows


class PipelinePolicy(Policy):
    """Run a pipeline for zero steps to draw noise or to decode, for one step to predict.

    `call` holds the arguments of every call: size, guidance and whatever the recipe adds.
    """

    def __init__(self, pipe: Any, call: Mapping[str, Any], dtype: torch.dtype) -> None:
        self.pipe, self.call, self.dtype = pipe, dict(call), dtype
        self.run = type(pipe).__call__.__wrapped__  # type: ignore[attr-defined]  # the function under torch.no_grad, so that gradients flow
        self.process = process_of(pipe.scheduler)
        self.denoisers = denoisers(pipe)
        self.module = nn.ModuleDict(self.denoisers) if len(self.denoisers) > 1 else next(iter(self.denoisers.values()))
        self.schedules: dict[int, Schedule] = {}
        pipe.encode_prompt = Embeddings(pipe.encode_prompt)
        self.exception = exception(type(pipe))
        if self.exception.prepare_latents:
            pipe.prepare_latents = self.exception.prepare_latents(pipe)
        if self.exception.mend:
            self.exception.mend(pipe)

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
        if steps not in self.schedules:
            scheduler = copy.deepcopy(self.pipe.scheduler)
            scheduler.set_timesteps(**self._asked(steps))
            self.schedules[steps] = schedule_of(scheduler, self.process, steps, self._told)
        return self.schedules[steps]

    def export(self, folder: Path) -> None:
        """Write LoRA weights as `load_lora_weights` reads them, or the trained component as `from_pretrained` reads it."""
        for component, module in self.denoisers.items():
            if hasattr(module, "peft_config"):
                save_lora(self.pipe, component, folder)
            else:
                module.save_pretrained(folder / component)  # type: ignore[operator]

    def _told(self, times: Tensor) -> Tensor:
        """Return what the network is told of times, as timestep / 1000."""
        return times if self.exception.told is None else self.exception.told(times.double(), self._shift)

    @functools.cached_property
    def _shift(self) -> float:
        return float(self._asked(1)["mu"])

    def _asked(self, steps: int) -> dict[str, Any]:
        """Let the pipeline say how it would set its scheduler's timesteps."""
        with standing_in(self.pipe, []) as standin, torch.no_grad():
            self._call([""], num_inference_steps=steps, output_type="latent")
        return standin.asked

    def _still(self, prompts: Sequence[str], **arguments: Any) -> Any:
        with standing_in(self.pipe, []), float32_calls(self.pipe), torch.no_grad():
            return self._call(prompts, num_inference_steps=1, **arguments)[0]

    def _call(self, prompts: Sequence[str], **arguments: Any) -> Any:
        own = {name: [text] * len(prompts) for name, text in self.call.items() if name in NEGATIVE and isinstance(text, str)}
        return self.run(self.pipe, prompt=list(prompts), return_dict=False, **self.call | own, **arguments)

    def _autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, self.dtype, enabled=self.dtype != torch.float32)


def denoisers(pipe: Any) -> dict[str, nn.Module]:
    """Return the components that predict, by name: one, or two that share the times among them."""
    return {name: getattr(pipe, name) for name in ("transformer", SECOND, "unet") if getattr(pipe, name, None) is not None}
