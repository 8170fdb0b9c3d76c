"""Tiny random CLIPs of the real classes, saved in the layouts that hubs have."""

from __future__ import annotations

import json

import open_clip
import torch
import transformers as T
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel

SIDE = 32  # pixels that the tiny networks see
START, END = 512, 513
VISION = {"image_size": SIDE, "patch_size": 8}
LONG = " ".join(["sea"] * 200)  # as many words


def letters() -> T.CLIPTokenizer:
    """Return a tokenizer of single bytes: each letter of a text is a token."""
    alphabet = sorted(ByteLevel.alphabet())
    tokens = [*alphabet, *(letter + "</w>" for letter in alphabet), "<|startoftext|>", "<|endoftext|>"]
    return T.CLIPTokenizer(vocab={token: index for index, token in enumerate(tokens)}, merges=[], model_max_length=77)


def processor(side=SIDE):
    return T.CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size={"height": side, "width": side})


def lively(network, seed=0):
    """Draw larger weights than networks start with, for features that differ well from input to input."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim > 1 or "class_embedding" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * (0.1 if "embed" in name else 0.2))
        network.logit_scale.fill_(4.6)  # near log(100), as trained ones are; bfloat16 would round it to 4.59375
    return network.eval()


def network(width=16, **text):
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    told = {"vocab_size": 514, "max_position_embeddings": 77, "bos_token_id": START, "eos_token_id": END, "pad_token_id": END}
    vision = T.CLIPVisionConfig(**size, **VISION).to_dict()
    config = T.CLIPConfig(text_config=T.CLIPTextConfig(**size, **told | text).to_dict(), vision_config=vision, projection_dim=width)
    return lively(T.CLIPModel(config))


def save_clip(folder, model=None, tokenizer=None, side=SIDE):
    """Save a model and what prepares its input, each in the files that hubs have; return the folder's name."""
    for part in (model or network(), tokenizer or letters(), processor(side)):
        part.save_pretrained(folder)
    return str(folder)


OPEN = {
    "embed_dim": 16,
    "vision_cfg": {**VISION, "layers": 2, "width": 32, "head_width": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}


def open_network(config=OPEN):
    return lively(open_clip.CLIP(**config))


def register(folder, name="tiny-hps", **changes):
    """Make an architecture known to open_clip; return its name."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(OPEN | changes))
    open_clip.add_model_config(path)
    return name


def save_open_clip(folder, **preprocess):
    """Save a model of open_clip; return how it is named."""
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": OPEN, "preprocess_cfg": preprocess}))
    save_file(
        {name: tensor.clone() for name, tensor in open_network().state_dict().items()}, folder / "open_clip_model.safetensors"
    )
    return f"local-dir:{folder}"
