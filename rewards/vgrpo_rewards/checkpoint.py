"""Where the weights of rewards come from: a file or folder on this machine, or a hub."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from vgrpo_core import Asset, PluginError

KNOWN = {
    asset.name: asset
    for asset in (
        Asset("yuvalkirstain/PickScore_v1", 3.94, "none stated"),
        Asset("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", 0.004, "MIT"),  # the processor's files
        Asset("openai/clip-vit-large-patch14", 1.71, "MIT (of the code; none stated for the weights)"),
        Asset("xswu/HPSv2/HPS_v2_compressed.pt", 1.97, "Apache-2.0"),
        Asset("xswu/HPSv2/HPS_v2.1_compressed.pt", 1.97, "Apache-2.0"),
        Asset("THUDM/ImageReward/ImageReward.pt", 1.79, "Apache-2.0"),
        Asset("google-bert/bert-base-uncased", 0.001, "Apache-2.0"),  # the tokenizer's files
        Asset("CodeGoat24/UnifiedReward-qwen-7b", 16.6, "MIT"),
        Asset("PekingU/rtdetr_r50vd", 0.17, "Apache-2.0"),
        Asset("facebook/mask2former-swin-small-coco-instance", 0.28, "CC-BY-NC-4.0 (its model zoo)"),
        Asset("trl-lib/ddpo-aesthetic-predictor/aesthetic-model.pth", 0.004, "Apache-2.0"),
    )
}


def assets(*sources: str) -> list[Asset]:
    """List what comes from a hub, each once; size and licence are NaN and "unknown" where they are not known beforehand."""
    remote = dict.fromkeys(source for source in sources if not is_local(source))
    return [KNOWN.get(source, Asset(source, math.nan, "unknown")) for source in remote]


def is_local(source: str) -> bool:
    """Tell paths from `owner/name` and `owner/name/file` of a hub."""
    return source.startswith((".", "/", "~")) or Path(source).exists()


def state_dict(reward: str, source: str) -> dict[str, Any]:
    """Read tensors by name, bare or under "state_dict", from a path or `owner/name/file` of the hub; nothing in it is executed."""
    import torch

    with loading(reward, source):
        weights = torch.load(_file(source), map_location="cpu", weights_only=True)
        if not isinstance(weights, dict):
            raise TypeError(f"it holds a {type(weights).__name__}, not a state dict")
        return dict(weights.get("state_dict", weights))


def _file(source: str) -> Path:
    if is_local(source) or source.count("/") < 2:
        return Path(source)
    from huggingface_hub import hf_hub_download

    owner, name, file = source.split("/", 2)
    return Path(hf_hub_download(f"{owner}/{name}", file))


@contextmanager
def loading(reward: str, source: str) -> Iterator[None]:
    """Turn what a library says of a checkpoint into a PluginError that names the reward, the checkpoint and the remedy."""
    from safetensors import SafetensorError

    if is_local(source) and not Path(source).exists():
        raise PluginError(f'reward "{reward}": "{source}" does not exist', fix="correct the path, or name a model of the hub")
    try:
        yield
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, EOFError, pickle.UnpicklingError, SafetensorError) as error:
        why = shorten(str(error), 240) or type(error).__name__
        raise PluginError(f'reward "{reward}": "{source}" can\'t be loaded', why, _remedy(source)) from error


def _remedy(source: str) -> str:
    if is_local(source):
        return "it is damaged or of another kind: copy it again, or name the right one"
    return "check the name and the connection; a gated model needs `hf auth login`; without a network, name a local copy"
