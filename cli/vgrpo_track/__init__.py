"""Follow a run in TensorBoard, Weights & Biases, trackio and the others that accelerate knows; metrics.jsonl is written always."""

from .follow import Tracks

__all__ = ["Tracks"]
