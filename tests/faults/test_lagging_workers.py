"""Workers that stand still or lag look like silent ranks; what is said of a job must not depend on it."""

from __future__ import annotations

import time

import pytest

from tests.integration.pipelines import Pipeline, Process
from tests.integration.test_end_to_end import FAULTY, REPLAYED, analysed, stored_verdicts, verdicts_of
from tests.integration.worker_runs import wait_until

pytestmark = pytest.mark.integration

GRACE_S = 2.0
STOPPED_S = 8.0  # several times the grace, and far less than the session: nobody else takes the partitions


def test_a_worker_that_stands_still_makes_no_rank_look_silent(pipeline: Pipeline) -> None:
    workers = [pipeline.start_worker(grace_s=GRACE_S, session_s=60.0) for _ in range(2)]
    wait_until(lambda: all(is_assigned(worker) for worker in workers), "both workers have partitions")
    with workers[1].suspended():
        pipeline.replay(*REPLAYED)
        time.sleep(STOPPED_S)
    pipeline.wait_until_stored(len(REPLAYED))
    assert [worker.stop() for worker in workers] == [0, 0]
    wanted = verdicts_of(analysed(*REPLAYED))
    assert len(wanted) == len(FAULTY)
    assert stored_verdicts(pipeline) == {name: verdict.to_json() for name, verdict in wanted.items()}


def is_assigned(worker: Process) -> bool:
    return worker.output().count("event=restored hop=job") >= 2
