"""The reward `unifiedreward`: the marks of a model that was trained to judge generated images."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from .answers import Parse, mean, number, within
from .vlm_judge import VisionLanguageReward, asked, parsed

if TYPE_CHECKING:
    import torch

    from vgrpo_core import Prompt
    from vgrpo_core.plugin import Score

Mode = Literal["final", "elements", "aspects"]

CRITERIA = (
    "You are given a text caption and a generated image based on that caption. Your task is to evaluate this image "
    "based on two key criteria:\n"
    "1. Alignment with the Caption: Assess how well this image aligns with the provided caption. Consider the "
    "accuracy of depicted objects, their relationships, and attributes as described in the caption.\n"
    "2. Overall Image Quality: Examine the visual quality of this image, including clarity, detail preservation, "
    "color accuracy, and overall aesthetic appeal.\n"
)
FINAL = "Based on the above criteria, assign a score from 1 to 5 after 'Final Score:'.\n"
ELEMENTS = (
    "Extract key elements from the provided text caption, evaluate their presence in the generated image using the "
    "format: 'element (type): value' (where value=0 means not generated, and value=1 means generated), and assign "
    "a score from 1 to 5 after 'Final Score:'.\n"
)
ASPECTS = """\
You are presented with a generated image and its associated text caption. Your task is to analyze the image across multiple \
dimensions in relation to the caption. Specifically:

1. Evaluate each word in the caption based on how well it is visually represented in the image. Assign a numerical score to each \
word using the format:
   Word-wise Scores: [["word1", score1], ["word2", score2], ..., ["wordN", scoreN], ["[No_mistakes]", scoreM]]
   - A higher score indicates that the word is less well represented in the image.
   - The special token [No_mistakes] represents whether all elements in the caption were correctly depicted. A high score \
suggests no mistakes; a low score suggests missing or incorrect elements.

2. Provide overall assessments for the image along the following axes (each rated from 1 to 5):
- Alignment Score: How well the image matches the caption in terms of content.
- Coherence Score: How logically consistent the image is (absence of visual glitches, object distortions, etc.).
- Style Score: How aesthetically appealing the image looks, regardless of caption accuracy.

Output your evaluation using the format below:

---

Word-wise Scores: [["word1", score1], ..., ["[No_mistakes]", scoreM]]

Alignment Score (1-5): X
Coherence Score (1-5): Y
Style Score (1-5): Z

"""
QUESTIONS: dict[Mode, str] = {"final": CRITERIA + FINAL, "elements": CRITERIA + ELEMENTS, "aspects": ASPECTS}
TASK = "Your task is provided as follows:\nText Caption: [{}]"


def mark(title: str) -> Parse:
    """Return a parser of the mark of 1 to 5 that follows a title and a colon."""
    return within(number(rf"{title}(?: \(1-5\))?:[\s*]*(\d+(?:\.\d+)?)"), 1, 5)


class UnifiedReward(VisionLanguageReward):
    """Mark out of 5 that UnifiedReward gives an image and its prompt (Wang et al., arXiv 2503.05236).

    The prompts are those of github.com/CodeGoat24/UnifiedReward, word for word: `final` of its SGLang client, which Flow-GRPO uses
    too, `elements` and `aspects` of its scripts for the Qwen models. `final` and `elements` take the mark after "Final Score:",
    `aspects` the mean of the marks for alignment, coherence and style. An answer without all its marks, or with one outside 1 to 5,
    is missing (NaN). Evidence: the answer.
    """

    name = "unifiedreward"
    range: ClassVar[str] = "1 to 5"
    model: str = Field(
        default="CodeGoat24/UnifiedReward-qwen-7b",
        min_length=1,
        description="its name at the `endpoint`; without one, a folder or hub id",
    )
    mode: Mode = Field(default="final", description="the question: for one mark, for one after a list of elements, or for three")
    max_tokens: int = Field(default=4096, ge=1, description="longest answer, in tokens")

    def load(self, device: torch.device) -> Score:
        """Reach the server or load the model, and return the scoring function: float32 [B] with the answers as evidence."""
        model = self.ready(device)
        parse = (
            mean(*map(mark, ("Alignment Score", "Coherence Score", "Style Score")))
            if self.mode == "aspects"
            else mark("Final Score")
        )
        return self.judged(lambda samples: asked(samples, self.ask_for, model.answers, lambda answer: parsed(answer, parse)))

    def ask_for(self, prompt: Prompt) -> str:
        """Return the question about an image of a prompt."""
        return QUESTIONS[self.mode] + TASK.format(prompt.text)
