"""Any scheduler of diffusers that fits the model, checked after each hand-over instead of trusted.

Why: schedulers may drop or bend the sigmas they are given, draw noise that no seed of the run governs, or (DEIS and SASolver in
flow mode) never reach sigma 0 and return latents that are still noisy.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from vgrpo_core import PluginError, Sampler
from vgrpo_core.errors import nearest

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vgrpo_core import Process, Schedule
    from vgrpo_core.plugin import Predict

PREDICTIONS = {"flow": "flow_prediction", "epsilon": "epsilon", "v": "v_prediction", "sample": "sample"}
PLAIN = ("use_dynamic_shifting", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas")
INSTEAD = 'use "euler", "heun" or "dpmsolver++" instead'


class Scheduler(Sampler):
    """Any deterministic scheduler of diffusers, by class name, with the settings of the pipeline's own where they fit."""

    name = "scheduler"
    requires = ("diffusers",)

    scheduler: str = Field(description='class name in diffusers, such as "UniPCMultistepScheduler"')
    options: dict[str, Any] = Field(default_factory=dict, description="its settings, over those of the pipeline's own scheduler")

    @property
    def evaluations(self) -> int:
        """Count the network evaluations per sample; `sample` refuses a scheduler that makes another number."""
        return 2 * self.steps - 1 if "Heun" in self.scheduler or "KDPM2" in self.scheduler else self.steps

    def sample(self, predict: Predict, noise: Tensor, schedule: Schedule) -> Tensor:
        """Run a fresh scheduler in float32; PluginError where it does not fit the process or is not deterministic."""
        import torch

        scheduler = self.build(schedule, noise.device)
        times = _times(scheduler, schedule.process, noise.device)
        z = noise.float() * getattr(scheduler, "init_noise_sigma", 1.0)
        generator = torch.Generator()
        fresh = generator.get_state()
        watched = {"generator": generator} if "generator" in inspect.signature(scheduler.step).parameters else {}
        for timestep, t in zip(scheduler.timesteps, times, strict=True):
            output = predict(_scaled(scheduler, z, timestep), t).float()
            with torch.autocast(z.device.type, enabled=False):  # UniPC multiplies matrices
                z = scheduler.step(output, timestep, z, return_dict=False, **watched)[0]
            if not torch.equal(generator.get_state(), fresh):
                raise self._refusal("it draws new noise at each step, so that a seed no longer decides the image", INSTEAD)
        return z

    def build(self, schedule: Schedule, device: torch.device) -> Any:
        """Return a new scheduler at its first step, verified against `schedule`; PluginError where it does not fit."""
        cls = _find(self.scheduler)
        try:
            own = schedule.process.alphas_cumprod is None and "sigmas" in inspect.signature(cls.set_timesteps).parameters
            grid = {"sigmas": schedule.times[:-1].cpu().numpy()} if own else {"num_inference_steps": self.steps}
            scheduler = cls(**self._settings(inspect.signature(cls).parameters, schedule, own=own))
            scheduler.set_timesteps(**grid, device=device)
            self._verify(scheduler, schedule)
        except PluginError:
            raise
        except Exception as error:
            why = str(error).strip().partition("\n")[0]
            raise self._refusal(f"{type(error).__name__}: {why}", "check [sampler.options]; or " + INSTEAD) from error
        if own:
            self._verify_sigmas(scheduler.sigmas.cpu(), schedule.times.cpu())
        if hasattr(scheduler, "set_begin_index"):
            scheduler.set_begin_index(0)  # steps go by position: looking a time up by value can miss it or skip a repeated one
        return scheduler

    def _settings(self, accepted: Mapping[str, Any], schedule: Schedule, *, own: bool) -> dict[str, Any]:
        """Join the pipeline's settings, what the process asks for and the options; `own`: the sigmas include the shift already."""
        flow, left = schedule.process.alphas_cumprod is None, schedule.scheduler.get("_use_default_values", ())
        config = {key: value for key, value in schedule.scheduler.items() if key not in left}  # as diffusers' `from_config` does
        fixed = {"prediction_type": PREDICTIONS[schedule.process.prediction]} | ({"use_flow_sigmas": True} if flow else {})
        for key in self.options:
            if key in fixed:
                raise self._refusal(f'"{key}" is set in its options, but the model decides it', f'remove "{key}"')
            if key not in accepted:
                raise self._refusal(f'it has no option "{key}"{nearest(key, accepted)}', "see its page in diffusers' documentation")
        if flow and not own and config.get("use_dynamic_shifting") and not self.options.keys() & {"shift", "flow_shift"}:
            why = "the pipeline shifts its times by image size, and this scheduler can't be given them"
            raise self._refusal(why, 'set "flow_shift" (or "shift") in [sampler.options], or ' + INSTEAD)
        shift = 1.0 if own else config.get("shift", config.get("flow_shift", 1.0))
        plain = {"shift": shift, "flow_shift": shift, "shift_terminal": None} | dict.fromkeys(PLAIN, False) if flow else {}
        return {key: value for key, value in {**config, **plain, **self.options, **fixed}.items() if key in accepted}

    def _verify(self, scheduler: Any, schedule: Schedule) -> None:
        timesteps, flow = scheduler.timesteps.cpu(), schedule.process.alphas_cumprod is None
        parameters = inspect.signature(scheduler.step).parameters.values()
        if more := [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD][3:]:
            raise self._refusal(f"its steps ask for more than output, time and latents: {', '.join(more)}", INSTEAD)
        if not _fits(scheduler, schedule.process):
            kind = "flow" if flow else "variance-preserving process"
            raise self._refusal(f"its noise levels are not those of this model's {kind}", INSTEAD)
        if len(timesteps) != self.evaluations:
            raise self._refusal(f"it makes {len(timesteps)} evaluations in {self.steps} steps, not {self.evaluations}", INSTEAD)
        if bool((timesteps.diff() > 0).any()):
            raise self._refusal("its times do not fall from noise to data", INSTEAD)
        if flow and scheduler.sigmas[-1] != 0:
            raise self._refusal(f"it ends at sigma {scheduler.sigmas[-1]:.3g}, so that its images would still be noisy", INSTEAD)

    def _verify_sigmas(self, used: Tensor, asked: Tensor) -> None:
        """Compare the sigmas in use [steps + 1] with those of the schedule; UniPC moves a first sigma of 1 by 1e-6."""
        if used.shape != asked.shape or float((used - asked).abs().max()) > 1e-5:
            why = f"it was given the pipeline's sigmas, {_few(asked)}, and uses others, {_few(used)}"
            raise self._refusal(why, 'remove what changes sigmas from [sampler.options], or use "euler"')

    def _refusal(self, why: str, fix: str) -> PluginError:
        return PluginError(f'sampler "scheduler": {self.scheduler} does not fit here', why, fix)


