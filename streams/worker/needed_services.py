"""What a worker needs before it can begin: a broker with its topics. The database may come later."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from irregulars import stopping
from irregulars.errors import ServiceUnavailable
from irregulars.kafka.topic_admin import check_topics
from irregulars.kafka.topics import WORKER_TOPICS
from irregulars.sinks.protocol import Sink
from irregulars.streams.health.broker_watch import QUIET_S
from irregulars.streams.health.process import Need, StopDeadline, ask_in_thread, wait_for
from irregulars.streams.worker_settings import WorkerSettings

LOG: Final = logging.getLogger("irregulars.worker")


def wait_for_services(settings: WorkerSettings, sink: Sink | None) -> bool:
    """Open the sink, and wait until the broker answers; False if a signal asks to stop meanwhile.

    A database that is away is told and not waited for: alerts need none, and rows wait in memory (`SinkWriter`).

    Raises `ServiceUnavailable` if the broker, or the OAuth server that has tokens for it, is away for
    ``broker_away_s``; `ServiceRefused` or `TopicMismatch` if one of them refuses us, or the topics do not fit
    together: that does not mend itself.
    """
    try:
        with stopping.raises():
            if sink is not None:
                try:
                    ask_in_thread(sink.open)
                except ServiceUnavailable as error:
                    LOG.warning(
                        "event=database_away reason=%r "
                        "do='judging and alerts go on, and rows wait in memory until it is there'",
                        str(error),
                    )
            wait_for(_needs(settings))
    except stopping.StopAsked:
        deadline = StopDeadline(settings.stop_s)
        deadline.leave_with(0)
        deadline.arm()  # a question that nobody has answered yet holds the sink's lock
        LOG.info("event=stop status=0")
        return False
    return True


def _needs(settings: WorkerSettings) -> list[Need]:
    needs = [Need("broker", partial(require_topics, settings), settings.broker_away_s)]
    if "oauth_cb" in settings.security:  # before the broker, which would only say that nobody got in
        needs.insert(0, Need("token_endpoint", settings.security["oauth_cb"], settings.broker_away_s))
    return needs


def require_topics(settings: WorkerSettings) -> None:
    """Ask, within some seconds, for a worker's topics; raises as `check_topics` does."""
    within_s = min(settings.broker_timeout_s, QUIET_S)
    check_topics(settings.bootstrap, settings.topics, settings.security, within_s, WORKER_TOPICS)
