"""NCCL Inspector's logs of a job that is started again and again, in one directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from irregulars.messages.records import OPERATOR_CODES
from irregulars.producers.importers.following import LogReader
from irregulars.producers.importers.imported import ImportedJob
from irregulars.producers.importers.inspector_job import LiveLog
from tests.producers.importers.inspector_lines import START_US, collective, context, lines, pair

STARTS = 12


def marked(start: int, rank: int, coll: int, p2p: int, at_us: int = 0) -> dict[str, Any]:
    """The marker line of a rank's process of one start: each has its own pid and communicator."""
    stats = {"coll_records": coll, "p2p_records": p2p}
    told = context(2 * (STARTS - start) + rank, f"0x{start}", version="v4.3", comm_rank=rank)
    told["metadata"]["dump_timestamp_us"] = START_US + 10**6 * start + at_us
    return {**told, "dump_stats": stats}


def written(start: int, rank: int) -> bytes:
    sends = [pair("Send", 1 - rank)] * 3
    return lines(marked(start, rank, 4, 3), *(collective(n, 5) for n in range(4)), *sends)


class Reading:
    """Reads a directory, and remembers where it stands."""

    def __init__(self, folder: Path) -> None:
        self._reader = LogReader(folder, "job", lambda state: LiveLog("job", 2, state))
        self.stand: dict[str, Any] = {}

    def read(self) -> ImportedJob | None:
        piece = self._reader.read(self.stand, None)
        self.stand = self.stand if piece is None else piece.after
        return None if piece is None else piece.job


def sends_of(job: ImportedJob | None, rank: int) -> list[int]:
    assert job is not None
    (found,) = [batch for batch in job.batches() if batch.header.rank == rank]
    is_send = found.columns["operator"] == OPERATOR_CODES["send"]
    return [int(one) for one in found.columns["sequence"][is_send]]


def test_what_is_kept_does_not_grow_with_each_start_of_the_job(tmp_path: Path) -> None:
    reading, kept_bytes = Reading(tmp_path), []
    for start in range(STARTS):
        for rank in (0, 1):
            (tmp_path / f"{rank}.{start}.log").write_bytes(written(start, rank))
        job = reading.read()
        assert job is not None
        assert {rank: len(rows) for rank, rows in job.ranks.items()} == {0: 7, 1: 7}
        kept_bytes.append(len(json.dumps(reading.stand["live"])))
    assert max(kept_bytes) < 1.1 * kept_bytes[0]


def test_of_processes_that_were_all_found_at_once_the_one_that_wrote_last_is_counted_on(tmp_path: Path) -> None:
    """Its pid is the smallest, and so is its name; it is silent while a log of the other rank goes on."""
    for start in (0, 1, 2):
        for rank in (0, 1):
            (tmp_path / f"{9 - start}.{rank}.log").write_bytes(written(start, rank))
    reading = Reading(tmp_path)
    assert len(sends_of(reading.read(), 0)) == 9
    with (tmp_path / "7.1.log").open("ab") as stream:
        stream.write(lines(marked(2, 1, 1, 0, 100), collective(5, 5)))
    assert reading.read() is not None
    assert len(reading.stand["live"]["ranks"]) == 2
    with (tmp_path / "7.0.log").open("ab") as stream:
        stream.write(lines(marked(2, 0, 1, 1, 200), collective(5, 5), pair("Send", 1)))
    assert sends_of(reading.read(), 0) == [3]
