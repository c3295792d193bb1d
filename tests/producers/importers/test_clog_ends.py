"""Which calls stand: of a job that runs on, that was stopped, and of which TorchComms gave up."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from irregulars.producers.importers.clog_job import RUNNING_MS, Log, given_up, groups_of_log, job_of_logs, read_log
from irregulars.producers.importers.clog_lines import Membership
from tests.producers.importers.clog_lines import BASE_MS, event, log, steady

WORLD = Membership("world", 0, 2)


def logs_of(*all_lines: list[str]) -> dict[str, Log]:
    return {f"{n}.log": read_log(log(*lines).splitlines(keepends=True)) for n, lines in enumerate(all_lines)}


def found_in(logs: Mapping[str, Log]) -> dict[str, set[tuple[str, int]]]:
    parsers = {name: one.parser for name, one in logs.items()}
    groups = {name: groups_of_log([WORLD], (), 0, 2, {}) for name in logs}
    newest = {name: one.newest_ended for name, one in logs.items()}
    return {file: set(calls) for file, calls in given_up(parsers, groups, newest).items()}


def timed_out(calls: int = 60) -> list[str]:
    """The last call waits ten minutes, and is ended then."""
    last = [event(1, "Q", 10 * calls, calls + 1), event(1, "S", 10 * calls), event(1, "E", 600_000 + 10 * calls)]
    return [*steady(0, calls=calls), *last]


def test_what_ended_although_a_member_never_called_it_was_given_up() -> None:
    assert found_in(logs_of(timed_out(), steady(1))) == {"0.log": {("world", 60)}}


@pytest.mark.parametrize("lost", ["C1|E|", ""])
def test_a_log_that_lost_lines_or_is_just_shorter_shows_no_such_thing(lost: str) -> None:
    assert found_in(logs_of(steady(0), steady(1))) == {}
    assert found_in(logs_of(steady(0), steady(1)[:-12])) == {}  # more than one was called behind it
    damaged = steady(1)
    damaged[40:43] = [lost]
    assert found_in(logs_of(steady(0), damaged)) == {}


def test_a_job_runs_while_its_newest_line_is_new() -> None:
    logs = logs_of(steady(0)[:-1], steady(1, calls=90))
    now = [0, RUNNING_MS, RUNNING_MS + 1, -RUNNING_MS - 1]  # the last is another clock's: nothing is known
    jobs = [job_of_logs(logs, {"0.log": 0, "1.log": 1}, "job", BASE_MS + 893 + after_ms) for after_ms in now]
    assert ["run still" in " ".join(job.notes) for job in jobs] == [True, True, False, False]
