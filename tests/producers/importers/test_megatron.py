"""Lines of Megatron in training logs: who took most, and whose GPU computes another result from the same data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import analyze
from irregulars.messages.judgements import Verdict
from irregulars.producers.importers import megatron
from irregulars.producers.importers.importing import take_anything
from irregulars.producers.importers.megatron import MegatronLog
from irregulars.producers.trace.directory import read_trace
from tests.producers.importers.test_watchdog import caught

WORLD = 16
WORK = 600_000.0  # TFLOP
MESSAGE = "found NaN in local grad norm for bucket #1 in backward pass before data-parallel communication collective"
TRACKED = (
    "ts=2026-03-14 10:00:12.345678 node={} device={} jobID=4711 rank=21 iteration=300 status={} result={} "
    "message='{}'\n"
)
AGAIN = "Rank 11, node node-2, device 3, iteration #121: "


def report(took_ms: dict[int, float], prefix: str = " 0: INFO:megatron.core.utils:[2026-03-14 10:00:00] ") -> str:
    in_order = sorted(took_ms, key=lambda rank: took_ms[rank])
    least, most = in_order[0], in_order[-1]
    throughput = {rank: f"{WORK / ms:.2f}TF/{rank}" for rank, ms in took_ms.items()}
    others = "MnPwr/Rnk: 601796.00W/8 | MxClk/Rnk: 1980.00MHz/0 | MnDRtt/Rnk: 14.27ms/23 | MxDRtt/Rnk: 34.65ms/3"
    listed = " ".join(f"{throughput[rank]}," for rank in in_order[:-4:-1])
    return (
        f"{prefix}| MnRtt/Rnk: {took_ms[least]:.2f}ms/{least} | MxRtt/Rnk: {took_ms[most]:.2f}ms/{most} | {others} | "
        f"MnEtpt/Rnk: {throughput[most]} | MxEtpt/Rnk: {throughput[least]}\n"
        f"{prefix}^^^^ Bottom 3 Ranks with lowest  Etpt(TF): {listed}\n"
    )


def training(times: float, slow: int = 13, first: int = 0, noise: float = 0.02) -> str:
    """Write the log of a run in which a rank takes `times` as long from a report on."""
    random, lines = Random(1), [f"using world size: {WORLD}, data-parallel size: 4\n"]
    for at in range(24):
        took_ms = {rank: 1450 * random.uniform(1, 1 + noise) for rank in range(WORLD)}
        took_ms[slow] *= times if at >= first else 1
        lines += [
            f" [2026-03-14 10:00:00.1] iteration {100 * at + 100:8d}/  500000 | lm loss: 2.1 |\n",
            report(took_ms),
        ]
    return "".join(lines)


def judged(tmp_path: Path, text: str) -> tuple[list[Verdict], str]:
    (tmp_path / "train.log").write_text(text)
    made, lines = take_anything(tmp_path / "train.log", tmp_path)
    return analyze(read_trace(made)).verdicts, "\n".join(lines)


@pytest.mark.parametrize(("times", "first", "iterations"), [(1.3, 0, (100, 2401)), (1.5, 12, (1300, 2401))])
def test_the_rank_that_takes_most_again_and_again_is_slow(
    tmp_path: Path, times: float, first: int, iterations: tuple[int, int]
) -> None:
    (verdict,), lines = judged(tmp_path, training(times, first=first))
    assert (verdict.kind, verdict.suspects[0].ranks, verdict.iterations) == ("slow_rank", (13,), iterations)
    assert "one tensor parallel group" in lines


@pytest.mark.parametrize("noise", [0.02, 0.08])
def test_that_one_rank_always_takes_most_is_no_fault(tmp_path: Path, noise: float) -> None:
    assert judged(tmp_path, training(1.0, noise=noise))[0] == []


def test_reports_without_iterations_count_and_the_newest_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MegatronLog()
    for _ in range(3):
        log.read(report({0: 10.0, 1: 20.0, 2: 16.0, 3: 18.0}, prefix="2024-10-23 01:29:30] [INFO] ").encode())
    job = log.job("j", 0)
    assert job is not None
    (batch,) = (one for one in job.batches() if one.header.schema == "commops" and one.header.rank == 2)
    # Its throughput tells its time; the slowest rank waits for nobody
    assert batch.columns["elapsed_ns"].tolist() == pytest.approx([4e6] * 3, rel=1e-3)
    assert batch.columns["iteration"].tolist() == [0, 1, 2]
    monkeypatch.setattr(megatron, "_MOST_REPORTS", 2)
    log.read(report({0: 10.0, 1: 20.0}).encode())
    kept = log.job("j", 0)
    assert kept is not None
    assert [len(rows) for rows in kept.ranks.values()] == [2] * 4


@pytest.mark.parametrize("begin", [MegatronLog.begin_file, MegatronLog.forget_file])
def test_ranks_listed_without_a_report_are_put_into_none_of_another_log(
    begin: Callable[[MegatronLog], None],
) -> None:
    log = MegatronLog()
    log.read(report({0: 10.0, 1: 20.0}).encode())
    log.begin_file()
    if begin is MegatronLog.forget_file:
        log.read(report({0: 10.0, 1: 20.0}).encode())
        begin(log)
    listed = report({7: 10.0, 8: 20.0}).splitlines(keepends=True)[1]
    log.read((listed + report({0: 10.0, 1: 20.0})).encode())
    job = log.job("j", 0)
    assert job is not None
    assert job.world_size == 2


@pytest.mark.parametrize(("text", "rank", "place"), [
    (AGAIN + "First rerun: unexpected result is not reproducible within the tolerance (0.5 != nan)!\n"
     + AGAIN + "Possible transient error!\n", 11, ("node-2", 3)),
    (TRACKED.format("node-2", 5, "initial_run", "nan", MESSAGE)
     + TRACKED.format("node-2", 5, "first_rerun_not_reproducible", "tensor(0.4, device='cuda:5')", MESSAGE),
     21, ("node-2", 5)),
    # The second GPU computed another result than the first one: that one is at fault
    (TRACKED.format("node-2", 5, "RerunValidationStatus.FIRST_RERUN_REPRODUCIBLE", "nan", MESSAGE)
     + TRACKED.format("node-9", 1, "RerunValidationStatus.SECOND_RERUN_NOT_REPRODUCIBLE", "0.4", MESSAGE),
     21, ("node-2", 5)),
])  # fmt: skip
def test_a_gpu_with_another_result_is_named(tmp_path: Path, text: str, rank: int, place: tuple[str, int]) -> None:
    (verdict,), lines = judged(tmp_path, text)
    assert (verdict.kind, verdict.severity) == ("corruption", "page")
    assert verdict.time_ns == (None if rank == 11 else 1_773_482_412 * 10**9)
    (suspect,) = verdict.suspects
    assert (suspect.ranks, (suspect.host, suspect.gpu)) == ((rank,), place)
    assert "was not the same" in lines


@pytest.mark.parametrize(("text", "words"), [
    # A clock that was never set
    (TRACKED.format("node-2", 5, "first_rerun_not_reproducible", "nan", MESSAGE).replace("2026-", "9999-"),
     "computed again there, it was not the same"),
    ("".join(TRACKED.format("node-2", 5, status, "nan", MESSAGE)
             for status in ("initial_run", "first_rerun_reproducible", "second_rerun_reproducible")),
     "on another GPU it was the same: data or program, no device"),
    ("Unexpected result 83.2 on rank 4 at iteration #200 invocation #1 (message='Spiky loss')\n",
     "rank 4, iteration 200: Spiky loss; it was not computed again"),
])  # fmt: skip
def test_other_results_are_told_and_accuse_nobody(tmp_path: Path, text: str, words: str) -> None:
    found, lines = judged(tmp_path, text)
    assert found == []
    assert words in lines


@pytest.mark.parametrize("line", [
    f"Rank {{0}}, node node-0, device {{0}}, iteration 121: Unexpected result nan (message='{MESSAGE}')\n",
    f"Unexpected result nan on rank {{0}} at iteration #121 invocation #3 (message='{MESSAGE}')\n",
    "AssertionError: Rank {0}: found NaN in local grad norm in backward pass before data-parallel communication "
    "collective. Device: {0}, node: node-0\n",
])  # fmt: skip
def test_one_rank_s_result_that_is_not_finite_is_its_own_and_that_of_all_is_not(tmp_path: Path, line: str) -> None:
    begin = "using world size: 16,\n [2026-03-14 10:00:00.1] iteration      120/  500000 | lm loss: 2.1 |\n"
    (verdict,), _ = judged(tmp_path, begin + line.format(3))
    assert (verdict.kind, verdict.suspects[0].ranks, verdict.iterations) == ("loss_spike", (3,), (121, 122))
    (tmp_path / "all").mkdir()
    found, lines = judged(tmp_path / "all", begin + "".join(line.format(rank) for rank in range(16)))
    assert found == []
    assert "13 more results were rejected" in lines


def test_a_hang_in_the_same_log_is_judged(tmp_path: Path) -> None:
    text = training(1.3) + "".join(f"[rank{rank}]: {caught(rank)}\n" for rank in range(WORLD) if rank != 7)
    (verdict,), _ = judged(tmp_path, text)
    assert (verdict.kind, verdict.suspects[0].ranks) == ("hang", (7,))


def test_more_than_training_writes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "Unexpected result nan on rank {} at iteration #1 invocation #1 (message='x')\n"
    with pytest.raises(InputError, match="ranks must be below 1048576; got 9999999999"):
        MegatronLog().read(line.format("9" * 30).encode())
    monkeypatch.setattr(megatron, "_MOST_RESULTS", 2)
    with pytest.raises(InputError, match="at most 2; got more"):
        MegatronLog().read("".join(map(line.format, range(3))).encode())


@pytest.mark.parametrize(("what", "words"), [
    ("loss", "no device is named"),
    ("gradient:0:layers.1.attention.wq.weight", "gradients are compared after their reduction"),
    ("rng:accelerator:0", "the program, no device"),
    ("tensor schema divergence", "the program, no device"),
])  # fmt: skip
@pytest.mark.parametrize("word", ["local_step", "attempt"])
def test_the_lowest_rank_of_torchtitan_s_replay_is_told_once_and_is_no_suspect(
    tmp_path: Path, what: str, words: str, word: str
) -> None:
    error = f"SDC replay mismatch: step=12, {word}=1, replay=1, rank=2, signature={what!r}"
    text = "".join(f"[rank{rank}]: torchtitan.sdc.SDCReplayMismatch: {error}\n" for rank in range(4))
    found, lines = judged(tmp_path, text)
    assert found == []
    assert lines.count("step 12 ") == 1
    assert f"rank 2 is the lowest on which something differed, {what}" in lines
    assert words in lines
