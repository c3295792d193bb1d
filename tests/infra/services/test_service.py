"""Services start, and stop whatever happens."""

from __future__ import annotations

import pytest

from irregulars.errors import ServiceUnavailable
from irregulars.infra.runs.child_process import Service, start_on_free_ports


class Recorded(Service):
    def __init__(self, *, is_broken: bool = False) -> None:
        self.happened: list[str] = []
        self._is_broken = is_broken

    def start(self) -> None:
        self.happened.append("start")
        with self._stopped_if_it_fails():
            if self._is_broken:
                raise ServiceUnavailable("it must come up; it does not")

    def stop(self) -> None:
        self.happened.append("stop")


def test_a_with_block_starts_and_stops_it() -> None:
    with Recorded() as service:
        assert service.happened == ["start"]
    assert service.happened == ["start", "stop"]


def test_it_stops_when_the_block_ends_in_an_error() -> None:
    service = Recorded()
    with pytest.raises(ZeroDivisionError), service:
        _ = 1 / 0
    assert service.happened == ["start", "stop"]


def test_what_does_not_come_up_is_stopped() -> None:
    service = Recorded(is_broken=True)
    with pytest.raises(ServiceUnavailable), service:
        pass
    assert service.happened == ["start", "stop"]


def refusing(times: int, left: list[float]) -> None:
    """Start what does not come up so many times."""

    def start(within_s: float) -> None:
        left.append(within_s)
        if len(left) <= times:
            raise ServiceUnavailable("port must be free; it is not")

    start_on_free_ports(start, 60.0)


def test_a_port_that_somebody_took_is_no_reason_to_give_up() -> None:
    left: list[float] = []
    refusing(2, left)
    assert len(left) == 3
    assert left == sorted(left, reverse=True)


def test_after_three_tries_it_says_why() -> None:
    left: list[float] = []
    with pytest.raises(ServiceUnavailable, match="port must be free"):
        refusing(9, left)
    assert len(left) == 3


def test_no_try_begins_after_the_deadline() -> None:
    tries: list[float] = []

    def start(within_s: float) -> None:
        tries.append(within_s)
        raise ServiceUnavailable("it must come up; it does not")

    with pytest.raises(ServiceUnavailable):
        start_on_free_ports(start, -1.0)
    assert len(tries) == 1
