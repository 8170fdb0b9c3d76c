"""Count weights and arithmetic of the models that shipped recipes name: `python benchmarks/sizes.py` writes recipes/sizes.json.

Each network is built on PyTorch's meta device from the values that its published configuration sets, so that nothing is fetched. What is not written
here is the default of its class in diffusers or transformers. The values were read from copies of those configurations in other people's code, which
agree with each other; the gated files of Stable Diffusion 3.5 and FLUX.1 themselves were not read.
"""

from __future__ import annotations

import json
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vgrpo_diffusers.lora import attention, matched
from vgrpo_diffusers.memory import weights
from vgrpo_diffusers.precision import DENOISERS

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "cli" / "vgrpo_cli" / "recipes" / "sizes.json"

Part = tuple[str, str, dict[str, Any]]
"""Library, class, configuration."""

# openai/clip-vit-large-patch14, text tower: 12 layers of width 768
CLIP_L = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "projection_dim": 768}
# laion/CLIP-ViT-bigG-14-laion2B-39B-b160k, text tower
CLIP_G = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "projection_dim": 1280,
}
# google/t5-v1_1-xxl, encoder; google/umt5-xxl has more words, and positions in every layer
T5 = {"d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_heads": 64, "num_layers": 24, "feed_forward_proj": "gated-gelu"}
VAE = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
}
WIDE_VAE = VAE | {"latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}

MODELS: dict[str, dict[str, Part]] = {
    "stabilityai/stable-diffusion-3.5-medium": {
        "transformer": (
            "diffusers",
            "SD3Transformer2DModel",
            {
                "sample_size": 128,
                "num_layers": 24,
                "num_attention_heads": 24,
                "attention_head_dim": 64,
                "caption_projection_dim": 1536,
                "pos_embed_max_size": 384,
                "dual_attention_layers": list(range(13)),
                "qk_norm": "rms_norm",
            },
        ),
        "text_encoder": ("transformers", "CLIPTextModelWithProjection", CLIP_L),
        "text_encoder_2": ("transformers", "CLIPTextModelWithProjection", CLIP_G),
        "text_encoder_3": ("transformers", "T5EncoderModel", T5 | {"vocab_size": 32128}),
        "vae": ("diffusers", "AutoencoderKL", WIDE_VAE),
    },
    "black-forest-labs/FLUX.1-dev": {
        "transformer": ("diffusers", "FluxTransformer2DModel", {"guidance_embeds": True}),  # else the class's defaults
        "text_encoder": ("transformers", "CLIPTextModel", CLIP_L),
        "text_encoder_2": ("transformers", "T5EncoderModel", T5 | {"vocab_size": 32128}),
        "vae": ("diffusers", "AutoencoderKL", WIDE_VAE),
    },
    "stabilityai/stable-diffusion-xl-base-1.0": {
        "unet": (
            "diffusers",
            "UNet2DConditionModel",
            {
                "sample_size": 128,
                "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
                "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
                "block_out_channels": [320, 640, 1280],
                "cross_attention_dim": 2048,
                "transformer_layers_per_block": [1, 2, 10],
                "attention_head_dim": [5, 10, 20],
                "use_linear_projection": True,
                "addition_embed_type": "text_time",
                "addition_time_embed_dim": 256,
                "projection_class_embeddings_input_dim": 2816,
            },
        ),
        "text_encoder": ("transformers", "CLIPTextModel", CLIP_L),
        "text_encoder_2": ("transformers", "CLIPTextModelWithProjection", CLIP_G),
        "vae": ("diffusers", "AutoencoderKL", VAE),
    },
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": {
        "transformer": ("diffusers", "WanTransformer3DModel", {"num_attention_heads": 12, "num_layers": 30, "ffn_dim": 8960}),
        "text_encoder": ("transformers", "UMT5EncoderModel", T5 | {"vocab_size": 256384}),
        "vae": ("diffusers", "AutoencoderKLWan", {}),
    },
}
GLYPHS = "builtin:glyphs"

GRIDS = ((32, 32), (64, 64), (96, 96))
"""Latents, in height and width, through which the parabola of arithmetic is laid."""


def empty(part: Part) -> nn.Module:
    """Build a network on the meta device, frozen."""
    import diffusers
    import transformers

    library, name, values = part
    cls = getattr({"diffusers": diffusers, "transformers": transformers}[library], name)
    with torch.device("meta"):
        module: nn.Module = cls.from_config(values) if library == "diffusers" else cls(cls.config_class(**values))
    return module.requires_grad_(False).eval()


def glyphs() -> dict[str, Part]:
    """Read the configurations of the embedded model from its folder."""
    from vgrpo_diffusers.source import find

    folder = Path(find(GLYPHS).name)
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    parts = {name: value for name, value in index.items() if isinstance(value, list) and (folder / name / "config.json").is_file()}
    return {
        name: (*value, json.loads((folder / name / "config.json").read_text(encoding="utf-8"))) for name, value in parts.items()
    }


