"""CLIP models: pictures and texts in one space, where their cosine says how well they match (Radford et al., arXiv 2103.00020)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vgrpo_core import PluginError

from .checkpoint import loading

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from vgrpo_core import Samples

    from .networks import Limit

TOKENS = 77  # what CLIP reads of a text, its start and end included


@dataclass(frozen=True)
class Clip:
    """Two encoders with their own preprocessing and the factor between cosines and the model's logits."""

    preprocess: Callable[[Sequence[np.ndarray]], Tensor]
    """From pictures, uint8 RGB [H, W, 3] each, to the network's input, float32 [B, 3, S, S]."""
    tokenize: Callable[[list[str]], Tensor]
    """From texts to token ids [B, 77]; longer texts are cut, and keep their end token."""
    see: Callable[[Tensor], Tensor]
    """From the network's input to features [B, D], not normalised, in the network's precision."""
    read: Callable[[Tensor], Tensor]
    """From token ids to features [B, D], likewise."""
    scale: float
    """exp(logit_scale), in float32 whatever the network's precision."""
    device: torch.device
    dtype: torch.dtype

    def images(self, pixels: Samples | Sequence[np.ndarray] | np.ndarray) -> Tensor:
        """Return L2-normalised features, float32 [B, D], of samples or of uint8 RGB pictures [H, W, 3] of any sizes."""
        from vgrpo_core import Samples

        pictures = list(pixels.pixels() if isinstance(pixels, Samples) else pixels)
        return _normalised(self.see(self.preprocess(pictures).to(self.device, self.dtype)))

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Return L2-normalised features, float32 [B, D]; equal texts, as in a group, are read once."""
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        found = _normalised(self.read(self.tokenize(list(rows)).to(self.device)))
        return found[[rows[text] for text in texts]]

    def similarity(self, samples: Samples) -> Tensor:
        """Return the cosine of each image and its prompt: float32 [B]."""
        return (self.images(samples) * self.texts([prompt.text for prompt in samples.prompts])).sum(-1)


def _normalised(features: Tensor) -> Tensor:
    from torch.nn.functional import normalize

    return normalize(features.float(), dim=-1)


def load_clip(model: str, processor: str, device: torch.device, dtype: torch.dtype, limit: Limit) -> Clip:
    """Load a CLIP of transformers; `model` and `processor` are hub ids or folders.

    One that is missing, damaged, incomplete or no CLIP, or a processor that does not fit the model, is a PluginError.
    """
    from transformers import AutoImageProcessor, AutoTokenizer

    network = _network(model, limit.name)
    with loading(limit.name, processor):
        # Transformers would choose another resampling where torchvision is installed: other pixels, other scores.
        pictures = AutoImageProcessor.from_pretrained(processor, backend="pil")  # type: ignore[no-untyped-call]
        tokenizer = AutoTokenizer.from_pretrained(processor)
    preprocess = _preprocessing(pictures)
    if misfit := _misfit(network.config, tokenizer, preprocess, limit.tokens):
        raise PluginError(f'reward "{limit.name}": the processor "{processor}" does not fit the model "{model}"', misfit)
    scale = network.logit_scale.exp().item()  # before its precision is reduced
    network.to(device, dtype)
    return Clip(
        preprocess,
        _tokenization(tokenizer, limit),
        lambda pixels: network.get_image_features(pixel_values=pixels).pooler_output,
        lambda ids: network.get_text_features(input_ids=ids).pooler_output,
        scale,
        device,
        dtype,
    )


def _network(model: str, reward: str) -> Any:
    """Load the weights in float32, without gradients; those that lack any are refused, for transformers would invent them."""
    import torch
    from transformers import AutoConfig, CLIPModel
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with loading(reward, model):
        if (kind := AutoConfig.from_pretrained(model).model_type) != "clip":
            raise ValueError(f'it is a model of the type "{kind}", not "clip"')
        loaded: Any = CLIPModel.from_pretrained(model, dtype=torch.float32, output_loading_info=True)
        network, found = loaded
        if missing := sorted(found["missing_keys"]):
            raise ValueError(f"it lacks {len(missing)} of the weights, such as {missing[0]}")
    return network.eval().requires_grad_(False)


def _preprocessing(processor: Any) -> Callable[[Sequence[np.ndarray]], Tensor]:
    from PIL import Image

    def preprocess(pictures: Sequence[np.ndarray]) -> Tensor:
        # As PIL images there is no guessing which axis holds the channels.
        pixels: Tensor = processor([Image.fromarray(picture) for picture in pictures], return_tensors="pt").pixel_values
        return pixels

    return preprocess


def _tokenization(tokenizer: Any, limit: Limit) -> Callable[[list[str]], Tensor]:
    def tokenize(texts: list[str]) -> Tensor:
        limit.check([len(ids) for ids in tokenizer(texts, padding=False, truncation=False, verbose=False).input_ids])
        # Padded to one length, so that a text's features do not depend on its batch; CLIP sees nothing after the end token.
        tokens = tokenizer(texts, padding="max_length", truncation=True, max_length=limit.tokens, return_tensors="pt")
        ids: Tensor = tokens.input_ids
        return ids

    return tokenize


def _misfit(config: Any, tokenizer: Any, preprocess: Callable[[Sequence[np.ndarray]], Tensor], tokens: int) -> str:
    """Say how a processor does not fit a model, or nothing: what would fail at the first batch, or go wrong unnoticed."""
    import numpy as np

    text, side = config.text_config, config.vision_config.image_size
    size = list(preprocess([np.zeros((2 * side, side, 3), np.uint8)]).shape[-2:])
    # 2 is how old checkpoints say that a text ends at its highest id.
    end = len(tokenizer) - 1 if text.eos_token_id == 2 else text.eos_token_id
    checks = {
        f"the model reads {text.max_position_embeddings} tokens, not {tokens}": text.max_position_embeddings != tokens,
        f"the tokenizer knows {len(tokenizer)} tokens, the model {text.vocab_size}": len(tokenizer) > text.vocab_size,
        f"texts end with token {tokenizer.eos_token_id}, for the model with {end}": tokenizer.eos_token_id != end,
        f"images become {size[0]} x {size[1]} pixels, not {side} x {side}": size != [side, side],
    }
    return "; ".join(what for what, wrong in checks.items() if wrong)
