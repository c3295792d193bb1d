"""What a backtest reads of a job of the database, on a real ClickHouse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from irregulars.infra.runs.backtest import read_stored_job
from irregulars.infra.runs.scoring import Fault
from irregulars.messages.judgements import Judgements
from irregulars.sinks.connection import DatabaseSettings, connected
from irregulars.sinks.tables import tables_of
from tests.integration.pipelines import store
from tests.sinks import made_up_job

pytestmark = pytest.mark.integration


def faults_of(settings: DatabaseSettings) -> tuple[Fault, ...]:
    with connected(settings) as client:
        return read_stored_job(client, made_up_job.JOB).faults


def started_again(attempt: int) -> Judgements:
    """The same job in a later attempt, in which nothing was wrong."""
    rows = made_up_job.rank_iterations()
    return Judgements(
        made_up_job.JOB,
        [replace(made_up_job.announcement(rank), attempt=attempt) for rank in range(made_up_job.RANKS)],
        [replace(made_up_job.judged(at), attempt=attempt, verdict_ids=()) for at in range(made_up_job.ITERATIONS)],
        rank_iterations={**rows, "attempt": np.full_like(rows["attempt"], attempt)},
    )


def test_the_truth_is_what_was_blamed_in_the_newest_attempt(database: DatabaseSettings) -> None:
    store(database, tables_of(made_up_job.judgements()))
    assert faults_of(database) == (Fault((1, 3), ((20, 30),)),)
    store(database, tables_of(started_again(1)))
    assert faults_of(database) == ()
