"""A class that recipes can not use, or not explain, fails the check of its kind before it is loaded."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict

from vgrpo_core.testing import check_backbone, check_objective, check_reward, check_sampler


def undocumented(base):
    class Broken(base):
        pass

    return Broken


def open_to_anything(base):
    class Broken(base):
        """Takes any option."""

        model_config = ConfigDict(frozen=True, extra="allow")

    return Broken


def open_inside(base):
    class Inner(BaseModel):
        size: int = 0

    class Broken(base):
        """Takes any option of its table."""

        inner: tuple[Inner, ...] | None = None

    return Broken


def not_installed(base):
    class Broken(base):
        """Needs what is nowhere."""

        requires = ("nowhere_at_all",)
        extra = "nowhere[all]"

    return Broken


def nameless(base):
    class Broken(base):
        """Has no name."""

        name = ""

    return Broken


def reserved(base):
    class Broken(base):
        """Has an option that recipes have themselves."""

        use: str = ""

    return Broken


CLASSES = {
    undocumented: "the class has no docstring",
    open_to_anything: 'recipes can not use .*extra="forbid"',
    open_inside: 'Inner must set extra="forbid"',
    not_installed: r'requires nowhere_at_all, which is not installed; pip install "nowhere\[all\]"',
    nameless: "recipes can not use .*it has no `name`",
    reserved: "recipes can not use .*rename the option",
}
KINDS = {"Bright": check_reward, "Line": check_sampler, "Grey": check_backbone, "Pull": check_objective}


@pytest.mark.parametrize(("make", "sentence"), CLASSES.items(), ids=[make.__name__ for make in CLASSES])
@pytest.mark.parametrize("kind", KINDS)
def test_a_class_that_recipes_can_not_use_or_explain_fails(good, kind, make, sentence, fails):
    fails(KINDS[kind], make(getattr(good, kind))(), sentence)
