"""How a worker makes its monitors, and brings them back from their states."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from irregulars.detectors.plugins.peers import PeerDeviation
from irregulars.detectors.plugins.protocol import has_state, name_of
from irregulars.messages.judgements import Verdict
from irregulars.sinks.alerts import alert_of
from irregulars.streams.health.watchdog import Limits
from irregulars.streams.job_hop.job_monitor import JobMonitor, JobMonitorState
from irregulars.streams.rank_hop.group_monitor import GroupMonitor, GroupMonitorState
from irregulars.streams.snapshots.records import EncodedState, decode_monitor
from irregulars.streams.stages.rank_stage import MakeRankMonitor
from irregulars.streams.worker_settings import WorkerSettings

LOG: Final = logging.getLogger("irregulars.worker")


@dataclass(frozen=True, slots=True)
class Monitors:
    """The objects that the stages feed, as functions that make them.

    `make_rank`, `make_job`: new ones: of job and partition; of a job.
    `restore_rank`, `restore_job`: those of an encoded ``state()``; raise `RecordError` where it can't be read.
    """

    make_rank: MakeRankMonitor
    restore_rank: Callable[[EncodedState], GroupMonitor]
    make_job: Callable[[str], JobMonitor]
    restore_job: Callable[[EncodedState], JobMonitor]
    # The encoded alert of a verdict's revision; `None` where the policy keeps quiet
    alert_of: Callable[[Verdict], bytes | None] = alert_of
    limits: Limits = field(default_factory=Limits)  # how long, and how large, their work may be


def make_monitors(settings: WorkerSettings) -> Monitors:
    """Return the real monitors, as `settings` say."""
    own = settings.judge
    # Say once, when the worker starts, which detectors begin cold after each restart.
    for make in (*own.operator_detectors, *own.rank_detectors):
        detector = make()
        if not has_state(detector) and not isinstance(getattr(detector, "detector", None), PeerDeviation):
            LOG.warning("event=detector_without_state detector=%s begins=cold", name_of(detector))

    def restore_job(value: EncodedState) -> JobMonitor:
        state = decode_monitor(value, JobMonitorState)
        monitor = JobMonitor.from_state(state, own)
        for name in monitor.cold_detectors:
            LOG.warning("event=detector_begun_cold detector=%s job=%r reason=%r", name, state.job,
                        "its state was too large, or it did not take it")  # fmt: skip
        return monitor

    return Monitors(
        make_rank=lambda job, partition: GroupMonitor(job, own, partition=partition),
        restore_rank=lambda value: GroupMonitor.from_state(decode_monitor(value, GroupMonitorState), own),
        make_job=partial(JobMonitor, settings=own),
        restore_job=restore_job,
        alert_of=partial(alert_of, least_severity=settings.alert_least_severity),
    )
