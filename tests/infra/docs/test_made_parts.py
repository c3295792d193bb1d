"""Parts of pages that code makes are as it makes them."""

from __future__ import annotations

import pytest

from tests.infra.docs.made_parts import MAKERS, parts

PARTS = list(parts())


@pytest.mark.parametrize(("page", "name", "text"), PARTS, ids=[f"{page}: {name}" for page, name, _ in PARTS])
def test_the_page_shows_what_the_code_makes(page: str, name: str, text: str) -> None:
    assert text == MAKERS[name](), "run: python -m tests.infra.docs.made_parts"


def test_every_part_is_shown_once() -> None:
    assert sorted(name for _, name, _ in PARTS) == sorted(MAKERS)
