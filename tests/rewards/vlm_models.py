"""Tiny random vision-language models, built offline and saved in the real layout; they answer with digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import pre_tokenizers

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
WORDS = ["Yes", " yes", "No", " no", "no"]
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
IDEFICS = ["<|endoftext|>", "<end_of_utterance>", "<image>", "<fake_token_around_image>", "<global-img>"]
TEMPLATE = (
    "{{% for m in messages %}}<user>{{% for c in m['content'] %}}{{% if c['type'] == 'text' %}}{{{{ c['text'] }}}}"
    "{{% else %}}{image}{{% endif %}}{{% endfor %}}\n{{% endfor %}}{{% if add_generation_prompt %}}<judge>{{% endif %}}"
)


def save_qwen(folder: Path, words: list[str] = WORDS) -> Path:
    """Save a Qwen2.5-VL."""
    tokenizer = _tokenizer(hf.Qwen2Tokenizer, QWEN, words, end="<|im_end|>")
    ids = dict(zip(QWEN, tokenizer.convert_tokens_to_ids(QWEN), strict=True))
    pad = ids["<|endoftext|>"]
    text = {
        **_sizes(len(tokenizer), pad, ids["<|im_end|>"]),
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e6},
    }
    vision = {"depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 16, "patch_size": 14}
    config = hf.Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision | {"window_size": 112, "fullatt_block_indexes": [1]},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    processor = hf.Qwen2_5_VLProcessor(
        hf.Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=56 * 56),
        tokenizer,
        hf.Qwen2VLVideoProcessor(),
        chat_template=TEMPLATE.format(image="<|vision_start|><|image_pad|><|vision_end|>"),
    )
    return _save(hf.Qwen2_5_VLForConditionalGeneration, config, processor, folder)


def save_idefics(folder: Path, words: list[str] = WORDS) -> Path:
    """Save an Idefics3."""
    tokenizer = _tokenizer(hf.GPT2Tokenizer, IDEFICS, words, end="<end_of_utterance>")
    pad, end, image = tokenizer.convert_tokens_to_ids(IDEFICS[:3])
    size = {"longest_edge": 32}
    config = hf.Idefics3Config(
        vision_config={"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        | {"image_size": 32, "patch_size": 8},
        text_config=hf.LlamaConfig(**_sizes(len(tokenizer), pad, end)),
        scale_factor=2,
        image_token_id=image,
        pad_token_id=pad,
    )
    processor = hf.Idefics3Processor(
        hf.Idefics3ImageProcessor(do_image_splitting=False, size=size, max_image_size=size),
        tokenizer,
        image_seq_len=4,
        chat_template=TEMPLATE.format(image="<image>"),
    )
    return _save(hf.Idefics3ForConditionalGeneration, config, processor, folder)


def _tokenizer(kind: Any, specials: list[str], words: list[str], end: str) -> Any:
    vocabulary = {token: index for index, token in enumerate([*LETTERS, *specials])}
    tokenizer = kind(vocab=vocabulary, merges=[], eos_token=end, pad_token="<|endoftext|>", unk_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": specials[1:]})
    tokenizer.add_tokens(words)
    return tokenizer


def _sizes(vocabulary: int, pad: int, end: int) -> dict[str, int]:
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    ids = {"vocab_size": vocabulary, "bos_token_id": pad, "pad_token_id": pad, "eos_token_id": end}
    return {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 4096, **layers, **ids}


def _save(kind: Any, config: Any, processor: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    model = kind(config).eval()
    tokenizer = processor.tokenizer
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(5)  # as drawn, one answer fits all images
        model.lm_head.weight[tokenizer.convert_tokens_to_ids(list("0123456789"))] *= 8
    model.generation_config.update(do_sample=True, temperature=0.7, top_p=0.9, top_k=5)  # what many models come with
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
