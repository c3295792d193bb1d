from __future__ import annotations

import logging
import logging.config

import pytest

from irregulars.streams.telemetry.log_format import LEVELS, SparingFilter, logging_config, utc_formatter


def record(name: str, text: str, at_s: float) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.ERROR, __file__, 1, text, ("node", 1), None)
    made.created = at_s
    return made


def test_others_repeat_themselves_once_in_ten_seconds() -> None:
    sparing = SparingFilter()
    shown = [at_s for at_s in range(25) if sparing.filter(record("faust", "no %s %d", 100.0 + at_s))]
    assert shown == [0, 10, 20]


def test_our_own_lines_always_show() -> None:
    sparing = SparingFilter()
    assert all(sparing.filter(record("irregulars.worker", "event=%s %d", 100.0)) for _ in range(5))


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_is_a_configuration_that_logging_takes(level: str) -> None:
    config = logging_config(level)
    logging.config.DictConfigurator(config)
    assert config["root"]["level"] == ("INFO" if level == "debug" else "WARNING")


def test_a_name_that_holds_line_feeds_begins_no_line() -> None:
    record = logging.LogRecord("irregulars", logging.ERROR, "x", 1, "device=%s", ("a\nevent=made_up\x1b[31m",), None)
    assert utc_formatter("%(message)s").format(record) == "device=a\\x0aevent=made_up\\x1b[31m"
