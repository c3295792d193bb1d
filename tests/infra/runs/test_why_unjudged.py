from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from irregulars.infra.runs.analysis import Analysis, analyze
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.iterations import number_iterations
from tests.producers.importers.inspector_lines import collective, context, lines

RECORDINGS = Path(__file__).resolve().parents[2] / "recordings"


@cache
def clean() -> Trace:
    return read_trace(RECORDINGS / "gloo-clean")


def cut(batches: Mapping[int, Batch], past: int) -> dict[int, Batch]:
    """Keep the iterations before one."""
    return {rank: only(batch, batch.columns["iteration"] < past) for rank, batch in batches.items()}


def only(batch: Batch, rows: np.ndarray) -> Batch:
    return replace(batch, columns={name: column[rows] for name, column in batch.columns.items()})


def with_column(batches: Mapping[int, Batch], name: str, value: int) -> dict[int, Batch]:
    return {
        rank: replace(batch, columns={**batch.columns, name: np.full(len(batch), value)})
        for rank, batch in batches.items()
    }


def reason_of(trace: Trace) -> str:
    analysis = analyze(trace)
    assert analysis.verdicts == []
    return analysis.unjudged_reason or ""


def test_a_job_in_which_nobody_is_to_blame_was_judged() -> None:
    assert analyze(clean()).unjudged_reason is None


def test_a_job_with_a_verdict_was_judged() -> None:
    analysis = analyze(read_trace(RECORDINGS / "gloo-slow-nic"))
    assert analysis.unjudged_reason is None
    assert "unjudged_reason" not in analysis.to_json()


@pytest.mark.parametrize(("count", "said"), [(1, "1 training iteration is"), (5, "5 training iterations are")])
def test_too_few_iterations_can_not_be_judged(count: int, said: str) -> None:
    trace = replace(clean(), commops=cut(clean().commops, count), iterations=cut(clean().iterations, count))
    assert reason_of(trace).startswith(f"{said} too few: what is usual is known after 10")


def test_operators_without_a_period_can_not_be_judged() -> None:
    trace = replace(clean(), commops=with_column(clean().commops, "iteration", UNKNOWN), iterations={}, bandwidth={})
    assert "no iterations are marked" in reason_of(trace)


def test_without_start_times_nobody_knows_how_long_an_iteration_took() -> None:
    trace = replace(clean(), commops=with_column(clean().commops, "start_ns", UNKNOWN), iterations={})
    assert "its operators have no start times, and no times of iterations are logged" in reason_of(trace)


def test_one_rank_of_many_has_no_peers() -> None:
    announcements = tuple(replace(one, logged_ranks=1, is_logged=one.rank == 0) for one in clean().announcements)
    one = {name: {0: getattr(clean(), name)[0]} for name in ("commops", "iterations", "bandwidth")}
    reason = reason_of(replace(clean(), announcements=announcements, **one))
    assert "of 4 ranks only rank 0 is logged" in reason


def test_an_empty_trace_says_that_nothing_is_in_it() -> None:
    assert (
        reason_of(Trace("empty", 0, 1, "shared", None, (), {})) == "there are neither operators nor iterations in it"
    )


def test_the_reason_is_in_the_json() -> None:
    assert Analysis("j", 0, unjudged_reason="so").to_json()["unjudged_reason"] == "so"


def logs(folder: Path, has_starts: bool) -> None:
    """Write logs of NCCL Inspector: two processes, 40 collectives, of which one is long."""
    folder.mkdir()
    for process in (0, 1):
        rows = [
            {
                **context(process),
                **collective(
                    number, 5400 if number == 30 else 400 + number % 3, number * 10_000 if has_starts else None
                ),
            }
            for number in range(1, 41)
        ]
        (folder / f"host-{process}.log").write_bytes(lines(*rows))


def test_operators_of_which_no_length_is_known_tell_hangs_alone() -> None:
    ended = {
        r: Batch(b.header, {**b.columns, "elapsed_ns": b.columns["elapsed_ns"] * 0})
        for r, b in clean().commops.items()
    }
    assert reason_of(replace(clean(), commops=ended)).startswith("nothing tells how long its operators took")


@pytest.mark.parametrize(("has_starts", "is_judged"), [(True, True), (False, False)])
def test_nccl_inspectors_logs_are_judged_if_they_hold_start_times(
    tmp_path: Path, has_starts: bool, is_judged: bool
) -> None:
    logs(tmp_path / "logs", has_starts)
    import_trace("nccl-inspector", tmp_path / "logs", tmp_path / "out")
    analysis = analyze(number_iterations(read_trace(tmp_path / "out")).trace)
    assert len(analysis.iterations) == 40
    assert (analysis.unjudged_reason is None) == is_judged


@cache
def bench(name: str) -> Trace:
    return number_iterations(read_trace(RECORDINGS / "bench" / name)).trace


def logged_by(trace: Trace, *ranks: int) -> Trace:
    """Keep what these ranks logged, as where the files of the others are lacking."""
    return replace(
        trace,
        announcements=tuple(
            replace(one, logged_ranks=len(ranks), sources=("commops", "iterations"), host=None, nic=None, switch=None)
            for one in trace.announcements if one.rank in ranks
        ),
        commops={rank: trace.commops[rank] for rank in ranks},
        iterations={rank: trace.iterations[rank] for rank in ranks if rank in trace.iterations},
        bandwidth={},
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["ddp8-compute", "ddp8-nic-send", "tp2pp2dp2-cpu-quota", "pp4dp2-compute", "hsdp8-loader-short"]
)
def test_one_rank_of_several_can_not_tell_a_slow_transfer_from_a_late_rank(name: str) -> None:
    assert "of 8 ranks only rank 0 is logged" in reason_of(logged_by(bench(name), 0))


def test_a_rank_without_a_log_is_said_to_be_what_may_have_come_late() -> None:
    [verdict] = analyze(logged_by(bench("ddp8-compute"), 0, 1, 3, 4, 5, 6, 7)).verdicts
    assert (verdict.kind, verdict.suspects) == ("slow_communicator", ())
    assert "; rank 2 of them logs nothing, and may be what it waited for" in verdict.evidence


def test_no_nic_is_accused_for_a_sender_without_a_log() -> None:
    reason = reason_of(logged_by(bench("pp4dp2-compute"), 0, 1, 2, 3, 5, 6, 7))
    assert reason.endswith("and rank 4 is not logged: it may have been late, and its log is needed")
