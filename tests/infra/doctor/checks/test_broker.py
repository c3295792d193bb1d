from __future__ import annotations

from dataclasses import replace

import pytest

from irregulars.infra.doctor.checks.broker import check_broker, clock_finding
from irregulars.infra.doctor.checks.facts import Obstacle
from tests.infra.doctor.installations import NOW_S, kafka, troubles

DAY_S = 86_400.0
AWAY = Obstacle("kafka_away", "Kafka must answer")


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({}, []),
        ({"error": AWAY}, [("problem", "kafka_away")]),
        ({"error": Obstacle("tls_expected", "it speaks TLS")}, [("problem", "tls_expected")]),
        (
            {"error": AWAY, "certificate_ends_s": NOW_S - 5},
            [("problem", "kafka_away"), ("problem", "certificate_ends")],
        ),
        (
            {"error": Obstacle("certificate_expired", "it has expired"), "certificate_ends_s": NOW_S - 5},
            [("problem", "certificate_expired")],
        ),
        ({"answered_in_s": 4.0}, [("warning", "kafka_slow")]),
        ({"release": None}, [("unknown", "not_read")]),
        ({"certificate_ends_s": NOW_S + 300 * DAY_S}, []),
        ({"certificate_ends_s": NOW_S + 3 * DAY_S}, [("warning", "certificate_ends")]),
        ({"own_certificate_ends_s": NOW_S - DAY_S}, [("problem", "certificate_ends")]),
        ({"doubt": "kafka-2:9093 speaks no TLS"}, [("unknown", "not_read")]),
        ({"has_login": True}, [("warning", "no_tls")]),
        ({"has_login": True, "is_tls": True}, []),
        ({"broker_clock_s": None}, [("unknown", "broker_clock")]),
        ({"broker_clock_s": 40.0}, [("problem", "clock_off")]),
    ],
)
def test_what_is_found_of_the_brokers(broken: dict[str, object], expected: list[tuple[str, str]]) -> None:
    seen = kafka()
    seen = replace(seen, broker=replace(seen.broker, **broken))  # type: ignore[arg-type]
    assert troubles(check_broker(seen)) == expected


@pytest.mark.parametrize(
    ("off_s", "level", "words"),
    [(0.5, "ok", "not seen"), (-3.0, "warning", "at least 3 s behind ours"), (90.0, "problem", "90 s ahead of ours")],
)
def test_a_clock_is_told_with_its_direction(off_s: float, level: str, words: str) -> None:
    found = clock_finding("jobs", "the clock of node-3", off_s)
    assert found.level == level
    assert words in found.text
