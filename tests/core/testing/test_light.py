"""Importing a module is light, or the heavy library is named."""

from __future__ import annotations

import pytest

from vgrpo_core.testing import check_light


def test_a_light_module_may_print(module):
    check_light(module("light", "print('hello', 'torch')\nimport json"))


@pytest.mark.parametrize("heavy", ["torch", "numpy"])
def test_a_module_that_imports_a_heavy_library_is_told_which(module, heavy, fails):
    fails(check_light, module(f"with_{heavy}", f"import {heavy}"), f'importing "with_{heavy}" imports .*{heavy}')


def test_a_heavy_library_that_another_module_brings_counts_too(module, fails):
    module("brings_numpy", "import numpy")
    fails(check_light, module("second_hand", "import brings_numpy"), 'importing "second_hand" imports numpy')


def test_a_module_that_is_not_there_is_named(module, fails):
    fails(check_light, "nowhere_at_all", 'module "nowhere_at_all" can not be imported by itself: ModuleNotFoundError')
