"""The judge that asks a vision-language model: its options, its answers over HTTP and from tiny local models."""

import math
import re

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from vgrpo_core import PluginError, Prompt, RunError
from vgrpo_rewards.answers import NO, YES
from vgrpo_rewards.vlm_judge import VLMJudge

from . import vlm_models
from .chat_server import Reply, serve, text, tokens

pytest.importorskip("httpx")
CPU = torch.device("cpu")
PROMPTS = [Prompt("a cat"), Prompt("a much longer prompt about two dogs"), Prompt("")]
PICTURES = list(np.random.default_rng(0).integers(0, 256, (3, 40, 48, 3), np.uint8))
QUESTION = "How well does it show {prompt}?"


def judge(**options):
    return VLMJudge(**{"model": "judge", "question": QUESTION, "answer": "number", "retries": 0} | options)


@pytest.fixture(scope="module", params=["qwen", "idefics"])
def folder(request, tmp_path_factory):
    save = {"qwen": vlm_models.save_qwen, "idefics": vlm_models.save_idefics}[request.param]
    return save(tmp_path_factory.mktemp(request.param))


def local(folder, **options):
    return judge(**{"model": str(folder), "dtype": "float32", "max_tokens": 3} | options).load(CPU)


class Library:
    """One image at a time by transformers alone, without padding."""

    def __init__(self, folder):
        import transformers

        self.processor = transformers.AutoProcessor.from_pretrained(folder)
        self.network = transformers.AutoModelForImageTextToText.from_pretrained(folder)

    def inputs(self, question, picture):
        content = [{"type": "image", "image": Image.fromarray(picture)}, {"type": "text", "text": question}]
        return self.processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )

    def answer(self, question, picture, length):
        inputs = self.inputs(question, picture)
        ids = self.network.generate(**inputs, max_new_tokens=length, do_sample=False)
        return self.processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    def mass(self, question, picture, words):
        with torch.no_grad():
            logits = self.network(**self.inputs(question, picture)).logits[0, -1]
        vocabulary = self.processor.tokenizer.get_vocab()
        spelled = {word.replace(" ", "Ġ") for word in words} | set(words)
        return logits.softmax(-1)[[id for token, id in vocabulary.items() if token in spelled]].sum().item()


def test_local_answers_are_those_of_the_library_and_are_kept_as_evidence(folder, samples):
    library = Library(folder)
    expected = [library.answer(f"How well does it show {p.text}?", x, 3) for p, x in zip(PROMPTS, PICTURES, strict=True)]
    assert all(re.fullmatch(r"\d{3}", answer) for answer in expected)
    assert len(set(expected)) > 1
    found = local(folder)(samples(PROMPTS, PICTURES))
    assert found.values.dtype == torch.float32
    assert found.values.tolist() == [float(answer) for answer in expected]
    assert found.evidence == [{"answer": answer} for answer in expected]


def test_local_probabilities_of_yes_are_those_of_the_library(folder, samples):
    library, question = Library(folder), "Is it {prompt}?"
    pairs = [(f"Is it {p.text}?", x) for p, x in zip(PROMPTS, PICTURES, strict=True)]
    yes, no = (torch.tensor([library.mass(*pair, words) for pair in pairs]) for words in (YES, NO))
    found = local(folder, answer="yes", question=question, min_mass=0)(samples(PROMPTS, PICTURES))
    assert torch.allclose(found.values, yes / (yes + no), atol=1e-5)
    assert [list(one) for one in found.evidence] == [["yes", "no"]] * 3
    assert torch.allclose(torch.tensor([one["yes"] for one in found.evidence]), yes, atol=1e-7)
    assert found.values.unique().numel() == 3


def test_the_local_score_of_an_image_is_independent_of_its_batch(folder, samples):
    score = local(folder, answer="yes", min_mass=0)
    together = score(samples(PROMPTS, PICTURES)).values
    for options in ({"batch": 1}, {"batch": 2}):
        assert torch.allclose(
            local(folder, answer="yes", min_mass=0, **options)(samples(PROMPTS, PICTURES)).values, together, atol=1e-5
        )
    alone = [score(samples([p], [x])).values.item() for p, x in zip(PROMPTS, PICTURES, strict=True)]
    assert alone == pytest.approx(together.tolist(), abs=1e-5)