def facts(model: str, parts: Mapping[str, Part]) -> dict[str, Any]:
    """Return bytes of the components in both precisions, and what adapters on the denoiser add."""
    modules = {name: empty(part) for name, part in parts.items()}
    (denoiser,) = [name for name in modules if name in DENOISERS]
    return {
        "components": {name: size(module) for name, module in modules.items()},
        "denoiser": denoiser,
        "adapters": {" ".join(targets): adapter(modules[denoiser], targets) for targets in sorted(targets_of(model))},
    }


def size(module: nn.Module) -> dict[str, int]:
    """Count a network's weights, and its bytes in each precision."""
    named = {str(dtype).removeprefix("torch."): weights(module, dtype) for dtype in (torch.float32, torch.bfloat16)}
    return {"weights": sum(part.numel() for part in module.parameters())} | named


def targets_of(model: str) -> set[tuple[str, ...]]:
    """Collect what shipped recipes put adapters on; nothing named stands for the attention projections."""
    tables = [tomllib.loads(path.read_text(encoding="utf-8"))["backbone"] for path in TARGET.parent.glob("*.toml")]
    return {tuple(sorted(table["lora"].get("targets", ()))) for table in tables if table["model"] == model and "lora" in table}


def adapter(module: nn.Module, targets: Sequence[str]) -> dict[str, int]:
    """Count the layers that get an adapter, and the weights that each rank adds: inputs and outputs of the layers."""
    layers: list[Any] = [module.get_submodule(name) for name in (matched(module, targets) if targets else attention(module))]
    return {"layers": len(layers), "weights": sum(layer.in_features + layer.out_features for layer in layers)}


def inputs(model: str, grid: tuple[int, int]) -> dict[str, Any]:
    """Return what the pipeline gives its denoiser for one image, as tensors without content; the text is padded to its usual length."""
    height, width = grid

    def tensor(*shape: int) -> Tensor:
        return torch.empty(*shape, device="meta")

    match model.partition("/")[2]:
        case "stable-diffusion-3.5-medium":  # 77 tokens for CLIP and 256 for T5
            text = {"encoder_hidden_states": tensor(1, 333, 4096), "pooled_projections": tensor(1, 2048)}
            return {"hidden_states": tensor(1, 16, height, width), "timestep": tensor(1), **text}
        case "FLUX.1-dev":
            places = {"img_ids": tensor(height * width // 4, 3), "txt_ids": tensor(512, 3)}
            text = {"encoder_hidden_states": tensor(1, 512, 4096), "pooled_projections": tensor(1, 768)}
            return {
                "hidden_states": tensor(1, height * width // 4, 64),
                "timestep": tensor(1),
                "guidance": tensor(1),
                **places,
                **text,
            }
        case "stable-diffusion-xl-base-1.0":
            more = {"text_embeds": tensor(1, 1280), "time_ids": tensor(1, 6)}
            words = tensor(1, 77, 2048)
            return {
                "sample": tensor(1, 4, height, width),
                "timestep": tensor(1),
                "encoder_hidden_states": words,
                "added_cond_kwargs": more,
            }
        case "Wan2.1-T2V-1.3B-Diffusers":
            return {
                "hidden_states": tensor(1, 16, 1, height, width),
                "timestep": tensor(1),
                "encoder_hidden_states": tensor(1, 512, 4096),
            }
    raise ValueError(model)


def counted(model: str, module: nn.Module, grid: tuple[int, int]) -> int:
    """Count the floating-point operations of one forward pass: matrix products, convolutions and attention, as PyTorch counts them."""
    with FlopCounterMode(display=False) as counter, torch.no_grad(), torch.device("meta"):
        module(**inputs(model, grid))
    return int(counter.get_total_flops())


def parabola(model: str) -> list[float]:
    """Return c in c[0] + c[1] n + c[2] n^2, the operations for n latents: weights cost a constant for each, attention one for each pair."""
    import numpy as np

    module = empty(next(part for name, part in MODELS[model].items() if name in DENOISERS))
    sizes = [height * width for height, width in GRIDS]
    rows = np.array([[1, n, n * n] for n in sizes], dtype=np.float64)
    return [float(c) for c in np.linalg.solve(rows, [counted(model, module, grid) for grid in GRIDS])]


def measured() -> dict[str, Any]:
    """Return the seconds of the recipe `words` and of how many iterations they are, as its page has them."""
    runs = json.loads((ROOT / "docs" / "figures" / "words.json").read_text(encoding="utf-8"))
    plain = [run for run in runs if all(override.startswith("run.seed=") for override in run["overrides"])]
    seconds = statistics.median(run["wall_seconds"] for run in plain)
    return {"words": {"seconds": seconds, "iterations": plain[0]["iterations"], "cores": plain[0]["cores"], "runs": len(plain)}}


def table() -> dict[str, Any]:
    """Return everything that recipes/sizes.json holds."""
    models = {model: facts(model, parts) | {"operations": parabola(model)} for model, parts in MODELS.items()}
    return {"models": models | {GLYPHS: facts(GLYPHS, glyphs())}, "measured": measured()}


if __name__ == "__main__":
    TARGET.write_text(json.dumps(table(), indent=1) + "\n", encoding="utf-8")
