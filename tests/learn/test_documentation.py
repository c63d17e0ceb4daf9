"""Examples in the docstrings run, and the frame's table of modules names what is there."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re

import pytest

from staxlab import learn

MODULES = sorted(module.name for module in pkgutil.iter_modules(learn.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(f"staxlab.learn.{name}")).failed == 0


def test_the_table_of_modules_is_complete():
    listed = set(re.findall(r"``(\w+)``", learn.__doc__))
    assert set(MODULES) - {"exercises"} <= listed


def test_public_names_exist():
    assert all(hasattr(learn, name) for name in learn.__all__)