def test_a_model_unsure_of_yes_and_no_is_missing(folder, samples):
    sure = local(folder, answer="yes", min_mass=0)(samples(PROMPTS, PICTURES))
    unsure = local(folder, answer="yes", min_mass=1)(samples(PROMPTS, PICTURES))
    assert unsure.values.isnan().all()
    assert unsure.evidence == sure.evidence


def test_a_tokenizer_without_a_token_for_yes_is_refused_at_load(tmp_path, samples):
    folder = vlm_models.save_idefics(tmp_path, words=["No"])
    with pytest.raises(PluginError, match="no single tokens for yes and no"):
        local(folder, answer="yes")
    assert local(folder)(samples(PROMPTS, PICTURES)).values.isfinite().all()


def test_a_local_model_needs_torchvision_and_says_so(folder, monkeypatch):
    monkeypatch.setattr("vgrpo_rewards.vision_language.find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r"needs torchvision.*\n.*vgrpo\[judge\]"):
        local(folder)


@pytest.mark.parametrize("name", ["none", "empty"])
def test_a_local_model_that_cannot_be_loaded_is_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(PluginError, match=str(tmp_path / name)):
        local(tmp_path / name)


def test_a_local_model_without_a_chat_template_or_a_weight_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = vlm_models.save_idefics(tmp_path)
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if "lm_head" not in name}, folder / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(PluginError, match=r"it lacks 1 of the weights, such as lm_head.weight"):
        local(folder)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(PluginError, match="no chat template"):
        local(folder)


def test_local_models_of_a_hub_are_listed_and_served_ones_are_not(folder):
    assert [asset.name for asset in judge(model="Qwen/Qwen2.5-VL-7B-Instruct").assets()] == ["Qwen/Qwen2.5-VL-7B-Instruct"]
    assert list(judge(model=str(folder)).assets()) == []
    assert list(judge(endpoint="http://localhost:8000").assets()) == []


def test_the_question_is_filled_in_from_the_prompt_and_its_metadata(samples):
    prompts = [Prompt("a {red} cat", {"colour": "red", "count": 2}), Prompt("a dog", {"colour": "blue"})]
    question = '{count} {colour}: {prompt}? Answer {{"score": 1}}.'
    with serve(lambda asked: text("5")) as server:
        found = judge(endpoint=server.url, question=question).load(CPU)(samples(prompts, PICTURES[:2]))
    assert [asked.question for asked in server.asked] == ['2 red: a {red} cat? Answer {"score": 1}.']
    assert np.array_equal(server.asked[0].image, PICTURES[0])
    assert found.values[0] == 5
    assert found.values[1].isnan()
    assert found.evidence == [{"answer": "5"}, {}]


def test_a_batch_without_the_field_is_missing_and_nobody_is_asked(samples):
    with serve(lambda asked: text("5")) as server:
        found = judge(endpoint=server.url, question="{colour}?").load(CPU)(samples(PROMPTS, PICTURES))
    assert found.values.isnan().all()
    assert server.asked == []


def test_served_numbers_are_read_in_range_and_others_are_missing(samples):
    answers = {"a cat": "Score: 4", PROMPTS[1].text: "Score: 11", "": "I can't say."}
    with serve(lambda asked: text(answers[asked.question])) as server:
        options = {"endpoint": server.url, "question": "{prompt}", "pattern": r"Score: (\d+)", "low": 0, "high": 10}
        found = judge(**options).load(CPU)(samples(PROMPTS, PICTURES))
    assert found.values.tolist() == pytest.approx([4, math.nan, math.nan], nan_ok=True)
    assert found.evidence == [{"answer": answer} for answer in answers.values()]


