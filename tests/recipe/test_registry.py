from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vgrpo_core import PluginError, Reward
from vgrpo_core.hookspecs import KINDS
from vgrpo_core.offers import Offer
from vgrpo_recipe.choice import choose
from vgrpo_recipe.registry import Registry

REWARD = """
from vgrpo_core import Reward, hookimpl

class {kind}(Reward):
    "A reward."
    name = "{name}"
    {body}

    def load(self, device):
        return lambda samples: samples.images.mean(dim=(1, 2, 3))

@hookimpl
def vgrpo_rewards():
    return [{kind}]
"""


def reward(name: str, body: str = "target: float = 1.0", kind: str = "Judge") -> str:
    return REWARD.format(name=name, body=body, kind=kind)


def failure(distribution: str) -> str:
    (found,) = [f for f in Registry.discover().failures if f.distribution == distribution]
    return found.error


def refusal(registry: Registry, use: str, base: Path = Path(), kind: str = "reward") -> str:
    with pytest.raises(PluginError) as caught:
        choose(registry, kind, use, base)
    return str(caught.value)


def test_an_installed_plugin_is_found_by_name_and_by_distribution(install):
    module = install("vgrpo-shiny", reward("shiny"))
    registry = Registry.discover()
    offer = choose(registry, "reward", "shiny", Path())
    assert (offer.kind, offer.name, offer.distribution, offer.version) == ("reward", "shiny", "vgrpo-shiny", "0.3")
    assert offer.plugin is sys.modules[module].Judge
    assert choose(registry, "reward", "vgrpo-shiny/shiny", Path()) == offer
    assert choose(registry, "reward", "Vgrpo_Shiny/shiny", Path()) == offer


def test_vgrpo_s_own_objective_is_found_through_the_same_entry_points():
    assert choose(Registry.discover(), "objective", "vgrpo", Path()).distribution == "vgrpo"


