"""MixGRPO (Li et al., arXiv 2507.21802): Flow-GRPO's loss on the steps of a sliding window."""

from __future__ import annotations

from pydantic import Field

from .flow_grpo import LEARN, FlowGRPO


class MixGRPO(FlowGRPO):
    """Raise the probability of the noisy steps in a window on the way to samples that beat their group; meant for `window_sde`."""

    name = "mixgrpo"
    companion = "window_sde"

    learn: int = Field(default=4, ge=1, description=LEARN)
