"""DanceGRPO (Xue et al., arXiv 2505.07818): Flow-GRPO's loss on a random part of the steps."""

from __future__ import annotations

from pydantic import Field

from .flow_grpo import LEARN, FlowGRPO


class DanceGRPO(FlowGRPO):
    """Raise the probability of some of the noisy steps on the way to samples that beat their group; meant for `dance_sde`."""

    name = "dancegrpo"
    companion = "dance_sde"

    learn: int = Field(default=9, ge=1, description=LEARN + "; 0.6 of them in the paper")
