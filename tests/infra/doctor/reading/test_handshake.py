from __future__ import annotations

import socket
import time

from irregulars.infra.doctor.reading.handshake import shake_hands
from irregulars.streams.kafka.security import KafkaSecurity


def test_where_nobody_listens_it_says_so_of_each_address() -> None:
    obstacle = shake_hands("127.0.0.1:1,localhost:1", KafkaSecurity(), 1.0).obstacle
    assert obstacle is not None
    assert obstacle.code == "kafka_unreachable"
    assert obstacle.text.endswith("127.0.0.1:1: Connection refused; localhost:1: Connection refused")


def test_who_never_answers_is_waited_for_no_longer_than_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begin_s = time.monotonic()
        obstacle = shake_hands(f"127.0.0.1:{silent.getsockname()[1]}", KafkaSecurity(tls=True), 0.5).obstacle
        assert obstacle is not None
        assert obstacle.code == "kafka_away"
        assert time.monotonic() - begin_s < 3.0
