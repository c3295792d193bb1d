"""A GPU's error in the kernel's log of a node stands in the verdict on its rank, within seconds, and once."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from irregulars.producers.publishing.publisher import AgentSettings
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.source import TraceSource, moved, span_ns
from tests.integration.pipelines import Pipeline
from tests.integration.test_end_to_end import forget_snapshots
from tests.integration.test_node_agent import agent
from tests.integration.worker_runs import wait_until
from tests.producers.node.sysfs_trees import Sysfs
from tests.producers.trace_directories import RECORDINGS

pytestmark = pytest.mark.integration

RECORDING = RECORDINGS / "bench" / "ddp8-compute"  # rank 2 works longer from iteration 25 on, 2 s after the start
RANK = 2
NEWEST = "SELECT toString(max(stored_at)) FROM iterations"
MOST_S = 30.0  # from the line to the stored verdict; the fault begins 2 s after the line, or less


class OnOneHost(TraceSource):
    """Replays the recording as if it happened now, with all ranks on this node."""

    def __init__(self) -> None:
        trace = read_trace(RECORDING, without=("bandwidth",))
        span = span_ns(trace)
        assert span is not None
        places = [replace(one, host=None, gpu=one.rank, nic=None, switch=None) for one in trace.announcements]
        super().__init__(moved(replace(trace, announcements=tuple(places)), time.time_ns() - span[0]))


def test_an_xid_at_the_onset_of_a_slow_rank_is_evidence_of_its_verdict(pipeline: Pipeline, tmp_path: Path) -> None:
    sysfs, log = Sysfs(tmp_path / "sys"), tmp_path / "kmsg"
    for rank in range(8):
        sysfs.gpu("0000:00:01.0", f"0000:1{rank}:00.0")
    log.write_text("NVRM: Xid (PCI:0000:14:00): 79, an old line: of before the agent began\n")
    settings = AgentSettings(pipeline.bus.bootstrap, pipeline.bus.topics)
    tables = (
        f'[gpus]\nenabled = false\n[nics]\nenabled = false\n[events]\nkernel_log = "{log}"\n'
        '[[sources]]\nkind = "tests.integration.test_live_events:OnOneHost"\n'
    )
    worker = pipeline.start_worker(event_verdicts=("xid:79",))
    wait_until(lambda: bool(pipeline.query("EXISTS TABLE verdicts")), "tables")
    with agent(tmp_path, settings, tables) as running:
        running.wait_for(lambda: running.metric("rows_total") > 0)
        with log.open("a") as file:
            file.write("NVRM: Xid (PCI:0000:99:00): 79, of a device that is not here\n")
            file.write(f"NVRM: Xid (PCI:0000:1{RANK}:00): 79, pid=7, name=python, GPU has fallen off the bus.\n")
            file.write(f"NVRM: Xid (PCI:0000:1{RANK}:00): 45, pid=7, name=python, Ch 00000008\n")
        written_s = time.monotonic()
        stored = "SELECT count() FROM verdicts FINAL WHERE position(evidence, 'XID 79') > 0"
        wait_until(lambda: int(pipeline.query(stored)) > 0, "a stored verdict that names the XID")
        took_s = time.monotonic() - written_s
        assert running.end()[0] == 0
    print(f"stored {took_s:.1f} s after the line")
    assert took_s < MOST_S
    verdict = next(one for one in reversed(pipeline.revisions()) if "XID 79" in one.evidence and one.kind != "custom")
    assert (verdict.kind, verdict.suspects[0].device, verdict.suspects[0].rank) == ("slow_rank", "gpu", RANK)
    assert f"gpu{RANK} of rank {RANK} reported XID 79 (bus or device), followed by 45" in verdict.evidence
    assert verdict.explanation is not None
    assert [(one.kind, one.code, one.device) for one in verdict.explanation.reported] == [("xid", 79, f"gpu{RANK}")]
    # By itself it opened another one, since the setting names it.
    opened = [one for one in pipeline.revisions() if one.kind == "custom" and one.event == "opened"]
    assert [(one.layer, one.suspects[0].rank) for one in opened] == [("hardware", RANK)]
    events = pipeline.query("SELECT groupArray((rank, host, device, kind, code)) FROM events FINAL")
    assert (
        events.replace(" ", "") == f"[({RANK},'node-3','gpu{RANK}','xid',79),({RANK},'node-3','gpu{RANK}','xid',45)]"
    )
    assert worker.stop() == 0

    # The same again: no row changes, and nothing is told twice.
    told, rows, stored_at = pipeline.revision_counts("verdicts"), pipeline.rows("verdicts"), pipeline.query(NEWEST)
    forget_snapshots(pipeline)
    time.sleep(1.1)  # `stored_at` counts seconds
    worker = pipeline.start_worker("again", event_verdicts=("xid:79",))
    wait_until(lambda: pipeline.query(NEWEST) > stored_at, "the job again")
    wait_until(lambda: pipeline.rows("verdicts").equals(rows), "the same verdicts")
    assert worker.stop() == 0
    assert pipeline.revision_counts("verdicts") == told
    assert pipeline.count("events") == 2
