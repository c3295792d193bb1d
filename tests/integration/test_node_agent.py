"""``irregulars agent`` as a process: real Kafka, a stub of NVML, a tree like sysfs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from irregulars.infra.runs.child_process import free_port
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.bundles import decode_batches, decode_rows
from irregulars.messages.records import PATHS
from irregulars.producers.publishing.publisher import AgentSettings
from irregulars.producers.trace.directory import read_trace
from tests import warm
from tests.apache_kafka.broker import KafkaBroker
from tests.benchmarks.agent_load import make_sysfs
from tests.integration.pipelines import Pipeline
from tests.integration.test_agent import PARTITIONS, Published, read_messages, read_topics
from tests.integration.worker_runs import Bus, page_of, wait_until
from tests.producers.node.nvml_stub import build_stub
from tests.producers.node.sysfs_trees import Sysfs
from tests.producers.trace_directories import RECORDINGS

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
RECORDING = RECORDINGS / "gloo-slow-nic"
DEADLINE_S = 60.0


@pytest.fixture
def settings(kafka_bootstrap: str, topic_prefix: str) -> AgentSettings:
    topics = TopicSettings(topic_prefix, PARTITIONS)
    create_topics(kafka_bootstrap, topics)
    return AgentSettings(kafka_bootstrap, topics)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("nvml"))


class AgentProcess:
    def __init__(self, process: subprocess.Popen[str], metrics_port: int) -> None:
        self.process, self.metrics_port = process, metrics_port
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def metric(self, name: str) -> float:
        text = page_of(f"http://127.0.0.1:{self.metrics_port}/metrics")[1]  # none where it is not up yet
        found = re.search(rf"^irregulars_agent_{name} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else float("nan")

    def wait_for(self, found: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not found():
            assert time.monotonic() < deadline_s, self.log
            assert self.process.poll() is None, self.log
            time.sleep(0.1)

    def end(self) -> tuple[int, list[str]]:
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=DEADLINE_S)
        self._reader.join()
        return status, self.log


@contextmanager
def agent(directory: Path, settings: AgentSettings, tables: str, stub: Path | None = None) -> Iterator[AgentProcess]:
    port = free_port()
    file = directory / "agent.toml"
    file.write_text(
        f'kafka_bootstrap = "{settings.bootstrap}"\ntopic_prefix = "{settings.topics.prefix}"\n'
        f'[agent]\nhost = "node-3"\nsysfs = "{directory / "sys"}"\n'
        f'[metrics]\nport = {port}\n[spool]\ndirectory = "{directory / "spool"}"\nmemory_mib = 2\nfinal_s = 20\n'
        + tables
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if stub is not None:
        environment |= {"LD_LIBRARY_PATH": str(stub.parent), "NVML_STUB_GPUS": "4"}
    command = [sys.executable, "-m", "irregulars", "agent", str(file)]
    start = subprocess.Popen if stub else warm.Popen  # the loader reads its path at the start of a process
    with start(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield AgentProcess(process, port)
        finally:
            process.kill()


@contextmanager
def growing(counters: Path) -> Iterator[None]:
    """Count 4,000,000 bytes a second both ways, in InfiniBand's words of 4, while the block runs."""
    stop = threading.Event()

    def grow() -> None:
        began_s = time.monotonic()
        while not stop.wait(0.002):
            count = int((time.monotonic() - began_s) * 1e6)
            for name in ("port_xmit_data", "port_rcv_data"):
                with (counters / name).open("r+") as file:  # in place, as in sysfs: the agent keeps it open
                    file.write(f"{count}\n")

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def samples(published: Published, rank: int, path: str) -> dict[str, np.ndarray]:
    rows = published.rows("bandwidth", rank)
    own = rows["path"] == PATHS.index(path)
    return {name: column[own] for name, column in rows.items()}


def test_a_node_s_devices_and_operators_travel_together(settings: AgentSettings, stub: Path, tmp_path: Path) -> None:
    make_sysfs(tmp_path / "sys", 4)
    source = '[[sources]]\nkind = "tests.benchmarks.agent_load:Operators"\nranks = 4\nper_s = 1000\n'
    with agent(tmp_path, settings, f"[gpus]\nperiod_s = 0.2\n{source}", stub) as running:
        running.wait_for(lambda: running.metric("delivered_messages_total") >= 20)
        assert [running.metric(name) for name in ("gpus", "nics", "sources")] == [4, 4, 1]
        status, log = running.end()
    assert status == 0
    assert [line for line in log if "level=WARNING" in line or "Traceback" in line] == []
    published = read_topics(settings)
    sources = ("commops", "bandwidth", "gpu_health")
    announced = {(a.rank, a.host, a.sources) for a in published.announcements}
    assert announced == {(rank, "node-3", sources) for rank in range(4)}
    for rank in range(4):
        sequence = published.rows("commops", rank)["sequence"]
        np.testing.assert_array_equal(sequence, np.arange(len(sequence)))
        assert len(samples(published, rank, "nic")["time_ns"]) > 100
        assert set(samples(published, rank, "pcie")["tx_bytes_per_s"]) == {900.0 * (1 << 20)}
        last = published.heartbeats[rank][-1]
        assert (last.state, last.sources["commops"].rows) == ("running", len(sequence))
    health = [one for m in read_messages(settings, "gpu_health") for one in decode_batches(m.value(), "gpu_health")]
    named = {(b.header.rank, b.header.names[code]) for b in health for code in b.columns["device"].tolist()}
    assert named == {(rank, f"gpu{rank}") for rank in range(4)}
    assert {clock for batch in health for clock in batch.columns["sm_clock_mhz"].tolist()} == {1980.0}


