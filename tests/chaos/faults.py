"""The faults, each a function that makes it, waits, and mends it. They return what they did, in a few words."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from confluent_kafka import Producer

from irregulars.kafka.log_reader import LogReader
from tests.chaos.surroundings import Gate, can_compile, can_mount
from tests.chaos.system import System

Fault = Callable[[System], str]

PAUSE_PAST_SESSION_S: Final = 8.0
"""By how much a worker's pause exceeds the session after which others take its partitions."""

COPIED: Final = 200  # messages that come a second time, in another order


def kill_worker(system: System) -> str:
    """Kill -9, and a new one comes at once."""
    system.take_worker().kill()
    system.start_worker()
    return "one of the workers"


def stop_worker(system: System) -> str:
    """SIGTERM, as in a rolling upgrade."""
    began_s = time.monotonic()
    status = system.take_worker().stop(60)
    system.start_worker()
    return f"status {status} after {time.monotonic() - began_s:.1f} s"


def join_and_leave(system: System) -> str:
    """One worker more for a while."""
    system.start_worker()
    time.sleep(12)
    return f"one more for 12 s, then {stop_one_for_good(system)}"


def stop_one_for_good(system: System) -> str:
    """SIGTERM, and nobody comes in its place."""
    return f"status {system.take_worker().stop(60)}"


def pause_worker(system: System) -> str:
    """A worker stands still for longer than its session, and goes on with partitions that others have by then."""
    pause_s = system.settings.session_s + PAUSE_PAST_SESSION_S
    with system.random.choice(system.workers).suspended():
        time.sleep(pause_s)
    return f"{pause_s:.0f} s"


def kill_broker(system: System) -> str:
    """Kill -9 of one of three, which comes back on its data."""
    node = system.random.choice(system.cluster.nodes)
    node.kill()
    time.sleep(5)
    node.start()
    return f"broker {node.number}, away for 5 s"


def bounce_broker(system: System) -> str:
    """An ordered stop and start of one of three."""
    node = system.random.choice(system.cluster.nodes)
    node.stop()
    node.start()
    return f"broker {node.number}"


def database_away(system: System) -> str:
    """Kill -9 of the database, which comes back on its data."""
    away_s = system.random.choice((5, 60, 300))
    system.database.kill()
    time.sleep(away_s)
    start_database(system)
    return f"{away_s} s"


def start_database(system: System) -> None:
    system.database.start()
    system.database_gate.target = port_of(system.database.url)  # it may have another one now


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def trouble(system: System, gates: Sequence[Gate], begin: Callable[[Gate], None], seconds: float) -> None:
    """Let gates be in trouble for a while."""
    for gate in gates:
        begin(gate)
    time.sleep(seconds)
    for gate in gates:
        system.gates.mend(gate)


def cut_network(system: System) -> str:
    """No client reaches one of the brokers; brokers reach one another."""
    trouble(system, [system.random.choice(system.cluster.gates)], system.gates.cut, 10)
    return "one broker for 10 s"


def cut_all_networks(system: System) -> str:
    """No client reaches any broker."""
    trouble(system, system.cluster.gates, system.gates.cut, 20)
    return "all brokers for 20 s"


def silent_network(system: System) -> str:
    """Nothing comes from one of the brokers, and no connection breaks: clients must give up by themselves."""
    trouble(system, [system.random.choice(system.cluster.gates)], system.gates.silence, 30)
    return "one broker for 30 s"


def part_brokers(system: System) -> str:
    """The other brokers no longer reach one of them, neither its copies nor its controller; clients do."""
    number = system.random.randrange(len(system.cluster.nodes))
    trouble(system, system.cluster.inner_gates[number], system.gates.cut, 20)
    return f"broker {system.cluster.nodes[number].number}, for 20 s"


def full_disk_of_a_broker(system: System) -> str:
    """One of three brokers can't write; where it ends by that, it comes back once there is room."""
    node = system.random.choice(system.cluster.nodes)
    disk = system.disks[f"kafka-{node.number}"]
    disk.fill()
    time.sleep(15)
    disk.mend()
    ended = not node.is_running
    node.start()
    return f"broker {node.number}, for 15 s{', which ended' * ended}"


_ROOM_FOR_MERGES_BYTES: Final = 128 << 20  # of the 256 MiB below which tables take no rows


def full_disk_of_the_database(system: System) -> str:
    """The database has no room for new rows, and some for its merges: it breaks parts where these meet the end."""
    system.disks["database"].fill(_ROOM_FOR_MERGES_BYTES)
    time.sleep(30)
    system.disks["database"].mend()
    if ended := not system.database.is_running:
        start_database(system)
    return f"30 s{', and it ended' * ended}"


def clock_step(system: System) -> str:
    """The time of day of one worker's host steps by an hour, and a while later back."""
    seconds = system.random.choice((-3600, 3600))
    clock = system.clocks[system.random.choice(system.workers)]
    clock.step(seconds)
    time.sleep(15)
    clock.step(0)
    return f"{seconds:+d} s for 15 s"


def cut_database(system: System) -> str:
    """The database runs, and nobody reaches it."""
    trouble(system, [system.database_gate], system.gates.cut, 15)
    return "15 s"


def slow_network(system: System) -> str:
    """Each piece of data to and from the brokers takes a fifth of a second longer."""
    trouble(system, system.cluster.gates, partial(system.gates.slow, delay_s=0.2), 10)
    return "200 ms for 10 s"


def copies_in_another_order(system: System) -> str:
    """Messages that were published come once more, late and shuffled."""
    name = system.settings.topics().name("commops")
    reader = LogReader(system.cluster.direct, {})
    producer = Producer({"bootstrap.servers": system.cluster.direct})
    try:
        found = [m for partition in reader.partitions(name) for m in reader.read_tail(name, partition)]
        chosen = system.random.sample(found, min(COPIED, len(found)))
        for message in chosen:
            producer.produce(name, message.value(), message.key(), message.partition())
        producer.flush(30)
    finally:
        reader.close()
    return f"{len(chosen)} of {len(found)} messages of commops"


def overload(system: System) -> str:
    """Ten jobs at once, as fast as Kafka goes."""
    for _ in range(10):
        system.start_job(speed=0.0)
    return "10 jobs"


FAULTS: Final[dict[str, Fault]] = {
    fault.__name__.replace("_", " "): fault
    for fault in (
        kill_worker, stop_worker, join_and_leave, pause_worker, kill_broker, bounce_broker, database_away,
        cut_network, cut_all_networks, cut_database, slow_network, silent_network, part_brokers,
        full_disk_of_a_broker, full_disk_of_the_database, clock_step, copies_in_another_order, overload,
    )
}  # fmt: skip


def possible(brokers: int) -> tuple[list[str], list[str]]:
    """Return which faults this machine and so many brokers allow, and why not the others."""
    why = {
        **{name: "needs several brokers" for name in FAULTS if "broker" in name and brokers < 2},
        **{name: "needs root, who may mount a disk" for name in FAULTS if "disk" in name and not can_mount()},
    }
    if not can_compile():
        why["clock step"] = "needs a C compiler (Debian: apt-get install gcc)"
    return [name for name in FAULTS if name not in why], [f"{name}: {words}" for name, words in sorted(why.items())]
