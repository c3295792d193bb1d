"""Lines of NCCL's own log: calls of collectives, and warnings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import Analysis, analyze
from irregulars.producers.importers.importing import import_trace, read_hang
from irregulars.producers.trace.directory import read_trace

CALL = (
    "(RayTrainWorker pid=9) node{host}:{pid}:{pid} [{gpu}] NCCL INFO {name}: opCount {count:x} sendbuff 0x7f5 "
    "recvbuff 0x7f5 count {size} datatype 7 op 0 root 0 comm 0x7fa{rank} [nranks=4] stream 0x55b"
)


def joined(rank: int, identity: str = "commId 0xabc ") -> str:
    host, gpu = divmod(rank, 2)
    return (
        f"node{host}:{100 + rank}:7 [{gpu}] NCCL INFO ncclCommInitRank comm 0x7fa{rank} rank {rank} nranks 4 "
        f"cudaDev {gpu} busId 2000 {identity}- Init COMPLETE"
    )


def call(rank: int, count: int, name: str = "AllReduce", size: int = 4096) -> str:
    host, gpu = divmod(rank, 2)
    return CALL.format(rank=rank, host=host, gpu=gpu, pid=100 + rank, count=count, name=name, size=size)


def logged(folder: Path, *lines: str) -> Path:
    (folder / "nccl.log").write_text("\n".join([*lines, ""]))
    return folder / "nccl.log"


def judged(folder: Path, *lines: str) -> Analysis:
    import_trace("watchdog", logged(folder, *lines), folder / "out")
    return analyze(read_trace(folder / "out"))


@pytest.mark.parametrize("identity", ["commId 0xabc ", ""])
def test_a_rank_that_called_less_is_missing_with_its_host(tmp_path: Path, identity: str) -> None:
    calls = [call(rank, count) for count in range(20) for rank in range(4) if (rank, count) != (2, 19)]
    (verdict,) = judged(tmp_path, *(joined(rank, identity) for rank in range(4)), *calls).verdicts
    (suspect,) = verdict.suspects
    assert (verdict.kind, suspect.ranks, suspect.host, suspect.gpu) == ("hang", (2,), "node1", 0)
    assert "all_reduce 19" in verdict.evidence


def test_other_calls_or_sizes_under_one_number_are_the_program(tmp_path: Path) -> None:
    joins = [joined(rank) for rank in range(4)]
    calls = [
        call(rank, count, "AllGather" if rank == 2 and count > 0x28B else "AllReduce")
        for count in (0x28B, 0x28C, 0x28D) for rank in range(4)
    ]  # fmt: skip
    (verdict,) = judged(tmp_path, *joins, *calls).verdicts
    assert (verdict.kind, verdict.suspects[0].ranks) == ("mismatch", (2,))
    assert "call 652" in verdict.evidence
    only = [call(rank, 0, size=53 if rank else 4096) for rank in range(4)]
    (verdict,) = judged(tmp_path, *joins, *only).verdicts
    assert (verdict.kind, verdict.suspects[0].ranks) == ("mismatch", (0,))


def test_calls_that_are_the_same_on_all_ranks_or_of_a_killed_start_accuse_nobody(tmp_path: Path) -> None:
    calls = [call(rank, count) for count in (1, 1, 2) for rank in range(4)]  # two calls of one launch
    found = judged(tmp_path, *(joined(rank) for rank in range(4)), *calls)
    assert found.verdicts == []
    assert "the last one was all_reduce" in (found.unjudged_reason or "")
    with pytest.raises(InputError, match=r"got none$"):
        judged(tmp_path, *started(0, "commId 0xabc ", missing=1), AGAIN)


def test_a_warning_is_repeated_and_calls_of_unknown_ranks_are_none(tmp_path: Path) -> None:
    warning = "node0:9:8 [4] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<4> with status=12"
    with pytest.raises(InputError, match=r"NCCL warned on node0, GPU 4: NET/IB : Got completion from peer 10\.0"):
        judged(tmp_path, call(0, 1), call(3, 2), warning, warning)
    with pytest.raises(InputError, match=r"NCCL warned: Mismatched collective detected"):
        judged(tmp_path, "init.cc:1247 NCCL WARN Mismatched collective detected")


def test_the_gpus_of_one_host_are_the_ranks_if_no_line_tells_them(tmp_path: Path) -> None:
    calls = [f"node0:10{rank}:9 [{rank}] {call(rank, count).partition('] ')[2]} [nranks=4] stream 0x1"
             for count in range(3) for rank in range(4) if (rank, count) != (2, 2)]  # fmt: skip
    (verdict,) = judged(tmp_path, *calls).verdicts
    assert (verdict.kind, verdict.suspects[0].ranks) == ("hang", (2,))
    with pytest.raises(InputError, match=r"got none$"):  # two hosts have two GPUs of one index
        judged(tmp_path, *(line.replace("node0:101", "node1:101").replace("[1]", "[0]") for line in calls))


AGAIN = "[default] Worker group FAILED. 2/3 attempts left; will restart worker group"


def started(shift: int, identity: str, missing: int, count: int = 9) -> list[str]:
    """Return the lines of one start of a job: ``shift`` moves its hosts and processes; a rank lacks the last call."""

    def moved(line: str) -> str:
        line = re.sub(r"node(\d)", lambda found: f"node{int(found[1]) + shift}", line)
        return re.sub(r":10(\d):", lambda found: f":{100 + shift}{found[1]}:", line)

    calls = [call(rank, at) for at in range(count) for rank in range(4) if (rank, at) != (missing, count - 1)]
    return [moved(line) for line in (*(joined(rank, identity) for rank in range(4)), *calls)]


OTHER = joined(0, "commId 0xdef ").replace(":100:", ":1000:").replace("0x7fa0", "0x7fb0").replace("rank 0", "rank 3")


@pytest.mark.parametrize(("lines", "rank", "host", "call_number"), [
    *(([*started(0, first, missing=1), *mark, *started(5, second, missing=2, count=4)], 2, "node6", 3)
      for first, second in (("commId 0xabc ", "commId 0xdef "), ("", "")) for mark in ([AGAIN], [])),
    # A rank without calls in the newest start has none of the one before.
    ([*started(0, "", missing=4), *started(5, "", missing=2, count=1)], 2, "node6", 0),
    # The world comes first: a later communicator of its size may have another order, or ranks that never joined.
    ([*started(0, "commId 0xabc ", missing=1), OTHER], 1, "node0", 8),
    # Colours before a host are no part of its name.
    ([f"\x1b[33m{line.split(') ')[-1]}\x1b[0m" for line in started(0, "commId 0xabc ", missing=2)],
     2, "node1", 8),
])  # fmt: skip
def test_the_rank_that_called_less_in_the_newest_start_is_missing(
    tmp_path: Path, lines: list[str], rank: int, host: str, call_number: int
) -> None:
    (verdict,) = judged(tmp_path, *lines).verdicts
    assert (verdict.kind, verdict.suspects[0].ranks, verdict.suspects[0].host) == ("hang", (rank,), host)
    assert f"all_reduce {call_number} on" in verdict.evidence


@pytest.mark.parametrize(("is_told", "gpu", "place"), [(True, 1, "node1, GPU 1"), (False, None, "node1")])
def test_the_gpu_of_a_process_that_sees_one_alone_is_known_by_the_machine_s_index(
    tmp_path: Path, is_told: bool, gpu: int | None, place: str
) -> None:
    """It is device 0 of each process."""
    calls = [call(rank, count) for count in range(3) for rank in range(4) if (rank, count) != (3, 2)]
    nvml = r"cudaDev 0 nvmlDev \1 " if is_told else r"cudaDev \1 "
    joins = [re.sub(r"cudaDev (\d) ", nvml, joined(rank)) for rank in range(4)]
    lines = [line.replace("[1]", "[0]") for line in (*joins, *calls)]
    (verdict,) = judged(tmp_path, *lines).verdicts
    assert (verdict.suspects[0].ranks, verdict.suspects[0].host, verdict.suspects[0].gpu) == ((3,), "node1", gpu)
    warning = "node1:103:8 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<4> with status=12"
    imported = read_hang({"watchdog": [logged(tmp_path, *lines, warning)]}, "job")
    assert f"NCCL warned on {place}: NET/IB : Got completion from peer 10.0.0.9<4> with status=12" in imported.notes
