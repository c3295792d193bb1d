from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from irregulars.infra.doctor.broker import check_broker, clock_finding, file_ends_s, let_in
from irregulars.infra.doctor.facts import Obstacle
from irregulars.infra.settings import Settings
from tests.infra.doctor.installations import NOW_S, kafka, troubles
from tests.integration.secured_kafka import Authority

DAY_S = 86_400.0
AWAY = Obstacle("kafka_away", "Kafka must answer")


@pytest.mark.parametrize(("broken", "expected"), [
    ({}, []),
    ({"error": AWAY}, [("problem", "kafka_away")]),
    ({"error": AWAY, "certificate_ends_s": NOW_S - 5}, [("problem", "kafka_away"), ("problem", "certificate_ends")]),
    ({"error": Obstacle("certificate_expired", "it has expired"), "certificate_ends_s": NOW_S - 5},
     [("problem", "certificate_expired")]),
    ({"answered_in_s": 4.0}, [("warning", "kafka_slow")]),
    ({"certificate_ends_s": NOW_S + 300 * DAY_S}, []),
    ({"certificate_ends_s": NOW_S + 3 * DAY_S}, [("warning", "certificate_ends")]),
    ({"own_certificate_ends_s": NOW_S - DAY_S}, [("problem", "certificate_ends")]),
    ({"has_login": True}, [("warning", "no_tls")]),
    ({"has_login": True, "is_tls": True}, []),
    ({"broker_clock_s": None}, [("unknown", "broker_clock")]),
    ({"broker_clock_s": 40.0}, [("problem", "clock_off")]),
])  # fmt: skip
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


def test_a_certificate_s_end_is_openssl_s_and_a_file_without_one_has_none(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (known,) = ssl.create_default_context(cafile=str(authority.certificate)).get_ca_certs()
    assert file_ends_s(authority.certificate) == ssl.cert_time_to_seconds(str(known["notAfter"]))
    path = tmp_path / "own.pem"
    assert file_ends_s(path) is None
    for text in ("", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        path.write_text(text)
        assert file_ends_s(path) is None


@contextmanager
def no_kafka(answer: bytes | None) -> Iterator[str]:
    """Listen; to each connection send bytes that are not Kafka's and hang up, or without any keep silent."""
    connections = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                connections.append(connection)
                if answer is not None:
                    connection.recv(1)
                    connection.sendall(answer)
                    connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in connections:
            connection.close()


@pytest.mark.parametrize(
    "answer", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n", b""], ids=["silent", "web", "hangs up"]
)
def test_a_port_that_is_not_kafka_s_is_one_finding_within_the_time(answer: bytes | None) -> None:
    with no_kafka(answer) as address:
        facts, entrance = let_in(Settings(kafka_bootstrap=address), 1.5)
    assert entrance is None
    assert facts.error is not None
    assert facts.error.code == "kafka_away"
    assert facts.error.text.startswith(f"{address} ")
    assert "does not answer as Kafka does" in facts.error.text
