from __future__ import annotations

import warnings

from vgrpo_cli import mistakes


def test_a_warning_of_a_plugin_is_its_words_and_one_of_a_library_keeps_its_place(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", usual := warnings.formatwarning)
    mistakes.warn_in_words()
    ours = warnings.formatwarning("77 tokens", UserWarning, "/env/site-packages/vgrpo_glow/__init__.py", 3, "warn()")
    assert ours == "warning: 77 tokens\n"
    for category, file in [(UserWarning, "/env/torch/nn.py"), (DeprecationWarning, "/env/vgrpo_glow/a.py")]:
        theirs = "old", category, file, 3, "warn()"
        assert warnings.formatwarning(*theirs) == usual(*theirs)
