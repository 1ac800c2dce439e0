"""The examples in the docstrings run as they are."""

import doctest
import importlib
import pkgutil

import pytest

import dagnn.curriculum

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(dagnn.curriculum.__path__, "dagnn.curriculum.")
    if not name.startswith("dagnn.curriculum.rules")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_public_names_exist():
    assert sorted(dagnn.curriculum.__all__) == sorted(set(dagnn.curriculum.__all__))
    for name in dagnn.curriculum.__all__:
        assert getattr(dagnn.curriculum, name) is not None
