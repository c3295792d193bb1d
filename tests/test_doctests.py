"""The examples in docstrings print what they show.

Pytest can collect them by itself; for that, each of its processes imports and reads every module of the repository.
"""

from __future__ import annotations

import doctest
import importlib

from tests.size import PRODUCT, ROOT

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in PRODUCT
    for path in (ROOT / folder).rglob("*.py")
    if not path.is_symlink() and ">>> " in path.read_text("utf-8")
)


def test_examples() -> None:
    names = [f"irregulars.{name.removeprefix('irregulars.')}" for name in MODULES]
    done = {name: doctest.testmod(importlib.import_module(name)) for name in names}
    assert {name: one for name, one in done.items() if one.failed or not one.attempted} == {}
