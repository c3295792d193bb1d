"""Each guarantee names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "infra" / "docs" / "guarantees.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
GUARANTEED = PAGE.split("## What is guaranteed")[1].split("\n## ")[0]


def test_every_guarantee_names_its_test() -> None:
    rows = [line for line in GUARANTEED.splitlines() if line.startswith("| ") and not line.startswith("| that is")]
    assert len(rows) > 15
    assert [row for row in rows if not re.search(r"\| `tests/[\w/]+\.py::\w+` \|$", row)] == []
    assert len(set(NAMED)) == len(NAMED)


def test_the_tests_and_files_that_it_names_exist() -> None:
    for path, name in NAMED:
        module = ast.parse((ROOT / path).read_text())
        tests = {one.name: one for one in module.body if isinstance(one, ast.FunctionDef)}
        assert name in tests, path
        marks = [ast.unparse(mark) for mark in tests[name].decorator_list]
        assert not [mark for mark in marks if "skip" in mark or "xfail" in mark], f"{path}::{name}"
    for path in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (ROOT / path).is_file(), path
