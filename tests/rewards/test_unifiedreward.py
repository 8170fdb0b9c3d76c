"""UnifiedReward: what it is asked and how its answers are read."""

import hashlib
import math

import numpy as np
import pytest
import torch

from vgrpo_core import Prompt
from vgrpo_rewards.unifiedreward import UnifiedReward
from vgrpo_rewards.vlm_judge import VLMJudge

from . import vlm_models
from .chat_server import serve, text

pytest.importorskip("httpx")
CPU = torch.device("cpu")
# An answer as the model's authors show it.
PUBLISHED = (
    "Alignment Score (1-5): 2.694700002670288\nCoherence Score (1-5): 2.371500015258789\nStyle Score (1-5): 2.802500009536743"
)


def scored(samples, answers, **options):
    """Score one image for each answer."""
    prompts = [Prompt(f"caption {row}") for row in range(len(answers))]
    pictures = list(np.zeros((len(answers), 8, 8, 3), np.uint8))
    given = {f"Text Caption: [caption {row}]": answer for row, answer in enumerate(answers)}
    with serve(lambda asked: text(given[asked.question.splitlines()[-1]]), models=["UnifiedReward"]) as server:
        return UnifiedReward(endpoint=server.url, model="UnifiedReward", **options).load(CPU)(samples(prompts, pictures))


@pytest.mark.parametrize("mode", ["final", "elements"])
def test_r025_the_mark_after_final_score_counts_and_without_one_it_is_missing(samples, mode):
    answers = [
        "Final Score: 3.5",
        "Final",
        "3/5",
        "",
        "cat (object): 1\nFinal Score: 2.33",
        "**Final Score:** 4",
        "Final Score: 5.",
    ]
    found = scored(samples, answers, mode=mode)
    assert found.values.tolist() == pytest.approx([3.5, math.nan, math.nan, math.nan, 2.33, 4, 5], nan_ok=True)
    assert found.evidence == [{"answer": answer} for answer in answers]


def test_a_mark_outside_one_to_five_is_missing(samples):
    found = scored(
        samples, ["Final Score: 0", "Final Score: 5.01", "Final Score: 45", "Final Score: -3", "Final Score: 1", "Final Score: 5"]
    )
    assert found.values.tolist() == pytest.approx([*[math.nan] * 4, 1, 5], nan_ok=True)


def test_aspects_are_averaged_and_all_three_are_needed(samples):
    two = PUBLISHED.replace("Style Score (1-5): 2.802500009536743", "Style Score (1-5): good")
    words = 'Word-wise Scores: [["cat", 4.0], ["[No_mistakes]", 0.1]]\n\n' + PUBLISHED
    found = scored(samples, [PUBLISHED, two, words, "Final Score: 3", PUBLISHED.replace(": 2.3", ": 7.3")], mode="aspects")
    mean = (2.694700002670288 + 2.371500015258789 + 2.802500009536743) / 3
    assert found.values.tolist() == pytest.approx([mean, math.nan, mean, math.nan, math.nan], nan_ok=True)


@pytest.mark.parametrize(
    ("mode", "digest"),
    [("final", "4cb09da3dc9de6a2"), ("elements", "9c65b9872e5bdd14"), ("aspects", "650ef751e4b30d85")],
)
def test_the_question_is_the_published_one_to_the_letter(mode, digest):
    # Digests of the f-strings in sglang_llava/sglang_inference.py (without "<image>\n"), qwen_point_score_image_generation.py and
    # qwen_point_score_ACS_image_generation.py of github.com/CodeGoat24/UnifiedReward at ff6f520, for the prompt "a {red} cat".
    question = UnifiedReward(mode=mode).ask_for(Prompt("a {red} cat"))
    assert hashlib.sha256(question.encode()).hexdigest()[:16] == digest


def test_the_published_model_is_listed_unless_it_is_served():
    assert [asset.name for asset in UnifiedReward().assets()] == ["CodeGoat24/UnifiedReward-qwen-7b"]
    assert list(UnifiedReward(endpoint="http://localhost:8000").assets()) == []


def test_a_local_model_is_asked_the_question(samples, tmp_path):
    options = {"model": str(vlm_models.save_qwen(tmp_path)), "dtype": "float32", "max_tokens": 2}
    two = samples(["a cat", "a dog"], list(np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)))
    reward = UnifiedReward(**options)
    question = reward.ask_for(Prompt("{prompt}"))  # it has no braces of its own
    found = reward.load(CPU)(two)
    assert found.evidence == VLMJudge(**options, question=question, answer="number").load(CPU)(two).evidence
    assert found.values.isnan().all()  # random weights know no "Final Score:"
