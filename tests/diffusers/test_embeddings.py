"""Each prompt is encoded once, and as the pipeline encodes it."""

import pytest
import torch

from vgrpo_diffusers.embeddings import LIMIT, Embeddings, Uneven


@pytest.fixture
def encoder():
    """An `encode_prompt` of the form that pipelines have: it counts its prompts and returns two tensors and a None."""

    def encode_prompt(prompt, device="cpu", clip_skip=None, layers=None, negative_prompt_embeds=None):
        encode_prompt.seen += prompt
        rows = torch.tensor([[float(len(text)), float(clip_skip or 0), float(sum(layers or ()))] for text in prompt])
        return rows, None, -rows

    encode_prompt.seen = []
    return encode_prompt


def encoded(policy, monkeypatch):
    """Count the rows that go through the first text encoder."""
    rows, forward = [], policy.pipe.text_encoder.forward

    def counting(ids, **rest):
        rows.append(len(ids))
        return forward(ids, **rest)

    monkeypatch.setattr(policy.pipe.text_encoder, "forward", counting)
    return rows


def test_the_text_encoder_sees_each_prompt_once(tiny, monkeypatch):
    policy = tiny.policy()
    rows = encoded(policy, monkeypatch)
    generators = [torch.Generator() for _ in range(3)]
    for _ in range(2):
        z = policy.noise(["one", "two", "one"], generators)
        policy.predict(z, torch.tensor(0.5), ["one", "two", "one"])
    assert sum(rows) == 2
    policy.predict(z[:1], torch.tensor(0.5), ["three"])
    assert sum(rows) == 3


def test_embeddings_are_the_pipeline_s_own(tiny):
    policy, pipe = tiny.policy(), tiny.pipe()
    ours = tiny.embeddings(policy.pipe, ["one", "two"]), tiny.embeddings(policy.pipe, ["two", "one"])
    plain = tiny.embeddings(pipe, ["one", "two"])
    for name, value in plain.items():
        assert torch.equal(ours[0][name], value)
        assert torch.equal(ours[1][name], value.flip(0))


def test_rows_join_as_one_call_would_return_them(encoder):
    rows, nothing, negated = Embeddings(encoder)(["a", "bcd"], clip_skip=2)
    assert torch.equal(rows, torch.tensor([[1.0, 2, 0], [3, 2, 0]]))
    assert nothing is None
    assert torch.equal(negated, -rows)


def test_other_arguments_are_another_encoding(encoder):
    embeddings = Embeddings(encoder)
    first, second = embeddings(["a"], clip_skip=1)[0], embeddings(["a"], clip_skip=2)[0]
    assert not torch.equal(first, second)
    assert encoder.seen == ["a", "a"]


def test_positional_and_named_arguments_are_one_encoding(encoder):
    embeddings = Embeddings(encoder)
    assert torch.equal(embeddings(["a"], "cpu")[0], embeddings(prompt=["a"], device="cpu")[0])
    assert encoder.seen == ["a"]


def test_an_argument_that_is_a_list_reaches_the_encoder(encoder):
    assert torch.equal(Embeddings(encoder)(["a", "b"], layers=[1, 2])[0][:, 2], torch.tensor([3.0, 3.0]))


def test_texts_one_a_prompt_go_to_their_own_rows():
    def encode_prompt(prompt, prompt_2):
        return (torch.tensor([[float(len(first)), float(len(second))] for first, second in zip(prompt, prompt_2, strict=True)]),)

    rows = Embeddings(encode_prompt)(["a", "bb"], prompt_2=["ccc", "dddd"])[0]
    assert torch.equal(rows, torch.tensor([[1.0, 3.0], [2.0, 4.0]]))


def test_the_prompt_not_used_for_longest_is_let_go_first(encoder):
    embeddings = Embeddings(encoder)
    embeddings([str(i) for i in range(LIMIT)])
    embeddings(["0"])
    embeddings(["new"])
    assert len(embeddings.rows) == LIMIT
    encoder.seen.clear()
    embeddings(["0", "2", "1"])
    assert encoder.seen == ["1"]


def test_more_prompts_than_are_kept_can_be_encoded_at_once(encoder):
    prompts = ["x" * i for i in range(LIMIT + 3)]
    assert Embeddings(encoder)(prompts)[0][:, 0].tolist() == list(range(LIMIT + 3))


def test_embeddings_carry_no_gradient(tiny):
    policy = tiny.policy()
    policy.pipe.text_encoder.requires_grad_(True)
    assert not any(value.requires_grad for value in tiny.embeddings(policy.pipe, ["a"]).values())


def test_lists_join_end_to_end_and_what_has_no_row_is_shared():
    """Z-Image returns a list of texts; FLUX positions that belong to no row; HiDream layers before rows."""
    positions = torch.zeros(5, 3)

    def encode_prompt(prompt):
        layers = torch.tensor([float(len(text)) for text in prompt]).view(1, -1, 1).expand(4, -1, 2)
        return [torch.ones(len(text), 2) for text in prompt], positions, layers

    texts, shared, layers = Embeddings(encode_prompt)(["a", "bcd"])
    assert [len(text) for text in texts] == [1, 3]
    assert shared is positions
    assert torch.equal(layers, encode_prompt(["a", "bcd"])[2])


def test_one_text_alone_is_one_prompt(encoder):
    assert torch.equal(Embeddings(encoder)("abc")[0], torch.tensor([[3.0, 0, 0]]))
    assert encoder.seen == ["abc"]


def test_prompts_of_other_lengths_are_told_apart():
    def encode_prompt(prompt):
        return (torch.stack([torch.ones(len(text)) for text in prompt]),)

    with pytest.raises(Uneven) as caught:
        Embeddings(encode_prompt)(["a", "bcd", "c", "def"])
    assert caught.value.groups == [[0, 2], [1, 3]]
