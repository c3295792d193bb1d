from __future__ import annotations

from dataclasses import dataclass

from irregulars.streams.health.monitor_faults import (
    MOST_FAULTS,
    MOST_MONITORS,
    NOT_GIVEN_UP,
    GivenUp,
    MonitorFaults,
    is_broken,
)


@dataclass
class Watched:
    key: bytes
    faults: int = 0
    given_up: GivenUp = NOT_GIVEN_UP


def test_the_reason_names_the_hop_the_error_and_its_place() -> None:
    faults = MonitorFaults(lambda error: None)
    try:
        (1 << 62).to_bytes(1, "big")
    except OverflowError as error:
        reason = faults.raised("job", b"llama", error)
    assert reason.startswith(
        "job monitor must take the message in; it raised OverflowError: int too big to convert ("
    )
    assert "test_monitor_faults.py:" in reason
    assert faults.count == 1


def test_one_job_never_ends_the_worker_and_all_together_do() -> None:
    fatal: list[BaseException] = []
    faults = MonitorFaults(fatal.append)
    for _ in range(10 * MOST_MONITORS):
        faults.raised("job", b"odd", ValueError("odd"))
    assert fatal == []
    for number in range(MOST_MONITORS):
        faults.works(Watched(b"good"))
        faults.raised("job", b"%d" % number, ValueError("odd"))
    assert fatal == [], "others work"
    for number in range(MOST_MONITORS):
        faults.raised("job", b"%d" % number, ValueError("all"))
    assert {str(error) for error in fatal} == {"all"}


def test_a_monitor_that_fails_in_each_round_is_broken_and_one_that_recovers_is_not() -> None:
    faults = MonitorFaults(lambda error: None)
    watched = Watched(b"odd")
    for _ in range(MOST_FAULTS - 1):
        faults.failed("rank", watched, ValueError())
    faults.works(watched)
    for _ in range(MOST_FAULTS - 1):
        faults.failed("rank", watched, ValueError())
    assert not is_broken(watched)
    faults.failed("rank", watched, ValueError())
    assert is_broken(watched)
