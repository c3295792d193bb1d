"""Services start, and stop whatever happens."""

from __future__ import annotations

from contextlib import nullcontext

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


@pytest.mark.parametrize(
    ("refusals", "within_s", "tries"),
    [(2, 60.0, 3), (9, 60.0, 3), (9, -1.0, 1)],  # the last: no try begins after the deadline
)
def test_a_port_that_somebody_took_is_no_reason_to_give_up_before_the_third_try(
    refusals: int, within_s: float, tries: int
) -> None:
    left: list[float] = []

    def start(left_s: float) -> None:
        left.append(left_s)
        if len(left) <= refusals:
            raise ServiceUnavailable("port must be free; it is not")

    with nullcontext() if refusals < tries else pytest.raises(ServiceUnavailable, match="port must be free"):
        start_on_free_ports(start, within_s)
    assert len(left) == tries
    assert left == sorted(left, reverse=True)
