"""What people say of verdicts, said from the console: a message on ``feedback``, as of `irregulars feedback`."""

from __future__ import annotations

import threading
from typing import Final

from irregulars.infra.console.topics.kafka_address import KafkaAddress
from irregulars.messages.judgements import Verdict
from irregulars.sinks.notices.state_log import opened

_SAY_S: Final = 10.0


def say_on_topic(kafka: KafkaAddress, verdict: Verdict, word: str, who: str, note: str) -> None:
    """Keep somebody's word; waits for the broker, but not for ever.

    Raises
    ------
    InputError
        If a text is too long, or there is nothing to withdraw.
    ServiceError
        If Kafka does not answer, refuses us, or lacks the topic.
    """
    over = threading.Event()
    deadline = threading.Timer(_SAY_S, over.set)
    deadline.daemon = True
    deadline.start()
    try:
        with opened(kafka.bootstrap, kafka.topics, kafka.security, "feedback", is_stopping=over) as log:
            log.record_opinion(verdict, word, who, note)
    finally:
        deadline.cancel()
