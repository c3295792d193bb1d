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


def test_other_calls_under_one_number_are_the_program(tmp_path: Path) -> None:
    lines = [joined(rank) for rank in range(4)]
    for count in (0x28B, 0x28C, 0x28D):
        lines += [call(rank, count, "AllGather" if rank == 2 and count > 0x28B else "AllReduce") for rank in range(4)]
    (verdict,) = judged(tmp_path, *lines).verdicts
    assert (verdict.kind, verdict.suspects[0].ranks) == ("mismatch", (2,))
    assert "call 652" in verdict.evidence


def test_calls_that_are_the_same_on_all_ranks_accuse_nobody(tmp_path: Path) -> None:
    calls = [call(rank, count) for count in (1, 1, 2) for rank in range(4)]  # two calls of one launch
    found = judged(tmp_path, *(joined(rank) for rank in range(4)), *calls)
    assert found.verdicts == []
    assert "the last one was all_reduce" in (found.unjudged_reason or "")


def test_a_warning_is_repeated_and_calls_of_unknown_ranks_are_none(tmp_path: Path) -> None:
    warning = "node0:9:8 [4] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<4> with status=12"
    with pytest.raises(InputError, match=r"NCCL warned on node0, GPU 4: NET/IB : Got completion from peer 10\.0"):
        judged(tmp_path, call(0, 1), call(3, 2), warning, warning)


AGAIN = "[default] Worker group FAILED. 2/3 attempts left; will restart worker group"


def started(shift: int, identity: str, missing: int, count: int = 9) -> list[str]:
    """Return the lines of one start of a job: ``shift`` moves its hosts and processes; a rank lacks the last call."""

    def moved(line: str) -> str:
        line = re.sub(r"node(\d)", lambda found: f"node{int(found[1]) + shift}", line)
        return re.sub(r":10(\d):", lambda found: f":{100 + shift}{found[1]}:", line)

    calls = [call(rank, at) for at in range(count) for rank in range(4) if (rank, at) != (missing, count - 1)]
    return [moved(line) for line in (*(joined(rank, identity) for rank in range(4)), *calls)]


@pytest.mark.parametrize("mark", [[AGAIN], []])
@pytest.mark.parametrize("identities", [("commId 0xabc ", "commId 0xdef "), ("", "")])
def test_only_the_newest_start_of_a_job_counts(tmp_path: Path, mark: list[str], identities: tuple[str, str]) -> None:
    lines = [*started(0, identities[0], missing=1), *mark, *started(5, identities[1], missing=2, count=4)]
    (verdict,) = judged(tmp_path, *lines).verdicts
    assert (verdict.kind, verdict.suspects[0].ranks, verdict.suspects[0].host) == ("hang", (2,), "node6")
    assert "all_reduce 3" in verdict.evidence


def test_a_rank_without_calls_in_the_newest_start_has_none_of_the_one_before(tmp_path: Path) -> None:
    new = started(5, "", missing=2, count=1)
    (verdict,) = judged(tmp_path, *started(0, "", missing=4), *new).verdicts
    assert (verdict.kind, verdict.suspects[0].ranks, verdict.suspects[0].host) == ("hang", (2,), "node6")


def test_a_start_that_was_killed_before_one_without_calls_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got none$"):
        judged(tmp_path, *started(0, "commId 0xabc ", missing=1), AGAIN)


def test_a_later_communicator_of_all_ranks_does_not_renumber_the_job(tmp_path: Path) -> None:
    """The world comes first; another communicator of its size may have another order, or ranks that never joined."""
    lines = started(0, "commId 0xabc ", missing=1)
    again = (
        joined(0, "commId 0xdef ").replace(":100:", ":1000:").replace("0x7fa0", "0x7fb0").replace("rank 0", "rank 3")
    )
    (verdict,) = judged(tmp_path, *lines, again).verdicts
    assert (verdict.kind, verdict.suspects[0].ranks, verdict.suspects[0].host) == ("hang", (1,), "node0")


def test_colours_before_a_host_are_no_part_of_its_name(tmp_path: Path) -> None:
    calls = [call(rank, count) for count in range(3) for rank in range(4) if (rank, count) != (2, 2)]
    lines = [f"\x1b[33m{line}\x1b[0m" for line in (*map(joined, range(4)), *(one.split(") ")[1] for one in calls))]
    (verdict,) = judged(tmp_path, *lines).verdicts
    assert (verdict.suspects[0].ranks, verdict.suspects[0].host) == ((2,), "node1")


ONE_VISIBLE = re.compile(r"\[1\]")  # each process sees its own GPU alone, which is its device 0


def test_a_process_that_sees_one_gpu_is_named_by_the_machines_index(tmp_path: Path) -> None:
    calls = [call(rank, count) for count in range(3) for rank in range(4) if (rank, count) != (3, 2)]
    joins = [re.sub(r"cudaDev (\d) ", r"cudaDev 0 nvmlDev \1 ", joined(rank)) for rank in range(4)]
    lines = [ONE_VISIBLE.sub("[0]", line) for line in (*joins, *calls)]
    (verdict,) = judged(tmp_path, *lines).verdicts
    assert (verdict.suspects[0].ranks, verdict.suspects[0].host, verdict.suspects[0].gpu) == ((3,), "node1", 1)
    warning = "node1:103:8 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<4> with status=12"
    imported = read_hang({"watchdog": [logged(tmp_path, *lines, warning)]}, "job")
    assert (
        "NCCL warned on node1, GPU 1: NET/IB : Got completion from peer 10.0.0.9<4> with status=12" in imported.notes
    )


def test_without_the_machines_index_the_gpu_of_such_a_process_is_unknown(tmp_path: Path) -> None:
    calls = [call(rank, count) for count in range(3) for rank in range(4) if (rank, count) != (3, 2)]
    lines = [ONE_VISIBLE.sub("[0]", line) for line in (*map(joined, range(4)), *calls)]
    (verdict,) = judged(tmp_path, *lines).verdicts
    assert (verdict.suspects[0].ranks, verdict.suspects[0].host, verdict.suspects[0].gpu) == ((3,), "node1", None)
    warning = "node1:103:8 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion"
    imported = read_hang({"watchdog": [logged(tmp_path, *lines, warning)]}, "job")
    assert "NCCL warned on node1: NET/IB : Got completion" in imported.notes
