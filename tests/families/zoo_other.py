"""Tiny random pipelines of the variance-preserving families, of Sana, and of the video families: the real classes."""

import importlib.util
from pathlib import Path
from typing import Any

import diffusers as D
import transformers as T
from peft import PeftModel
from torch import nn

SPEC = importlib.util.spec_from_file_location("zoo_image", Path(__file__).with_name("zoo_image.py"))
IMAGE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(IMAGE)

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
PADDING = len(IMAGE.LETTERS)


def unet(cross: int, **settings: Any) -> nn.Module:
    return D.UNet2DConditionModel(
        block_out_channels=(8, 16), layers_per_block=1, sample_size=8, in_channels=4, out_channels=4, norm_num_groups=4,
        attention_head_dim=(2, 4), down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=cross, **settings,
    )  # fmt: skip


def sd15() -> Any:
    return D.StableDiffusionPipeline(
        vae=IMAGE.autoencoder(4, 0.18215, None), unet=unet(32), text_encoder=IMAGE.clip_encoder(T.CLIPTextModel),
        tokenizer=IMAGE.clip_tokenizer(), scheduler=D.PNDMScheduler(**BETAS, skip_prk_steps=True),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def sdxl() -> Any:
    network = unet(
        64, use_linear_projection=True, transformer_layers_per_block=(1, 1), addition_embed_type="text_time",
        addition_time_embed_dim=8, projection_class_embeddings_input_dim=32 + 6 * 8,
    )  # fmt: skip
    return D.StableDiffusionXLPipeline(
        vae=IMAGE.autoencoder(4, 0.13025, None), unet=network, text_encoder=IMAGE.clip_encoder(T.CLIPTextModel),
        tokenizer=IMAGE.clip_tokenizer(), text_encoder_2=IMAGE.clip_encoder(), tokenizer_2=IMAGE.clip_tokenizer(),
        scheduler=D.EulerDiscreteScheduler(**BETAS, timestep_spacing="leading"), add_watermarker=False,
    )  # fmt: skip


def pixart() -> Any:
    transformer = D.PixArtTransformer2DModel(
        sample_size=8, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=3, caption_channels=32, in_channels=4,
        cross_attention_dim=24, out_channels=8,
    )  # fmt: skip
    return D.PixArtSigmaPipeline(
        transformer=transformer, vae=IMAGE.autoencoder(4, 0.13025, None), text_encoder=IMAGE.t5_encoder(),
        tokenizer=IMAGE.t5_tokenizer(), scheduler=D.DPMSolverMultistepScheduler(),
    )  # fmt: skip


def sana() -> Any:
    transformer = D.SanaTransformer2DModel(
        patch_size=1, in_channels=4, out_channels=4, num_layers=2, num_attention_heads=2, attention_head_dim=8,
        num_cross_attention_heads=2, cross_attention_head_dim=8, cross_attention_dim=16, caption_channels=16, sample_size=32,
    )  # fmt: skip
    blocks, attended = ("ResBlock", "EfficientViTBlock"), ((), (5,))
    vae = D.AutoencoderDC(
        in_channels=3, latent_channels=4, attention_head_dim=2, encoder_block_types=blocks, decoder_block_types=blocks,
        encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8), encoder_qkv_multiscales=attended,
        decoder_qkv_multiscales=attended, encoder_layers_per_block=(1, 1), decoder_layers_per_block=[1, 1],
        downsample_block_type="conv", upsample_block_type="interpolate", decoder_norm_types="rms_norm", decoder_act_fns="silu",
        scaling_factor=0.41407,
    )  # fmt: skip
    return D.SanaPipeline(
        transformer=transformer, vae=vae, text_encoder=IMAGE.decoder_only(T.Gemma2Model, T.Gemma2Config, vocabulary=360),
        tokenizer=IMAGE.gemma_tokenizer(),
        scheduler=D.DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
    )  # fmt: skip


def wan_transformer() -> nn.Module:
    return D.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=16, out_channels=16, text_dim=32,
        freq_dim=32, ffn_dim=32, num_layers=2, rope_max_seq_len=64,
    )  # fmt: skip


def wan(**more: Any) -> Any:
    vae = D.AutoencoderKLWan(base_dim=4, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True])
    return D.WanPipeline(
        transformer=wan_transformer(), vae=vae, text_encoder=IMAGE.t5_encoder(model=T.UMT5EncoderModel, config=T.UMT5Config),
        tokenizer=IMAGE.t5_tokenizer(),
        scheduler=D.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0), **more,
    )  # fmt: skip


def wan22() -> Any:
    return wan(transformer_2=wan_transformer(), boundary_ratio=0.875)


def wan22_small() -> Any:
    return wan(expand_timesteps=True)