def _find(name: str) -> Any:
    """Return the class of this name in diffusers; PluginError with the nearest name where there is none."""
    from diffusers import schedulers

    names = [known for known in dir(schedulers) if known.endswith("Scheduler")]
    if name not in names:
        raise PluginError(f'sampler "scheduler": diffusers has no scheduler named "{name}"{nearest(name, names)}')
    return getattr(schedulers, name)


def _fits(scheduler: Any, process: Process) -> bool:
    """Tell whether a scheduler's noise levels are those of the process; for a flow, timesteps are 1000 sigma."""
    if process.alphas_cumprod is None:
        found, expected = scheduler.timesteps / 1000, getattr(scheduler, "sigmas", None)
        tolerance = 1.1e-3  # some schedulers cut timesteps to whole numbers
        expected = None if expected is None else expected[:-1]
    else:
        found, expected, tolerance = getattr(scheduler, "alphas_cumprod", None), process.alphas_cumprod, 1e-5
    if found is None or expected is None or found.shape != expected.shape:
        return False
    return float((found.cpu() - expected.cpu()).abs().max()) < tolerance


def _times(scheduler: Any, process: Process, device: torch.device) -> Tensor:
    """Return the time of each evaluation, float32; for a flow from the sigmas, which no scheduler rounds to whole timesteps."""
    times = scheduler.sigmas[:-1] if process.alphas_cumprod is None else scheduler.timesteps / 1000
    return times.to(device).float()  # type: ignore[no-any-return]


def _scaled(scheduler: Any, z: Tensor, timestep: Tensor) -> Tensor:
    """Return the latents as the network wants them; schedulers with exploding variance keep them in another scale."""
    scale = getattr(scheduler, "scale_model_input", None)
    return z if scale is None else scale(z, timestep)


def _few(sigmas: Tensor) -> str:
    return ", ".join(f"{value:.4g}" for value in sigmas[:3].tolist()) + ", ..."
