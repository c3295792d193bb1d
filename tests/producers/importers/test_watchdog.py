"""Lines of watchdogs in logs of many ranks, as launchers and versions of PyTorch write them."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import analyze
from irregulars.messages.judgements import Verdict
from irregulars.producers.importers import watchdog
from irregulars.producers.importers.imported import ImportedJob
from irregulars.producers.importers.importing import import_trace, read_hang, take_anything
from irregulars.producers.importers.watchdog import WatchdogLog
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.foreign_files import Unpacked
from tests.producers.importers.test_flight_recorder import dump, entry

WORK = "WorkNCCL(SeqNum={0}, OpType={1}, NumelIn={2}, NumelOut={2}, Timeout(ms)=600000) ran for 600034 milliseconds"
CAUGHT = "[Rank {rank}] Watchdog caught collective operation timeout: {work} before timing out."
AGAIN = "[default] Worker group FAILED. 2/3 attempts left; will restart worker group"


def caught(rank: int, sequence: int = 652, operator: str = "ALLREDUCE", elements: int = 4096) -> str:
    return CAUGHT.format(rank=rank, work=WORK.format(sequence, operator, elements))


def failure(rank: int, inside: int, group: str, number: int, enqueued: int | None = None) -> str:
    return (
        f"[rank{rank}]:[E] [PG ID 3 PG GUID {group} Rank {inside}]  failure detected by watchdog at work sequence "
        f"id: {number} PG status: last enqueued work: {enqueued or number}, last completed work: {number - 1}"
    )


def failed(number: int, *ranks: int) -> list[str]:
    return [failure(rank, rank, "0(default_pg)", number) for rank in ranks]


def died(code: int = -9) -> list[str]:
    """Return torchrun's report of rank 3, which ended first."""
    return [
        "Root Cause (first observed failure):", "[0]:", "  time      : 2026-11-27_10:00:00", "  host      : node1",
        "  rank      : 3 (local_rank: 1)", f"  exitcode  : {code} (pid: 4711)",
    ]  # fmt: skip


def verdict_of(folder: Path, *lines: str) -> Verdict:
    (folder / "train.log").write_text("\n".join([*lines, ""]))
    import_trace("watchdog", folder / "train.log", folder / "out")
    (verdict,) = analyze(read_trace(folder / "out")).verdicts
    return verdict


def hang_of(folder: Path, *logs: list[str]) -> ImportedJob:
    paths = [folder / name for name in ("a.log", "b.log")[: len(logs)]]
    for path, lines in zip(paths, logs, strict=True):
        path.write_text("\n".join(lines))
    return read_hang({"watchdog": paths}, "job")


# --- who is accused -------------------------------------------------------------------------------------------------

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


