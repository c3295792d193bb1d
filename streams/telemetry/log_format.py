"""How a worker writes its log: key=value, one line an event, on standard error."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

LEVELS: Final = {"debug": "DEBUG", "info": "INFO", "warn": "WARNING", "error": "ERROR", "crit": "CRITICAL"}

_QUIET_S: Final = 10.0


def logging_config(level: str) -> dict[str, Any]:
    """Return a configuration for ``logging.config.dictConfig``.

    Parameters
    ----------
    level
        Of our own lines, one of `LEVELS`; those of Faust begin at a warning, or with ``debug`` at info. That one of
        its timers was late, on which nothing depends, is shown with ``debug`` only.
    """
    others = "INFO" if level == "debug" else "WARNING"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": "irregulars.streams.telemetry.log_format.utc_formatter",
                "format": "%(asctime)s.%(msecs)03dZ level=%(levelname)s logger=%(name)s %(message)s",
            }
        },
        "filters": {"sparing": {"()": "irregulars.streams.telemetry.log_format.SparingFilter"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["sparing"]}},
        "root": {"level": others, "handlers": ["stderr"]},
        "loggers": {
            "irregulars": {"level": LEVELS[level]},
            "mode.timers": {"level": "INFO" if level == "debug" else "ERROR"},
        },
    }


class SparingFilter(logging.Filter):
    """Lets others' lines through once in `_QUIET_S`, by their text before values are put in."""

    def __init__(self) -> None:
        super().__init__()
        self._shown_s: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written."""
        if record.name.startswith("irregulars"):
            return True
        what = (record.name, str(record.msg))
        if record.created - self._shown_s.get(what, 0.0) < _QUIET_S:
            return False
        self._shown_s[what] = record.created
        return True


_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


class _OneLine(logging.Formatter):
    """Escapes control characters: a name that somebody sent must not begin a line, or colour a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).translate(_CONTROLS)


def utc_formatter(format: str) -> logging.Formatter:
    """Return a formatter whose times are UTC."""
    formatter = _OneLine(format, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    return formatter
