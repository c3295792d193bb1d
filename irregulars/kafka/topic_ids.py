"""Kafka's ids of topics: one that was deleted and made anew has the same name and another id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from irregulars.errors import ServiceUnavailable, TopicMismatch
from irregulars.kafka.broker import open_admin, service_error
from irregulars.kafka.topics import WORKER_TOPICS, TopicSettings

_NOT_TOLD: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of zeros, with which brokers before Kafka 2.8 answer."""

_WITHOUT: Final = frozenset(
    {KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION, KafkaError.INVALID_REQUEST}
)
_ASKED: Final = (*WORKER_TOPICS, "feedback", "thresholds")


def require_same_topics(before: Mapping[str, str], now: Mapping[str, str], topics: TopicSettings) -> None:
    """Require that no topic of which both ids are known has another one now; raises `TopicMismatch`.

    >>> require_same_topics({"jobs": "a", "commops": "b"}, {"jobs": "a", "evidence": "d"}, TopicSettings())
    """
    anew = sorted(topics.name(topic) for topic, known in now.items() if before.get(topic, known) != known)
    if anew:
        raise TopicMismatch(
            f"topic must be the one that was read before; got {', '.join(anew)}, deleted and made anew. "
            f"{what_to_do(topics)}"
        )


def what_to_do(topics: TopicSettings) -> str:
    """Return what an operator does about a topic that was made anew, or cut."""
    return (
        f"Stop all workers, delete {topics.name('rank_snapshots')} and {topics.name('job_snapshots')} too, run "
        "irregulars topics create, and start the workers: what is there is read from its beginning"
    )


class TopicIds:
    """Asks the broker for the ids of a worker's topics. One thread at a time.

    Parameters
    ----------
    bootstrap, security
        As in `kafka.broker.client_config`.
    timeout_s
        How long the broker has to answer.
    """

    def __init__(self, bootstrap: str, topics: TopicSettings, security: Mapping[str, Any], timeout_s: float) -> None:
        self._bootstrap: Final = bootstrap
        self._security: Final = security
        self._timeout_s: Final = timeout_s
        self._names: Final = {topics.name(topic): topic for topic in _ASKED}
        self._admin: AdminClient | None = None

    def read(self) -> dict[str, str]:
        """Return the ids by topic (named without prefix), of those that are there; none from a broker without ids.

        Raises
        ------
        ServiceUnavailable, ServiceRefused
            If the broker does not answer, or refuses us.
        """
        admin, self._admin = self._admin, None
        if admin is None:
            admin, _ = open_admin(self._bootstrap, self._security, self._timeout_s)
        admin.poll(0)  # a token may be due
        asked = admin.describe_topics(TopicCollection([*self._names]), request_timeout=self._timeout_s)
        found = dict(self._found(asked))
        self._admin = admin  # where it failed another is made, which reads the password anew
        return found

    def _found(self, asked: Mapping[str, Future[Any]]) -> Iterator[tuple[str, str]]:
        for name, future in asked.items():
            found = self._id_of(future)
            if found not in (None, _NOT_TOLD):
                yield self._names[name], str(found)

    def _id_of(self, future: Future[Any]) -> str | None:
        try:
            return str(future.result(self._timeout_s).topic_id)
        except TimeoutError as error:
            raise ServiceUnavailable(f"Kafka at {self._bootstrap} must tell ids of topics; it did not") from error
        except KafkaException as error:
            code = error.args[0].code()
            if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED) or code in _WITHOUT:
                return None
            raise service_error(error.args[0], self._bootstrap, self._timeout_s, self._security) from error
