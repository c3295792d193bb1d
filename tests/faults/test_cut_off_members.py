"""A worker loses its broker, or a partition its leader: it lets go within its session, and holds nobody up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from faust.types import TP

from irregulars.streams.faust_driver import group_member
from irregulars.streams.faust_driver.group_member import GroupMember
from irregulars.streams.worker_settings import WorkerSettings
from tests.chaos.surroundings import Gates
from tests.chaos.system import KafkaCluster
from tests.integration.worker_runs import SESSION_S, Bus, Job, StartWorker, require_each_once, wait_until
from tests.waiting import until

pytestmark = pytest.mark.integration
REBALANCE_S = 25.0  # the start of a worker, and one turn of its group
LATE_S = 24.0  # for one turn of `poll`, and for a busy machine; who does not let go keeps them until the mending


@pytest.fixture(scope="module")
def gates() -> Iterator[Gates]:
    """Between workers and brokers."""
    with Gates() as gates:
        yield gates


@pytest.fixture(scope="module")
def cluster(gates: Gates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Two brokers, each behind a gate; `cluster.direct` leads past the gates."""
    with KafkaCluster(2, tmp_path_factory.mktemp("cluster"), gates) as cluster:
        yield cluster


@pytest.fixture
def kafka_bootstrap(cluster: KafkaCluster) -> str:
    """What tests watch is not cut off."""
    return cluster.direct


