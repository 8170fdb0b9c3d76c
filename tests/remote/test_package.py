"""What the package costs before anything is loaded."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import vgrpo_remote
from vgrpo_cli import serving
from vgrpo_core import PluginError
from vgrpo_core.offers import Offer
from vgrpo_recipe.choice import choose
from vgrpo_recipe.registry import Registry

HEAVY = ("torch", "numpy", "httpx", "starlette", "uvicorn", "PIL", "asyncio")


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_and_choosing_options_imports_nothing_heavy():
    make = "vgrpo_remote; vgrpo_remote.Remote(reward='ocr', url='http://127.0.0.1:8800')"
    assert run(f"import sys, {make}; print([name for name in {HEAVY} if name in sys.modules])") == "[]"


def test_the_hook_offers_the_reward():
    assert [reward.name for reward in vgrpo_remote.vgrpo_rewards()] == ["remote"]


def test_nothing_that_could_run_what_was_sent_is_used():
    texts = {path.name: path.read_text() for path in Path(vgrpo_remote.__path__[0]).glob("*.py")}
    assert "import json" in texts["wire.py"]
    for word in ("pickle", "marshal", "shelve", "torch.load", "eval(", "exec("):
        assert not [name for name, text in texts.items() if word in text]


def test_r149_without_the_extra_the_message_is_the_line_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    registry = Registry((Offer("reward", "remote", vgrpo_remote.Remote, "vgrpo", "0.1.0"),))
    with pytest.raises(PluginError, match=r'needs httpx, which is not installed\n  Run: pip install "vgrpo\[serve\]"'):
        choose(registry, "reward", "remote", Path())
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    asked = serving.Asked("jpeg_size", [], "127.0.0.1", 0, None, "cpu", 64)
    with pytest.raises(PluginError, match=r'needs uvicorn, httpx, not installed\n  Run: pip install "vgrpo\[serve\]"'):
        serving.serve(asked)


def test_the_extra_brings_what_client_and_server_need():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = {Requirement(line).name for line in project["optional-dependencies"]["serve"]}
    assert brought == {*serving.NEEDED, *vgrpo_remote.Remote.requires}
