from __future__ import annotations

import logging
import socket

import pytest

from irregulars.streams.health.process_start import free_port_or_none


def test_a_port_that_is_taken_costs_the_page_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        assert free_port_or_none("127.0.0.1", port) == 0
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert f"event=no_page host=127.0.0.1 port={port}" in record.getMessage()
    assert free_port_or_none("127.0.0.1", port) == port
    assert free_port_or_none("127.0.0.1", 0) == 0, "no page was asked for"
