"""Apache Kafka as the tests run it: what it promises them."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from irregulars.errors import InputError, ServiceUnavailable
from irregulars.infra.runs.child_process import HOST, free_port
from tests.apache_kafka.broker import KafkaBroker
from tests.infra.processes import first_line, is_alive, run_parent, wait_until

pytestmark = pytest.mark.integration
DEADLINE_S = 30.0


def create_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)


def send(bootstrap: str, topic: str, values: range, compression: str = "none") -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "compression.type": compression})
    for value in values:
        producer.produce(topic, str(value).encode())
    assert producer.flush(DEADLINE_S) == 0


def read(bootstrap: str, topic: str, count: int, isolation: str = "read_committed") -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "isolation.level": isolation})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, DEADLINE_S)
    consumer.close()
    return [int(value) for message in messages if (value := message.value()) is not None]


@pytest.mark.parametrize("end", [KafkaBroker.stop, KafkaBroker.kill])
def test_address_and_acknowledged_messages_survive_a_restart(
    kafka_broker: KafkaBroker, topic_prefix: str, end: Callable[[KafkaBroker], None]
) -> None:
    topic, before = topic_prefix + "kept", kafka_broker.bootstrap
    create_topic(before, topic)
    send(before, topic, range(100))
    old = kafka_broker.pid
    end(kafka_broker)
    end(kafka_broker)
    assert old is not None
    assert not is_alive(old)
    kafka_broker.start()
    assert kafka_broker.bootstrap == before
    assert read(before, topic, 100) == list(range(100))


def test_consumer_groups_and_transactions_work(kafka_broker: KafkaBroker, topic_prefix: str) -> None:
    topic, address = topic_prefix + "transactions", {"bootstrap.servers": kafka_broker.bootstrap}
    create_topic(kafka_broker.bootstrap, topic)
    producer = Producer({**address, "transactional.id": topic_prefix})
    producer.init_transactions(DEADLINE_S)
    for value, is_kept in ((1, False), (2, True)):
        producer.begin_transaction()
        producer.produce(topic, str(value).encode())
        (producer.commit_transaction if is_kept else producer.abort_transaction)(DEADLINE_S)
    consumer = Consumer({**address, "group.id": topic_prefix, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(DEADLINE_S)
    assert message is not None
    assert message.value() == b"2"
    consumer.commit(message, asynchronous=False)
    consumer.close()


def test_a_topic_is_never_made_by_naming_it(kafka_bootstrap: str, topic_prefix: str) -> None:
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "message.timeout.ms": 2000})
    errors: list[KafkaError | None] = []
    producer.produce(topic_prefix + "typo", b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert len(errors) == 1
    assert errors[0] is not None
    assert topic_prefix + "typo" not in producer.list_topics(timeout=DEADLINE_S).topics


def test_data_stay_in_a_directory_that_was_given(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka") as broker:
        create_topic(broker.bootstrap, "t")
        send(broker.bootstrap, "t", range(3))
        with pytest.raises(InputError, match="port of Apache Kafka must be free"):
            KafkaBroker(port=int(broker.bootstrap.rpartition(":")[2])).start()
    assert not broker.is_running
    with KafkaBroker(tmp_path / "kafka") as again:  # at another address
        assert read(again.bootstrap, "t", 3) == [0, 1, 2]


def test_a_killed_broker_leaves_nothing_outside_of_its_directory(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path) as broker:
        create_topic(broker.bootstrap, "t")
        send(broker.bootstrap, "t", range(1000), "lz4")  # which the broker needs a native library to check
        broker.kill()
        assert list((tmp_path / "tmp").glob("*.so")), "Java unpacks its native libraries somewhere else"
        broker.start()
        assert len(list((tmp_path / "tmp").glob("*.so"))) <= 1, "what a killed broker left has piled up"


def test_a_second_broker_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path) as broker:
        before = (tmp_path / "server.properties").read_bytes()
        with pytest.raises(InputError, match="data directory must not be in use; got one that another process holds"):
            KafkaBroker(tmp_path).start()
        assert (tmp_path / "server.properties").read_bytes() == before
        broker.kill()
        broker.start()


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"^data directory of Apache Kafka must be writable; got "):
        KafkaBroker(tmp_path / "file" / "data").start()


def test_storage_that_cannot_be_formatted_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way")
    with pytest.raises(ServiceUnavailable, match=r"Kafka must format its storage; got .+") as caught:
        KafkaBroker(tmp_path).start()
    assert "\n" not in str(caught.value)


def test_ctrl_c_and_kill_of_the_parent_leave_no_broker_behind(tmp_path: Path) -> None:
    for end in (signal.SIGINT, signal.SIGKILL):
        parent = run_parent(
            "import pathlib, time; from tests.apache_kafka.broker import KafkaBroker\n"
            f"with KafkaBroker(pathlib.Path({str(tmp_path)!r})) as broker:\n"
            "    print(broker.pid, flush=True); time.sleep(60)"
        )
        with parent:
            broker = int(first_line(parent))
            parent.send_signal(end)
        assert wait_until(lambda pid=broker: not is_alive(pid))  # type: ignore[misc]


def test_a_client_without_broker_is_not_kept_waiting(kafka_broker: KafkaBroker) -> None:
    kafka_broker.stop()
    admin = AdminClient({"bootstrap.servers": f"{HOST}:{free_port()}", "log_level": 0})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.5)
    assert not kafka_broker.is_running
