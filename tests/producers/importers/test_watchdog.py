"""Lines of watchdogs in logs of many ranks, as launchers and versions of PyTorch write them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from irregulars.infra.runs.analysis import analyze
from irregulars.messages.judgements import Verdict
from irregulars.producers.importers import watchdog
from irregulars.producers.importers.importing import import_trace, read_hang
from irregulars.producers.importers.watchdog import WatchdogLog
from irregulars.producers.trace.directory import read_trace
from tests.producers.importers.test_flight_recorder import dump, entry

WORK = "WorkNCCL(SeqNum={0}, OpType={1}, NumelIn={2}, NumelOut={2}, Timeout(ms)=600000) ran for 600034 milliseconds"
CAUGHT = "[Rank {rank}] Watchdog caught collective operation timeout: {work} before timing out."


def caught(rank: int, sequence: int = 652, operator: str = "ALLREDUCE", elements: int = 4096) -> str:
    return CAUGHT.format(rank=rank, work=WORK.format(sequence, operator, elements))


PREFIXES = {
    "torchrun": "[rank{rank}]:[E227 23:07:54.32 ProcessGroupNCCL.cpp:629] ",
    "torchrun with local ranks": "[default{local}]:[rank{rank}]:[E ProcessGroupNCCL.cpp:607] ",
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
