"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import boki

MODULES = [info.name for info in pkgutil.walk_packages(boki.__path__, "boki.") if not info.name.endswith("__main__")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str) -> None:
    """Every example that a docstring of the module shows gives what it shows."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0