BROKEN = {
    "import": ("import a_missing_library", "ModuleNotFoundError: No module named 'a_missing_library'"),
    "syntax": ("def (", "SyntaxError: "),
    "raising": (reward("x").replace("return [Judge]", "raise RuntimeError('no\\nlicence')"), "RuntimeError: no"),
    "unknown-hook": (reward("x").replace("vgrpo_rewards", "vgrpo_reward"), "unknown hook 'vgrpo_reward'"),
    "argument": (
        reward("x").replace("vgrpo_rewards()", "vgrpo_rewards(config)"),
        "PluginValidationError: Plugin 'a-broken' for hook 'vgrpo_rewards'",
    ),
    "unmarked": (reward("x").replace("@hookimpl", ""), "nothing in it is marked @hookimpl"),
    "function": (reward("x").replace("[Judge]", "[len]"), "'len' is not a subclass of vgrpo_core.Reward"),
    "other-kind": (
        reward("x").replace("[Judge]", "[Sampler]").replace("Reward,", "Reward, Sampler,"),
        "'Sampler' is not a subclass of vgrpo_core.Reward",
    ),
    "not-a-list": (reward("x").replace("[Judge]", "Judge"), "TypeError: "),
    "nameless": (reward("x").replace("name =", "title ="), "title"),
    "empty-name": (reward(""), "Judge: it has no `name`"),
    "abstract": (reward("x").replace("def load", "def laod"), "Judge: it does not define load"),
    "requires": (reward("x", 'requires = "torch"'), "`requires` must be a tuple"),
    "lax": (reward("x", 'model_config = {"extra": "ignore"}'), 'must keep extra="forbid"'),
    "reserved": (reward("x", "weight: float = 1.0"), "recipes use weight themselves"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_plugin_is_remembered_with_its_error_and_those_after_it_still_load(install, fault):
    code, error = BROKEN[fault]
    install("vgrpo-a-broken", code)
    install("vgrpo-z-shiny", reward("shiny"))
    registry = Registry.discover()
    (found,) = [f for f in registry.failures if f.distribution == "vgrpo-a-broken"]
    assert error in found.error and "\n" not in found.error
    assert (found.version, found.entry) == ("0.3", "a-broken")
    assert choose(registry, "reward", "shiny", Path()).distribution == "vgrpo-z-shiny"
    assert not [offer for offer in registry.offers if offer.distribution == "vgrpo-a-broken"]


def test_a_plugin_that_fails_half_way_leaves_nothing_behind(install):
    install("vgrpo-half", reward("half") + "\n@hookimpl\ndef vgrpo_samplers():\n    raise ValueError('late')\n")
    registry = Registry.discover()
    assert "half" not in registry.names("reward")
    assert failure("vgrpo-half") == "ValueError: late"


def test_a_plugin_for_another_version_of_vgrpo_is_not_even_imported(install):
    install("vgrpo-future", "raise SystemError('imported')", requires="vgrpo>=99")
    assert failure("vgrpo-future") == "it needs vgrpo>=99, and vgrpo 0.1.0 is installed"


@pytest.mark.parametrize("requires", ["vgrpo>=0.1", "vgrpo>=99; extra == 'dev'", "numpy>=1", "VGRPO[ocr]>=0.1"])
def test_a_requirement_that_fits_or_does_not_apply_is_no_fault(install, requires):
    install("vgrpo-shiny", reward("shiny"), requires=requires)
    assert "shiny" in Registry.discover().names("reward")


def test_an_unknown_name_gets_the_nearest_name_the_installed_list_and_what_was_not_loaded(install):
    install("vgrpo-shiny", reward("shiny"))
    install("vgrpo-broken", "import a_missing_library")
    message = refusal(Registry.discover(), "shinny")
    assert message.startswith('no reward named "shinny"; did you mean "shiny"?\n  Installed rewards: ')
    assert "vgrpo-broken 0.3 \"broken\" (ModuleNotFoundError: No module named 'a_missing_library')" in message


def test_a_name_of_another_kind_is_recognised(install):
    install("vgrpo-shiny", reward("shiny"))
    assert 'no sampler named "shiny"; it is the name of reward' in refusal(Registry.discover(), "shiny", kind="sampler")


def test_two_distributions_with_one_name_are_an_error_only_when_it_is_used(install):
    install("vgrpo-shiny", reward("shiny"))
    install("vgrpo-dupe", reward("shiny"))
    install("vgrpo-other", reward("other"))
    registry = Registry.discover()
    assert choose(registry, "reward", "other", Path()).name == "other"
    message = refusal(registry, "shiny")
    assert message.startswith('2 plugins offer a reward named "shiny"; use "vgrpo-dupe/shiny" (')
    assert '"vgrpo-shiny/shiny" (' in message
    assert choose(registry, "reward", "vgrpo-dupe/shiny", Path()).distribution == "vgrpo-dupe"


def test_two_classes_of_one_distribution_with_one_name_are_told_apart_by_class(install):
    twin = reward("shiny") + reward("shiny", kind="Twin").replace("vgrpo_rewards", "unused").replace("@hookimpl", "")
    install("vgrpo-twins", twin.replace("return [Judge]", "return [Judge, Twin]"))
    message = refusal(Registry.discover(), "vgrpo-twins/shiny")
    assert ".Judge)" in message and ".Twin)" in message


@pytest.mark.parametrize(
    ("extra", "install_line"), [('extra = "vgrpo[ocr]"', 'pip install "vgrpo[ocr]"'), ("", "pip install no_such_library")]
)
def test_a_missing_module_names_what_to_install(install, extra, install_line):
    install("vgrpo-heavy", reward("heavy", f'requires = ("json", "no_such_library.models"); {extra}'))
    registry = Registry.discover()
    assert registry.names("reward").count("heavy") == 1
    assert refusal(registry, "heavy") == f'reward "heavy" needs no_such_library, which is not installed\n  Run: {install_line}'


@pytest.mark.parametrize("allowed", ["shiny", "other, vgrpo-shiny", "vgrpo_shiny"])
def test_the_allow_list_takes_names_of_entries_and_distributions(install, monkeypatch, allowed):
    install("vgrpo-shiny", reward("shiny"))
    install("vgrpo-broken", "raise SystemError('imported')")
    monkeypatch.setenv("VGRPO_PLUGINS", allowed)
    registry = Registry.discover()
    assert "shiny" in registry.names("reward")
    assert registry.blocked == ("vgrpo-broken 0.3",)
    assert "Kept out by VGRPO_PLUGINS: vgrpo-broken 0.3." in refusal(registry, "broken")


def test_an_empty_allow_list_keeps_vgrpo_s_own_plugins_alone(install, monkeypatch):
    install("vgrpo-broken", "raise SystemError('imported')")
    monkeypatch.setenv("VGRPO_PLUGINS", "")
    registry = Registry.discover()
    assert {offer.distribution for offer in registry.offers} == {"vgrpo"}
    assert "vgrpo-broken" not in {found.distribution for found in registry.failures}


def test_strict_mode_raises_the_plugin_s_own_error(install, monkeypatch):
    install("vgrpo-broken", "import a_missing_library")
    monkeypatch.setenv("VGRPO_STRICT_PLUGINS", "1")
    with pytest.raises(ModuleNotFoundError, match="a_missing_library"):
        Registry.discover()


def test_no_plugin_at_all_means_a_stale_installation(monkeypatch):
    monkeypatch.setattr("vgrpo_recipe.registry.entry_points", lambda group: ())
    with pytest.raises(PluginError, match=r"not even vgrpo's own\n  Run `pip install -e .` again"):
        Registry.discover()


def test_a_file_beside_the_recipe_needs_no_packaging_and_leaves_nothing_behind(tmp_path):
    code = "from __future__ import annotations\n" + reward("shiny", "size: tuple[int, int] | None = None")
    (tmp_path / "shiny.py").write_text(code)
    offer = choose(Registry(), "reward", "./shiny.py:Judge", tmp_path)
    assert issubclass(offer.plugin, Reward)
    assert offer.plugin.model_validate_json('{"size": [3, 4]}').size == (3, 4)
    assert (offer.name, offer.distribution) == ("shiny", str(tmp_path / "shiny.py"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shiny.py"]


def test_an_edited_file_has_another_version_and_its_new_class(tmp_path):
    file = tmp_path / "shiny.py"
    file.write_text(reward("one"))
    before = choose(Registry(), "reward", "./shiny.py:Judge", tmp_path)
    file.write_text(reward("two"))
    after = choose(Registry(), "reward", "./shiny.py:Judge", tmp_path)
    assert (before.name, after.name) == ("one", "two")
    assert before.version != after.version


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("./absent.py:Judge", "no file "),
        ("./shiny.py", '"./shiny.py" names a file but no class in it\n  Write "./shiny.py:Class".'),
        ("./shiny.py:Jugde", 'no class "Jugde" in it; did you mean "Judge"?'),
        ("./shiny.py:vgrpo_rewards", "'vgrpo_rewards' is not a subclass of vgrpo_core.Reward"),
        ("./broken.py:Judge", "ModuleNotFoundError: No module named 'a_missing_library'"),
    ],
)
def test_a_file_that_can_not_be_used_is_explained(tmp_path, use, message):
    (tmp_path / "shiny.py").write_text(reward("shiny"))
    (tmp_path / "broken.py").write_text("import a_missing_library")
    assert message in refusal(Registry(), use, tmp_path)


def test_every_installed_plugin_forbids_unknown_options_in_nested_tables_too():
    def models(annotation):
        if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
            return [annotation]
        return [model for part in getattr(annotation, "__args__", ()) for model in models(part)]

    pending = [offer.plugin for offer in Registry.discover().offers]
    assert pending
    while pending:
        model = pending.pop()
        assert model.model_config.get("extra") == "forbid", model
        pending += [inner for field in model.model_fields.values() for inner in models(field.annotation)]


def test_discovery_imports_neither_torch_nor_the_libraries_of_plugins():
    code = "import sys; from vgrpo_recipe.registry import Registry; Registry.discover(); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "diffusers", "transformers", "rapidocr", "onnxruntime"} & set(modules)


def test_an_offer_names_its_source():
    assert Offer("reward", "shiny", KINDS["reward"], "vgrpo-shiny", "0.3").source == "vgrpo-shiny 0.3"
