"""Tiny random pipelines of the flow-matching image families: the real classes, with tokenizers and text encoders built offline."""

from typing import Any

import diffusers as D
import transformers as T
from tokenizers import pre_tokenizers, processors
from torch import nn

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
PRINTABLE = [chr(code) for code in range(33, 127)]
ROPE = (4, 4, 8)
CHAT = (
    "{% for m in messages if m['role'] != 'system' %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}{{ c['text'] }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = ("endoftext", "im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad", "pad")
MARKS = [f"<|{word}|>" for word in WORDS]
VOCABULARY = len(LETTERS) + len(MARKS)


def clip_tokenizer(length: int = 77) -> Any:
    tokens = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), "<|startoftext|>", "<|endoftext|>"]
    return T.CLIPTokenizer(vocab={token: index for index, token in enumerate(tokens)}, merges=[], model_max_length=length)


def clip_encoder(cls: type = T.CLIPTextModelWithProjection, length: int = 77) -> nn.Module:
    config = T.CLIPTextConfig(
        vocab_size=514, hidden_size=32, intermediate_size=32, projection_dim=32, num_hidden_layers=2, num_attention_heads=2,
        bos_token_id=512, eos_token_id=513, pad_token_id=513, max_position_embeddings=length,
    )  # fmt: skip
    return cls(config)


def t5_tokenizer() -> Any:
    sentinels = [(f"<extra_id_{i}>", 0.0) for i in range(7, -1, -1)]
    letters = [(letter, -3.0 - 0.001 * index) for index, letter in enumerate(PRINTABLE)]
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *letters, *sentinels]
    return T.T5TokenizerFast(vocab=vocab, extra_ids=8, model_max_length=512)


def t5_encoder(width: int = 32, model: type = T.T5EncoderModel, config: type = T.T5Config) -> nn.Module:
    return model(config(vocab_size=128, d_model=width, d_kv=8, d_ff=32, num_layers=2, num_heads=2))


def qwen_tokenizer() -> Any:
    vocab = {token: index for index, token in enumerate([*LETTERS, *MARKS])}
    tokenizer = T.Qwen2Tokenizer(vocab=vocab, merges=[], eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=4096)
    tokenizer.add_special_tokens({"additional_special_tokens": MARKS[1:]})
    tokenizer.chat_template = CHAT
    return tokenizer


def glm_tokenizer() -> Any:
    """Qwen's letters, with GLM's two marks before every text and its padding before them."""
    tokenizer = qwen_tokenizer().backend_tokenizer
    opening = [(mark, len(LETTERS) + MARKS.index(mark)) for mark in ("<|im_start|>", "<|vision_start|>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<|im_start|> <|vision_start|> $A", special_tokens=opening)
    marks = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return T.PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **marks)


def pixtral_processor() -> Any:
    tokenizer = T.PreTrainedTokenizerFast(tokenizer_object=qwen_tokenizer().backend_tokenizer, pad_token="<|endoftext|>")
    marks = {"image_token": "<|image_pad|>", "image_break_token": "<|pad|>", "image_end_token": "<|vision_end|>"}
    return T.PixtralProcessor(image_processor=T.PixtralImageProcessor(), tokenizer=tokenizer, chat_template=CHAT, **marks)


def gemma_tokenizer() -> Any:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *PRINTABLE]
    return T.GemmaTokenizer(vocab={token: index for index, token in enumerate(tokens)}, merges=[], model_max_length=512)


