"""A vision-language model on this machine: any that transformers loads as an image-text-to-text model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vgrpo_core import PluginError

from .answers import NO, YES
from .checkpoint import loading

if TYPE_CHECKING:
    import numpy as np
    import torch

    from .chat import Tokens


@dataclass(frozen=True)
class LocalModel:
    """A model with its processor, asked one question an image, all images of a call at once."""

    network: Any
    processor: Any
    words: dict[int, str]
    """The tokens that say yes or no, by id."""
    max_tokens: int = 512

    def answers(self, questions: Sequence[str], images: np.ndarray) -> list[str]:
        """Ask `questions[i]` about `images[i]`, uint8 RGB [B, H, W, 3], and return what is answered, greedily decoded."""
        inputs = self._inputs(questions, images)
        tokens = self._generate(inputs, self.max_tokens).sequences[:, inputs["input_ids"].shape[1] :]
        return list(self.processor.batch_decode(tokens, skip_special_tokens=True))

    def first_tokens(self, questions: Sequence[str], images: np.ndarray) -> list[Tokens]:
        """Return the tokens that say yes or no, with the logarithms of their probabilities to begin the answer."""
        # One forward pass: `generate` knows for every model how to compute the last position alone.
        (logits,) = self._generate(self._inputs(questions, images), 1).logits
        found = logits.float().log_softmax(-1)[:, list(self.words)].tolist()
        return [list(zip(self.words.values(), row, strict=True)) for row in found]

    def _inputs(self, questions: Sequence[str], images: np.ndarray) -> Any:
        conversations = [_conversation(question, image) for question, image in zip(questions, images, strict=True)]
        return self.processor.apply_chat_template(
            conversations,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"padding": True},
        ).to(self.network.device, self.network.dtype)

    def _generate(self, inputs: Any, tokens: int) -> Any:
        import torch

        with torch.no_grad():
            return self.network.generate(
                **inputs, max_new_tokens=tokens, do_sample=False, return_dict_in_generate=True, output_logits=tokens == 1
            )


def load_local(
    reward: str, model: str, device: torch.device, dtype: torch.dtype, max_tokens: int, *, yes: bool = False
) -> LocalModel:
    """Load a model and its processor from a folder or a hub; one that can't be used is a PluginError.

    With `yes` it can weigh yes against no by `first_tokens`.
    """
    if find_spec("torchvision") is None:
        raise PluginError(f'reward "{reward}" needs torchvision to run a model itself', fix='Run: pip install "vgrpo[judge]"')
    with loading(reward, model):
        network, processor = _network(model, dtype), _processor(model)
        words = yes_no_words(processor.tokenizer) if yes else {}
    _settle(network, processor.tokenizer)
    return LocalModel(network.to(device).eval(), processor, words, max_tokens)


def _network(model: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    load: Any = AutoModelForImageTextToText.from_pretrained
    network, found = load(model, dtype=dtype, output_loading_info=True)
    if lacking := sorted(found["missing_keys"]):
        raise ValueError(f"it lacks {len(lacking)} of the weights, such as {lacking[0]}")
    return network


def _processor(model: str) -> Any:
    from transformers import AutoProcessor

    load: Any = AutoProcessor.from_pretrained
    # Named, for transformers would choose by what is installed: other pixels, other scores.
    processor = load(model, backend="torchvision")
    if not getattr(processor, "chat_template", None):
        raise ValueError("its processor has no chat template: it is not a model to ask questions")
    return processor


def yes_no_words(tokenizer: Any) -> dict[int, str]:
    """Return the ways to say yes and no that are one token, by id; a ValueError where there is none for one of them."""
    ids = {word: tokenizer.encode(word, add_special_tokens=False) for word in (*YES, *NO)}
    words = {tokens[0]: word for word, tokens in ids.items() if len(tokens) == 1}
    if not set(YES) & set(words.values()) or not set(NO) & set(words.values()):
        raise ValueError("its tokenizer has no single tokens for yes and no")
    return words


def _settle(network: Any, tokenizer: Any) -> None:
    """Pad on the left, so that every answer begins at the last position, and decode greedily without a word about it."""
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    settings = network.generation_config
    settings.temperature = settings.top_p = settings.top_k = None  # they are for sampling
    settings.pad_token_id = tokenizer.pad_token_id


def _conversation(question: str, image: np.ndarray) -> list[dict[str, Any]]:
    from PIL import Image

    content = [{"type": "image", "image": Image.fromarray(image)}, {"type": "text", "text": question}]
    return [{"role": "user", "content": content}]
