"""Checks what has to hold for every run."""

from __future__ import annotations

from collections import defaultdict

from tests.benchmarks.independent.event_level.cluster import Cluster, Pair
from tests.benchmarks.independent.event_level.engine import Engine, Row
from tests.benchmarks.independent.event_level.programs import Job


def validate(engine: Engine, job: Job, cluster: Cluster, is_complete: bool) -> None:
    """Raise AssertionError for a run whose rows contradict each other, or that stopped though it should not."""
    operators: defaultdict[tuple[int, Pair | None, int], dict[int, Row]] = defaultdict(dict)
    for row in engine.rows:
        assert row.rank in job.members[row.communicator]
        assert row.size >= 0
        assert row.end is None or row.end >= row.start
        pair = None
        if row.peer >= 0:
            pair = (row.rank, row.peer) if row.operator == "send" else (row.peer, row.rank)
        rows = operators[row.communicator, pair, row.sequence]
        assert row.rank not in rows
        rows[row.rank] = row
    if not is_complete:
        return
    assert not engine.transfers, "deadlock"
    assert not engine.running, "deadlock"
    assert len(engine.iteration_rows) == cluster.world * engine.iterations, "deadlock"
    for (communicator, pair, _), by_rank in operators.items():
        rows_of_one = list(by_rank.values())
        assert len(rows_of_one) == (2 if pair else len(job.members[communicator]))
        assert len({row.iteration for row in rows_of_one}) == 1
        if pair:
            assert {row.operator for row in rows_of_one} == {"send", "recv"}
        else:
            assert len({row.operator for row in rows_of_one}) == 1
            ends = [row.end for row in rows_of_one if row.end is not None]
            assert max(row.start for row in rows_of_one) <= min(ends) + 1e-9
