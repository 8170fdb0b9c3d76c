"""Any diffusers pipeline as a backbone: the pipeline's own `__call__`, run for zero or one step, is the policy."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from vgrpo_core import Backbone, hookimpl

from .source import find

if TYPE_CHECKING:
    import torch

    from vgrpo_core import Policy

# diffusers imports bitsandbytes where it is installed, which then warns of a package that only 4-bit weights on CPUs need.
logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(lambda record: "kernels-community" not in str(record.msg))


class LoRA(BaseModel):
    """Train low-rank adapters instead of the weights themselves (peft)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(ge=1, description="rank of the adapters")
    alpha: float | None = Field(default=None, gt=0, description="scale of the adapters is alpha / rank; default: the rank")
    targets: tuple[str, ...] = Field(default=(), description="names or name endings of layers; default: the attention projections")


class Diffusers(Backbone):
    """Train the transformer or U-Net of a diffusers pipeline: all of its weights, or LoRA adapters."""

    name = "diffusers"

    model: str = Field(min_length=1, description='hub id, local folder, or "builtin:glyphs"')
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="precision of what is not trained, VAE excepted")
    lora: LoRA | None = Field(default=None, description="rank, alpha, targets; without it all weights are trained")
    size: tuple[int, int] | None = Field(default=None, description="height and width in pixels; default: the pipeline's own")
    call: dict[str, Any] = Field(default_factory=dict, description="further arguments of the pipeline's call")
    eval_call: dict[str, Any] = Field(
        default_factory=dict, description="arguments of the call in evaluation, where they differ from `call`, such as guidance"
    )
    gradient_checkpointing: bool = Field(default=False, description="compute blocks again in the backward pass, for less memory")
    compile: bool = Field(default=False, description="compile the denoiser's repeated blocks, or all of it where it names none")
    attention: str | None = Field(default=None, description='attention backend of diffusers, such as "_native_cudnn"')
    offload: bool = Field(default=False, description="keep text encoders and VAE on the CPU while they are idle")

    @field_validator("dtype", mode="before")
    @classmethod
    def _wide(cls, value: Any) -> Any:
        if value == "float16":
            raise ValueError("float16 can't hold the gradients of a real batch: all of them round to 0; use bfloat16 or float32")
        return value

    def describe(self) -> str:
        """Say what will be loaded and trained."""
        trained = f"LoRA rank {self.lora.rank}" if self.lora else "all weights of the denoiser"
        return f"{find(self.model).described}, {self.dtype}, training {trained}"

    def notes(self) -> list[str]:
        """Say which guidance rollout, loss and evaluation have."""
        from .guidance import notes

        return notes(self.call, self.eval_call)

    def memory(self) -> list[str]:
        """Say how much memory weights, gradients and optimizer take, in lines of text, without loading any weights."""
        from .memory import lines

        return lines(self)

    def load(self, device: torch.device) -> Policy:
        """Load the pipeline and return it as a policy."""
        from .load import load

        return load(self, device)

    def verify(self, policy: Policy) -> list[str]:
        """Compare the policy with its pipeline: latents, outputs, a time for each row, gradients; say what memory it takes."""
        from .memory import measured
        from .verify import verify

        return [*verify(policy), *self.memory(), measured(policy)]  # type: ignore[arg-type]


@hookimpl
def vgrpo_backbones() -> list[type[Backbone]]:
    """Offer diffusers pipelines."""
    return [Diffusers]
