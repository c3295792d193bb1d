"""Puts a node's agent together: sources, devices, spool, metrics."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

from irregulars import stopping
from irregulars.errors import InputError
from irregulars.infra.agent_settings import AgentFile, open_source
from irregulars.infra.runs.data_directory import lock_directory
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import agent_settings, kafka_security
from irregulars.kafka.alert_feed import follow_alerts
from irregulars.messages.records import BATCH_SCHEMAS
from irregulars.private_files import make_private_directory
from irregulars.producers.importers.fabric import read_fabric
from irregulars.producers.node.device_source import DeviceSource, Feed
from irregulars.producers.node.events import ErrorFiles, NodeEvents
from irregulars.producers.node.kernel_log import Devices, KernelLog, parse_line
from irregulars.producers.node.metrics import AgentState, serve_metrics
from irregulars.producers.node.nic_feed import NicFeed, NicSampler
from irregulars.producers.node.node_source import NodeSource
from irregulars.producers.node.roster import Owner, Roster
from irregulars.producers.node.slurm_log import SlurmLines
from irregulars.producers.node.stacks import StackWatch, find_py_spy
from irregulars.producers.node.sysfs import find_gpus, find_nic, find_nics, nearest_nics
from irregulars.producers.publishing.agent import Agent, Progress
from irregulars.producers.publishing.publisher import AgentSettings
from irregulars.producers.publishing.sources import Source
from irregulars.producers.publishing.spooling_publisher import SpoolingPublisher, SpoolSettings

_LOG: Final = logging.getLogger("irregulars.agent")
_TOPICS: Final = ("jobs", *BATCH_SCHEMAS, "heartbeats")
_MIB: Final = 1 << 20


@stopping.held()
def run_node_agent(settings: Settings, file: AgentFile) -> Progress:
    """Run a node's agent until a signal asks to stop.

    Raises `InputError` if a source, the spool or the metrics' address is unusable: before anything is published.
    Raises `ServiceRefused`, `TopicMismatch` if Kafka answers, and refuses us or lacks topics. While it does not
    answer, messages wait.
    """
    with ExitStack() as stack:
        # First of all: a second agent must find the lock before it opens a source or the spool.
        stack.callback(os.close, _locked(file))
        devices = _Devices(file)
        stack.callback(devices.source.close)
        opened: dict[str, Source] = {}
        for table in file.sources:
            opened[table.name] = open_source(table, file.spool.directory / "sources")
            stack.callback(opened[table.name].close)
        source = NodeSource(opened, devices.roster, devices.source)
        if file.stacks.enabled:
            _look_into_processes(settings, source, devices, is_profiling=file.stacks.profiler)
        state = AgentState(source, devices.roster)
        # Before the first message: an address that is taken ends the agent while nothing is published.
        if file.metrics.enabled:
            stack.callback(serve_metrics(state, file.metrics.host, file.metrics.port).close)
        spool = SpoolSettings(
            file.spool.directory / "messages", file.spool.limit_mib * _MIB, file.spool.memory_mib * _MIB,
            file.spool.final_s,
        )  # fmt: skip

        def make_publisher(own: AgentSettings) -> SpoolingPublisher:
            state.publisher = SpoolingPublisher(own, spool)
            return state.publisher

        # The agent's end is not that of its ranks: they train on, and the next agent goes on for them.
        agent = Agent(
            state.source,
            replace(agent_settings(settings, is_asking=False), heartbeat_s=file.agent.heartbeat_s, linger_ms=200.0),
            state.note,
            topics=_TOPICS,
            make_publisher=make_publisher,
            idle_s=file.agent.poll_ms / 1000,
            ends_ranks=False,
        )
        _LOG.info("event=agent_started sources=%s gpus=%d", ",".join(source.names) or "none", devices.gpu_count)
        with stopping.on_stop(agent.stop):
            return agent.run()


class _Devices:
    """The sampled devices of this node."""

    def __init__(self, file: AgentFile) -> None:
        sysfs = file.agent.sysfs
        self.gpu_count = 0
        self.host = file.agent.host or socket.gethostname()
        if file.gpus.enabled:
            from irregulars.producers.node.gpu import count_gpus

            self.gpu_count = count_gpus()
        nics = {name: nic.place for name, nic in find_nics(sysfs).items() if nic.place is not None}
        fabric = None
        if file.agent.fabric is not None:
            fabric = read_fabric(file.agent.fabric)
            counts = len(fabric.leaf_of), len(fabric.above), sum(fabric.skipped.values())
            _LOG.info("event=fabric_read nics=%d switches_below_others=%d skipped=%d", *counts)
        self.roster = Roster(
            self.host,
            nearest_nics(find_gpus(sysfs), nics),
            range(self.gpu_count),
            is_sampling_nics=file.nics.enabled,
            fabric=fabric,
        )
        for rank in file.ranks:
            self.roster.assign(Owner(rank.job, rank.attempt, rank.rank), rank.gpu, rank.nic)
        feeds: list[Feed] = []
        if file.nics.enabled:
            sampler = NicSampler(file.nics.period_ms / 1000)
            feeds.append(NicFeed(self.roster, partial(find_nic, sysfs=sysfs), sampler))
        events = _events(file, self.roster)
        if self.gpu_count == 0:
            self.source = DeviceSource(feeds, owners=lambda: self.roster.owners, events=events)
            return
        from irregulars.producers.node.gpu import GpuFeed

        gpus = GpuFeed(self.roster, file.gpus.period_s)
        self.source = DeviceSource([*feeds, gpus], gpus.take_health, owners=lambda: self.roster.owners, events=events)


def _events(file: AgentFile, roster: Roster) -> NodeEvents | None:
    if not file.events.enabled:
        return None
    sysfs = file.agent.sysfs
    gpus = {index: place.path[-1] for index, place in find_gpus(sysfs).items()}
    nics = {name: nic.place.path[-1] for name, nic in find_nics(sysfs).items() if nic.place is not None}
    errors = None if file.events.error_files is None else ErrorFiles(file.events.error_files)
    host = file.agent.host or socket.gethostname()
    parsers = ((file.events.kernel_log, parse_line), (file.events.slurm_log, SlurmLines(host)))
    logs = [KernelLog(path, parse=parse) for path, parse in parsers if path is not None]
    return NodeEvents(roster, host, Devices(gpus, nics), sysfs, logs, error_files=errors)


def _look_into_processes(settings: Settings, source: NodeSource, devices: _Devices, *, is_profiling: bool) -> None:
    py_spy = find_py_spy()
    if py_spy is None:
        _LOG.info("event=no_py_spy effect='no stacks are taken'")
        return
    security = kafka_security(settings, is_asking=False)

    def alerts() -> Iterator[bytes]:
        return follow_alerts(settings.kafka_bootstrap, settings.topics(), security, is_over=lambda: stacks.is_over)

    stacks = StackWatch(alerts, source.processes, devices.host, py_spy, is_profiling=is_profiling)
    devices.source.look_into(stacks)


def _locked(file: AgentFile) -> int:
    """Keep a second agent out of the spool, until the descriptor is closed that is returned."""
    directory = file.spool.directory
    try:
        make_private_directory(directory)
        return lock_directory(directory)
    except OSError as error:
        text = f"spool directory must be one that we can write; got {error.strerror} ({directory})"
        raise InputError(text) from error
