"""How a worker writes its log: key=value, one line an event, on standard error."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

LEVELS: Final = {"debug": "DEBUG", "info": "INFO", "warn": "WARNING", "error": "ERROR", "crit": "CRITICAL"}


def logging_config(level: str) -> dict[str, Any]:
    """Return a configuration for ``logging.config.dictConfig``.

    Parameters
    ----------
    level
        Of our own lines, one of `LEVELS`; those of Faust and aiokafka begin at a warning, or with ``debug`` at info.
    """
    others = "INFO" if level == "debug" else "WARNING"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": "streams.worker_logging.utc_formatter",
                "format": "%(asctime)s.%(msecs)03dZ level=%(levelname)s logger=%(name)s %(message)s",
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"level": others, "handlers": ["stderr"]},
        "loggers": {"irregulars": {"level": LEVELS[level]}},
    }


def utc_formatter(format: str) -> logging.Formatter:
    """Return a formatter whose times are UTC."""
    formatter = logging.Formatter(format, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    return formatter
