"""A tiny random checkpoint in the layout of ImageReward.pt, and what ImageReward computes from it, written out in plain torch.

The computation follows github.com/salesforce/BLIP (models/vit.py, models/med.py) and github.com/THUDM/ImageReward, on their names.
"""

from __future__ import annotations

import string
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import conv2d, gelu, layer_norm, linear
from transformers import BertTokenizer

PIECES = string.ascii_lowercase + string.digits
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES, *(f"##{piece}" for piece in PIECES)]
VISION, TEXT, LAYERS, PATCH, GRID = 192, 128, 2, 4, 3  # three and two attention heads of 64
SIDE = PATCH * GRID
MARKS = [TEXT, 32, 16, 8, 4, 1]
MEAN, STD = 0.16717362830052426, 1.0333394966054072


def save_tokenizer(folder: Path, vocabulary: list[str] = VOCABULARY) -> Path:
    """Save a BERT tokenizer that spells every word."""
    BertTokenizer(vocab={piece: index for index, piece in enumerate(vocabulary)}).save_pretrained(folder)
    return folder


def token_ids(text: str, length: int) -> list[int]:
    """Spell a text of small letters, digits and spaces: [CLS], the pieces of each word, [SEP], cut to `length`."""
    pieces = [piece for word in text.split() for piece in (word[0], *(f"##{letter}" for letter in word[1:]))]
    return [VOCABULARY.index(piece) for piece in ("[CLS]", *pieces[: length - 2], "[SEP]")]


def checkpoint() -> dict[str, Tensor]:
    """Draw weights under the names of ImageReward.pt, those that it holds and does not use included."""
    shapes = {
        "blip.visual_encoder.cls_token": (1, 1, VISION),
        "blip.visual_encoder.pos_embed": (1, GRID**2 + 1, VISION),
        **_layer("blip.visual_encoder.patch_embed.proj", VISION, 3, PATCH, PATCH),
        **{name: shape for block in range(LAYERS) for name, shape in _block(f"blip.visual_encoder.blocks.{block}").items()},
        **_norm("blip.visual_encoder.norm", VISION),
        "blip.text_encoder.embeddings.word_embeddings.weight": (len(VOCABULARY) + 2, TEXT),
        "blip.text_encoder.embeddings.position_embeddings.weight": (40, TEXT),
        **_norm("blip.text_encoder.embeddings.LayerNorm", TEXT),
        **{name: shape for layer in range(LAYERS) for name, shape in _bert(f"blip.text_encoder.encoder.layer.{layer}").items()},
        **_layer("blip.vision_proj", 16, VISION),
        **_layer("blip.text_proj", 16, TEXT),
    }
    for index, inputs, outputs in zip((0, 2, 4, 6, 7), MARKS, MARKS[1:], strict=False):
        shapes |= _layer(f"mlp.layers.{index}", outputs, inputs)
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator) * _scale(name, shape) for name, shape in shapes.items()}
    return weights | {"blip.text_encoder.embeddings.position_ids": torch.arange(40)[None]}


def reference(weights: dict[str, Tensor], pixels: Tensor, texts: list[str], length: int = 35) -> Tensor:
    """Return ImageReward's score of images [B, 3, SIDE, SIDE], one by one: float32 [B]."""
    return torch.stack([_score(weights, image[None], token_ids(text, length)) for image, text in zip(pixels, texts, strict=True)])


def _score(w: dict[str, Tensor], image: Tensor, ids: list[int]) -> Tensor:
    seen = _see(w, image)
    e = "blip.text_encoder.embeddings"
    x = w[f"{e}.word_embeddings.weight"][ids] + w[f"{e}.position_embeddings.weight"][: len(ids)]
    x = _normed(w, f"{e}.LayerNorm", x[None], 1e-12)
    for layer in range(LAYERS):
        x = _read(w, f"blip.text_encoder.encoder.layer.{layer}", x, seen)
    x = x[0, 0]
    for index in (0, 2, 4, 6, 7):
        x = _linear(w, f"mlp.layers.{index}", x)
    return (x[0] - MEAN) / STD


