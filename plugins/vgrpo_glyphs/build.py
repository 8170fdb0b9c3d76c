"""The untrained parts of the embedded pipeline: the real classes of Stable Diffusion 3, made small."""

from __future__ import annotations

import string

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer

HEIGHT, WIDTH = 24, 64  # pixels
TOKENS = 28  # `a purple sign that says "word"` is 25 characters between the start and the end token
LATENT_CHANNELS = 8
TEXT_WIDTH = 64
WIDTH_OF_TRANSFORMER = 128


def tokenizer() -> CLIPTokenizer:
    """Build a CLIP tokenizer without merges: each printable character is a token, once inside and once ending a word."""
    characters = string.ascii_lowercase + string.digits + string.punctuation
    tokens = [*characters, *(c + "</w>" for c in characters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={t: i for i, t in enumerate(tokens)}, merges=[], model_max_length=TOKENS)


def text_encoder(tokens: CLIPTokenizer) -> CLIPTextModelWithProjection:
    """Build a three-layer CLIP text encoder with embeddings large enough to tell letters apart from the first step."""
    config = CLIPTextConfig(
        vocab_size=len(tokens), hidden_size=TEXT_WIDTH, intermediate_size=2 * TEXT_WIDTH, projection_dim=TEXT_WIDTH,
        num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=TOKENS, hidden_act="gelu",
        bos_token_id=tokens.bos_token_id, eos_token_id=tokens.eos_token_id, pad_token_id=tokens.pad_token_id,
    )  # fmt: skip
    encoder = CLIPTextModelWithProjection(config)
    embeddings = {name: p for name, p in encoder.named_parameters() if "embedding" in name}
    for name, parameter in embeddings.items():
        nn.init.normal_(parameter, std=1.0 if "token" in name else 0.5)
    return encoder


def autoencoder() -> AutoencoderKL:
    """Build an AutoencoderKL that shrinks each side by four and holds eight channels."""
    channels = (16, 32, 32)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=channels, layers_per_block=1, latent_channels=LATENT_CHANNELS, norm_num_groups=8,
        sample_size=WIDTH, use_quant_conv=False, use_post_quant_conv=False, mid_block_add_attention=False,
        scaling_factor=1.0, shift_factor=0.0, force_upcast=False,
    )  # fmt: skip


def transformer() -> SD3Transformer2DModel:
    """Build a four-layer SD3 transformer; its last weights start at zero, so that training starts from one velocity for all."""
    heads = 2
    model = SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=LATENT_CHANNELS, out_channels=LATENT_CHANNELS, num_layers=4,
        attention_head_dim=WIDTH_OF_TRANSFORMER // heads, num_attention_heads=heads,
        joint_attention_dim=2 * TEXT_WIDTH, caption_projection_dim=WIDTH_OF_TRANSFORMER,
        pooled_projection_dim=2 * TEXT_WIDTH, pos_embed_max_size=16, qk_norm="rms_norm",
    )  # fmt: skip
    nn.init.zeros_(model.proj_out.weight)
    return model


def pipeline(vae: AutoencoderKL) -> StableDiffusion3Pipeline:
    """Join an autoencoder with an untrained transformer and untrained text encoders."""
    tokens = tokenizer()
    return StableDiffusion3Pipeline(
        transformer=transformer(), vae=vae, scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
        text_encoder=text_encoder(tokens), tokenizer=tokens,
        text_encoder_2=text_encoder(tokens), tokenizer_2=tokenizer(), text_encoder_3=None, tokenizer_3=None,
    )  # fmt: skip


def latents(vae: AutoencoderKL, images: torch.Tensor) -> torch.Tensor:
    """Encode images in [-1, 1] as the pipeline decodes them: [B, 3, H, W] -> [B, 8, H/4, W/4]."""
    with torch.no_grad():
        means = torch.cat([vae.encode(part).latent_dist.mean for part in images.split(128)])
    return (means - vae.config.shift_factor) * vae.config.scaling_factor
