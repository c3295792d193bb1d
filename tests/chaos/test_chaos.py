"""The short form of ``python -m tests.chaos``: one broker, two workers, three faults."""

from __future__ import annotations

import pytest

from tests.chaos.__main__ import main

pytestmark = pytest.mark.integration

FAULTS = ("kill worker", "copies in another order", "cut database")


def test_nothing_is_lost_and_nothing_invented(capsys: pytest.CaptureFixture[str]) -> None:
    size = ("--faults", str(len(FAULTS)), "--brokers", "1", "--workers", "2", "--most-jobs", "2")
    status = main([*size, "--only", *FAULTS])
    assert status == 0, "".join(capsys.readouterr())
