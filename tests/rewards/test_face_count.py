"""The reward `face_count`: real weights on a real photograph."""

import json
import sys

import numpy as np
import pytest
import torch

from vgrpo_core import PluginError, Prompt
from vgrpo_rewards.face_count import FaceCount

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def face():
    """Return a photograph of one face: uint8 RGB [256, 256, 3]."""
    pytest.importorskip("facenet_pytorch")
    return pytest.importorskip("skimage.data").astronaut()[:256, 96:352]


@pytest.fixture(scope="module")
def pictures(face):
    """Return pictures with one face, two, and none."""
    noise = np.random.default_rng(0).integers(0, 256, (256, 512, 3), np.uint8)
    return [np.concatenate([face, noise[:, :256]], 1), np.concatenate([face, face], 1), noise]


def ask(*counts):
    return [Prompt("a photo", {} if count is None else {"faces": count}) for count in counts]


def score(samples, prompts, pictures, **options):
    with torch.no_grad():
        return FaceCount(**options).load(CPU)(samples(prompts, pictures))


def test_one_two_and_no_faces_are_counted(samples, pictures):
    values, evidence = score(samples, ask(1, 2, 0), pictures)
    assert values.tolist() == [1, 1, 1]
    assert values.dtype == torch.float32
    assert [len(table["faces"]) for table in evidence] == [1, 2, 0]
    assert [table["asked"] for table in evidence] == [1, 2, 0]


def test_a_wrong_number_costs_its_share(samples, pictures):
    prompts, shown = ask(2, 1, 4, 3, 0, 0), [pictures[0], pictures[1], pictures[1], pictures[2], pictures[0], pictures[1]]
    assert score(samples, prompts, shown).values.tolist() == pytest.approx([1 / 2, 0, 1 / 2, 0, 0, 0])
    assert score(samples, prompts, shown, strict=True).values.tolist() == [0] * 6


def test_the_evidence_has_a_box_around_each_face(samples, face, pictures):
    _, evidence = score(samples, ask(2), [pictures[1]])
    left, right = sorted(evidence[0]["faces"], key=lambda one: one["box"][0])
    assert right["box"] == pytest.approx([left["box"][0] + 256, left["box"][1], left["box"][2] + 256, left["box"][3]], abs=8)
    assert 80 < left["box"][0] < 110 < 150 < left["box"][2] < 190  # where the astronaut's face is
    assert min(left["probability"], right["probability"]) > 0.99
    assert json.loads(json.dumps(evidence)) == list(evidence)


def test_boxes_are_those_of_mtcnn_on_the_picture_alone(samples, pictures):
    from facenet_pytorch import MTCNN
    from PIL import Image

    _, evidence = score(samples, ask(1, 1, 1), pictures)
    for table, picture in zip(evidence, pictures, strict=True):
        boxes, sure = MTCNN(keep_all=True).detect(Image.fromarray(picture))
        expected = sorted(zip(boxes.tolist(), sure, strict=True)) if boxes is not None else []
        found = sorted((one["box"], one["probability"]) for one in table["faces"])
        assert [box for box, _ in found] == [pytest.approx(box, abs=0.5) for box, _ in expected]
        assert [one for _, one in found] == pytest.approx([one for _, one in expected], abs=1e-3)


def test_the_score_of_an_image_is_independent_of_its_batch(samples, pictures):
    together = score(samples, ask(2, 2, 2), pictures)
    apart = score(samples, ask(2, 2, 2), pictures, batch=1)
    assert together.values.tolist() == apart.values.tolist() == [0.5, 1, 0]


def test_faces_below_the_least_confidence_do_not_count(samples, pictures):
    assert score(samples, ask(1), pictures[:1], min_confidence=1.0).values.tolist() == [0]


def test_a_prompt_that_asks_for_no_number_is_missing_unless_there_is_a_default(samples, pictures):
    values, evidence = score(samples, ask(None, 1), pictures[:2])
    assert values.isnan().tolist() == [True, False]
    assert evidence[0] == {}
    assert score(samples, ask(None, None), pictures[:2]).values.isnan().all()
    assert score(samples, ask(None, 1), pictures[:2], count=2).values.tolist() == [0.5, 0]


@pytest.mark.parametrize("faces", ["2", 1.5, -1, True])
def test_what_is_no_number_of_faces_is_refused(faces, samples, pictures):
    with pytest.raises(PluginError, match=f"`faces` of the prompt 'a photo' is {faces!r}"):
        score(samples, ask(faces), pictures[:1])


def test_r149_what_facenet_itself_needs_is_named(monkeypatch):
    pytest.importorskip("facenet_pytorch")
    for name in [name for name in sys.modules if name.startswith("facenet_pytorch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(PluginError, match=r"(?s)needs tqdm.*pip install tqdm"):
        FaceCount().load(CPU)
