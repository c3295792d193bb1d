"""A client that finds no broker is not asked again."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing

import pytest

from irregulars.errors import ServiceUnavailable
from irregulars.kafka.log_reader import LogReader


@pytest.mark.parametrize(
    "ask", [lambda reader: reader.partitions("t"), lambda reader: reader.bounds("t", 0)], ids=["partitions", "bounds"]
)
def test_each_try_has_a_client_that_connects_anew(ask: Callable[[LogReader], object]) -> None:
    """Whoever listens takes connections and stays silent: one client would wait on the connection that it has."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        bootstrap = f"127.0.0.1:{silent.getsockname()[1]}"
        with closing(LogReader(bootstrap, {}, deadline_s=0.5)) as reader:
            for _ in range(2):
                with pytest.raises(ServiceUnavailable, match="must answer"):
                    ask(reader)
        first, second = silent.accept()[0], silent.accept()[0]
        first.close()
        second.close()