def test_ranks_of_the_file_share_the_nearest_nic(settings: AgentSettings, stub: Path, tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path / "sys")
    for device in range(4):
        sysfs.gpu("0000:00:01.0", f"0000:1{device}:00.0")
    counters = sysfs.rdma("mlx5_0", sysfs.pci("0000:00:01.0", "0000:20:00.0"))
    ranks = "".join(f"[[ranks]]\njob = 'j'\nrank = {rank}\ngpu = {rank - 8}\n" for rank in (8, 9, 10, 11))
    with growing(counters), agent(tmp_path, settings, f"[gpus]\nperiod_s = 0.2\n{ranks}", stub) as running:
        running.wait_for(lambda: running.metric("delivered_messages_total") >= 20)
        assert running.end()[0] == 0
    published = read_topics(settings)
    nic = samples(published, 8, "nic")
    assert len(nic["time_ns"]) > 100
    whole_s = (nic["time_ns"][-1] - nic["time_ns"][0]) / 1e9
    sent = np.nansum(nic["tx_bytes_per_s"][1:] * np.diff(nic["time_ns"]) / 1e9)
    assert sent / whole_s == pytest.approx(4e6, rel=0.2)
    for rank in (9, 10, 11):
        assert len(samples(published, rank, "pcie")["time_ns"]) > 0
        assert len(samples(published, rank, "nic")["time_ns"]) == 0, "a shared NIC is one device"


def test_without_kafka_at_the_start_all_waits(kafka_broker: KafkaBroker, topic_prefix: str, tmp_path: Path) -> None:
    settings = AgentSettings(kafka_broker.bootstrap, TopicSettings(topic_prefix, PARTITIONS))
    create_topics(settings.bootstrap, settings.topics)
    kafka_broker.kill()
    tables = f'[gpus]\nenabled = false\n[[sources]]\nkind = "replay"\ndirectory = "{RECORDING}"\nspeed = 0\n'
    with agent(tmp_path, settings, tables) as running:
        running.wait_for(lambda: running.metric("rows_total") == 4_825)
        assert running.metric("kafka_behind") == 1
        kafka_broker.start()
        running.wait_for(lambda: running.metric("kafka_behind") == 0)
        status, log = running.end()
    assert status == 0
    assert len([line for line in log if "event=kafka_away" in line]) == 1
    published = read_topics(settings)
    for rank, batch in read_trace(RECORDING).commops.items():
        np.testing.assert_array_equal(published.rows("commops", rank)["start_ns"], batch.columns["start_ns"])
    assert {beat.state for beats in published.heartbeats.values() for beat in beats} == {"running"}


def test_two_agents_do_not_share_a_spool(settings: AgentSettings, tmp_path: Path) -> None:
    with agent(tmp_path, settings, "[gpus]\nenabled = false\n") as running:
        running.wait_for(lambda: running.metric("sources") == 0)
        command = [sys.executable, "-m", "irregulars", "agent", str(tmp_path / "agent.toml")]
        second = warm.run(command, cwd=ROOT, timeout=60)
        assert second.returncode == 2
        assert "data directory must not be in use" in second.stderr
        assert len(second.stderr.splitlines()) == 1
        assert running.end()[0] == 0


def test_missing_topics_end_it_with_one_line(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> None:
    settings = AgentSettings(kafka_bootstrap, TopicSettings(topic_prefix))
    with agent(tmp_path, settings, "[gpus]\nenabled = false\n") as running:
        assert running.process.wait(timeout=DEADLINE_S) == 2
        running._reader.join()
        assert re.search(rf"missing: {topic_prefix}jobs, .*Run: irregulars topics create; or, ", running.log[-1])
        assert not [line for line in running.log if "Traceback" in line]


def test_the_state_of_gpus_stands_in_the_database(pipeline: Pipeline, stub: Path, tmp_path: Path) -> None:
    bus = pipeline.bus
    settings = AgentSettings(bus.bootstrap, bus.topics)
    source = '[[sources]]\nkind = "tests.benchmarks.agent_load:Operators"\nranks = 4\nper_s = 100\n'
    with agent(tmp_path, settings, f"[nics]\nenabled = false\n[gpus]\nperiod_s = 0.2\n{source}", stub) as running:
        worker = pipeline.start_worker()
        running.wait_for(lambda: states_on(bus) > 40)
        assert running.end()[0] == 0
    rows = states_on(bus)
    wait_until(lambda: bool(pipeline.query("EXISTS TABLE gpu_health")), "tables")
    wait_until(lambda: pipeline.count("gpu_health") == rows, "all states stored")
    assert pipeline.query("SELECT groupUniqArray(throttle_reasons) FROM gpu_health") == "['']"
    sampled = sum(len(decode_rows(message.value(), "bandwidth")) for message in bus.read("bandwidth"))
    wait_until(lambda: pipeline.count("bandwidth") == sampled, "all rates stored")
    assert worker.stop() == 0


def states_on(bus: Bus) -> int:
    messages = bus.read("gpu_health")
    return sum(len(one) for message in messages for one in decode_batches(message.value(), "gpu_health"))
