"""The topic on a real broker: what the channel publishes, who reads it, and who acts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from irregulars.errors import ServiceUnavailable, SinkBusy, SinkRejected, TopicMismatch
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import SENDING, TopicSettings
from irregulars.messages.judgements import Verdict
from irregulars.sinks.alerts import alert_of
from irregulars.sinks.notices.actions.actions import decode_actions
from irregulars.sinks.notices.actions.feed import ActionFeed, Polled
from irregulars.sinks.notices.notice import Channel, Notice
from tests import waiting, warm
from tests.apache_kafka.broker import KafkaBroker
from tests.sinks.notices.actions.told import open_channel
from tests.sinks.notices.made_up_notices import GPU, VERDICT, notice_of

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[4]
DEADLINE_S = 60.0


@pytest.fixture
def topics(kafka_bootstrap: str, topic_prefix: str) -> TopicSettings:
    topics = TopicSettings(topic_prefix, 1)
    create_topics(kafka_bootstrap, topics)
    return topics


@pytest.fixture
def channel(kafka_bootstrap: str, topics: TopicSettings) -> Iterator[Channel]:
    with closing(open_channel(kafka_bootstrap, topics)) as channel:
        yield channel


@pytest.fixture
def open_feed(kafka_bootstrap: str, topics: TopicSettings) -> Iterator[Callable[..., ActionFeed]]:
    opened: list[ActionFeed] = []

    def call(*, is_member: bool = True) -> ActionFeed:
        group = f"{topics.prefix}group"
        feed = ActionFeed(kafka_bootstrap, topics, {}, group, is_member=is_member)
        opened.append(feed)
        return feed

    yield call
    for feed in opened:
        feed.close()


def read(feed: ActionFeed) -> tuple[list[Message], Polled]:
    """All messages up to the end of the topic, and the last look at it."""
    found: list[Message] = []
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        polled = feed.poll(0.2)
        found += polled.messages
        if polled.is_current:
            return found, polled
    raise AssertionError(f"the topic must be read to its end within {DEADLINE_S:g} s")


def values(messages: list[Message]) -> list[tuple[bytes | None, int, list[str]]]:
    found = [(one.key(), decode_actions(one.value())) for one in messages]
    return [
        (key, one.revision, [f"{a.state} {a.action} {a.suspect.host}" for a in one.actions]) for key, one in found
    ]


def test_incidents_are_published_under_their_verdict(channel: Channel, open_feed: Callable[..., ActionFeed]) -> None:
    first = replace(VERDICT, kind="hang")
    reference = channel.deliver(notice_of(first))
    second = replace(first, revision=2, event="changed", suspects=(replace(GPU, host="node-2"),))
    reference = channel.deliver(notice_of(second, "updated", reference))
    last = replace(second, revision=3, event="closed", state="closed", close_reason="recovered")
    channel.deliver(notice_of(last, "resolved", reference))
    messages, _ = read(open_feed(is_member=False))
    assert values(messages) == [
        (b"llama:0:60:0", 1, ["proposed cordon node-1"]),
        (b"llama:0:60:0", 2, ["proposed cordon node-2", "withdrawn cordon node-1"]),
        (b"llama:0:60:0", 3, ["proposed test_device node-2", "withdrawn cordon node-2"]),
    ]


def test_what_has_actions_is_published_alike_twice(channel: Channel, open_feed: Callable[..., ActionFeed]) -> None:
    channel.deliver(notice_of(replace(VERDICT, kind="imbalance", suspects=())))
    assert channel.deliver(notice_of()) == channel.deliver(notice_of())
    messages, _ = read(open_feed(is_member=False))
    assert len(messages) == 2
    assert messages[0].value() == messages[1].value()
    with pytest.raises(SinkRejected, match="revision must be an integer"):
        channel.deliver(Notice("opened", {"verdict_id": "v"}, "page"))


def test_a_broker_that_is_away_is_tried_again_and_named(topics: TopicSettings) -> None:
    with closing(open_channel("127.0.0.1:1", topics, timeout_s=1.0)) as channel:
        with pytest.raises(SinkBusy, match=r"topic .*actions must take actions; got _MSG_TIMED_OUT.*127.0.0.1:1"):
            channel.deliver(notice_of())
        channel.close()
    with pytest.raises(ServiceUnavailable, match="must answer within 1 s"):
        ActionFeed("127.0.0.1:1", topics, {}, "g", timeout_s=1.0)


def test_a_topic_that_is_missing_or_of_several_partitions_is_refused(kafka_bootstrap: str, topic_prefix: str) -> None:
    with pytest.raises(TopicMismatch, match=r"got none named nowhere.actions.*Run: irregulars topics create"):
        ActionFeed(kafka_bootstrap, TopicSettings("nowhere."), {}, "g")
    # Each of two members of the group would have a part, and none would ever act.
    topics = TopicSettings(topic_prefix)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    name = topics.name("actions")
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(60)
    # Kafka acknowledges a topic before its metadata name it.
    waiting.wait_for(lambda: name in admin.list_topics(timeout=60).topics)
    with pytest.raises(TopicMismatch, match="must have one partition; got 2"):
        ActionFeed(kafka_bootstrap, topics, {}, "g")


def test_a_consumer_outlasts_a_broker_that_is_away_for_a_while(kafka_broker: KafkaBroker, topic_prefix: str) -> None:
    topics, told = TopicSettings(topic_prefix, 1), list[str]()
    create_topics(kafka_broker.bootstrap, topics)
    with (
        closing(open_channel(kafka_broker.bootstrap, topics)) as channel,
        closing(ActionFeed(kafka_broker.bootstrap, topics, {}, topic_prefix, tell=told.append)) as feed,
    ):
        channel.deliver(notice_of())
        assert len(read(feed)[0]) == 1
        kafka_broker.stop()
        assert feed.poll(2.0).messages == ()
        kafka_broker.start()
        wait_for(feed, lambda: len(told) == 2)
        assert told[0].startswith(f"Kafka at {kafka_broker.bootstrap} does not answer: nothing new is read")
        assert told[1] == f"Kafka at {kafka_broker.bootstrap} answers again"
        channel.deliver(notice_of(replace(VERDICT, revision=2)))
        found: list[Message] = []
        deadline = time.monotonic() + DEADLINE_S
        while not any(decode_actions(one.value()).revision == 2 for one in found):
            assert time.monotonic() < deadline
            found += feed.poll(0.5).messages


def wait_for(feed: ActionFeed, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline
        feed.poll(0.5)


def has_two_members(admin: AdminClient, group: str) -> bool:
    found = admin.describe_consumer_groups([group])[group].result(60)
    return found.state is ConsumerGroupState.STABLE and len(found.members) == 2


def test_of_two_consumers_one_acts_and_the_other_takes_over_and_reads_all_anew(
    kafka_bootstrap: str, topics: TopicSettings, channel: Channel, open_feed: Callable[..., ActionFeed]
) -> None:
    channel.deliver(notice_of())
    first = open_feed()
    assert len(read(first)[0]) == 1
    second, bystander = open_feed(), open_feed(is_member=False)
    assert len(read(bystander)[0]) == 1  # who only looks is in nobody's way
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    deadline, states = time.monotonic() + DEADLINE_S, list[bool]()
    while not (sum(states) == 1 and has_two_members(admin, f"{topics.prefix}group")):  # the group settles
        assert time.monotonic() < deadline
        states = [first.poll(0.1).is_current, second.poll(0.1).is_current]
        assert states != [True, True]
    owner, other = (first, second) if states[0] else (second, first)
    owner.close()
    assert len(read(other)[0]) == 1


def test_a_consumer_that_commits_reads_all_anew_and_knows_what_was_done(
    channel: Channel, open_feed: Callable[..., ActionFeed]
) -> None:
    channel.deliver(notice_of())
    feed = open_feed()
    (message,), _ = read(feed)
    feed.close()
    feed = open_feed()
    (again,), _ = read(feed)  # it died before it noted that it was done
    assert (again.offset(), feed.is_done(again)) == (message.offset(), False)
    feed.commit(again)
    feed.close()
    channel.deliver(notice_of(replace(VERDICT, revision=2)))
    feed = open_feed()
    messages, _ = read(feed)
    assert [feed.is_done(one) for one in messages] == [True, False]


def node_check(bootstrap: str, prefix: str, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "irregulars", "node-check", "--bootstrap", bootstrap, "--topic-prefix", prefix]
    done = warm.run([*command, *arguments], cwd=ROOT, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_node_check_answers_as_node_problem_detector_asks(kafka_bootstrap: str, topics: TopicSettings) -> None:
    def alert(verdict: Verdict) -> None:
        value = alert_of(verdict)
        assert value is not None
        producer.produce(topics.name("alerts"), value, verdict.verdict_id.encode())
        assert producer.flush(60) == 0

    producer = Producer({"bootstrap.servers": kafka_bootstrap, **SENDING})
    healthy = (0, "no open verdict accuses node-1\n", "")
    assert node_check(kafka_bootstrap, topics.prefix, "--host", "node-1") == healthy
    alert(VERDICT)
    problem = (1, "slow rank 95%: GPU 0 on node-1 (rank 8, NIC mlx5_1), job llama\n", "")
    assert node_check(kafka_bootstrap, topics.prefix, "--host", "node-1") == problem
    assert node_check(kafka_bootstrap, topics.prefix, "--host", "node-2")[0] == 0
    alert(replace(VERDICT, revision=2, event="closed", state="closed", close_reason="recovered"))
    assert node_check(kafka_bootstrap, topics.prefix, "--host", "node-1") == healthy


@pytest.mark.parametrize(("bootstrap", "prefix", "text"), [
    ("127.0.0.1:1", "x.", "not known: Kafka at 127.0.0.1:1 must answer"),
    (None, "nowhere.", "not known: topics mus"),
])  # fmt: skip
def test_node_check_says_in_time_that_it_learns_nothing(
    kafka_bootstrap: str, bootstrap: str | None, prefix: str, text: str
) -> None:
    began_s = time.monotonic()
    status, out, errors = node_check(bootstrap or kafka_bootstrap, prefix, "--within-s", "2")
    assert (status, out[: len(text)], errors) == (2, text, "")
    assert len(out.strip()) <= 80
    assert time.monotonic() - began_s < 50.0  # 2 s, and what a busy machine takes to start Python
