"""The short form of ``python -m tests.chaos``, and its account: content with the whole, and with nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.__main__ import main
from tests.chaos.account import ALL_JUDGED, Account
from tests.integration.pipelines import RECORDINGS, Pipeline

pytestmark = pytest.mark.integration

FAULTS = ("kill worker", "copies in another order", "cut database")


def test_nothing_is_lost_and_nothing_invented(capsys: pytest.CaptureFixture[str]) -> None:
    size = ("--faults", str(len(FAULTS)), "--brokers", "1", "--workers", "2", "--most-jobs", "2")
    status = main([*size, "--only", *FAULTS])
    assert status == 0, "".join(capsys.readouterr())


JOBS = {"job-0": "gloo-slow-nic"}


def account(pipeline: Pipeline, jobs: dict[str, str]) -> dict[str, Any]:
    target = pipeline.database
    database = {"url": target.url, "user": target.user, "password": target.password, "database": target.database}
    prefix = pipeline.bus.topics.prefix
    spec = {"bootstrap": pipeline.bus.bootstrap, "prefix": prefix, "database": database, "jobs": jobs}
    return Account(spec).check()


def test_it_finds_what_is_missing_doubled_or_false(pipeline: Pipeline) -> None:
    worker = pipeline.start_worker()
    path = str(RECORDINGS / JOBS["job-0"])
    assert pipeline.start("replay", path, "--job", "job-0", "--speed", "0", "--keep-times", "--json").wait() == 0
    pipeline.wait_until_stored(1)
    assert worker.stop() == 0
    whole = account(pipeline, JOBS)
    assert (whole["says"], whole["wrong"]) == (ALL_JUDGED, {})
    assert whole["counts"]["iterations"] == 160

    missing = account(pipeline, {**JOBS, "job-1": "gloo-slow-link"})
    assert missing["says"] != ALL_JUDGED
    assert missing["wrong"]["iterations missing"] == 160
    assert {"revisions missing on verdicts", "verdicts missing in the database"} <= missing["wrong"].keys()

    message = pipeline.bus.read("verdicts")[0]
    pipeline.bus.send("verdicts", message.key(), message.value())
    pipeline.bus.send("deadletter", None, b"")
    pipeline.bus.flush()
    doubled = account(pipeline, JOBS)
    assert doubled["wrong"] == {"revisions doubled on verdicts": 1, "dead letters": 1}

    false = account(pipeline, {})
    kinds = {"false revisions on verdicts", "false verdicts in the database", "iterations too many"}
    assert kinds <= false["wrong"].keys()