def _see(w: dict[str, Tensor], image: Tensor) -> Tensor:
    v = "blip.visual_encoder"
    patches = conv2d(image, w[f"{v}.patch_embed.proj.weight"], w[f"{v}.patch_embed.proj.bias"], stride=PATCH)
    x = torch.cat([w[f"{v}.cls_token"], patches.flatten(2).transpose(1, 2)], 1) + w[f"{v}.pos_embed"]
    for block in range(LAYERS):
        b = f"{v}.blocks.{block}"
        q, k, y = _linear(w, f"{b}.attn.qkv", _normed(w, f"{b}.norm1", x, 1e-6)).chunk(3, -1)
        x = x + _linear(w, f"{b}.attn.proj", _attend(q, k, y))
        x = x + _linear(w, f"{b}.mlp.fc2", gelu(_linear(w, f"{b}.mlp.fc1", _normed(w, f"{b}.norm2", x, 1e-6))))
    return _normed(w, f"{v}.norm", x, 1e-6)


def _read(w: dict[str, Tensor], name: str, x: Tensor, seen: Tensor) -> Tensor:
    for attention, other in (("attention", None), ("crossattention", seen)):
        a = f"{name}.{attention}"
        source = x if other is None else other
        q, k, v = (_linear(w, f"{a}.self.{part}", y) for part, y in (("query", x), ("key", source), ("value", source)))
        x = _normed(w, f"{a}.output.LayerNorm", _linear(w, f"{a}.output.dense", _attend(q, k, v)) + x, 1e-12)
    inner = gelu(_linear(w, f"{name}.intermediate.dense", x))
    return _normed(w, f"{name}.output.LayerNorm", _linear(w, f"{name}.output.dense", inner) + x, 1e-12)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = [
        (q[..., h : h + 64] @ k[..., h : h + 64].transpose(1, 2) / 8).softmax(-1) @ v[..., h : h + 64]
        for h in range(0, q.shape[-1], 64)
    ]
    return torch.cat(heads, -1)


def _linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def _normed(w: dict[str, Tensor], name: str, x: Tensor, eps: float) -> Tensor:
    return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)


def _layer(name: str, outputs: int, *inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, *inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _block(name: str) -> dict[str, tuple[int, ...]]:
    return {
        **_norm(f"{name}.norm1", VISION),
        **_layer(f"{name}.attn.qkv", 3 * VISION, VISION),
        **_layer(f"{name}.attn.proj", VISION, VISION),
        **_norm(f"{name}.norm2", VISION),
        **_layer(f"{name}.mlp.fc1", 4 * VISION, VISION),
        **_layer(f"{name}.mlp.fc2", VISION, 4 * VISION),
    }


def _bert(name: str) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for attention, width in (("attention", TEXT), ("crossattention", VISION)):
        shapes |= _layer(f"{name}.{attention}.self.query", TEXT, TEXT)
        shapes |= _layer(f"{name}.{attention}.self.key", TEXT, width) | _layer(f"{name}.{attention}.self.value", TEXT, width)
        shapes |= _layer(f"{name}.{attention}.output.dense", TEXT, TEXT) | _norm(f"{name}.{attention}.output.LayerNorm", TEXT)
    shapes |= _layer(f"{name}.intermediate.dense", 2 * TEXT, TEXT) | _layer(f"{name}.output.dense", TEXT, 2 * TEXT)
    return shapes | _norm(f"{name}.output.LayerNorm", TEXT)


def _scale(name: str, shape: tuple[int, ...]) -> float:
    """Keep activations near 1, but the embeddings so small that the eps of the layer norms after them counts."""
    if "LayerNorm" not in name and ("embed" in name or "cls_token" in name):
        return 1e-3 if len(shape) < 4 else 3e-4
    return 1.0 if len(shape) == 1 else 1.5 * shape[1] ** -0.5
