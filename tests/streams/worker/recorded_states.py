"""States as today's code writes them: made by ``python -m tests.streams.worker.recorded_states``.

In a job of four ranks one works four times as long from its 31st iteration on. The job is cut where the verdict on
that is open, and the newest operators of each rank wait for the end of their iteration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from irregulars.state_codec import encode_state
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.rank_hop.rank_monitor import RankMonitor
from irregulars.streams.snapshots.records import STATE_VERSION, MonitorRecord, encode_record
from tests.streams.judged_streams import Message, MonitoredJob, in_order
from tests.streams.lockstep_job import MS, US, meeting

STATES: Final = Path(__file__).parent / "states"
SLOW_FROM: Final = 30
CUT_AT: Final = 0.8


def messages() -> list[Message]:
    def work_ns(number: int, rank: int) -> int:
        return 10 * MS + 30 * MS * (rank == 2 and number >= SLOW_FROM) + (number * 7 + rank * 3) % 5 * 20 * US

    job = meeting(4, 60, work_ns, 2 * MS, places={rank: {"host": f"h{rank}"} for rank in range(4)})
    return in_order(job.trace(), max_rows=7)


def cut() -> tuple[MonitoredJob, list[Message]]:
    """Return the job at the cut, and what is still to come."""
    stream = messages()
    at = int(len(stream) * CUT_AT)
    job = MonitoredJob("lockstep")
    job.feed(stream[:at])
    return job, stream[at:]


def record_of(monitor: RankMonitor | JobMonitor) -> bytes:
    return encode_record(MonitorRecord(3, {"commops": 17}, encode_state(monitor.state(), STATE_VERSION)))


def main() -> None:
    job, _ = cut()
    for name, monitor in (("rank", job.ranks[2]), ("job", job.monitor)):
        (STATES / f"{name}.bin").write_bytes(record_of(monitor))


if __name__ == "__main__":
    main()
