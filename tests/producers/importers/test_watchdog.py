"""Lines of watchdogs in logs of many ranks, as launchers and versions of PyTorch write them."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import analyze
from irregulars.messages.judgements import Verdict
from irregulars.producers.importers import watchdog
from irregulars.producers.importers.importing import import_trace, read_hang, take_anything
from irregulars.producers.importers.watchdog import WatchdogLog
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.foreign_files import Unpacked
from tests.producers.importers.test_flight_recorder import dump, entry

WORK = "WorkNCCL(SeqNum={0}, OpType={1}, NumelIn={2}, NumelOut={2}, Timeout(ms)=600000) ran for 600034 milliseconds"
CAUGHT = "[Rank {rank}] Watchdog caught collective operation timeout: {work} before timing out."


def caught(rank: int, sequence: int = 652, operator: str = "ALLREDUCE", elements: int = 4096) -> str:
    return CAUGHT.format(rank=rank, work=WORK.format(sequence, operator, elements))


PREFIXES = {
    "torchrun": "[rank{rank}]:[E227 23:07:54.32 ProcessGroupNCCL.cpp:629] ",
    "torchrun with local ranks": "[default{local}]:[rank{rank}]:[E ProcessGroupNCCL.cpp:607] ",
    "torchrun that names local ranks": "[rank{local}]:[rank{rank}]:[E ProcessGroupNCCL.cpp:607] ",
    "torchrun of PyTorch 2.1": "[default{local}]:[E ProcessGroupNCCL.cpp:475] ",
    "slurm": "{rank}: [E ProcessGroupNCCL.cpp:475] ",
    "kubernetes": "2026-11-27T12:00:00.1Z train-worker-{node} [rank{rank}]:[E ProcessGroupNCCL.cpp:629] ",
    "ray": "\x1b[36m(RayTrainWorker pid=40{rank}, ip=10.0.0.{node})\x1b[0m [rank{rank}]:[E ProcessGroupNCCL.cpp] ",
    "nothing": "",
}


def verdict_of(folder: Path, text: str) -> Verdict:
    (folder / "train.log").write_text(text)
    import_trace("watchdog", folder / "train.log", folder / "out")
    (verdict,) = analyze(read_trace(folder / "out")).verdicts
    return verdict


@pytest.mark.parametrize("launcher", PREFIXES)
def test_the_missing_rank_is_named_whatever_the_launcher_puts_before_the_lines(tmp_path: Path, launcher: str) -> None:
    lines = ["step 651 loss 2.1"]
    for rank in (0, 1, 3, 4):
        lines.append(PREFIXES[launcher].format(rank=rank, local=rank % 2, node=rank // 2) + caught(rank))
    verdict = verdict_of(tmp_path, "\n".join([*lines, "torch.distributed.elastic: SIGABRT", ""]))
    assert (verdict.kind, verdict.suspects[0].ranks) == ("hang", (2,))
    assert "all_reduce 652 on default_pg" in verdict.evidence


def test_other_operators_and_sizes_under_one_number_are_the_program(tmp_path: Path) -> None:
    lines = [caught(0), caught(1), caught(2, operator="_ALLGATHER_BASE"), caught(3)]
    verdict = verdict_of(tmp_path, "\n".join(lines))
    assert (verdict.kind, verdict.suspects[0].ranks) == ("mismatch", (2,))
    verdict = verdict_of(tmp_path, "\n".join([caught(0), caught(1, elements=160), caught(2)]))
    assert (verdict.kind, verdict.suspects[0].ranks) == ("mismatch", (1,))


def test_a_rank_that_got_a_dump_signal_stands_outside(tmp_path: Path) -> None:
    who = "[PG ID 0 PG GUID 0(default_pg) Rank 1]"
    got = f"[rank1]:[E] {who} Received a dump signal due to a collective timeout from rank 0 and we will try "
    got += "our best to dump the debug info. Last enqueued NCCL work: 651, last completed NCCL work: 651."
    verdict = verdict_of(tmp_path, "\n".join([caught(0), got, caught(2)]))
    assert (verdict.suspects[0].ranks, verdict.suspects[0].probability) == ((1,), 0.9)


def test_groups_are_told_apart_and_their_members_found(tmp_path: Path) -> None:
    lines = []
    for rank in (0, 2, 3):  # groups 9 = [0, 2] and 10 = [1, 3]
        inside, group = divmod(rank, 2)
        who = f"[PG ID 2 PG GUID {9 + group}(dp) Rank {inside}]"
        lines.append(f"[rank{rank}]:[E] {who} {caught(inside, 610)}")
        lines.append(f"[rank{rank}]:[E] {who} Exception (either an error or timeout) detected by watchdog at work: "
                     "610, last enqueued NCCL work: 616, last completed NCCL work: 609.")  # fmt: skip
    (tmp_path / "a.log").write_text("\n".join(lines))
    imported = read_hang({"watchdog": [tmp_path / "a.log"]}, "job")
    assert {one.ranks for one in imported.communicators.values()} >= {(0, 2)}
    assert imported.world_size == 4


def test_dumps_and_lines_of_one_hang_give_one_verdict(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(dump(entry(7))))
    who = "[PG ID 0 PG GUID 0(default_pg) Rank 2]"
    (tmp_path / "train.log").write_text(f"[rank2]: {who} Last enqueued NCCL work: 6, last completed NCCL work: 6.\n")
    dumps = [tmp_path / f"rank_{rank}.json" for rank in (0, 1)]
    imported = read_hang({"flight-recorder": dumps, "watchdog": [tmp_path / "train.log"]}, "job")
    assert sorted(imported.ranks) == [0, 1, 2]
    assert [len(rows) for rows in imported.ranks.values()] == [1, 1, 0]


def test_a_monitored_barrier_names_those_who_did_not_reach_it(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, "RuntimeError: [Rank 0]: Ranks 1, 5 failed to pass monitoredBarrier in 2000 ms\n")
    assert (verdict.kind, verdict.suspects) == ("hang", ())  # more than wait for them
    text = "Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv"
    others = "\n".join(text.format(rank) for rank in (2, 3, 4))
    verdict = verdict_of(tmp_path, f"[Rank 0]: Ranks 1, 5 failed to pass monitoredBarrier in 2000 ms\n{others}\n")
    assert verdict.suspects[0].ranks == (1, 5)


def test_what_torch_itself_found_to_differ_is_taken_over(tmp_path: Path) -> None:
    told = "CollectiveFingerPrint(SequenceNumber=22, OpType={}, TensorShape=[{}], TensorDtypes=Float, …)"
    text = "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
    text += f"{told.format('ALLREDUCE', '4, 8')}, but Rank 1 is running collective: {told.format('ALLGATHER', '7')}."
    verdict = verdict_of(tmp_path, text)
    assert (verdict.kind, verdict.suspects) == ("mismatch", ())
    assert "rank 1 called all_gather of 7 B where rank 0 called all_reduce of 32 B: call 22" in verdict.evidence


def test_lines_are_found_across_the_blocks_in_which_a_log_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(["x" * 37, caught(0), "y" * 100, caught(3), ""]).encode()
    whole = WatchdogLog()
    whole.read(io.BytesIO(text))
    expected = [one.rank for one in whole.dumps()]
    assert expected == [0, 3]
    for size in (1, 7, 50, 211):
        monkeypatch.setattr(watchdog, "_BLOCK_BYTES", size)
        log = WatchdogLog()
        log.read(io.BytesIO(text))
        assert [one.rank for one in log.dumps()] == expected


def accused_of(folder: Path, *lines: str) -> tuple[tuple[int, ...], str]:
    verdict = verdict_of(folder, "\n".join([*lines, ""]))
    return tuple(rank for one in verdict.suspects for rank in one.ranks), verdict.evidence


def failure(rank: int, inside: int, group: str, number: int, enqueued: int | None = None) -> str:
    return (
        f"[rank{rank}]:[E] [PG ID 3 PG GUID {group} Rank {inside}]  failure detected by watchdog at work sequence "
        f"id: {number} PG status: last enqueued work: {enqueued or number}, last completed work: {number - 1}"
    )


def test_a_line_without_its_group_belongs_to_the_one_whose_status_fits_its_number(tmp_path: Path) -> None:
    lines = []
    told = (13, 1, "119", 216, "ALLTOALL_BASE"), (15, 0, "112", 57, "ALLREDUCE")
    for rank, inside, group, number, operator in told:
        lines += [f"[rank{rank}]:[E] {caught(inside, number, operator)}", failure(rank, inside, group, number)]
    accused, evidence = accused_of(tmp_path, *lines)
    assert accused == ()
    assert evidence.startswith("rank 13 stands in all_to_all 216 on 119, and rank 15 stands in all_reduce 57 on 112;")
    assert evidence.endswith("who else belongs to that group, and is waited for, is not told")


def test_the_default_group_numbers_the_job_whatever_torchrun_puts_before_it(tmp_path: Path) -> None:
    lines = [
        failure(rank, rank, "0(default_pg)", 70).replace(f"[rank{rank}]", f"[rank{rank % 2}]") for rank in (0, 1, 3)
    ]
    assert accused_of(tmp_path, *lines)[0] == (2,)


def test_numbers_that_no_group_explains_are_of_several_groups(tmp_path: Path) -> None:
    accused, evidence = accused_of(tmp_path, caught(0, 96120), caught(0, 96117), caught(7, 64088))
    assert accused == ()
    assert "rank 0 stands in all_reduce 96117" in evidence
    accused, evidence = accused_of(tmp_path, caught(0, 619725, "_ALLGATHER_BASE"), caught(3, 619727))  # no chance
    assert accused == (0,)
    assert "2 calls behind rank 3, which stands in all_reduce 619727" in evidence


@pytest.mark.parametrize("width", [60, 97, 168, 209])
def test_lines_are_read_where_a_terminal_broke_them(tmp_path: Path, width: int) -> None:
    lines = []
    for rank in (0, 1, 3):
        line = f"[rank{rank}]:[E] {caught(rank)}"
        lines += [line[:width].ljust(width + 9), line[width:], failure(rank, rank, "0(default_pg)", 652)]
    accused, evidence = accused_of(tmp_path, *lines)
    assert accused == (2,)
    assert "all_reduce 652 on default_pg" in evidence
    broken = [line.replace(" timeout:", " timeout: \n").replace("by watchdog", "\nby watchdog") for line in lines]
    assert accused_of(tmp_path, *broken)[0] == (2,)


def test_the_size_of_a_group_is_told_by_what_its_collectives_take_and_give(tmp_path: Path) -> None:
    work = "WorkNCCL(SeqNum=9, OpType=_ALLGATHER_BASE, NumelIn=512, NumelOut=4096, Timeout(ms)=600000) ran for 600009"
    lines = [CAUGHT.format(rank=rank, work=work) for rank in (0, 2)]
    accused, evidence = accused_of(tmp_path, *lines)  # two of eight: of six nothing is known
    assert accused == ()
    assert "6" in evidence or "ranks 1, 3" in evidence


def test_a_rank_that_stands_in_an_older_call_is_behind_whether_its_operator_is_known_or_not(tmp_path: Path) -> None:
    lines = [caught(rank, 22) for rank in (1, 2, 3)]
    lines += [failure(rank, rank, "0(default_pg)", 22) for rank in (1, 2, 3)]
    accused, evidence = accused_of(tmp_path, *lines, failure(0, 0, "0(default_pg)", 21, enqueued=30))
    assert accused == (0,)
    assert "collective 21 on default_pg ended on other ranks and never on rank 0: 1 call behind" in evidence


def test_a_batch_without_sizes_is_no_all_reduce(tmp_path: Path) -> None:
    lines = [caught(1, 1, "COALESCED", (1 << 64) - 1), failure(10, 1, "90(PIPELINE_MODEL_PARALLEL_GROUP)", 1)]
    accused, evidence = accused_of(tmp_path, *(f"[rank10]: {line}" for line in lines))
    assert accused == ()
    assert "rank 10 stands in collective 1 on PIPELINE_MODEL_PARALLEL_GROUP" in evidence


AGAIN = "[default] Worker group FAILED. 2/3 attempts left; will restart worker group"


def test_only_the_newest_start_of_a_job_counts(tmp_path: Path) -> None:
    before = [failure(rank, rank, "0(default_pg)", 31) for rank in (0, 1, 2, 3, 5)]
    after = [failure(rank, rank, "0(default_pg)", 7) for rank in (0, 1, 3, 4, 5)]
    assert accused_of(tmp_path, *before, *after)[0] == (2,)
    old, new = ([caught(rank, number) for rank in ranks] for number, ranks in ((31, (0, 1, 2)), (7, (0, 1, 3))))
    assert accused_of(tmp_path, *old, AGAIN, *new)[0] == (2,)


def test_ranks_with_lines_of_an_earlier_start_alone_are_not_accused(tmp_path: Path) -> None:
    old = [caught(rank, 31) for rank in range(8)]
    assert accused_of(tmp_path, *old, AGAIN, *(caught(rank, 7) for rank in (0, 1, 3)))[0] == (2,)
    # The log of the second node may not be there: its lines were of the first start
    accused, evidence = accused_of(tmp_path, "WORLD_SIZE=8", *old, AGAIN, *(caught(rank, 7) for rank in range(4)))
    assert accused == ()
    assert "ranks 4, 5, 6, 7 belong to all_reduce 7" in evidence


def test_a_rank_that_died_in_an_earlier_start_is_not_waited_for(tmp_path: Path) -> None:
    died = "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-27_10:00:00\n  host      : node1\n"
    died += "  rank      : 3 (local_rank: 1)\n  exitcode  : -9 (pid: 4711)\n"
    (tmp_path / "a.log").write_text("\n".join([died, AGAIN, *(caught(rank) for rank in range(3)), ""]))
    imported = read_hang({"watchdog": [tmp_path / "a.log"]}, "job")
    assert sorted(imported.ranks) == [0, 1, 2]
    assert not any("end first" in note for note in imported.notes)


def test_lines_of_a_rank_in_another_log_outlive_the_restart_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(f"{caught(1)}\n")
    (tmp_path / "b.log").write_text(f"{caught(2)}\n{AGAIN}\n{caught(0)}\n")
    imported = read_hang({"watchdog": [tmp_path / "a.log", tmp_path / "b.log"]}, "job")
    assert sorted(imported.ranks) == [0, 1]


def test_a_rank_whose_own_log_holds_no_line_of_a_watchdog_is_missing(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for rank in range(4):
        (logs / f"train-{rank}.log").write_text(caught(rank) if rank < 3 else "step 651 loss 2.1\n")
    (verdict,) = analyze(read_trace(take_anything(logs, tmp_path).directory)).verdicts
    assert (verdict.suspects[0].ranks, verdict.suspects[0].probability) == ((3,), 0.9)
    # Of many such logs most ranks were ended before their watchdog fired.
    for rank in range(24):
        (logs / f"train-{rank}.log").write_text(caught(rank) if rank < 13 else "step 651 loss 2.1\n")
    (tmp_path / "again").mkdir()
    (verdict,) = analyze(read_trace(take_anything(logs, tmp_path / "again").directory)).verdicts
    assert verdict.suspects == ()
    for rank in range(4, 24):
        (logs / f"train-{rank}.log").unlink()
    (logs / "train-3.log").write_text("step 651 loss 2.1\n")
    # Numbers that are not the ranks of the lines tell nothing of a log without any.
    (logs / "train-0.log").rename(logs / "train-7.log")
    files = sorted(logs.iterdir())
    assert sorted(read_hang({"watchdog": files}, "job").ranks) == [0, 1, 2]


def test_lower_numbers_than_in_another_log_begin_no_start_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(failure(0, 0, "0(default_pg)", 652))
    lines = [failure(rank, rank, "0(default_pg)", 7) for rank in (1, 0)]
    (tmp_path / "b.log").write_text("\n".join(lines))
    imported = read_hang({"watchdog": [tmp_path / "a.log", tmp_path / "b.log"]}, "job")
    assert sorted(imported.ranks) == [0, 1]


def test_lines_of_a_killed_start_are_not_told_of_the_newer_one() -> None:
    def report(rank: int) -> str:
        return f"| MnRtt/Rnk: 10.0ms/0 | MxRtt/Rnk: 90.0ms/{rank} |"

    old, new = (["Last error:", f"{name} failed", f"WORLD_SIZE={size}", report(rank), caught(1)]
                for name, size, rank in (("old", 512, 500), ("new", 128, 70)))  # fmt: skip
    log = WatchdogLog()
    log.read(io.BytesIO("\n".join([*old, AGAIN, *new, ""]).encode()))
    log.read(io.BytesIO(f"WORLD_SIZE=64\n{report(65)}\n".encode()))
    assert (log.world_size, [note for note in log.notes if "the log says" in note]) == (
        128, ["the log says: Last error: new failed"],
    )  # fmt: skip
    reports = log.reports.job("job", 1)
    assert reports is not None
    assert reports.ranks.keys() == {*range(62), 65, 70}


def test_reports_of_a_desync_are_read(tmp_path: Path) -> None:
    begun = "\t   #5 started ranks:\n\t     [0, 1, 3] started ALLREDUCE"
    behind = "\t     [2] finished collective #4, but didn't join collective #5 (count from 1)"
    accused, evidence = accused_of(tmp_path, caught(0, 5), behind, begun)
    assert accused == (2,)
    assert "all_reduce 5" in evidence
    never = "\t - To our best knowledge, ranks [3] are the lagging ranks that caused this timeout. They never joined"
    assert accused_of(tmp_path, caught(0, 1), never)[0] == (3,)
    other = "\t   #5 started ranks:\n\t     [0] started ALLREDUCE\n\t     [1] started BROADCAST"
    assert verdict_of(tmp_path, f"{caught(0, 5)}\n{other}\n").kind == "mismatch"


def test_fingerprints_without_a_number_or_of_one_rank_each_are_read(tmp_path: Path) -> None:
    text = "Detected mismatch between collectives on ranks. Rank {} is running inconsistent collective: "
    text += "CollectiveFingerPrint(OpType={}, TensorShape=[{}], TensorDtypes=Float"
    verdict = verdict_of(tmp_path, f"{text.format(0, 'BROADCAST', 34112)}\n{text.format(1, 'ALLREDUCE', 1)}\n")
    assert (verdict.kind, verdict.suspects) == ("mismatch", ())
    text = "Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint("
    text += "SequenceNumber=1OpType=BARRIER), but Rank 2 is running collective: CollectiveFingerPrint("
    (tmp_path / "a.log").write_text(f"{text}SequenceNumber=0OpType=BARRIER).\n")
    imported = read_hang({"watchdog": [tmp_path / "a.log"]}, "job")
    assert not imported.has_open
    (reason,) = imported.skipped
    assert "rank 1 in its call 1 and rank 2 in its call 0" in reason


def hccl(rank: int) -> str:
    return (
        f"[ERROR] (PID:{rank}, Device:0, RankID:{rank}) ERR00100 PTA call acl api failed.\nEI0002: [PID: {rank}] The "
        "wait execution of the Notify register times out. Reason: no record from remote rank: [2]. base information: "
        "[tag[AllReduce_group_name_0], …]. group information: [group:[hccl_world_group], user define information[], "
        f"rankSize[4], rankId[{rank}]]"
    )


@pytest.mark.parametrize(
    "line",
    [
        hccl,
        lambda rank: f"[rank{rank}]: {caught(rank).replace('WorkNCCL', 'WorkHCCL')}",
        lambda rank: f"[Rank {rank}] Work {WORK.format(652, 'ALLREDUCE', 9)} timed out in blocking wait.",
        lambda rank: (
            f"E0826 9 TorchWorkNCCL.cpp:147] [TC][rank={rank}][name=main] Operation timed out after 9 ms\n"
            f"Aborting process due to timeout on rank {rank} - timeout watchdog detected operation timeout"
        ),
        lambda rank: f"[1,{rank}]<stderr>:[E] {caught(rank).replace('SeqNum=652, ', '')}",
    ],
)
def test_other_backends_and_older_lines_are_read(tmp_path: Path, line: Callable[[int], str]) -> None:
    accused, evidence = accused_of(tmp_path, *(line(rank) for rank in (0, 1, 3)))
    assert accused == (2,)
    assert "all_reduce" in evidence or "the next collective on main" in evidence


def test_equal_lines_that_ray_leaves_out_are_of_ranks_without_one(tmp_path: Path) -> None:
    lines = [
        "WORLD_SIZE=4",
        f"{caught(3)} [repeated 3x across cluster]",
        caught(0),
        "frame #0 [repeated 90x across cluster]",
    ]
    accused, evidence = accused_of(tmp_path, *lines)
    assert accused == ()
    assert evidence.startswith("ranks 0, 1, 2, 3 stand in all_reduce 652 on default_pg, and nobody is missing")
    # One line less than there are ranks without one, or not all ranks are known: who is missing is not told.
    for other in ([lines[0], lines[1].replace("3x", "2x"), *lines[2:]], lines[1:]):
        (tmp_path / "a.log").write_text("\n".join(other))
        imported = read_hang({"watchdog": [tmp_path / "a.log"]}, "job")
        assert sorted(imported.ranks) == [0, 3]
    assert any("Ray left out" in note for note in imported.notes)


UNMADE = (
    "torch.distributed.DistBackendError: [{}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] "
    "via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms"
)
GLOO = "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"


@pytest.mark.parametrize(("line", "missing"), [(UNMADE, 0), (f"[rank{{}}]: {UNMADE}", 0), (f"[rank{{}}]: {GLOO}", 2)])
def test_ranks_that_wait_without_a_watchdog_accuse_the_one_that_does_not(
    tmp_path: Path, line: str, missing: int
) -> None:
    accused, evidence = accused_of(tmp_path, *(line.format(rank, rank) for rank in range(4) if rank != missing))
    assert accused == (missing,)
    assert "the next collective on default_pg" in evidence


def test_the_status_of_watchdogs_made_after_that_of_nccl_is_read(tmp_path: Path) -> None:
    line = "[PG 0 Rank {}] Timeout at HCCL work: 5, last enqueued HCCL work: 6, last completed HCCL work: 4."
    accused, evidence = accused_of(tmp_path, *(line.format(rank) for rank in (0, 1, 3)))
    assert accused == (2,)
    assert "collective 5 on default_pg" in evidence


@pytest.mark.parametrize(
    "line",
    [
        "[gloo/transport/tcp/pair.cc:598] Connection closed by peer [::1]:2",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 6/8 clients joined.",
        "[rank12]:[E817 17:40] [PG 0 (default_pg) Rank 12] Process group watchdog thread terminated with exception: "
        "CUDA error: uncorrectable ECC error encountered",
        "[rank6]:[E] [PG ID 0 PG GUID 0(default_pg) Rank 6] ProcessGroupNCCL's watchdog got stuck for 480 seconds",
        "srun: error: gpu-012: task 11: Out Of Memory",
        "[rank: 3] Child process with PID 26223 terminated with code -9. Forcefully terminating all other processes",
    ],
)
def test_errors_that_name_no_collective_are_repeated(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.log").write_text(f"Error: {line}\n")
    with pytest.raises(InputError) as refused:
        read_hang({"watchdog": [tmp_path / "a.log"]}, "job")
    _, told, error = str(refused.value).partition("; got none; the log says: ")
    assert told
    assert line.endswith(error)
    assert "Rank" not in line or error == line


def test_the_first_exception_of_a_rank_is_repeated_and_none_of_waiting(tmp_path: Path) -> None:
    waiting = "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2006"
    raised = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 336.00 MiB"
    lines = [waiting, raised, "[rank2]: ValueError: again", *(caught(rank) for rank in (0, 1, 3))]
    (tmp_path / "a.log").write_text("\n".join(lines))
    imported = read_hang({"watchdog": [tmp_path / "a.log"]}, "job")
    assert f"the log says: {raised}" in imported.notes


def test_a_node_whose_log_may_not_be_there_is_not_accused(tmp_path: Path) -> None:
    accused, evidence = accused_of(tmp_path, "WORLD_SIZE=8", *(caught(rank) for rank in range(4)))
    assert accused == ()
    assert "ranks 4, 5, 6, 7 belong to all_reduce 652" in evidence
    assert accused_of(tmp_path, "WORLD_SIZE=8", *(caught(rank) for rank in range(5)))[0] == (5, 6, 7)


@pytest.mark.parametrize(
    "line",
    [
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4",
        "Num processes: 4",
        "node0:100:7 [0] NCCL INFO comm 0x7fa0 rank 0 nranks 4 cudaDev 0 busId 2000 commId 0xabc - Init COMPLETE",
    ],
)
def test_the_last_rank_is_missed_where_any_library_tells_how_many_there_are(tmp_path: Path, line: str) -> None:
    assert accused_of(tmp_path, line, *map(caught, range(3)))[0] == (3,)


@pytest.mark.parametrize(("code", "accused"), [(-9, (3,)), (-6, ()), (-15, ()), (1, ())])
def test_a_process_that_died_by_itself_is_waited_for(tmp_path: Path, code: int, accused: tuple[int, ...]) -> None:
    report = "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-27_10:00:00\n  host      : node1\n"
    report += f"  rank      : 3 (local_rank: 1)\n  exitcode  : {code} (pid: 4711)\n"
    assert accused_of(tmp_path, *(caught(rank) for rank in range(3)), report)[0] == accused


@pytest.mark.parametrize(
    "prefix", ["0: ", "2026-11-27T12:00:00.1Z ", "\x1b[36m(TrainTask pid=40, ip=10.0.0.1)\x1b[0m "]
)
def test_torchrun_s_report_is_read_behind_the_prefixes_of_a_launcher(tmp_path: Path, prefix: str) -> None:
    report = "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-27_10:00:00\n  host      : node1\n"
    report += "  rank      : 3 (local_rank: 1)\n  exitcode  : -9 (pid: 4711)\n"
    lines = [prefix + line for line in report.splitlines()]
    assert accused_of(tmp_path, *(caught(rank) for rank in range(3)), *lines)[0] == (3,)


def test_a_log_of_very_many_starts_is_read() -> None:
    """Each start was read inside the one after it, which Python allows a thousand times."""
    log = WatchdogLog()
    log.read(io.BytesIO(f"{caught(3)}\nwill restart worker group\n".encode() * 3_000 + caught(1).encode()))
    assert [one.rank for one in log.dumps() if len(list(one.entries))] == [1]


@pytest.mark.parametrize("digits", [25, 400, 5_000])
@pytest.mark.parametrize(
    "line",
    [
        "[Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType=ALLREDUCE, NumelIn=4, "
        "NumelOut=4, Timeout(ms)=9)",
        "[Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn={}, "
        "NumelOut=4, Timeout(ms)=9)",
        "[Rank 4] failure at work sequence id: {} PG status: last enqueued work: 4, last completed work: 3",
        "[Rank 4] PG status: last enqueued work: {0}, last completed work: {0}",
        "[Rank 4]: Ranks 1, {} failed to pass monitoredBarrier in 2000 ms",
    ],
)
def test_numbers_of_very_many_digits_end_no_reading(tmp_path: Path, line: str, digits: int) -> None:
    (tmp_path / "a.log").write_text("\n".join([caught(0), caught(1), line.format("9" * digits), ""]))
    imported = read_hang({"watchdog": [tmp_path / "a.log"]}, "job")
    assert {0, 1} <= imported.ranks.keys()


def test_a_log_that_breaks_off_keeps_the_ranks_before_the_damage() -> None:
    died = "first observed failure:\n[0]:\n  time      : 2026-11-27_10:00:00\n  host      : node1\n"
    died += "  rank      : 3 (local_rank: 1)\n  exitcode  : -9 (pid: 4711)\n"

    class Cut(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            block = super().read(size)
            if not block:
                raise EOFError("Compressed file ended before the end-of-stream marker was reached")
            return block

    log = WatchdogLog()
    assert str(log.read(Cut(f"{caught(1)}\n{died}".encode()))).startswith("Compressed file ended")
    assert log.read(io.BytesIO(f"{caught(2)}\n".encode())) is None
    assert [one.rank for one in log.dumps()] == [1, 2, 3]
    assert any("rank 3 on node1" in note for note in log.notes)


def test_a_packed_log_that_is_cut_counts_up_to_there(tmp_path: Path) -> None:
    noise = "".join(f"step {step} loss {step * 7919 % 1000}\n" for step in range(50_000))
    whole = gzip.compress(f"{caught(0)}\n{caught(1)}\n{noise}".encode())
    path = tmp_path / "train.log.gz"
    for share in (0.02, 0.5, 0.99):  # within the head by which its kind is found, and behind it
        path.write_bytes(whole[: int(share * len(whole))])
        scratch = tmp_path / f"scratch-{share}"
        scratch.mkdir()
        taken = take_anything(path, scratch)
        assert any("note: train.log.gz breaks off, and its lines before count" in line for line in taken.lines)
        assert sorted(read_hang({"watchdog": [path]}, "job").ranks) == [0, 1]


def test_of_a_packed_log_the_line_that_the_cut_goes_through_does_not_count() -> None:
    log = WatchdogLog()
    value = gzip.compress(f"{caught(0)}\n".encode() + caught(1, 652).encode())
    assert log.read(Unpacked(fileobj=io.BytesIO(value[:-8]))) is not None
    assert [one.rank for one in log.dumps()] == [0]