def decoder_only(model: type, config: type, layers: int = 2, vocabulary: int = VOCABULARY, **settings: Any) -> nn.Module:
    """A language model as text encoder."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    return model(config(vocab_size=vocabulary, num_hidden_layers=layers, max_position_embeddings=4096, **sizes, **settings))


def autoencoder(channels: int, scale: float, shift: float | None, levels: int = 3) -> Any:
    return D.AutoencoderKL(**convolutions(channels, levels), scaling_factor=scale, shift_factor=shift)


def convolutions(channels: int, levels: int = 3) -> dict[str, Any]:
    return {
        "down_block_types": ("DownEncoderBlock2D",) * levels, "up_block_types": ("UpDecoderBlock2D",) * levels,
        "block_out_channels": (8,) * levels, "layers_per_block": 1, "latent_channels": channels, "norm_num_groups": 4,
        "use_quant_conv": False, "use_post_quant_conv": False,
    }  # fmt: skip


def flow(**settings: Any) -> Any:
    return D.FlowMatchEulerDiscreteScheduler(**settings)


def sd3(dual: tuple[int, ...] = ()) -> Any:
    transformer = D.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=16, out_channels=16, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        caption_projection_dim=32, joint_attention_dim=64, pooled_projection_dim=64, pos_embed_max_size=16,
        qk_norm="rms_norm" if dual else None, dual_attention_layers=dual,
    )  # fmt: skip
    return D.StableDiffusion3Pipeline(
        transformer=transformer, vae=autoencoder(16, 1.5305, 0.0609), scheduler=flow(shift=3.0),
        text_encoder=clip_encoder(), tokenizer=clip_tokenizer(), text_encoder_2=clip_encoder(), tokenizer_2=clip_tokenizer(),
        text_encoder_3=t5_encoder(64), tokenizer_3=t5_tokenizer(),
    )  # fmt: skip


def sd35_medium() -> Any:
    return sd3(dual=(0,))


def flux(distilled: bool = True) -> Any:
    transformer = D.FluxTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, guidance_embeds=distilled, axes_dims_rope=ROPE,
    )  # fmt: skip
    scheduler = flow(shift=3.0, use_dynamic_shifting=True) if distilled else flow(shift=1.0)
    return D.FluxPipeline(
        scheduler=scheduler, vae=autoencoder(16, 0.3611, 0.1159), text_encoder=clip_encoder(T.CLIPTextModel),
        tokenizer=clip_tokenizer(), text_encoder_2=t5_encoder(), tokenizer_2=t5_tokenizer(), transformer=transformer,
    )  # fmt: skip


def flux_schnell() -> Any:
    return flux(distilled=False)


def flux2_parts(guidance: bool) -> dict[str, Any]:
    transformer = D.Flux2Transformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=48, timestep_guidance_channels=32, axes_dims_rope=(4, 4, 4, 4), guidance_embeds=guidance,
    )  # fmt: skip
    vae = D.AutoencoderKLFlux2(**convolutions(4))
    vae.bn.running_mean.normal_(std=0.1)
    vae.bn.running_var.uniform_(0.5, 2.0)
    return {"transformer": transformer, "vae": vae, "scheduler": flow(shift=3.0, use_dynamic_shifting=True)}


def flux2_klein() -> Any:
    encoder = decoder_only(T.Qwen3ForCausalLM, T.Qwen3Config, layers=3)
    return D.Flux2KleinPipeline(text_encoder=encoder, tokenizer=qwen_tokenizer(), **flux2_parts(guidance=False))


def flux2_dev() -> Any:
    text = {
        "model_type": "mistral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCABULARY,
    }  # fmt: skip
    vision = {
        "model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 32,
    }  # fmt: skip
    image = len(LETTERS) + MARKS.index("<|image_pad|>")
    encoder = T.Mistral3ForConditionalGeneration(T.Mistral3Config(text_config=text, vision_config=vision, image_token_index=image))
    return D.Flux2Pipeline(text_encoder=encoder, tokenizer=pixtral_processor(), **flux2_parts(guidance=True))


def chroma() -> Any:
    transformer = D.ChromaTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, axes_dims_rope=ROPE,
        approximator_hidden_dim=32, approximator_layers=1, approximator_num_channels=16,
    )  # fmt: skip
    return D.ChromaPipeline(
        scheduler=flow(), vae=autoencoder(16, 0.3611, 0.1159), text_encoder=t5_encoder(), tokenizer=t5_tokenizer(),
        transformer=transformer,
    )  # fmt: skip


def qwen_image() -> Any:
    transformer = D.QwenImageTransformer2DModel(
        patch_size=2, in_channels=64, out_channels=16, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=16, axes_dims_rope=(8, 4, 4),
    )  # fmt: skip
    scheduler = flow(
        use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, base_image_seq_len=256, max_image_seq_len=8192,
        shift_terminal=0.02, time_shift_type="exponential",
    )  # fmt: skip
    vae = D.AutoencoderKLQwenImage(
        base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    return D.QwenImagePipeline(
        scheduler=scheduler, vae=vae, text_encoder=qwen_vl(), tokenizer=qwen_tokenizer(), transformer=transformer
    )


def qwen_vl() -> nn.Module:
    marks = {name: len(LETTERS) + MARKS.index(f"<|{name}|>") for name in ("vision_start", "vision_end", "image_pad", "video_pad")}
    text = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
        "vocab_size": VOCABULARY, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e6},
    }  # fmt: skip
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16}
    config = T.Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, image_token_id=marks["image_pad"], video_token_id=marks["video_pad"],
        vision_start_token_id=marks["vision_start"], vision_end_token_id=marks["vision_end"],
    )  # fmt: skip
    return T.Qwen2_5_VLForConditionalGeneration(config)


def z_image() -> Any:
    transformer = D.ZImageTransformer2DModel(
        all_patch_size=(2,), all_f_patch_size=(1,), in_channels=16, dim=32, n_layers=1, n_refiner_layers=1, n_heads=2, n_kv_heads=2,
        cap_feat_dim=16, axes_dims=[8, 4, 4], axes_lens=[512, 64, 64],
    )  # fmt: skip
    for token in (transformer.x_pad_token, transformer.cap_pad_token):  # the class leaves them uninitialised
        nn.init.normal_(token)
    return D.ZImagePipeline(
        scheduler=flow(shift=3.0), vae=autoencoder(16, 0.3611, 0.1159), text_encoder=decoder_only(T.Qwen3Model, T.Qwen3Config),
        tokenizer=qwen_tokenizer(), transformer=transformer,
    )  # fmt: skip


def lumina2() -> Any:
    transformer = D.Lumina2Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=16, hidden_size=16, num_layers=1, num_refiner_layers=1, num_attention_heads=2,
        num_kv_heads=1, multiple_of=16, ffn_dim_multiplier=None, axes_dim_rope=(4, 2, 2), axes_lens=(512, 64, 64), cap_feat_dim=16,
    )  # fmt: skip
    return D.Lumina2Pipeline(
        transformer=transformer, scheduler=flow(shift=6.0), vae=autoencoder(16, 0.3611, 0.1159),
        text_encoder=decoder_only(T.Gemma2Model, T.Gemma2Config, vocabulary=360), tokenizer=gemma_tokenizer(),
    )  # fmt: skip


def auraflow() -> Any:
    transformer = D.AuraFlowTransformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, caption_projection_dim=32, out_channels=4, pos_embed_max_size=64,
    )  # fmt: skip
    for name, weight in transformer.named_parameters():
        if name.endswith("norm1.linear.weight") or name.endswith("norm1_context.linear.weight"):
            nn.init.normal_(weight, std=1.0)  # these gate all that attention adds, and are small at first
    return D.AuraFlowPipeline(
        tokenizer=t5_tokenizer(), text_encoder=t5_encoder(model=T.UMT5EncoderModel, config=T.UMT5Config),
        vae=autoencoder(4, 0.13025, None), transformer=transformer, scheduler=flow(shift=1.73),
    )  # fmt: skip


def cogview4() -> Any:
    transformer = D.CogView4Transformer2DModel(
        patch_size=2, in_channels=16, out_channels=16, num_layers=2, attention_head_dim=8, num_attention_heads=2, text_embed_dim=16,
        time_embed_dim=16, condition_dim=4, pos_embed_max_size=16, sample_size=8, rope_axes_dim=(16, 16),
    )  # fmt: skip
    scheduler = flow(use_dynamic_shifting=True, base_shift=0.25, max_shift=0.75, base_image_seq_len=256, time_shift_type="linear")
    return D.CogView4Pipeline(
        tokenizer=glm_tokenizer(), text_encoder=decoder_only(T.GlmModel, T.GlmConfig, pad_token_id=len(LETTERS)),
        vae=autoencoder(16, 1.0, 0.0), transformer=transformer, scheduler=scheduler,
    )  # fmt: skip


def hidream() -> Any:
    transformer = D.HiDreamImageTransformer2DModel(
        patch_size=16, in_channels=4, out_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8,
        num_attention_heads=4, caption_channels=[32, 16], text_emb_dim=64, num_routed_experts=4, num_activated_experts=2,
        axes_dims_rope=(4, 2, 2),
        max_resolution=(128, 128), llama_layers=(0, 1),
    )  # fmt: skip
    llama = decoder_only(T.LlamaForCausalLM, T.LlamaConfig, pad_token_id=len(LETTERS))
    tokenizer = T.PreTrainedTokenizerFast(
        tokenizer_object=qwen_tokenizer().backend_tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    return D.HiDreamImagePipeline(
        scheduler=flow(shift=3.0), vae=autoencoder(4, 0.3611, 0.1159, levels=1), transformer=transformer,
        text_encoder=clip_encoder(length=128), tokenizer=clip_tokenizer(128),
        text_encoder_2=clip_encoder(length=128), tokenizer_2=clip_tokenizer(128),
        text_encoder_3=t5_encoder(), tokenizer_3=t5_tokenizer(), text_encoder_4=llama, tokenizer_4=tokenizer,
    )  # fmt: skip


# no text goes on from the last block of these, so that what only text passes there does nothing
SD3_IDLE = (r"transformer_blocks\.1\.attn\.(add_q_proj|norm_added_q)\b",)
QWEN_IDLE = (r"transformer_blocks\.1\.(attn\.(add_q_proj|norm_added_q|to_add_out)|txt_mlp)\b",)
SHORT = {"max_sequence_length": 16}
LAYERS = {"max_sequence_length": 64, "text_encoder_out_layers": (1, 2, 3)}
FAMILIES: dict[str, dict[str, Any]] = {
    "Stable Diffusion 3": {"build": sd3, "size": (16, 32), "call": SHORT, "idle": SD3_IDLE},
    "Stable Diffusion 3.5 Medium": {"build": sd35_medium, "size": (16, 32), "call": SHORT, "idle": SD3_IDLE},
    "FLUX.1 dev": {"build": flux, "size": (16, 32), "call": SHORT | {"guidance_scale": 3.5}},
    "FLUX.1 schnell": {"build": flux_schnell, "size": (16, 32), "call": SHORT},
    "FLUX.2 dev": {"build": flux2_dev, "size": (16, 32), "call": LAYERS | {"guidance_scale": 4.0}},
    "FLUX.2 klein": {"build": flux2_klein, "size": (16, 32), "call": LAYERS},
    "Chroma": {"build": chroma, "size": (16, 32), "call": SHORT},
    "Qwen-Image": {"build": qwen_image, "size": (32, 48), "idle": QWEN_IDLE},
    "Z-Image": {"build": z_image, "size": (16, 32), "call": {"max_sequence_length": 64}},
    "Lumina 2": {"build": lumina2, "size": (16, 32), "call": {"max_sequence_length": 64, "system_prompt": "Draw."}},
    "AuraFlow": {"build": auraflow, "size": (16, 32), "call": SHORT},
    "CogView4": {"build": cogview4, "size": (16, 32)},
    "HiDream": {"build": hidream, "size": (128, 128), "call": SHORT},
}
