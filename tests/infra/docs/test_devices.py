"""Each device that a verdict may name is known wherever people meet it."""

from __future__ import annotations

from pathlib import Path

import pytest

from irregulars.infra.docs_site.made_parts import fill
from irregulars.messages.judgements import DEVICES

ROOT = Path(__file__).resolve().parents[3]
PLACES = ("infra/docs/glossary.md", "infra/docs/verdict-json.md")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", PLACES)
def test_a_device_is_named(device: str, place: str) -> None:
    assert f"`{device}`" in fill((ROOT / place).read_text())
