"""A loaded pipeline as a policy: each primitive is the pipeline's own `__call__` with a stand-in for its scheduler."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vgrpo_core import Policy, Schedule

from .embeddings import Embeddings
from .lora import save_lora
from .noising import process_of, schedule_of, timesteps_at
from .standin import standing_in


class PipelinePolicy(Policy):
    """Run a pipeline for zero steps to draw noise or to decode, for one step to predict.

    `call` holds the arguments of every call: size, guidance and whatever the recipe adds.
    """

    def __init__(self, pipe: Any, call: Mapping[str, Any], dtype: torch.dtype) -> None:
        self.pipe, self.call, self.dtype = pipe, dict(call), dtype
        self.run = type(pipe).__call__.__wrapped__  # type: ignore[attr-defined]  # the function under torch.no_grad, so that gradients flow
        self.process = process_of(pipe.scheduler)
        self.component, self.module = denoiser(pipe)
        self.schedules: dict[int, Schedule] = {}
        pipe.encode_prompt = Embeddings(pipe.encode_prompt)

    @property
    def device(self) -> torch.device:
        """Return where the denoiser is."""
        return next(self.module.parameters()).device

    def output(self, z: Tensor, t: Tensor, prompts: Sequence[str]) -> Tensor:
        """Take one step at timestep 1000 t and keep what the pipeline's scheduler would be handed."""
        timesteps = timesteps_at(t, self.process).to(z.device).reshape(1, -1)
        with standing_in(self.pipe, timesteps if t.ndim else timesteps[0]) as standin, self._autocast(z.device):
            self._call(prompts, latents=z, num_inference_steps=1, output_type="latent")
        assert standin.output is not None
        return standin.output

    def noise(self, prompts: Sequence[str], generators: Sequence[torch.Generator]) -> Tensor:
        """Take no step: the pipeline's own initial latents."""
        latents: Tensor = self._still(prompts, generator=list(generators), output_type="latent")
        return latents.float()

    def decode(self, latents: Tensor) -> Tensor:
        """Take no step from finished latents: the pipeline's own images."""
        images: Tensor = self._still([""] * len(latents), latents=latents.to(self.dtype), output_type="pt")
        return images.float()

    def schedule(self, steps: int) -> Schedule:
        """Let the pipeline set its scheduler's timesteps, with its own sigmas and shift."""
        if steps not in self.schedules:
            with standing_in(self.pipe, []) as standin, torch.no_grad():
                self._call([""], num_inference_steps=steps, output_type="latent")
            scheduler = copy.deepcopy(self.pipe.scheduler)
            scheduler.set_timesteps(**standin.asked)
            self.schedules[steps] = schedule_of(scheduler, self.process, steps)
        return self.schedules[steps]

    def export(self, folder: Path) -> None:
        """Write LoRA weights as `load_lora_weights` reads them, or the trained component as `from_pretrained` reads it."""
        if hasattr(self.module, "peft_config"):
            save_lora(self.pipe, self.component, folder)
        else:
            self.module.save_pretrained(folder / self.component)  # type: ignore[operator]

    def _still(self, prompts: Sequence[str], **arguments: Any) -> Any:
        with standing_in(self.pipe, []), torch.no_grad():
            return self._call(prompts, num_inference_steps=1, **arguments)[0]

    def _call(self, prompts: Sequence[str], **arguments: Any) -> Any:
        return self.run(self.pipe, prompt=list(prompts), return_dict=False, **self.call, **arguments)

    def _autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, self.dtype, enabled=self.dtype != torch.float32)


def denoiser(pipe: Any) -> tuple[str, nn.Module]:
    """Return the name and the module of the component that predicts."""
    name = "transformer" if getattr(pipe, "transformer", None) is not None else "unet"
    return name, getattr(pipe, name)
