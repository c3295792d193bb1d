"""A worker's log, key=value on standard error: one line where a job comes or ends, or a verdict opens or closes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any, Final

from irregulars.messages.judgements import Verdict
from irregulars.sinks.advice import gpu_hours_lost, name_device

LOG: Final = logging.getLogger("irregulars.worker")
_LONGEST_NAME: Final = 200


def log_job(event: str, job: str, **facts: object) -> None:
    """Log that a job ``appeared`` or ``ended``."""
    said = "".join(f" {name}={value}" for name, value in facts.items())
    LOG.info("event=job_%s job=%s%s", event, _name(job), said)


def log_over(job: str, rows: int) -> None:
    """Log that operators came of an attempt that is over: a job that is sent again under its old name, mostly."""
    LOG.warning(
        "event=attempt_over job=%s rows=%d reason=%r do=%r", _name(job), rows,
        "this attempt is over, and what comes of it is not judged",
        "send it with a higher attempt number, or under another name",
    )  # fmt: skip


def log_contradiction(job: str, what: str, hosts: Sequence[str]) -> None:
    """Log that a job's ranks are announced in places that contradict each other, or that two jobs have its name."""
    LOG.warning(
        "event=%s job=%s what=%s hosts=%s effect=%r do=%r",
        "two_jobs_of_one_name" if what == "starts" else "job_contradicts", _name(job), what, _name(",".join(hosts)),
        "no device of it is named, and nothing is told as recovered, until its next start",
        "give each job a name of its own, and each start an attempt number or a start id",
    )  # fmt: skip


def log_overtaken(job: str, starts: int) -> None:
    """Log that starts of a job are not judged, as their rows are older than those of the start that is."""
    LOG.warning(
        "event=starts_not_judged job=%s starts=%d reason=%r do=%r", _name(job), starts,
        "they began before the start that is judged, by the clocks of their hosts",
        "none if they are over; else set these clocks, and start the job again",
    )  # fmt: skip


def log_given_up(job: str) -> None:
    """Log that iterations of a job are not judged, as too many of them wait for ranks."""
    LOG.warning(
        "event=iterations_given_up job=%s reason=%r", _name(job), "ranks are waited for whose partitions are not read"
    )


def log_verdict(verdict: Verdict) -> None:
    """Log that a verdict opened or closed; its other revisions are on the topic ``verdicts`` alone."""
    if verdict.event in ("opened", "closed"):
        LOG.info("event=verdict_%s %s", verdict.event, describe_verdict(verdict))


def describe_verdict(verdict: Verdict) -> str:
    """Return job, kind, first suspect with its probability, and cost, as ``key=value``; ``none``: not known.

    >>> from irregulars.messages.judgements import Suspect
    >>> gpu = Suspect("gpu", 1, (1,), 0.987, host="node-0", gpu=1)
    >>> verdict = Verdict("walk:1:25:0", 1, "open", "walk", "slow_rank", (25, 27), 1.25, 90.0, None, (gpu,), "",
    ...                   world_size=1000, severity="ticket")
    >>> print(describe_verdict(verdict))
    ... # doctest: +NORMALIZE_WHITESPACE
    job='walk' kind=slow_rank suspect='GPU 1 on node-0 (rank 1)' probability=0.99 severity=ticket lost_s=90
    gpu_hours_lost=25 iterations=25-26 close_reason=none verdict_id='walk:1:25:0' revision=1
    """
    first = verdict.suspects[0] if verdict.suspects else None
    facts: dict[str, object] = {
        "job": _name(verdict.job), "kind": verdict.kind,
        "suspect": "none" if first is None else _name(name_device(first)),
        "probability": "none" if first is None else f"{first.probability:.2f}",
        "severity": verdict.severity or "none", "lost_s": _number(verdict.lost_s),
        "gpu_hours_lost": _number(gpu_hours_lost(verdict)),
        "iterations": f"{verdict.iterations[0]}-{verdict.iterations[1] - 1}",
        "close_reason": verdict.close_reason or "none", "verdict_id": _name(verdict.verdict_id),
        "revision": verdict.revision,
    }  # fmt: skip
    return " ".join(f"{name}={value}" for name, value in facts.items())


def _number(value: float | None) -> str:
    return "none" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _name(name: str) -> str:
    """Quote a name from outside: it may be long, and hold spaces or line ends."""
    return repr(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…")


LEVELS: Final = {"debug": "DEBUG", "info": "INFO", "warn": "WARNING", "error": "ERROR", "crit": "CRITICAL"}

_QUIET_S: Final = 10.0
_MOST_TEXTS: Final = 1000  # of which it is remembered when they were shown


def logging_config(level: str) -> dict[str, Any]:
    """Return a configuration for ``logging.config.dictConfig``; `level`: of our own lines, one of `LEVELS`."""
    # Faust's lines begin at a warning, or with ``debug`` at info. Two kinds are shown with ``debug`` only: a timer of
    # Faust's that was late, on which nothing depends, and a retry of urllib3, whose caller reports the error.
    others, least = ("INFO", "INFO") if level == "debug" else ("WARNING", "ERROR")
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": "irregulars.streams.health.log_lines.utc_formatter",
                "format": "%(asctime)s.%(msecs)03dZ level=%(levelname)s logger=%(name)s %(message)s",
            }
        },
        "filters": {"sparing": {"()": "irregulars.streams.health.log_lines.SparingFilter"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["sparing"]}},
        "root": {"level": others, "handlers": ["stderr"]},
        "loggers": {
            "irregulars": {"level": LEVELS[level]},
            "mode.timers": {"level": least},
            "urllib3": {"level": least},
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
        # A library that puts values into its texts itself has ever new ones.
        if len(self._shown_s) >= _MOST_TEXTS:
            self._shown_s.clear()
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
