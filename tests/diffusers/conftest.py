"""Three tiny random pipelines, built and saved offline, and everything else loaded from their folders."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from tokenizers import pre_tokenizers
from torch import nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
)

from vgrpo_core import Sampler
from vgrpo_diffusers import Diffusers
from vgrpo_diffusers.policy import PipelinePolicy
from vgrpo_glyphs import build
from vgrpo_samplers import DDIM, Euler

STEPS = 4
PROMPTS = ["a red sign", "blue", "a red sign"]
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def clip_tokenizer() -> CLIPTokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={token: index for index, token in enumerate(tokens)}, merges=[], model_max_length=77)


def clip_encoder(cls: type[nn.Module]) -> nn.Module:
    config = CLIPTextConfig(
        vocab_size=514, hidden_size=32, intermediate_size=64, projection_dim=32, num_hidden_layers=2, num_attention_heads=2,
        bos_token_id=512, eos_token_id=513, pad_token_id=513,
    )  # fmt: skip
    return cls(config)


def t5_tokenizer() -> T5TokenizerFast:
    letters = [(chr(code), -3 - 0.001 * code) for code in range(33, 127)]
    sentinels = [(f"<extra_id_{i}>", 0.0) for i in range(7, -1, -1)]
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *letters, *sentinels]
    return T5TokenizerFast(vocab=vocab, extra_ids=8, model_max_length=512)


def t5_encoder() -> nn.Module:
    return T5EncoderModel(T5Config(vocab_size=128, d_model=64, d_kv=16, d_ff=64, num_layers=2, num_heads=2))


def autoencoder(channels: int, levels: int, **settings: Any) -> diffusers.AutoencoderKL:
    return diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * levels, up_block_types=("UpDecoderBlock2D",) * levels,
        block_out_channels=(8,) * levels, layers_per_block=1, latent_channels=channels, norm_num_groups=4, **settings,
    )  # fmt: skip


def glyphs() -> diffusers.DiffusionPipeline:
    pipe = build.pipeline(build.autoencoder())
    nn.init.normal_(pipe.transformer.proj_out.weight, std=0.1)
    return pipe


def sd3() -> diffusers.DiffusionPipeline:
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=16, out_channels=16, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        caption_projection_dim=32, joint_attention_dim=64, pooled_projection_dim=64, pos_embed_max_size=16, qk_norm="rms_norm",
        dual_attention_layers=(0,),
    )  # fmt: skip
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer, vae=autoencoder(16, 3, scaling_factor=1.5305, shift_factor=0.0609),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=clip_encoder(CLIPTextModelWithProjection), tokenizer=clip_tokenizer(),
        text_encoder_2=clip_encoder(CLIPTextModelWithProjection), tokenizer_2=clip_tokenizer(),
        text_encoder_3=t5_encoder(), tokenizer_3=t5_tokenizer(),
    )  # fmt: skip


def sd15() -> diffusers.DiffusionPipeline:
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(8, 16), layers_per_block=1, sample_size=8, in_channels=4, out_channels=4, norm_num_groups=4,
        attention_head_dim=(2, 4), down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=32,
    )  # fmt: skip
    return diffusers.StableDiffusionPipeline(
        unet=unet, vae=autoencoder(4, 2, scaling_factor=0.18215),
        scheduler=diffusers.DDIMScheduler(**BETAS, clip_sample=False, steps_offset=1),
        text_encoder=clip_encoder(CLIPTextModel), tokenizer=clip_tokenizer(),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


@dataclass(frozen=True)
class Tiny:
    """One saved pipeline: load it as the backbone does, or plainly as anybody would."""

    folder: Path
    component: str
    sampler: Sampler
    size: tuple[int, int]
    tokens: int = 0

    def policy(self, **options: Any) -> PipelinePolicy:
        torch.manual_seed(0)  # for fresh adapters
        call = {"max_sequence_length": self.tokens} if self.tokens else {}
        given = {"model": str(self.folder), "size": self.size, "call": call, **options}
        return Diffusers(**given).load(torch.device("cpu"))

    def perturbed(self, **options: Any) -> PipelinePolicy:
        """The policy with its trained weights moved, the same way every time, so that adapters are not the identity."""
        policy, generator = self.policy(**options), torch.Generator().manual_seed(5)
        policy.restore({name: p + 0.1 * torch.randn(p.shape, generator=generator) for name, p in policy.state().items()})
        return policy

    def pipe(self) -> Any:
        absent = {"text_encoder_3": None, "tokenizer_3": None} if self.folder.name == "glyphs" else {}
        pipe = diffusers.DiffusionPipeline.from_pretrained(self.folder, **absent)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    @property
    def unchanged(self) -> PipelinePolicy:
        """The policy without further options, loaded once: for tests that only look at it."""
        return _loaded(self)

    @property
    def call(self) -> dict[str, Any]:
        """Arguments with which `pipe(...)` does what the policy does."""
        tokens = {"max_sequence_length": self.tokens} if self.tokens else {}
        return {"guidance_scale": 1.0, "height": self.size[0], "width": self.size[1], "num_inference_steps": STEPS, **tokens}

    @torch.no_grad()
    def embeddings(self, pipe: Any, prompts: Sequence[str] = PROMPTS) -> dict[str, torch.Tensor]:
        """Arguments of `pipe(...)` that say the prompts, each encoded by itself."""
        if self.component == "unet":
            rows = [(pipe.encode_prompt([prompt], "cpu", 1, False)[0],) for prompt in prompts]
        else:
            still = {"prompt_2": None, "prompt_3": None, "do_classifier_free_guidance": False, "max_sequence_length": self.tokens}
            rows = [pipe.encode_prompt([prompt], **still)[::2] for prompt in prompts]
        names = ("prompt_embeds", "pooled_prompt_embeds")[: len(rows[0])]
        return {name: torch.cat(parts) for name, parts in zip(names, zip(*rows, strict=True), strict=True)}

    def sample(self, policy: PipelinePolicy, prompts: Sequence[str] = PROMPTS, seed: int = 0) -> torch.Tensor:
        """Finished latents, drawn as training draws them."""
        with torch.no_grad():
            noise = policy.noise(prompts, seeded(len(prompts), seed))
            return self.sampler.sample(lambda z, t: policy.predict(z, t, prompts), noise, policy.schedule(STEPS))

    def draw(self, policy: PipelinePolicy) -> torch.Tensor:
        """Images of the prompts."""
        with torch.no_grad():
            return policy.decode(self.sample(policy))


@functools.cache
def _loaded(tiny: Tiny) -> PipelinePolicy:
    return tiny.policy()


def seeded(rows: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(1000 * seed + row) for row in range(rows)]


BUILD = {"glyphs": glyphs, "sd3": sd3, "sd15": sd15}
SETTINGS: dict[str, dict[str, Any]] = {
    "glyphs": {"component": "transformer", "sampler": Euler(steps=STEPS), "size": (24, 64), "tokens": 1},
    "sd3": {"component": "transformer", "sampler": Euler(steps=STEPS), "size": (32, 48), "tokens": 12},
    "sd15": {"component": "unet", "sampler": DDIM(steps=STEPS), "size": (16, 24)},
}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tiny]:
    folder = tmp_path_factory.mktemp("pipelines")
    for seed, (name, make) in enumerate(BUILD.items()):
        torch.manual_seed(seed)
        make().save_pretrained(folder / name)
    return {name: Tiny(folder / name, **settings) for name, settings in SETTINGS.items()}


@pytest.fixture(params=list(SETTINGS))
def tiny(request: pytest.FixtureRequest, saved: dict[str, Tiny]) -> Tiny:
    """Each of the three: the embedded model's classes, a random Stable Diffusion 3, a random Stable Diffusion 1.5."""
    return saved[request.param]


@pytest.fixture(params=["glyphs", "sd3"])
def flow(request: pytest.FixtureRequest, saved: dict[str, Tiny]) -> Tiny:
    return saved[request.param]


@pytest.fixture
def sd3_tiny(saved: dict[str, Tiny]) -> Tiny:
    return saved["sd3"]


@pytest.fixture
def sd15_tiny(saved: dict[str, Tiny]) -> Tiny:
    return saved["sd15"]
