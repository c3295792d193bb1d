"""A verdict's page is read in time: long spans are bounded, and a part that takes too long is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from irregulars.infra.showing.found import Screen, gather
from irregulars.infra.showing.from_database import found_in_database
from tests.infra.showing.made_up_verdicts import verdict_of

S = 10**9
BEGIN_NS = 1_795_000_000 * S
LASTS_S = 6 * 3600  # of the verdict's iterations, each of 10 s
NOT_IN_TIME, SYNTAX = 159, 62


class Database:
    """Answers with the iterations of a long job; questions that name one of `failing` fail."""

    def __init__(self, failing: Sequence[str] = (), code: int = NOT_IN_TIME, lasts_s: int = LASTS_S) -> None:
        self.failing, self.code, self.lasts_s = failing, code, lasts_s
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    def query(self, question: str, parameters: Mapping[str, Any], **_: Any) -> SimpleNamespace:
        self.asked.append((question, parameters))
        if any(f"FROM {name}" in question for name in self.failing):
            error = DatabaseError("Code: 159. DB::Exception: Timeout exceeded")
            error.code = self.code  # type: ignore[attr-defined]
            raise error
        rows: list[tuple[Any, ...]] = []
        if "FROM judged_iterations" in question:
            assert "ORDER BY iteration < {begun:Int64} DESC, iteration DESC" in question
            rows = sorted(iterations(self.lasts_s), key=lambda row: (row[0] >= parameters["begun"], -row[0]))
        return SimpleNamespace(result_rows=rows[: parameters.get("limit")], column_names=())

    def spans_s(self, table: str) -> list[float]:
        """Return how much time the questions to a table read in all, s."""
        own = [values for question, values in self.asked if f"FROM {table}" in question]
        ends = (("before_begin", "before_end"), ("during_begin", "end"), ("begin", "end"))
        return [sum(one[end] - one[begin] for begin, end in ends if begin in one) / S for one in own]


def iterations(lasts_s: int = LASTS_S) -> Iterator[tuple[Any, ...]]:
    for number in range(60, 100 + lasts_s // 10):
        is_irregular = number >= 100
        yield number, BEGIN_NS + number * 10 * S, 10 * S, 10.0 * S, is_irregular, is_irregular


def shown(database: Database, ranks: int) -> Screen:
    own = verdict_of(iterations=(100, 100 + database.lasts_s // 10), world_size=ranks)
    return gather(found_in_database(cast(Client, database), own, "test", BEGIN_NS + 2 * database.lasts_s * S))


def test_samples_of_a_large_job_are_read_for_its_newest_minutes_and_of_a_small_one_whole() -> None:
    large, small = Database(), Database()
    shown(large, 16_384)
    shown(small, 8)
    assert len(large.spans_s("bandwidth")) == len(small.spans_s("bandwidth")) == 2
    assert all(60 < span_s < 700 for span_s in large.spans_s("bandwidth"))
    assert all(span_s > 0.99 * LASTS_S for span_s in small.spans_s("bandwidth"))
    (rates, samples) = (values for question, values in large.asked if "FROM bandwidth" in question)
    assert samples["end"] == BEGIN_NS + (100 * 10 + LASTS_S) * S  # the newest
    assert rates["before_end"] == BEGIN_NS + 100 * 10 * S


def test_a_verdict_of_more_iterations_than_are_read_keeps_its_begin_and_what_was_before() -> None:
    screen = shown(Database(lasts_s=21_000 * 10), 8)
    assert len(screen.iterations) == 20_000
    assert screen.since_ns == BEGIN_NS + 100 * 10 * S
    assert screen.before_ns == 10 * S
    assert screen.iterations[-1].iteration == 100 + 21_000 - 1
    assert not any(text.startswith("before:") for text in screen.missing)


def test_a_part_that_is_not_answered_in_time_is_left_out_and_told_and_another_failure_raised() -> None:
    database = Database(["bandwidth"])
    screen = shown(database, 16_384)
    assert len(screen.iterations) == 40 + LASTS_S // 10
    assert (list(screen.rates), list(screen.rate_samples), list(screen.gpus)) == ([], [], [])
    told = "\n".join(screen.missing)
    assert "NIC rates: the database could not read them in time" in told
    assert "GPU states: the database could not read them in time" in told
    assert "no agent samples GPUs" not in told
    # The next ones may take as long: a page waits once.
    assert sum("FROM bandwidth" in question for question, _ in database.asked) == 1
    assert not any("FROM gpu_health" in question for question, _ in database.asked)
    with pytest.raises(DatabaseError):
        shown(Database(["bandwidth"], SYNTAX), 8)