def test_served_json_is_read_by_its_key(samples):
    answers = {"a cat": '```json\n{"scores": {"style": 0.5}}\n```', PROMPTS[1].text: '{"scores": 3}', "": "N/A"}
    with serve(lambda asked: text(answers[asked.question])) as server:
        options = {"endpoint": server.url, "question": "{prompt}", "answer": "json", "key": "scores.style"}
        found = judge(**options).load(CPU)(samples(PROMPTS, PICTURES))
    assert found.values.tolist() == pytest.approx([0.5, math.nan, math.nan], nan_ok=True)


def test_served_probabilities_of_yes_are_read_from_the_first_token(samples):
    tops = {
        "a cat": {"Yes": 0.6, "No": 0.2, " yes": 0.1},
        PROMPTS[1].text: {"The": 0.95, "Yes": 0.04},
        "": {"no": 0.5, "Well": 0.2},
    }
    reply = {question: tokens({token: math.log(p) for token, p in top.items()}) for question, top in tops.items()}
    with serve(lambda asked: reply[asked.question]) as server:
        found = judge(endpoint=server.url, question="{prompt}", answer="yes").load(CPU)(samples(PROMPTS, PICTURES))
    assert found.values.tolist() == pytest.approx([0.7 / 0.9, math.nan, 0.0], nan_ok=True)
    assert found.evidence[1] == {"yes": pytest.approx(0.04), "no": 0.0}


def test_one_failure_is_missing_with_its_reason_and_failure_of_all_stops_the_run(samples):
    with serve(lambda asked: text("5") if "cat" in asked.question else Reply("too large", 413)) as server:
        score = judge(endpoint=server.url).load(CPU)
        found = score(samples(PROMPTS, PICTURES))
        assert found.values.tolist() == pytest.approx([5, math.nan, math.nan], nan_ok=True)
        assert found.evidence[1] == {"error": "HTTP 413: too large"}
        with pytest.raises(RunError, match="answered none of 2 questions"):
            score(samples(PROMPTS[1:], PICTURES[1:]))


def test_the_server_and_its_model_are_checked_at_load():
    with serve(lambda asked: text("5"), models=["juge"]) as server, pytest.raises(PluginError, match='did you mean "juge"'):
        judge(endpoint=server.url).load(CPU)


def test_the_key_comes_from_the_environment(monkeypatch, samples):
    monkeypatch.setenv("JUDGE_KEY", "sk-1")
    with serve(lambda asked: text("5")) as server:
        judge(endpoint=server.url, key_env="JUDGE_KEY").load(CPU)(samples(PROMPTS, PICTURES))
        monkeypatch.delenv("JUDGE_KEY")
        with pytest.raises(PluginError, match="variable JUDGE_KEY is not set"):
            judge(endpoint=server.url, key_env="JUDGE_KEY").load(CPU)
    assert {asked.headers["Authorization"] for asked in server.asked} == {"Bearer sk-1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"question": "{}?"}, "not the name of a field"),
        ({"question": "{0}?"}, "not the name of a field"),
        ({"question": "{prompt.text}?"}, "not the name of a field"),
        ({"question": "{prompt!r}?"}, "not the name of a field"),
        ({"question": "{prompt:>9}?"}, "not the name of a field"),
        ({"question": 'Answer {"score": 1}'}, "not the name of a field"),
        ({"question": "a } brace"}, "Single '}'"),
        ({"pattern": "("}, "is no regular expression"),
        ({"pattern": r"\d+"}, "needs one group, around the number, and has 0"),
        ({"pattern": r"(\d)(\d)"}, "needs one group, around the number, and has 2"),
        ({"answer": "json"}, 'answer = "json" needs `key`'),
        ({"key": "score"}, '`key` is for answer = "json"'),
        ({"answer": "yes", "pattern": r"(\d)"}, '`pattern` is for answer = "number"'),
        ({"answer": "yes", "high": 1}, '`low` and `high` are not for answer = "yes"'),
        ({"low": 2, "high": 1}, "`low` is above `high`"),
        ({"key_env": "KEY"}, "`key_env` is for an `endpoint`"),
        ({"endpoint": "localhost:8000"}, "write it with its scheme"),
        ({"endpoint": "http://host:port"}, "Port could not be cast"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_loaded(options, message):
    with pytest.raises(ValidationError, match=re.escape(message)):
        judge(**options)