def ltx() -> Any:
    transformer = D.LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=4, attention_head_dim=8, cross_attention_dim=32, num_layers=2,
        caption_channels=32,
    )  # fmt: skip
    scaled, four = (True, True, False, False), (8, 8, 8, 8)
    vae = D.AutoencoderKLLTXVideo(
        latent_channels=8, block_out_channels=four, decoder_block_out_channels=four, layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1,) * 5, spatio_temporal_scaling=scaled, decoder_spatio_temporal_scaling=scaled,
        decoder_inject_noise=(False,) * 5, upsample_residual=(False,) * 4, upsample_factor=(1,) * 4, patch_size=1,
    )  # fmt: skip
    scheduler = IMAGE.flow(
        use_dynamic_shifting=True, base_shift=0.95, max_shift=2.05, base_image_seq_len=1024, max_image_seq_len=4096,
        shift_terminal=0.1,
    )  # fmt: skip
    return D.LTXPipeline(
        transformer=transformer, vae=vae, text_encoder=IMAGE.t5_encoder(), tokenizer=IMAGE.t5_tokenizer(), scheduler=scheduler
    )


def hunyuan_video() -> Any:
    transformer = D.HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=10, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, patch_size=1, patch_size_t=1, guidance_embeds=True, text_embed_dim=16, pooled_projection_dim=32,
        rope_axes_dim=(2, 4, 4),
    )  # fmt: skip
    vae = D.AutoencoderKLHunyuanVideo(latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4)
    tokenizer = T.PreTrainedTokenizerFast(
        tokenizer_object=IMAGE.qwen_tokenizer().backend_tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    return D.HunyuanVideoPipeline(
        transformer=transformer, vae=vae, tokenizer=tokenizer, tokenizer_2=IMAGE.clip_tokenizer(),
        text_encoder=IMAGE.decoder_only(T.LlamaModel, T.LlamaConfig, layers=4, pad_token_id=PADDING),
        text_encoder_2=IMAGE.clip_encoder(T.CLIPTextModel), scheduler=IMAGE.flow(shift=7.0),
    )  # fmt: skip


def ddim(own: Any) -> Any:
    """DDIM down to clean data, on the timesteps of `own`."""
    return D.DDIMScheduler.from_config(own.config, clip_sample=False, set_alpha_to_one=True)


def first_order(own: Any) -> Any:
    """DPM-Solver++ of order 1, which is DDIM in other words, on the timesteps of `own`."""
    return D.DPMSolverMultistepScheduler.from_config(own.config, solver_order=1)


def euler(own: Any) -> Any:
    """Euler's method on the sigmas of `own`, whose timesteps are whole numbers."""
    scheduler = D.FlowMatchEulerDiscreteScheduler()
    plain = scheduler.set_timesteps

    def set_timesteps(num_inference_steps: int, device: Any = None) -> None:
        own.set_timesteps(num_inference_steps)
        plain(sigmas=own.sigmas[:-1].tolist(), device=device)

    scheduler.set_timesteps = set_timesteps
    return scheduler


def load_peft(pipe: Any, folder: Path) -> None:
    PeftModel.from_pretrained(pipe.transformer, folder)


def load_both(pipe: Any, folder: Path) -> None:
    pipe.load_lora_weights(folder)
    pipe.load_lora_weights(folder / "transformer_2", load_into_transformer_2=True)


SHORT = {"max_sequence_length": 32}
BINLESS = SHORT | {"use_resolution_binning": False}
WAN = {"size": (16, 32), "call": SHORT | {"num_frames": 5}, "scheduler": euler}
TEMPLATE = {"template": "describe {}", "crop_start": 9}  # the default one has a crop for the words of the real tokenizer
FAMILIES: dict[str, dict[str, Any]] = {
    "Stable Diffusion 1.5": {"build": sd15, "size": (16, 24), "scheduler": ddim},
    "Stable Diffusion XL": {"build": sdxl, "size": (16, 24), "scheduler": ddim},
    "PixArt-Sigma": {"build": pixart, "size": (16, 24), "call": BINLESS, "scheduler": first_order, "load": load_peft},
    "Sana": {"build": sana, "size": (32, 32), "call": BINLESS, "scheduler": euler},
    "Wan 2.1": {"build": wan, **WAN},
    "Wan 2.2": {"build": wan22, **WAN, "load": load_both},
    "Wan 2.2 5B": {"build": wan22_small, **WAN},
    "LTX-Video": {"build": ltx, "size": (32, 32), "call": SHORT | {"num_frames": 9}},
    "HunyuanVideo": {
        "build": hunyuan_video,
        "size": (16, 32),
        "call": SHORT | {"num_frames": 5, "guidance_scale": 6.0, "prompt_template": TEMPLATE},
    },
}
