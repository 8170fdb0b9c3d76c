"""Naming a backbone costs nothing: torch and diffusers are imported when it is loaded."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "diffusers", "transformers", "peft")


@pytest.mark.parametrize("body", ["", "print(Diffusers(model={folder!r}, lora={{'rank': 4}}).describe())"])
def test_nothing_heavy_is_imported_to_name_or_describe_a_backbone(sd3_tiny, body):
    check = f"import sys; heavy = sorted(set({HEAVY}) & set(sys.modules)); assert not heavy, heavy"
    code = f"from vgrpo_diffusers import Diffusers; {body.format(folder=str(sd3_tiny.folder))}\n{check}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("StableDiffusion3Pipeline" in done.stdout) == bool(body)


def test_the_backbone_is_offered_to_recipes():
    import vgrpo_diffusers

    assert vgrpo_diffusers.vgrpo_backbones() == [vgrpo_diffusers.Diffusers]
