"""The network of ImageReward: BLIP's image encoder, its text encoder that looks at the image, and a head on the first token.

The encoders are those of transformers; the names and the settings that weights do not tell are those of the original code,
github.com/THUDM/ImageReward and github.com/salesforce/BLIP.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .checkpoint import loading, state_dict

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

HEAD = 64  # width of an attention head, of both encoders
VISION_EPS, TEXT_EPS = 1e-6, 1e-12  # of the layer norms
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's pixels
UNUSED = re.compile(r"blip\.(vision_proj|text_proj)\.|blip\.text_encoder\.embeddings\.position_ids$")
RENAMED = tuple(
    (re.compile(old), new)
    for old, new in (
        (r"^blip\.text_encoder\.", "text."),
        (r"^blip\.visual_encoder\.cls_token$", "vision.embeddings.class_embedding"),
        (r"^blip\.visual_encoder\.pos_embed$", "vision.embeddings.position_embedding"),
        (r"^blip\.visual_encoder\.patch_embed\.proj\.", "vision.embeddings.patch_embedding."),
        (r"^blip\.visual_encoder\.norm\.", "vision.post_layernorm."),
        (r"^blip\.visual_encoder\.blocks\.(\d+)\.norm", r"vision.encoder.layers.\1.layer_norm"),
        (r"^blip\.visual_encoder\.blocks\.(\d+)\.attn\.qkv\.", r"vision.encoder.layers.\1.self_attn.qkv."),
        (r"^blip\.visual_encoder\.blocks\.(\d+)\.attn\.proj\.", r"vision.encoder.layers.\1.self_attn.projection."),
        (r"^blip\.visual_encoder\.blocks\.(\d+)\.mlp\.", r"vision.encoder.layers.\1.mlp."),
        (r"^mlp\.layers\.", "head."),
    )
)


@dataclass(frozen=True)
class Blip:
    """The encoders, in one precision, and the head, in float32."""

    vision: Any
    text: Any
    head: nn.Module

    @property
    def size(self) -> int:
        """Return the side of the images it sees, in pixels."""
        return int(self.vision.config.image_size)

    @property
    def vocabulary(self) -> int:
        """Count the tokens it knows."""
        return int(self.text.config.vocab_size)

    def __call__(self, pixels: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Return what the head makes of images [B, 3, S, S] and token ids with their mask [B, T]: float32 [B]."""
        import torch

        place = {"device": self.vision.device}
        with torch.no_grad():
            seen = self.vision(pixel_values=pixels.to(**place, dtype=self.vision.dtype)).last_hidden_state
            inputs = {"input_ids": ids.to(**place), "attention_mask": mask.to(**place)}
            read = self.text(**inputs, encoder_hidden_states=seen).last_hidden_state
            found: Tensor = self.head(read[:, 0].float()).squeeze(-1)
        return found


def load_blip(reward: str, source: str, device: torch.device, dtype: torch.dtype) -> Blip:
    """Load a checkpoint in the layout of ImageReward.pt; sizes are read off the weights.

    `source` is a path or `owner/name/file` of the hub. One that lacks weights, or has others, is a PluginError.
    """
    held = state_dict(reward, source)
    weights = {_renamed(name): value for name, value in held.items() if not UNUSED.match(name)}
    with loading(reward, source):
        parts = _build(weights)
        found = parts.load_state_dict(weights, strict=False)
        if wrong := [*found.missing_keys, *found.unexpected_keys]:
            counts = f"{len(found.missing_keys)} weights are missing and {len(found.unexpected_keys)} unexpected"
            raise ValueError(f"{counts}, such as {wrong[0]}")
    parts.eval().requires_grad_(False)
    return Blip(parts["vision"].to(device, dtype), parts["text"].to(device, dtype), parts["head"].to(device))


def pixel_values(images: np.ndarray, size: int) -> Tensor:
    """Shrink uint8 RGB [B, H, W, 3] to a shorter side of `size`, bicubic, and crop the middle: float32 [B, 3, size, size]."""
    import numpy as np
    import torch
    from PIL import Image

    squares = np.stack([_square(Image.fromarray(image), size) for image in images])
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (torch.from_numpy(squares).permute(0, 3, 1, 2).float() / 255 - mean) / std


def _square(image: Any, size: int) -> np.ndarray:
    import numpy as np
    from PIL import Image

    short = min(image.size)
    width, height = (int(size * side / short) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return np.asarray(image.crop((left, top, left + size, top + size)))


def _renamed(name: str) -> str:
    for old, new in RENAMED:
        name = old.sub(new, name)
    return name


def _build(weights: Mapping[str, Tensor]) -> nn.ModuleDict:
    from torch import nn
    from transformers import BlipTextModel, BlipVisionModel

    vision, text = BlipVisionModel(_vision(weights)), BlipTextModel(_text(weights), add_pooling_layer=False)
    return nn.ModuleDict({"vision": vision, "text": text, "head": _head(weights)})


def _vision(weights: Mapping[str, Tensor]) -> Any:
    from transformers import BlipVisionConfig

    width, _, patch, _ = weights["vision.embeddings.patch_embedding.weight"].shape
    patches = weights["vision.embeddings.position_embedding"].shape[1] - 1
    return BlipVisionConfig(
        hidden_size=width,
        intermediate_size=weights["vision.encoder.layers.0.mlp.fc1.weight"].shape[0],
        num_hidden_layers=_count(weights, "vision.encoder.layers."),
        num_attention_heads=width // HEAD,
        image_size=math.isqrt(patches) * patch,
        patch_size=patch,
        layer_norm_eps=VISION_EPS,
    )


def _text(weights: Mapping[str, Tensor]) -> Any:
    from transformers import BlipTextConfig

    vocabulary, width = weights["text.embeddings.word_embeddings.weight"].shape
    return BlipTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        encoder_hidden_size=weights["text.encoder.layer.0.crossattention.self.key.weight"].shape[1],
        intermediate_size=weights["text.encoder.layer.0.intermediate.dense.weight"].shape[0],
        num_hidden_layers=_count(weights, "text.encoder.layer."),
        num_attention_heads=width // HEAD,
        max_position_embeddings=weights["text.embeddings.position_embeddings.weight"].shape[0],
        layer_norm_eps=TEXT_EPS,
    )


def _head(weights: Mapping[str, Tensor]) -> nn.Sequential:
    """Build the head, linear layers only; the numbers between theirs are the dropouts of training."""
    from torch import nn

    shapes = {int(m[1]): value.shape for name, value in weights.items() if (m := re.fullmatch(r"head\.(\d+)\.weight", name))}
    head = nn.Sequential()
    for index, (outputs, inputs) in sorted(shapes.items()):
        head.add_module(str(index), nn.Linear(inputs, outputs))
    return head


def _count(weights: Mapping[str, Tensor], prefix: str) -> int:
    return len({name.removeprefix(prefix).partition(".")[0] for name in weights if name.startswith(prefix)})