class Member:
    """A member of the group that remembers when it lost its partitions."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.member = GroupMember(WorkerSettings(bootstrap, group=group, session_s=SESSION_S), self)
        self.lost_s: float | None = None
        self.failures: list[BaseException] = []
        self.error_of_assigned: Exception | None = None

    async def revoked(self, own: set[TP], *, is_lost: bool) -> None:
        if is_lost and self.lost_s is None:
            self.lost_s = time.monotonic()

    async def assigned(self, own: set[TP]) -> None:
        if self.error_of_assigned is not None:
            raise self.error_of_assigned

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)


@asynccontextmanager
async def joined(bootstrap: str, group: str, topic: str, member: Member | None = None) -> AsyncIterator[Member]:
    own = member or Member(bootstrap, group)
    own.member.start()
    own.member.subscribe([topic])
    try:
        yield own
    finally:
        await asyncio.to_thread(own.member.close, 1.0)


@pytest.fixture
def topic(cluster: KafkaCluster, topic_prefix: str) -> str:
    """A topic with one copy of each partition: partition 0 on the first broker, 1 on the second."""
    admin = AdminClient({"bootstrap.servers": cluster.direct})
    name = f"{topic_prefix}commops"
    assignment = [[1], [2]]
    admin.create_topics([NewTopic(name, 2, replica_assignment=assignment)])[name].result(60.0)
    return name


def group_on(cluster: KafkaCluster, prefix: str, broker: int) -> str:
    """Return a group that this broker coordinates: the other one may then be silent."""
    admin = AdminClient({"bootstrap.servers": cluster.direct})
    names = [f"{prefix}group-{number}" for number in range(32)]
    found: list[str] = []

    def look() -> bool:
        with suppress(KafkaException):  # a new cluster makes the topic of the coordinators at the first question
            asked = admin.describe_consumer_groups(names)
            found.extend(name for name, one in asked.items() if one.result(60.0).coordinator.id == broker)
        return bool(found)

    wait_until(look, f"one of {len(names)} groups on broker {broker}")
    return found[0]


def test_leaders_may_fall_silent(cluster: KafkaCluster, gates: Gates, bus: Bus, start_worker: StartWorker) -> None:
    """A worker that asks where its partitions end, and waits for the answer, still gives them back when it must."""
    job = Job(bus, "silent-leader", ranks=4)
    job.begin(20)
    settings = {"bootstrap": cluster.bootstrap, "group": group_on(cluster, bus.topics.prefix, broker=1)}
    first = start_worker(**settings)
    wait_until(lambda: len(bus.verdict_ids()) >= 4 * 18, "verdicts before")
    gates.silence(cluster.gates[1])
    try:
        time.sleep(3.0)  # for a question that waits
        was_revoked = first.output().count("event=revoked")
        began_s = time.monotonic()
        second = start_worker(**settings)
        wait_until(lambda: first.output().count("event=revoked") > was_revoked, "a rebalance")
        assert time.monotonic() - began_s < REBALANCE_S
    finally:
        gates.mend(cluster.gates[1])
    job.finish(20)
    wait_until(lambda: set(bus.verdict_ids()) >= job.wanted_ids(), "all verdicts")
    assert second.stop() == 0
    require_each_once(bus, job.wanted_ids(), first)


@pytest.mark.parametrize("how", ["cut", "silence"])
def test_a_member_that_is_cut_off_loses_its_partitions_within_its_session(
    cluster: KafkaCluster, gates: Gates, topic: str, topic_prefix: str, how: str
) -> None:
    async def run() -> None:
        async with joined(cluster.bootstrap, f"{topic_prefix}{how}", topic) as own:
            await until(lambda: len(own.member.own) == 2)
            for gate in cluster.gates:
                getattr(gates, how)(gate)
            began_s = time.monotonic()
            try:
                await until(lambda: own.lost_s is not None)
                assert own.lost_s is not None
                assert own.lost_s - began_s < SESSION_S + LATE_S
            finally:
                for gate in cluster.gates:
                    gates.mend(gate)
            await until(lambda: len(own.member.own) == 2)

    asyncio.run(run())


def test_a_member_that_slept_for_a_session_gives_up_what_it_had_and_joins_anew(
    cluster: KafkaCluster, topic: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asleep, may_wake = threading.Event(), threading.Event()

    class Sleeper(Consumer):
        def poll(self, timeout: float = -1.0) -> Any:
            if is_asleep.is_set():
                may_wake.wait()
                is_asleep.clear()
            return super().poll(timeout)

    monkeypatch.setattr(group_member, "new_consumer", Sleeper)

    async def run() -> None:
        async with joined(cluster.bootstrap, f"{topic_prefix}asleep", topic) as own:
            await until(lambda: len(own.member.own) == 2)
            is_asleep.set()
            await until(lambda: own.member.silent_s > SESSION_S)
            may_wake.set()
            await until(lambda: own.lost_s is not None)
            await until(lambda: len(own.member.own) == 2)

    asyncio.run(run())


def test_work_that_fails_in_a_rebalance_is_told(cluster: KafkaCluster, topic: str, topic_prefix: str) -> None:
    async def run() -> None:
        member = Member(cluster.bootstrap, f"{topic_prefix}failing")
        member.error_of_assigned = TimeoutError("of the work, not of the waiting for it")
        async with joined(cluster.bootstrap, f"{topic_prefix}failing", topic, member) as own:
            await until(lambda: bool(own.failures))
            assert repr(own.failures[0]) == repr(member.error_of_assigned)

    asyncio.run(run())


@pytest.mark.parametrize("how", ["cut", "silence"])
def test_a_worker_that_is_cut_off_lets_go_and_says_nothing_twice(
    cluster: KafkaCluster, gates: Gates, bus: Bus, start_worker: StartWorker, how: str
) -> None:
    """Another worker, whose network is sound, takes over meanwhile."""
    job = Job(bus, f"cut-off-{how}", ranks=4)
    job.begin(20)
    cut_off = start_worker(bootstrap=cluster.bootstrap)
    sound = start_worker()
    wait_until(lambda: len(bus.verdict_ids()) >= 4 * 18, "verdicts before")
    wait_until(lambda: all("event=restored" in one.output() for one in (cut_off, sound)), "both workers' partitions")
    was_revoked = cut_off.output().count("event=revoked")
    for gate in cluster.gates:
        getattr(gates, how)(gate)
    began_s = time.monotonic()
    try:
        wait_until(lambda: cut_off.output().count("event=revoked") > was_revoked, "letting go")
        assert time.monotonic() - began_s < SESSION_S + LATE_S
        for _ in range(7):  # while it is still cut off
            job.run(4)
            bus.flush()
            time.sleep(2.0)
    finally:
        for gate in cluster.gates:
            gates.mend(gate)
    job.finish()
    wait_until(lambda: set(bus.verdict_ids()) >= job.wanted_ids(), "all verdicts")
    assert cut_off.is_running, cut_off.output()
    assert cut_off.stop() == 0
    require_each_once(bus, job.wanted_ids(), sound)
