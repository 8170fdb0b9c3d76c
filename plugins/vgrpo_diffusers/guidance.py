"""What a recipe says of guidance, for people: before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCALES = ("guidance_scale", "true_cfg_scale")
WARNING = (
    "warning: guidance above 1 in rollout and loss can make training collapse, unless it was distilled into the model, as into "
    "FLUX.1 dev; eval_call sets it for evaluation alone"
)


def notes(call: Mapping[str, Any], eval_call: Mapping[str, Any]) -> list[str]:
    """Say the guidance of rollout, loss and evaluation, and what else of the call is different in evaluation."""
    evaluation = {**call, **eval_call}
    apart = ", ".join(f"{name} {value}" for name, value in eval_call.items() if name not in SCALES)
    line = f"guidance: {said(call)} in rollout and loss, {said(evaluation)} in evaluation{f' with {apart}' if apart else ''}"
    return [line, WARNING] if any(above_one(call.get(name)) for name in SCALES) else [line]


def said(call: Mapping[str, Any]) -> str:
    """Name the scales that a call sets."""
    return ", ".join(f"{name} {call[name]}" for name in SCALES if name in call) or "none"


def above_one(scale: Any) -> bool:
    """Tell a scale that guides; what is no number is refused when the model is loaded."""
    return isinstance(scale, int | float) and scale > 1
