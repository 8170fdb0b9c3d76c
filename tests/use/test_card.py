"""What a card says of a base model, and what it keeps to itself."""

from __future__ import annotations

import huggingface_hub
import pytest
from huggingface_hub import ModelCard

from vgrpo_diffusers import Diffusers
from vgrpo_use.card import portable
from vgrpo_use.usage import base_model

CARD = "---\nlicense: other\nlicense_name: small-licence\nlicense_link: LICENSE.md\ntags: [a]\n---\n# A model\n"


@pytest.fixture
def model(tmp_path):
    """A folder as `save_pretrained` leaves it, as far as the card looks."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "model_index.json").write_text('{"_class_name": "StableDiffusion3Pipeline"}')
    return tmp_path / "base"


def test_a_base_on_the_hub_is_named_with_the_licence_on_its_card(tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text(CARD)
    cached = {("owner/model", "README.md"): str(tmp_path / "README.md")}
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *where: cached.get(where))
    base = base_model(Diffusers(model="owner/model"))
    assert (base.hub, base.code) == ("owner/model", '"owner/model"')
    assert base.licence == {"license": "other", "license_name": "small-licence", "license_link": "LICENSE.md"}
    assert ModelCard(CARD).data.license_name == base.licence["license_name"]
    assert base_model(Diffusers(model="owner/other")).licence == {}


def test_a_folder_is_no_base_on_the_hub_and_its_place_stays_here(model):
    base = base_model(Diffusers(model=str(model)))
    assert (base.hub, base.code, base.licence) == (None, '"base"', {})
    (model / "README.md").write_text(CARD)
    assert base_model(Diffusers(model=str(model))).licence["license"] == "other"


def test_files_are_named_without_their_folders():
    table = {"use": "/home/me/toy.py:Toy", "path": "/home/me/words.txt", "n": 1, "list": [{"model": "owner/name"}, "./a.txt"]}
    assert portable(table) == {"use": "./toy.py:Toy", "path": "words.txt", "n": 1, "list": [{"model": "owner/name"}, "./a.txt"]}