def behind(prefix: str) -> list[str]:
    lines = [prefix.format(rank=rank, local=rank % 2, node=rank // 2) + caught(rank) for rank in (0, 1, 3, 4)]
    return ["step 651 loss 2.1", *lines, "torch.distributed.elastic: SIGABRT"]


def broken(width: int) -> list[str]:
    """Return lines of three ranks as a terminal of a width breaks them."""
    lines = []
    for rank in (0, 1, 3):
        line = f"[rank{rank}]:[E] {caught(rank)}"
        lines += [line[:width].ljust(width + 9), line[width:], *failed(652, rank)]
    return lines


def hccl(rank: int) -> str:
    return (
        f"[ERROR] (PID:{rank}, Device:0, RankID:{rank}) ERR00100 PTA call acl api failed.\nEI0002: [PID: {rank}] The "
        "wait execution of the Notify register times out. Reason: no record from remote rank: [2]. base information: "
        "[tag[AllReduce_group_name_0], …]. group information: [group:[hccl_world_group], user define information[], "
        f"rankSize[4], rankId[{rank}]]"
    )


TORCHCOMMS = (
    "E0826 9 TorchWorkNCCL.cpp:147] [TC][rank={0}][name=main] Operation timed out after 9 ms\n"
    "Aborting process due to timeout on rank {0} - timeout watchdog detected operation timeout"
)
UNMADE = (
    "torch.distributed.DistBackendError: [{0}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] "
    "via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms"
)
GLOO = "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"
STATUS = "[PG 0 Rank {0}] Timeout at HCCL work: 5, last enqueued HCCL work: 6, last completed HCCL work: 4."
GATHER = "WorkNCCL(SeqNum=9, OpType=_ALLGATHER_BASE, NumelIn=512, NumelOut=4096, Timeout(ms)=600000) ran for 600009"
PIPELINE = "90(PIPELINE_MODEL_PARALLEL_GROUP)"
NEVER = "\t - To our best knowledge, ranks [3] are the lagging ranks that caused this timeout. They never joined"
DESYNC = [
    "\t     [2] finished collective #4, but didn't join collective #5 (count from 1)",
    "\t   #5 started ranks:\n\t     [0, 1, 3] started ALLREDUCE",
]
OLD = [caught(rank, 31) for rank in range(8)]
RAY = [
    "WORLD_SIZE=4", f"{caught(3)} [repeated 3x across cluster]", caught(0), "frame #0 [repeated 90x across cluster]",
]  # fmt: skip
INIT = "node0:100:7 [0] NCCL INFO comm 0x7fa0 rank 0 nranks 4 cudaDev 0 busId 2000 commId 0xabc - Init COMPLETE"


STARTED = "last enqueued work: 12, last started work: -1, last completed work: 10"
FIRST = "Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed NCCL work: 93459313471793."
PASSED = "RuntimeError: Rank 1 failed to pass monitoredBarrier in 2000 ms\n Original exception:"


def of_ray(actor: str, *lines: str) -> list[str]:
    return [f"({actor} pid={9 + at}, ip=10.0.0.1) {line}" for at, line in enumerate(lines)]


def of_three(line: str) -> list[str]:
    """Return a line of each rank but 2."""
    return [line.format(rank) for rank in (0, 1, 3)]


# Lines of a log, the ranks that they accuse, and words of the evidence
HANGS: dict[str, tuple[list[str], tuple[int, ...], tuple[str, ...]]] = {
    **{f"prefix of {name}": (behind(prefix), (2,), ("all_reduce 652 on default_pg",))
       for name, prefix in PREFIXES.items()},
    **{f"terminal of {width}": (broken(width), (2,), ("all_reduce 652 on default_pg",))
       for width in (60, 97, 168, 209)},
    "lines broken at words": (
        [line.replace(" timeout:", " timeout: \n").replace("by watchdog", "\nby watchdog") for line in broken(168)],
        (2,), ()),
    "lines without their group belong to the one whose status fits their number": (
        [f"[rank13]:[E] {caught(1, 216, 'ALLTOALL_BASE')}", failure(13, 1, "119", 216),
         f"[rank15]:[E] {caught(0, 57)}", failure(15, 0, "112", 57)],
        (), ("rank 13 stands in all_to_all 216 on 119, and rank 15 stands in all_reduce 57 on 112;",
             "who else belongs to that group, and is waited for, is not told")),
    "the default group numbers the job whatever torchrun puts before it": (
        [line.replace(f"[rank{rank}]", f"[rank{rank % 2}]")
         for rank, line in zip((0, 1, 3), failed(70, 0, 1, 3), strict=True)], (2,), ()),
    "numbers that no group explains are of several": (
        [caught(0, 96120), caught(0, 96117), caught(7, 64088)], (), ("rank 0 stands in all_reduce 96117",)),
    "numbers too close for a chance": (
        [caught(0, 619725, "_ALLGATHER_BASE"), caught(3, 619727)],
        (0,), ("2 calls behind rank 3, which stands in all_reduce 619727",)),
    "two of a group of eight, by what its collectives take and give": (
        [CAUGHT.format(rank=rank, work=GATHER) for rank in (0, 2)], (), ("all_gather 9",)),
    "an older call, whose operator is not known": (
        [*(caught(rank, 22) for rank in (1, 2, 3)), *failed(22, 1, 2, 3), failure(0, 0, "0(default_pg)", 21, 30)],
        (0,), ("collective 21 on default_pg ended on other ranks and never on rank 0: 1 call behind",)),
    "a batch without sizes is no all_reduce": (
        [f"[rank10]: {caught(1, 1, 'COALESCED', (1 << 64) - 1)}", f"[rank10]: {failure(10, 1, PIPELINE, 1)}"],
        (), ("rank 10 stands in collective 1 on PIPELINE_MODEL_PARALLEL_GROUP",)),
    "a later start begins with lower numbers": ([*failed(31, 0, 1, 2, 3, 5), *failed(7, 0, 1, 3, 4, 5)], (2,), ()),
    "a later start": ([*OLD[:3], AGAIN, *(caught(rank, 7) for rank in (0, 1, 3))], (2,), ()),
    "a later start of fewer ranks": ([*OLD, AGAIN, *(caught(rank, 7) for rank in (0, 1, 3))], (2,), ()),
    "the log of the second node, with lines of its later start, may not be there": (
        ["WORLD_SIZE=8", *OLD, AGAIN, *(caught(rank, 7) for rank in range(4))],
        (), ("ranks 4, 5, 6, 7 belong to all_reduce 7",)),
    "the log of the second node may not be there": (
        ["WORLD_SIZE=8", *map(caught, range(4))], (), ("ranks 4, 5, 6, 7 belong to all_reduce 652",)),
    "three of a node's ranks": (["WORLD_SIZE=8", *map(caught, range(5))], (5, 6, 7), ()),
    "a report of a desync": ([caught(0, 5), *DESYNC], (2,), ("all_reduce 5",)),
    "a report of a desync names ranks inside the group of its watchdog": (
        [f"[rank3]:[E] [PG ID 3 PG GUID 9(tp) Rank 1]{DESYNC[0]}", DESYNC[1],
         *(failure(rank, inside, "9(tp)", 5) for inside, rank in ((0, 1), (1, 3), (3, 7)))],
        (5,), ("on tp",)),
    "ranks that a report of a desync names": ([caught(0, 1), NEVER], (3,), ()),
    "HCCL": ([hccl(rank) for rank in (0, 1, 3)], (2,), ("all_reduce",)),
    "work of HCCL": ([f"[rank{rank}]: {caught(rank).replace('WorkNCCL', 'WorkHCCL')}" for rank in (0, 1, 3)],
                     (2,), ("all_reduce",)),
    "status of HCCL": (of_three(STATUS), (2,), ("collective 5 on default_pg",)),
    "the newest status, which tells what began": (
        [f"[rank{4 + at}]: [PG ID 3 PG GUID 9(tp) Rank {at}] failure at work sequence id: 11 PG status: {STARTED}"
         for at in (0, 1, 3)], (6,), ("collective 11 on tp",)),
    "PyTorch 2.3 says that any number was completed before the first": (
        [f"{caught(rank, 1)}\n[PG 0 Rank {rank}] {FIRST}" for rank in (0, 1, 3)],
        (2,), ("all_reduce 1 on default_pg",)),
    "a task of Slurm that was killed": (
        [*(f"{rank}: {caught(rank)}" for rank in range(3)), "srun: error: gpu-012: tasks 3-4: Killed"], (3, 4), ()),
    "a task of Slurm that is a node": (
        [*(f"0: [rank{rank}]: {caught(rank)}" for rank in range(3)), "srun: error: gpu-012: task 3: Killed"], (), ()),
    "the first barrier, of PyTorch 2.1": (
        of_three("Timed out initializing process group in store based barrier on rank: {}, for key: k (world_size=4"),
        (2,), ()),
    "groups of one number, as PyTorch 2.3 has them": (
        ["WORLD_SIZE=8", *(f"[rank{4 + at}]: [PG 1 Rank {at}] {STARTED}" for at in (0, 1, 3)),
         *(f"[rank{rank}]: [PG 2 Rank 0] {STARTED}" for rank in range(4))], (6,), ("collective 11 on 1",)),
    "who else is in a group is not told by the job's size": (
        ["WORLD_SIZE=4", *(failure(rank, rank, "3", 7) for rank in range(3))], (), ()),
    "a barrier that names one rank": ([PASSED], (1,), ("barrier on monitored_barrier",)),
    "Ray mixes two jobs": (
        [*of_ray("ActorModel", *map(caught, (0, 1, 3))), *of_ray("CriticModel", *failed(500, 0, 1), caught(2))],
        (2,), ("all_reduce 652 on default_pg",)),
    "actors of one job that Ray counts, and their driver": (
        [caught(0), *(line for rank in (1, 3) for line in of_ray(f"Worker_TP{rank}", caught(rank)))], (2,), ()),
    "groups of which one member is known wait for others": (
        [*(failure(4 + at, at, "41(tp)", 5123) for at in (0, 1, 3)),
         *(failure(rank, 0, f"5{rank}(dp)", 77) for rank in range(4))],
        (6,), ("collective 5123 on tp",)),
    "a group that is all inside, and one that waits for a rank without lines": (
        [*(failure(rank, rank, "1(shard)", 30) for rank in range(4)),
         *(failure(4 + at, at, "2(shard)", 28) for at in (0, 1, 3))], (6,), ("collective 28 on shard#2",)),
    "a message from a rank that is not told": (
        [f"[rank4]: {caught(1, 33, 'RECV')}", failure(4, 1, "13(pp)", 33)],
        (), ("rank 4 stands in collective 33 on pp",)),
    "a wait that blocks": (
        of_three(f"[Rank {{}}] Work {WORK.format(652, 'ALLREDUCE', 9)} timed out in blocking wait."),
        (2,), ("all_reduce",)),
    "TorchComms": (of_three(TORCHCOMMS), (2,), ("the next collective on main",)),
    "mpirun and no number": (
        [f"[1,{rank}]<stderr>:[E] {caught(rank).replace('SeqNum=652, ', '')}" for rank in (0, 1, 3)],
        (2,), ("all_reduce",)),
    **{f"without a watchdog: {line[:20]}": ([line.format(rank) for rank in range(4) if rank != missing],
                                           (missing,), ("the next collective on default_pg",))
       for line, missing in ((UNMADE, 0), (f"[rank{{0}}]: {UNMADE}", 0), (f"[rank{{0}}]: {GLOO}", 2))},
    "equal lines that Ray left out are of ranks without one": (
        RAY, (), ("ranks 0, 1, 2, 3 stand in all_reduce 652 on default_pg, and nobody is missing",)),
    **{f"size of the job: {line[:9]}": ([line, *map(caught, range(3))], (3,), ())
       for line in ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4", "Num processes: 4", INIT)},
    **{f"a process that ended with {code}": ([*map(caught, range(3)), *died(code)], ranks, ())
       for code, ranks in ((-9, (3,)), (-6, ()), (-15, ()), (1, ()))},
    **{f"a process that ended, behind {prefix!r}": (
        [*map(caught, range(3)), *(prefix + line for line in died())], (3,), ())
       for prefix in ("0: ", "2026-11-27T12:00:00.1Z ", "\x1b[36m(TrainTask pid=40, ip=10.0.0.1)\x1b[0m ")},
}  # fmt: skip


@pytest.mark.parametrize("name", HANGS)
def test_the_rank_that_is_waited_for_is_accused_if_it_is_known(tmp_path: Path, name: str) -> None:
    lines, ranks, words = HANGS[name]
    verdict = verdict_of(tmp_path, *lines)
    assert (verdict.kind, tuple(rank for one in verdict.suspects for rank in one.ranks)) == ("hang", ranks)
    assert [word for word in words if word not in verdict.evidence] == []


def test_ranks_that_dump_signals_and_barriers_name_stand_outside(tmp_path: Path) -> None:
    who = "[PG ID 0 PG GUID 0(default_pg) Rank 1]"
    got = f"[rank1]:[E] {who} Received a dump signal due to a collective timeout from rank 0 and we will try "
    got += "our best to dump the debug info. Last enqueued NCCL work: 651, last completed NCCL work: 651."
    verdict = verdict_of(tmp_path, caught(0), got, caught(2))
    assert (verdict.suspects[0].ranks, verdict.suspects[0].probability) == ((1,), 0.9)
    verdict = verdict_of(tmp_path, "RuntimeError: [Rank 0]: Ranks 1, 5 failed to pass monitoredBarrier in 2000 ms")
    assert (verdict.kind, verdict.suspects) == ("hang", ())  # more than wait for them
    text = "Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv"
    others = [text.format(rank) for rank in (2, 3, 4)]
    verdict = verdict_of(tmp_path, "[Rank 0]: Ranks 1, 5 failed to pass monitoredBarrier in 2000 ms", *others)
    assert verdict.suspects[0].ranks == (1, 5)


# --- the program ----------------------------------------------------------------------------------------------------


def test_other_operators_and_sizes_under_one_number_are_the_program(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, caught(0), caught(1), caught(2, operator="_ALLGATHER_BASE"), caught(3))
    assert (verdict.kind, verdict.suspects[0].ranks) == ("mismatch", (2,))
    verdict = verdict_of(tmp_path, caught(0), caught(1, elements=160), caught(2))
    assert (verdict.kind, verdict.suspects[0].ranks) == ("mismatch", (1,))
    desync = "\t   #5 started ranks:\n\t     [0] started ALLREDUCE\n\t     [1] started BROADCAST"
    assert verdict_of(tmp_path, caught(0, 5), desync).kind == "mismatch"


def test_fingerprints_of_what_torch_itself_found_to_differ_are_taken_over(tmp_path: Path) -> None:
    told = "CollectiveFingerPrint(SequenceNumber=22, OpType={}, TensorShape=[{}], TensorDtypes=Float, …)"
    text = "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
    text += f"{told.format('ALLREDUCE', '4, 8')}, but Rank 1 is running collective: {told.format('ALLGATHER', '7')}."
    verdict = verdict_of(tmp_path, text)
    assert (verdict.kind, verdict.suspects) == ("mismatch", ())
    assert "rank 1 called all_gather of 7 B where rank 0 called all_reduce of 32 B: call 22" in verdict.evidence
    text = "Detected mismatch between collectives on ranks. Rank {} is running inconsistent collective: "
    text += "CollectiveFingerPrint(OpType={}, TensorShape=[{}], TensorDtypes=Float"
    verdict = verdict_of(tmp_path, text.format(0, "BROADCAST", 34112), text.format(1, "ALLREDUCE", 1))
    assert (verdict.kind, verdict.suspects) == ("mismatch", ())
    text = "Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint("
    text += "SequenceNumber=1OpType=BARRIER), but Rank 2 is running collective: CollectiveFingerPrint("
    imported = hang_of(tmp_path, [f"{text}SequenceNumber=0OpType=BARRIER)."])
    assert not imported.has_open
    (reason,) = imported.skipped
    assert "rank 1 in its call 1 and rank 2 in its call 0" in reason


# --- ranks, groups and logs -----------------------------------------------------------------------------------------


def test_groups_are_told_apart_and_their_members_found(tmp_path: Path) -> None:
    lines = []
    for rank in (0, 2, 3):  # groups 9 = [0, 2] and 10 = [1, 3]
        inside, group = divmod(rank, 2)
        who = f"[PG ID 2 PG GUID {9 + group}(dp) Rank {inside}]"
        lines.append(f"[rank{rank}]:[E] {who} {caught(inside, 610)}")
        lines.append(f"[rank{rank}]:[E] {who} Exception (either an error or timeout) detected by watchdog at work: "
                     "610, last enqueued NCCL work: 616, last completed NCCL work: 609.")  # fmt: skip
    imported = hang_of(tmp_path, lines)
    assert {one.ranks for one in imported.communicators} >= {(0, 2)}
    assert imported.world_size == 4


def test_dumps_and_lines_of_one_hang_give_one_verdict(tmp_path: Path) -> None:
    dumps = [tmp_path / f"rank_{rank}.json" for rank in (0, 1)]
    for path in dumps:
        path.write_text(json.dumps(dump(entry(7))))
    who = "[PG ID 0 PG GUID 0(default_pg) Rank 2]"
    (tmp_path / "train.log").write_text(f"[rank2]: {who} Last enqueued NCCL work: 6, last completed NCCL work: 6.\n")
    imported = read_hang({"flight-recorder": dumps, "watchdog": [tmp_path / "train.log"]}, "job")
    assert [(rank, len(rows)) for rank, rows in sorted(imported.ranks.items())] == [(0, 1), (1, 1), (2, 0)]
    # A watchdog tells elements, and a dump tells bytes: they do not differ.
    (tmp_path / "train.log").write_text(f"[rank2]: {caught(2, 7, elements=32)}\n")
    folder = tmp_path / "in"
    folder.mkdir()
    for path in (*dumps, tmp_path / "train.log"):
        path.rename(folder / path.name)
    (verdict,) = analyze(read_trace(take_anything(folder, tmp_path / "in")[0])).verdicts
    assert "ranks 0, 1, 2 stand in all_reduce 7" in verdict.evidence


def test_lines_are_found_across_the_blocks_in_which_a_log_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(["x" * 37, caught(0), "y" * 100, caught(3), ""]).encode()
    for size in (8 << 20, 1, 7, 50, 211):
        monkeypatch.setattr(watchdog, "_BLOCK_BYTES", size)
        log = WatchdogLog()
        log.read(io.BytesIO(text))
        assert [one.rank for one in log.dumps()] == [0, 3]


def test_a_rank_that_died_in_an_earlier_start_is_not_waited_for(tmp_path: Path) -> None:
    imported = hang_of(tmp_path, [*died(), AGAIN, *map(caught, range(3))])
    assert sorted(imported.ranks) == [0, 1, 2]
    assert not any("end first" in note for note in imported.notes)


@pytest.mark.parametrize(("first", "second"), [
    ([caught(1)], [caught(2), AGAIN, caught(0)]),  # of the first log nothing is of an earlier start
    (failed(652, 0), failed(7, 1, 0)),  # lower numbers than in the first log begin no start of the second one
])  # fmt: skip
def test_starts_of_a_job_are_told_apart_by_each_log(tmp_path: Path, first: list[str], second: list[str]) -> None:
    assert sorted(hang_of(tmp_path, first, second).ranks) == [0, 1]


def test_a_rank_whose_own_log_holds_no_line_of_a_watchdog_is_missing(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    own = tmp_path / "tasks"  # torchrun's own folders, and what Slurm calls its tasks' logs, are named so too
    for rank in range(4):
        text = caught(rank) if rank < 3 else "step 651 loss 2.1\n"
        for path in (own / f"attempt_0/{rank}/stderr.log", tmp_path / f"slurm/slurm-8123_{rank}.out"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (logs / f"train-{rank}.log").write_text(text)
    for source in (own, tmp_path / "slurm"):
        (tmp_path / f"of-{source.name}").mkdir()
        (verdict,) = analyze(read_trace(take_anything(source, tmp_path / f"of-{source.name}")[0])).verdicts
        assert verdict.suspects[0].ranks == (3,)
    (verdict,) = analyze(read_trace(take_anything(logs, tmp_path)[0])).verdicts
    assert (verdict.suspects[0].ranks, verdict.suspects[0].probability) == ((3,), 0.9)
    # Of many such logs most ranks were ended before their watchdog fired.
    for rank in range(24):
        (logs / f"train-{rank}.log").write_text(caught(rank) if rank < 13 else "step 651 loss 2.1\n")
    (tmp_path / "again").mkdir()
    (verdict,) = analyze(read_trace(take_anything(logs, tmp_path / "again")[0])).verdicts
    assert verdict.suspects == ()
    for rank in range(4, 24):
        (logs / f"train-{rank}.log").unlink()
    (logs / "train-3.log").write_text("step 651 loss 2.1\n")
    # Numbers that are not the ranks of the lines tell nothing of a log without any.
    (logs / "train-0.log").rename(logs / "train-7.log")
    files = sorted(logs.iterdir())
    assert sorted(read_hang({"watchdog": files}, "job").ranks) == [0, 1, 2]


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


def test_lines_that_ray_left_out_are_nobody_s_where_too_few_are_or_ranks_are_not_known(tmp_path: Path) -> None:
    for lines in ([RAY[0], RAY[1].replace("3x", "2x"), *RAY[2:]], RAY[1:]):
        imported = hang_of(tmp_path, lines)
        assert sorted(imported.ranks) == [0, 3]
    assert any("Ray left out" in note for note in imported.notes)


@pytest.mark.parametrize("line", [
    "[gloo/transport/tcp/pair.cc:598] Connection closed by peer [::1]:2",
    "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 6/8 clients joined.",
    "[rank12]:[E817 17:40] [PG 0 (default_pg) Rank 12] Process group watchdog thread terminated with exception: "
    "CUDA error: uncorrectable ECC error encountered",
    "[rank6]:[E] [PG ID 0 PG GUID 0(default_pg) Rank 6] ProcessGroupNCCL's watchdog got stuck for 480 seconds",
    "srun: error: gpu-012: task 11: Out Of Memory",
    "srun: error: gpu-012: task 3: Exited with exit code 1",
    "client socket has timed out after 60000ms while trying to connect to (node0, 29500)",
    "watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
    "[rank: 3] Child process with PID 26223 terminated with code -9. Forcefully terminating all other processes",
])  # fmt: skip
def test_errors_that_name_no_collective_are_repeated(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError) as refused:
        hang_of(tmp_path, [f"Error: {line}"])
    _, told, error = str(refused.value).partition("; got none; the log says: ")
    assert told
    assert line.endswith(error)
    assert "Rank" not in line or error == line


def test_the_first_exception_of_a_rank_is_repeated_and_none_of_waiting(tmp_path: Path) -> None:
    waiting = "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2006"
    raised = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 336.00 MiB"
    lines = [waiting, raised, "[rank2]: ValueError: again", *(caught(rank) for rank in (0, 1, 3))]
    imported = hang_of(tmp_path, lines)
    assert f"the log says: {raised}" in imported.notes
    assert watchdog.NOTE_SIZE in imported.notes
    assert watchdog.NOTE_SIZE not in hang_of(tmp_path, ["WORLD_SIZE=4", *lines]).notes


def test_a_log_of_very_many_starts_is_read() -> None:
    """Each start was read inside the one after it, which Python allows a thousand times."""
    log = WatchdogLog()
    log.read(io.BytesIO(f"{caught(3)}\nwill restart worker group\n".encode() * 3_000 + caught(1).encode()))
    assert [one.rank for one in log.dumps() if len(list(one.entries))] == [1]


@pytest.mark.parametrize("digits", [25, 400, 5_000])
@pytest.mark.parametrize("line", [
    "[Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType=ALLREDUCE, NumelIn=4, "
    "NumelOut=4, Timeout(ms)=9)",
    "[Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn={}, "
    "NumelOut=4, Timeout(ms)=9)",
    "[Rank 4] failure at work sequence id: {} PG status: last enqueued work: 4, last completed work: 3",
    "[Rank 4] PG status: last enqueued work: {0}, last completed work: {0}",
    "[Rank 4]: Ranks 1, {} failed to pass monitoredBarrier in 2000 ms",
])  # fmt: skip
def test_numbers_of_very_many_digits_end_no_reading(tmp_path: Path, line: str, digits: int) -> None:
    imported = hang_of(tmp_path, [caught(0), caught(1), line.format("9" * digits)])
    assert {0, 1} <= imported.ranks.keys()


def test_a_packed_log_that_is_cut_keeps_the_ranks_before_that_and_not_the_line_that_it_goes_through() -> None:
    log = WatchdogLog()
    whole = gzip.compress("\n".join([caught(1), *died(), caught(0)]).encode())
    assert str(log.read(Unpacked(fileobj=io.BytesIO(whole[:-8])))).startswith("Compressed file ended")
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
        _, lines = take_anything(path, scratch)
        assert any("note: train.log.gz breaks off, and its lines before count" in line for line in lines)
        assert sorted(read_hang({"watchdog": [path]}, "job").ranks) == [0, 1]
