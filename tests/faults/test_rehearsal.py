"""A live job with each kind of verdict: its alert says what to do, and while it is open all places tell the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from irregulars.messages.kinds import VERDICT_KINDS
from tests.benchmarks.rehearsal import SCENES, rehearse

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ONE_EACH = {scene.kind: scene.name for scene in reversed(SCENES)}


def test_each_kind_is_told_rightly_and_everywhere_alike(tmp_path: Path) -> None:
    assert ONE_EACH.keys() == VERDICT_KINDS.keys()
    wrong = rehearse(tmp_path, list(ONE_EACH.values()), seed=1)
    assert {name: found for name, found in wrong.items() if found} == {}
