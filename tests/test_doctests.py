"""The examples in docstrings print what they show.

Pytest can collect them by itself; for that, each of its processes imports and reads every module of the repository.
"""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.size import PRODUCT, ROOT

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in PRODUCT
    for path in (ROOT / folder).rglob("*.py")
    if not path.is_symlink() and ">>> " in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    done = doctest.testmod(importlib.import_module(f"irregulars.{name.removeprefix('irregulars.')}"))
    assert done.attempted > 0
    assert done.failed == 0
