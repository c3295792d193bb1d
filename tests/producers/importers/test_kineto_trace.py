"""Kineto traces: collectives of kernels and of gloo annotations, their groups, their iterations, the last arriver."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import analyze
from irregulars.infra.runs.trace_reports import arrivals_of
from irregulars.messages.records import OPERATORS, PAUSES, UNKNOWN
from irregulars.producers.importers import kineto_kernels
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.importers.kineto_trace import EventReader
from irregulars.producers.trace.directory import Trace, read_trace

Shared = Callable[[str], Path]


def imported(source: Path, tmp_path: Path) -> Trace:
    import_trace("kineto", source, tmp_path / "out")
    trace = read_trace(tmp_path / "out")
    assert trace.rejected.count == 0
    return trace


def test_dlrm_has_its_collectives_and_names_the_last_arriver_of_each(shared_trace: Shared, tmp_path: Path) -> None:
    trace = imported(shared_trace("raw/kineto-dlrm8"), tmp_path)
    assert {rank: len(batch) for rank, batch in trace.commops.items()} == dict.fromkeys(range(8), 8)
    arrivals, names = arrivals_of(trace)
    assert names == ("default_pg",)
    assert arrivals.shares.tolist() == [8] * 8
    assert arrivals.ends_apart_ns.max() < 10_000
    # What traces/README.md says of it: all ranks leave together, and the shortest share is the late rank's.
    assert arrivals.last_rank.tolist() == [7, 7, 7, 7, 7, 5, 5, 4]
    operators = [OPERATORS[code] for code in arrivals.operator.tolist()]
    assert (operators.count("all_to_all"), operators.count("all_reduce")) == (5, 3)
    assert set(arrivals.iteration.tolist()) == {10}
    assert trace.clock == "shared"
    assert (trace.commops[0].columns["size_bytes"] > 0).sum() >= 8
    assert analyze(trace).verdicts == []


def test_gloo_annotations_find_their_groups(shared_trace: Shared, tmp_path: Path) -> None:
    trace = imported(shared_trace("raw/kineto-gloo4"), tmp_path)
    assert sorted(trace.iterations[0].columns["iteration"].tolist()) == list(range(3, 23))
    members = {c.id: (c.kind, c.ranks) for one in trace.announcements for c in one.communicators}
    assert members == {
        "default_pg": ("world", (0, 1, 2, 3)), "tp0": ("tp", (0, 1)), "tp1": ("tp", (2, 3)),
        "pp0": ("pp", (0, 2)), "pp1": ("pp", (1, 3)),
    }  # fmt: skip
    for rank, batch in trace.commops.items():
        used = [batch.header.names[code] for code in batch.columns["communicator"].tolist()]
        own = {"default_pg": 20, f"tp{rank // 2}": 20, f"pp{rank % 2}": 20}
        assert {name: used.count(name) for name in set(used)} == own
        assert set(batch.columns["peer"].tolist()) == {UNKNOWN, (rank + 2) % 4}
    arrivals, names = arrivals_of(trace)
    is_slept_in = (arrivals.communicator == names.index("tp1")) & np.isin(arrivals.iteration, range(12, 17))
    assert arrivals.last_rank[is_slept_in].tolist() == [2] * 5
    assert [n.iteration for n in analyze(trace).iterations if n.is_irregular] == [13, 14, 15, 16]


def test_traces_without_groups_count_by_stream(shared_trace: Shared, folder: Path, tmp_path: Path) -> None:
    for path in shared_trace("raw/hta").glob("sampled_rank-*"):
        (folder / path.name).write_bytes(path.read_bytes())
    trace = imported(folder, tmp_path)
    assert trace.world_size == 128
    assert {rank: len(batch) for rank, batch in trace.commops.items()} == {0: 10, 1: 10}
    assert {c.id for c in trace.announcements[0].communicators} == {"stream 84", "stream 203"}
    operators = [OPERATORS[code] for code in trace.commops[0].columns["operator"].tolist()]
    # Their kernels are all called SendRecv.
    assert Counter(operators) == {"all_reduce": 4, "all_to_all": 4, "all_gather": 2}


def test_kernels_that_name_their_group_and_size(shared_trace: Shared, tmp_path: Path) -> None:
    trace = imported(shared_trace("raw/hta") / "nccl_data.json.gz", tmp_path)
    batch = trace.commops[0]
    assert len(batch) == 21
    assert trace.announcements[0].communicators[0].ranks == (0, 1)
    assert sorted(set(batch.columns["iteration"].tolist())) == [4, 5, 6]
    assert 2_049_000 * 4 in batch.columns["size_bytes"].tolist()


# --- made up --------------------------------------------------------------------------------------------------------

GROUPS = [
    {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]},
    {"pg_name": "4", "pg_desc": "pp", "ranks": [1, 0]},
]
NAMED = {"Collective name": "allreduce", "Process Group Name": "0", "In msg nelems": 10, "dtype": "Float"}


def kernel(ts: float, dur: float, external: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_X", "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": {"stream": 20, "External id": external, "correlation": external, **arguments}}  # fmt: skip


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1, "ts": ts,
            "dur": dur, "args": {}}  # fmt: skip


def trace_file(folder: Path, rank: int, events: list[Any], **properties: Any) -> None:
    folder.mkdir(exist_ok=True)
    told = {"rank": rank, "world_size": 2, "pg_config": GROUPS}
    value = {"distributedInfo": told, "baseTimeNanoseconds": 10**18, **properties, "traceEvents": events}
    (folder / f"rank-{rank}.json.gz").write_bytes(gzip.compress(json.dumps(value).encode()))


def issue(ts: float, external: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": ts, "dur": 1.0, "tid": 1, "pid": 1,
            "args": {"External id": external, **arguments}}  # fmt: skip


def launch(ts: float, correlation: int, category: str = "cuda_runtime") -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": "hipExtLaunchKernel", "ts": ts, "dur": 1.0, "tid": 1, "pid": 1,
            "args": {"correlation": correlation}}  # fmt: skip


def skipped_of(source: Path, tmp_path: Path) -> dict[str, int]:
    return dict(import_trace("kineto", source, tmp_path / "out").skipped)


def test_an_operator_belongs_to_the_step_that_issued_it(tmp_path: Path) -> None:
    """The GPU runs it when the CPU is in the next step already."""
    issued = issue(5.0, 3, **{"Collective name": "allreduce"})
    trace_file(tmp_path / "in", 0, [step(4, 0, 10), step(5, 10, 10), issued, kernel(12.5, 3, 3, **NAMED)])
    columns = imported(tmp_path / "in", tmp_path).commops[0].columns
    assert columns["iteration"].tolist() == [4]
    assert columns["start_ns"].tolist() == [10**18 + 12_500]
    assert (columns["elapsed_ns"].tolist(), columns["size_bytes"].tolist()) == ([3_000.0], [40.0])


@pytest.mark.parametrize(("ts", "dur"), [(9e15, 3.0), (20.0, 9e15), (9e15, 9e15)])
@pytest.mark.parametrize("name", ["ncclDevKernel_X", "gloo:all_reduce"])
def test_times_that_no_row_has_leave_out_their_call_alone(tmp_path: Path, ts: float, dur: float, name: str) -> None:
    calls = [kernel(12.5, 3, 3, **NAMED), kernel(ts, dur, 4, **NAMED), step(9, 9e15, 9e15)]
    if name.startswith("gloo"):
        calls = [call | {"name": name, "cat": "user_annotation", "pid": 1} for call in calls[:2]]
    trace_file(tmp_path / "in", 0, [step(4, 0, 10), *calls], baseTimeNanoseconds=4 * 10**18)
    assert imported(tmp_path / "in", tmp_path).commops[0].columns["start_ns"].tolist() == [4 * 10**18 + 12_500]


def test_captures_that_begin_at_different_steps_share_their_numbers(tmp_path: Path) -> None:
    for rank, first in ((0, 3), (1, 4)):
        events = [e for n in range(first, 7) for e in (step(n, 10 * n, 9), kernel(10 * n + 1, 2 + rank, n, **NAMED))]
        trace_file(tmp_path / "in", rank, events)
    arrivals, _ = arrivals_of(imported(tmp_path / "in", tmp_path))
    assert arrivals.iteration.tolist() == [4, 5, 6]
    assert arrivals.last_rank.tolist() == [0, 0, 0]


def test_captures_without_steps_are_paired_by_the_ends_of_their_calls(tmp_path: Path) -> None:
    ends = np.cumsum([1_000, 9_000, 14_000, 8_000, 11_000, 10_000, 13_000]).tolist()
    for rank, first in ((0, 0), (1, 2)):
        calls = [kernel(end - 5 - 20 * rank, 5 + 20 * rank, n, **NAMED) for n, end in enumerate(ends[first:])]
        trace_file(tmp_path / "in", rank, calls)
    arrivals, _ = arrivals_of(imported(tmp_path / "in", tmp_path))
    assert (len(arrivals.sequence), arrivals.ends_apart_ns.max()) == (5, 0)
    assert arrivals.last_rank.tolist() == [0] * 5


def test_a_step_of_which_a_rank_lacks_calls_is_left_out_of_that_rank(tmp_path: Path) -> None:
    """Nothing tells which the profiler lost: paired in their order they would be of other sizes."""
    for rank, kept in ((0, (0, 1, 2, 3)), (1, (0, 1, 3))):
        calls = [kernel(20 * n + 5, 2, n, **NAMED | {"In msg nelems": 10 + n % 2}) for n in kept]
        trace_file(tmp_path / "in", rank, [step(0, 0, 38), step(1, 40, 38), *calls])
    assert list(skipped_of(tmp_path / "in", tmp_path).values()) == [1]
    trace = read_trace(tmp_path / "out")
    assert trace.commops[1].columns["iteration"].tolist() == [0, 0]
    assert [one.lost_rows for one in trace.announcements] == [None, 1]
    assert analyze(trace).verdicts == []


def test_of_unnamed_groups_a_step_counts_where_a_rank_makes_its_usual_calls(tmp_path: Path) -> None:
    """Each captured another part of the first step: paired in their order its calls would be a mismatch."""
    for rank, first in ((0, 0), (1, 1)):
        calls = [kernel(20 * n + 5, 2, n, **{"Collective name": "allreduce"}) for n in range(first, 12)]
        trace_file(tmp_path / "in", rank, [*(step(n, 80 * n, 78) for n in range(3)), *calls])
    assert list(skipped_of(tmp_path / "in", tmp_path).values()) == [3]
    trace = read_trace(tmp_path / "out")
    assert [batch.columns["iteration"].tolist().count(0) for batch in trace.commops.values()] == [4, 0]
    assert analyze(trace).verdicts == []


def test_ends_of_a_send_are_ranks_of_the_group(tmp_path: Path) -> None:
    for rank, name, end in ((0, "send", "Dst Rank"), (1, "recv", "Src Rank")):
        named = {"Collective name": name, "Process Group Name": "4", end: rank}
        trace_file(tmp_path / "in", rank, [step(0, 0, 9), kernel(1, 2, 1, **named)])
    trace = imported(tmp_path / "in", tmp_path)
    assert [trace.commops[rank].columns["peer"].tolist() for rank in (0, 1)] == [[1], [0]]


def test_hosts_are_read_off_the_names_that_torch_gives(folder: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        trace_file(folder, rank, [step(0, 0, 9), kernel(2, 5, 1, **NAMED)])
    for at, path in enumerate(sorted(folder.iterdir())):
        path.rename(folder / f"node-{at}_471{at}.1694128201545.pt.trace.json")
    assert [one.host for one in imported(folder, tmp_path).announcements] == ["node-0", "node-1"]
    (folder / "node-1_4711.1694128201545.pt.trace.json").rename(folder / "rank1.json")
    assert [one.host for one in imported(folder, tmp_path).announcements] == [None, None]


@pytest.mark.parametrize(("name", "arguments", "operator"), [
    ("void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", NAMED, "all_reduce"),
    ("Cijk_unheard_of", {**NAMED, "Collective name": "_reduce_scatter_base"}, "reduce_scatter"),
    ("void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8, true>(aiter::RankData*)", {}, "all_reduce"),
    ("void vllm::cross_device_reduce_1stage<float, 8>(vllm::RankData*)", {}, "all_reduce"),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>()", {}, "all_reduce"),
    ("void flashinfer::allreduce_fusion_kernel_oneshot_lamport<float>()", {}, "all_reduce"),
    ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", {}, "all_gather"),
    ("triton_per_fused_all_reduce_0", {}, None),
    ("void at::native::reduce_kernel<512, 1>()", {}, None),
    ("void at::native::_scatter_gather_elementwise_kernel<128, 8>()", {}, None),
])  # fmt: skip
def test_collectives_are_told_by_arguments_and_then_by_name(
    tmp_path: Path, name: str, arguments: dict[str, Any], operator: str | None
) -> None:
    one, other = kernel(1, 2, 1, **arguments) | {"name": name}, kernel(4, 2, 2, **NAMED)
    trace_file(tmp_path / "in", 0, [step(0, 0, 9), one, other])
    columns = imported(tmp_path / "in", tmp_path).commops[0].columns
    found = [OPERATORS[code] for code in columns["operator"].tolist()]
    assert found == [name for name in (operator, "all_reduce") if name]


def test_categories_and_arguments_of_old_releases_are_known(tmp_path: Path) -> None:
    """Up to PyTorch 1.11 they were written otherwise, and steps were operators."""
    mark, one = step(3, 0, 9) | {"cat": "Operator"}, kernel(12, 2, 5) | {"cat": "Kernel", "tid": "stream 7"}
    one |= {"name": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"}
    one["args"]["external id"] = one["args"].pop("External id")
    for category in ("Runtime", "xpu_runtime"):
        trace_file(tmp_path / "in", 0, [mark, step(4, 9, 9), one, launch(4, 5, category)])
        assert imported(tmp_path / "in", tmp_path).commops[0].columns["iteration"].tolist() == [3]


def test_what_is_issued_and_not_shown_is_counted(tmp_path: Path) -> None:
    notes = [
        {"ph": "X", "cat": "user_annotation", "name": name, "ts": ts, "dur": 1, "tid": 1, "pid": 1, "args": {}}
        for ts, name in enumerate(("hccl:allgather", "hccl:allgather", "nccl:all_reduce", "nccl:all_reduce"))
    ]
    trace_file(tmp_path / "in", 0, [step(0, 0, 9), *notes, kernel(1, 2, 1, **NAMED)])
    assert skipped_of(tmp_path / "in", tmp_path) == {
        "hccl:allgather that no kernel in the trace shows": 2, "nccl:all_reduce that no kernel in the trace shows": 1,
    }  # fmt: skip


def test_an_iteration_of_a_gpu_lasts_from_the_last_operator_of_the_one_before_to_its_own_last(tmp_path: Path) -> None:
    """Marks of the CPU are two steps ahead here: nothing of their times is of use."""
    issued = [issue(10 * n + 1, n) for n in range(4)]
    kernels = [kernel(25 + 10 * n, 3, n, **NAMED) for n in range(4)]
    trace_file(tmp_path / "in", 0, [*(step(n, 10 * n, 10) for n in range(4)), *issued, *kernels])
    trace = imported(tmp_path / "in", tmp_path)
    assert trace.commops[0].columns["iteration"].tolist() == [0, 1, 2, 3]
    columns = trace.iterations[0].columns
    assert (columns["start_ns"] - 10**18).tolist() == [25_000, 28_000, 38_000, 48_000]
    assert columns["elapsed_ns"].tolist() == [3_000, 10_000, 10_000, 10_000]
    assert (columns["pause_cause"] == UNKNOWN).all(), "of a trace of collectives alone nobody knows what ran between"


def test_waits_for_data_are_of_the_iterations_they_lie_in_and_too_many_kernels_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = step(0, 24, 6) | {"name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"}
    repeated = load | {"cat": "gpu_user_annotation", "pid": 0, "tid": 7}
    issued = [issue(10 * n + 1, n) for n in range(2)]
    kernels = [kernel(25 + 10 * n, 3, n, **NAMED) for n in range(2)] + [kernel(29, 2, 9) | {"name": "gemm"}]
    trace_file(tmp_path / "in", 0, [step(0, 0, 10), step(1, 10, 10), *issued, *kernels, load, repeated])
    columns = imported(tmp_path / "in", tmp_path).iterations[0].columns
    pauses = {"data_loader": [3_000, 2_000], "gpu_kernels": [2_000]}  # iterations: 25 to 28 µs, 28 to 38 µs
    for cause, elapsed_ns in pauses.items():
        is_own = columns["pause_cause"] == PAUSES.index(cause)
        assert columns["pause_elapsed_ns"][is_own].tolist() == elapsed_ns
    monkeypatch.setattr(kineto_kernels, "MOST_EVENTS", 2)
    assert list(skipped_of(tmp_path / "in", tmp_path).values()) == [1]
    trace = imported(tmp_path / "in", tmp_path)
    assert (len(trace.commops[0]), trace.events) == (2, {})


def test_a_kernel_that_was_launched_before_the_capture_is_left_out(tmp_path: Path) -> None:
    events = [step(4, 0, 20), kernel(2, 3, 1, **NAMED), kernel(6, 3, 2, **NAMED), launch(1, 2)]
    trace_file(tmp_path / "in", 0, events)
    assert list(skipped_of(tmp_path / "in", tmp_path).values()) == [1]
    assert imported(tmp_path / "in", tmp_path).commops[0].columns["start_ns"].tolist() == [10**18 + 6_000]


def test_without_launches_marks_count_where_no_operator_runs_on_or_each_step_has_its_share(tmp_path: Path) -> None:
    steps = [step(n, 1_000 * n, 1_000) for n in range(3)]
    cases = (("inside", 0, [0, 1, 2]), ("behind", 1_700, [0, 1, 2]), ("uneven", 700, [UNKNOWN] * 4))
    for name, lead_us, iterations in cases:
        kernels = [kernel(1_000 * n + lead_us + 100, 500, n, **NAMED) for n in range(len(iterations))]
        trace_file(tmp_path / name, 0, [*steps, *kernels])
        assert imported(tmp_path / name, tmp_path).commops[0].columns["iteration"].tolist() == iterations
    assert list(skipped_of(tmp_path / "uneven", tmp_path).values()) == [3]
    # An operator can't run before its step, nor a step have other ones than the others.
    sizes = [{"In msg nelems": 10 + n} for n in range(3)]
    for name, lead_us, more in (("before", -900, [{}] * 3), ("unlike", 700, sizes)):
        kernels = [kernel(1_000 * n + lead_us + 1_000, 700, n, **NAMED | more[n]) for n in range(3)]
        trace_file(tmp_path / name, 0, [step(n, 1_500 * n, 1_500) for n in range(3)] + kernels)
        assert set(imported(tmp_path / name, tmp_path).commops[0].columns["iteration"].tolist()) == {UNKNOWN}


@pytest.mark.parametrize(("more", "message"), [
    ([kernel(20, 2, 2, **NAMED, device=1)], "a trace must be of one GPU; got collectives of 0 and 1"),
    ([step(0, 0, 9) | {"pid": 2}], "a trace must be of one process; got collectives of 1 and 2"),
    ([step(0, 50, 9)], "ProfilerStep#0 must be there once; got it twice"),
    (b"", "must be a JSON object with a list 'traceEvents'"),
    (b'[{"nccl": 1}', "must be a complete trace"),
    (b'{"a": {"traceEvents": [1]}}', "must be a JSON object with a list 'traceEvents'"),
    (b'{"traceEvents": {"nccl": 1}}', "must be a JSON object with a list 'traceEvents'"),
    (b'{"traceEvents": [] "a": 1}', "must be a complete JSON object"),
    (b'{"traceEvents": []}', "traces must hold collectives: .*; got none of them"),
    (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "ncclAllGather", "ts": 1, "dur": 1, "args": {}}]}',
     "distributedInfo.rank must be a rank, or the file's name end in one"),
])  # fmt: skip
def test_traces_that_were_merged_or_are_none_are_refused(tmp_path: Path, more: Any, message: str) -> None:
    source = tmp_path / "in"
    if isinstance(more, bytes):
        source = tmp_path / "trace.json"
        source.write_bytes(more)
    else:
        trace_file(source, 0, [step(0, 0, 9), kernel(1, 2, 1, **NAMED, device=0), *more])
    with pytest.raises(InputError, match=message):
        import_trace("kineto", source, tmp_path / "out")


def test_calls_tell_the_rank_and_kernels_the_size_where_nothing_else_does(tmp_path: Path) -> None:
    told = {"Process Group Name": "9", "Process Group Ranks": "[4, 6]", "Rank": 1}
    events = [step(0, 0, 9), issue(1, 1, **told), kernel(2, 2, 1, **NAMED, **{"Group size": 8})]
    trace_file(tmp_path / "in", 0, events, distributedInfo={})
    (tmp_path / "in" / "rank-0.json.gz").rename(tmp_path / "in" / "trace.json.gz")
    trace = imported(tmp_path / "in", tmp_path)
    assert (list(trace.commops), trace.world_size) == ([6], 8)


def test_a_trace_without_any_collective_is_of_no_rank(tmp_path: Path) -> None:
    trace_file(tmp_path / "in", 0, [step(0, 0, 9), kernel(2, 2, 1, **NAMED)])
    trace_file(tmp_path / "in", 1, [step(0, 0, 9)])
    job = import_trace("kineto", tmp_path / "in", tmp_path / "out")
    assert (list(job.ranks), [(one.reason, one.rank) for one in job.left_out]) == ([0], [("holds no collective", 1)])


def test_several_traces_of_a_rank_are_copies_or_parts_or_refused(tmp_path: Path) -> None:
    def capture(name: str, rank: int, first: int, at_us: float) -> None:
        events = [e for n in range(3) for e in (step(first + n, at_us + 10 * n, 9),
                                                kernel(at_us + 10 * n + 1, 2, n, **NAMED))]  # fmt: skip
        trace_file(tmp_path / name, rank, events)

    folder = tmp_path / "in"
    for rank in (0, 1):
        capture("a", rank, 0, 0)
        capture("b", rank, 0, 10_000)
        capture("c", rank, 0, 5)
        folder.mkdir(exist_ok=True)
        (tmp_path / "a" / f"rank-{rank}.json.gz").rename(folder / f"rank-{rank}_a.json.gz")
        whole = gzip.decompress((folder / f"rank-{rank}_a.json.gz").read_bytes())
        (folder / f"rank-{rank}_a.json").write_bytes(whole)
    job = import_trace("kineto", folder, tmp_path / "out")
    assert [one.reason for one in job.left_out] == [f"a copy of {folder}/rank-{rank}_a.json" for rank in (0, 1)]
    for rank in (0, 1):
        (tmp_path / "b" / f"rank-{rank}.json.gz").rename(folder / f"rank-{rank}_b.json.gz")
    trace = imported(folder, tmp_path)
    # One number lies between: nothing tells what happened there
    assert trace.commops[1].columns["iteration"].tolist() == [0, 1, 2, 4, 5, 6]
    (folder / "rank-0_b.json.gz").unlink()
    with pytest.raises(InputError, match="once; those of rank 1 repeat, and rank 1 has 2 captures"):
        import_trace("kineto", folder, tmp_path / "out")
    (tmp_path / "c" / "rank-1.json.gz").rename(folder / "rank-1_c.json.gz")
    with pytest.raises(InputError, match="got two processes that call themselves rank 1 at the same time"):
        import_trace("kineto", folder, tmp_path / "out")


def test_streams_without_groups_may_be_used_by_ranks_that_have_no_trace(tmp_path: Path) -> None:
    name = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"
    events = [kernel(1, 2, 1) | {"name": name}, kernel(4, 2, 2, stream=8) | {"name": name}]
    trace_file(tmp_path / "in", 0, [step(0, 0, 9), *events], distributedInfo={"rank": 0, "world_size": 3})
    [one] = imported(tmp_path / "in", tmp_path).announcements
    assert {c.id: c.ranks for c in one.communicators} == {"stream 8": (0, 1, 2), "stream 20": (0, 1, 2)}


WANTED = (b"nccl", b"Step#")
# Texts that look like structure: quotes, brackets, backslashes, the names that are looked for.
tricky = st.text(alphabet='{}[]",:\\ abc\n_Yy\x7fé', max_size=12) | st.sampled_from(
    ["nccl", '"},{"nccl', "traceEvents", '"traceEvents": [', "\\", '\\"', "Step#4"]
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | tricky,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(tricky, inner, max_size=3),
    max_leaves=8,
)
events = st.lists(st.dictionaries(tricky, values, max_size=4), max_size=6)
properties = st.dictionaries(tricky.filter(lambda key: key != "traceEvents"), values, max_size=3)


def written(before: dict[str, Any], listed: list[Any], after: dict[str, Any], indent: int | None) -> bytes:
    whole = {**before, "traceEvents": listed}
    whole |= {key: value for key, value in after.items() if key not in whole}
    return json.dumps(whole, indent=indent, ensure_ascii=False).encode()


def read(value: bytes, block_bytes: int = 1 << 20) -> tuple[list[Any], dict[str, Any]]:
    reader = EventReader(io.BytesIO(value), WANTED, block_bytes)
    found = list(reader.read())
    return found, reader.properties()


@settings(max_examples=50)
@given(properties, events, properties, st.sampled_from([None, 0, 2]), st.integers(1, 200))
def test_exactly_the_wanted_events_are_found(
    before: dict[str, Any], listed: list[Any], after: dict[str, Any], indent: int | None, block_bytes: int
) -> None:
    value = written(before, listed, after, indent)
    found, rest = read(value, block_bytes)
    texts = [json.dumps(event, ensure_ascii=False).encode() for event in listed]
    wanted = [any(word in text for word in WANTED) for text in texts]
    assert found == [event for event, is_wanted in zip(listed, wanted, strict=True) if is_wanted]
    assert rest == json.loads(value) | {"traceEvents": []}


@settings(max_examples=40)
@given(events.filter(bool), st.data())
def test_a_file_that_was_cut_off_anywhere_is_refused(listed: list[Any], data: st.DataObject) -> None:
    value = written({"a": 1}, listed, {"b": [2]}, None)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(InputError):
        read(value[:cut], data.draw(st.integers(1, 50)))


def test_events_that_are_no_json_are_counted_and_numbers_that_are_none_are_read(tmp_path: Path) -> None:
    """Torch wrote bare quotes of a source line; the locale's decimal comma; what C prints for 0 / 0."""
    for bad in (b'{"nccl": }', b'{"name": "Library("nccl")"}', b'{"nccl": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        reader = EventReader(io.BytesIO(b'{"traceEvents": [{"nccl": 1}, ' + bad + b"]}"), WANTED)
        assert (list(reader.read()), reader.unreadable) == ([{"nccl": 1}], 1)
    odd = kernel(1, 2, 1, **NAMED) | {"name": "ncclKernel"}
    text = json.dumps([step(0, 0, 9), odd]).replace('"stream"', '"blocks per SM": 7,5, "warps": -nan, "stream"')
    (tmp_path / "rank0.json").write_bytes(b"\xef\xbb\xbf" + text.encode())  # an editor's byte order mark
    assert len(imported(tmp_path / "rank0.json", tmp_path).commops[0]) == 1
    (tmp_path / "rank0.json").write_text(text[:-1] + ', {"nccl": }]')
    assert skipped_of(tmp_path / "rank0.json", tmp_path) == {"events that are no JSON": 1}


def test_one_trace_that_does_not_tell_how_many_ranks_there_are_is_not_the_job(tmp_path: Path) -> None:
    events = [step(0, 0, 9), kernel(1, 2, 1, **{"Collective name": "allreduce"})]
    trace_file(tmp_path / "in", 0, events, distributedInfo={})
    assert imported(tmp_path / "in", tmp_path).world_size == 2


def test_an_event_or_a_head_without_end_is_refused_before_it_fills_the_memory() -> None:
    class Endless(io.RawIOBase):
        def __init__(self, begin: bytes, fill: bytes) -> None:
            self.begin, self.fill = begin, fill

        def read(self, size: int = -1) -> bytes:
            begin, self.begin = self.begin, b""
            return begin or self.fill * (size // len(self.fill))

    for begin, fill, most in (
        (b"{", b" ", 8 << 20),
        (b'{"traceEvents": [', b" ", 4 << 20),
        (b'{"traceEvents": [{"a": "', b"x", 4 << 20),
    ):
        reader = EventReader(Endless(begin, fill), WANTED)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=f"must be at most {most} bytes"):
            list(reader.read())
    reader = EventReader(Endless(b'{"traceEvents": []', b" "), WANTED)  # type: ignore[arg-type]
    list(reader.read())
    with pytest.raises(InputError, match="must be at most 8388608 bytes"):
        reader.properties()
