"""CLIP models of open_clip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vgrpo_core import PluginError

from .checkpoint import loading
from .clip import Clip

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from .networks import Limit

SCHEMES = ("hf-hub:", "local-dir:")


def load_open_clip(model: str, device: torch.device, dtype: torch.dtype, limit: Limit) -> Clip:
    """Load `hf-hub:owner/name` or `local-dir:folder` with the preprocessing that it names; what fails is a PluginError."""
    try:
        import open_clip
    except ModuleNotFoundError as error:
        what = f'reward "{limit.name}": "{model}" needs {error.name}'
        raise PluginError(what, fix='pip install "vgrpo[clip]"') from error
    from PIL import Image

    with loading(limit.name, model.split(":", 1)[1]):
        network, transform = open_clip.create_model_from_pretrained(model)
        tokenizer = open_clip.get_tokenizer(model)
    return from_open_clip(network, tokenizer, lambda picture: transform(Image.fromarray(picture)), device, dtype, limit)


def from_open_clip(
    network: Any,
    tokenizer: Any,
    transform: Callable[[np.ndarray], Tensor],
    device: torch.device,
    dtype: torch.dtype,
    limit: Limit,
) -> Clip:
    """Wrap a float32 network of open_clip; `transform` makes its input of one uint8 RGB picture [H, W, 3]."""
    import torch

    _check(network, tokenizer, limit)
    scale = network.logit_scale.exp().item()  # before its precision is reduced
    network.eval().requires_grad_(False).to(device, dtype)

    def preprocess(pictures: Sequence[np.ndarray]) -> Tensor:
        return torch.stack([transform(picture) for picture in pictures])

    def tokenize(texts: list[str]) -> Tensor:
        limit.check([len(tokenizer.encode(text)) + 2 for text in texts])  # and a start and an end
        ids: Tensor = tokenizer(texts)  # cuts, and keeps the end
        return ids

    return Clip(preprocess, tokenize, network.encode_image, network.encode_text, scale, device, dtype)


def _check(network: Any, tokenizer: Any, limit: Limit) -> None:
    """Refuse models that read their texts in another way than CLIP."""
    import open_clip

    if not isinstance(tokenizer, open_clip.SimpleTokenizer):
        raise PluginError(f'reward "{limit.name}": the model does not use the tokenizer of CLIP')
    if network.context_length != limit.tokens:
        raise PluginError(f'reward "{limit.name}": the model reads {network.context_length} tokens, not {limit.tokens}')
