"""The five metrics of public GPU traces, within 1% of a plain recomputation: dictionaries and loops, nothing of ours.

And verdicts on a step of theirs that is run again and again on several ranks, one of which is made slow.

The traces are tests/data of facebookresearch/HolisticTraceAnalysis (MIT, commit f4d0062c): two of them are among the
shared ones, all six are read where ``HTA_DATA`` names that folder.
"""

from __future__ import annotations

import gzip
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson
import pytest

from irregulars.infra.runs.analysis import judge_whole
from irregulars.infra.runs.trace_reports import measure_trace
from irregulars.messages.judgements import Verdict
from irregulars.producers.importers.importing import import_trace, read_capture
from irregulars.producers.importers.kineto_kernels import sample_kernels, summarize
from irregulars.producers.trace.directory import read_trace
from irregulars.sinks.advice import command_to_run, plan_of
from irregulars.streams.local_pipeline import LocalPipeline

Shared = Callable[[str], Path]
Event = Mapping[str, Any]

# Of each the median issue latency (first kernel of each launch), µs, as facts/deeper.md has it, or by graphs apart
PUBLIC = {
    "nccl_parser_config/nccl_data.json.gz": 12.8,
    "timeline_analysis/sampled_rank-0.json.gz": 10_815,
    "ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": 76_469,
    "trace_diff/control/control.json.gz": 592,
    "trace_diff/test/test.json.gz": 42_254,  # 41,619 of all kernels of its CUDA graphs
    "negative_queue_length_values_check/rank0.json.gz": 164_276,  # 164,180 of all
}


@pytest.fixture(params=PUBLIC)
def public(request: pytest.FixtureRequest, shared_trace: Shared) -> tuple[Path, float]:
    """One of the six public traces, and its issue latency, µs."""
    name = str(request.param)
    given, shared = Path(os.environ.get("HTA_DATA", "/nowhere")) / name, shared_trace("raw/hta") / Path(name).name
    if not given.exists() and not shared.exists():
        pytest.skip(f"{name} of HolisticTraceAnalysis must be in HTA_DATA (its tests/data); it is not")
    return (given if given.exists() else shared), PUBLIC[name]


def test_each_metric_is_that_of_a_plain_recomputation(public: tuple[Path, float]) -> None:
    path, latency_us = public
    profile = read_capture(path).profile
    assert profile is not None
    found = summarize(sample_kernels(profile))
    found = {name: one for name, one in found.items() if not name.startswith("kernel_ns")}  # by no formula but a name
    plain = recomputed(orjson.loads(gzip.decompress(path.read_bytes()))["traceEvents"])
    assert {name: (one.value, one.count) for name, one in found.items()} == {
        name: (pytest.approx(value, rel=0.01, abs=1e-9), count) for name, (value, count) in plain.items()
    }
    assert found["issue_latency_ns"].value == pytest.approx(1000 * latency_us, rel=0.005)


@pytest.mark.parametrize("name", ["raw/kineto-dlrm8", "raw/kineto-gloo4"])
def test_bandwidths_are_those_of_a_plain_recomputation(shared_trace: Shared, tmp_path: Path, name: str) -> None:
    import_trace("kineto", shared_trace(name), tmp_path / "out")
    trace = read_trace(tmp_path / "out")
    rows: defaultdict[Any, list[Any]] = defaultdict(list)
    for batch in trace.commops.values():
        columns = batch.columns
        wanted = ("communicator", "sequence", "operator", "peer", "start_ns", "elapsed_ns", "size_bytes")
        for code, sequence, operator, peer, *row in zip(*(columns[one].tolist() for one in wanted), strict=True):
            if peer < 0:
                rows[batch.header.names[code], operator, sequence].append(row)
    sums: defaultdict[Any, list[float]] = defaultdict(lambda: [0, 0])
    for (communicator, operator, _), own in rows.items():
        last = max(start + int(elapsed) for start, elapsed, _ in own)  # floats would be 256 ns apart
        sums[communicator, operator][0] += max(size for *_, size in own)
        sums[communicator, operator][1] += last - max(start for start, *_ in own)
    ranks = {"default_pg": len(trace.commops)}
    plain = {}
    for (communicator, operator), (size, took_ns) in sums.items():
        n = ranks.get(communicator, 2)
        factor = 2 * (n - 1) / n if operator == 0 else (n - 1) / n  # the others are all_to_all
        plain[communicator, operator] = (size / took_ns * 1e9, size / took_ns * 1e9 * factor)
    metrics = measure_trace(trace)
    own = metrics.bandwidths
    found = {
        (metrics.communicators[communicator], operator): (algbw, busbw)
        for communicator, operator, algbw, busbw in zip(
            *(one.tolist() for one in (own.communicator, own.operator, own.algbw, own.busbw)), strict=True
        )
    }
    assert found == {key: pytest.approx(values, rel=0.01) for key, values in plain.items()}
    assert metrics.differences == []  # of no rank of both is it known that its GPU or CPU was slow


# --- verdicts -------------------------------------------------------------------------------------------------------

STEPS, FIRST_SLOW, ODD, RANKS = 22, 14, 2, 3
QUICKER, AHEAD_US, LAG_US, LOAD_US = 0.2, 20_000.0, 60.0, 30_000.0


def run_again(source: Path, folder: Path, fault: str, odd: Sequence[int] = (ODD,)) -> Path:
    """Write traces of ranks that run the last step of a public trace again and again, `odd` with a fault at last.

    A kernel begins 5 µs after its launch, when the one before has ended; a collective ends on all ranks at once. CPUs
    launch in a fifth of the time that they took, so that they are ahead, by a bound.
    """
    told = orjson.loads(gzip.decompress(source.read_bytes()))
    events = [one for one in told["traceEvents"] if one.get("ph") == "X"]
    begin, length = max((one["ts"], one["dur"]) for one in steps_of(events))
    launch_of = {one["args"].get("correlation"): one for one in events if one["cat"].startswith("cuda_")}
    pairs = [(launch_of.get(one["args"].get("correlation", -1)), one) for one in events if one["cat"] == "kernel"]
    own = [(launch["ts"] - begin, launch, one) for launch, one in pairs if launch]
    own = sorted((row for row in own if 0 <= row[0] <= length), key=lambda row: row[0])
    issued_us = np.array([at for at, *_ in own])
    took_us = np.array([float(one["dur"]) for *_, one in own])
    is_shared = np.array(["nccl" in one["name"].lower() for *_, one in own])
    calls = [
        (one, *np.searchsorted(issued_us, [one["ts"] - begin, one["ts"] - begin + one["dur"]]).tolist())
        for one in events
        if one["name"] in ("aten::mm", "aten::addmm", "aten::bmm") and 0 <= one["ts"] - begin <= length
    ]
    noise = np.random.default_rng(0)
    lists: list[list[Event]] = [[] for _ in range(RANKS)]
    cpu_us, free_us = np.full(RANKS, 1e6), np.zeros(RANKS)
    for number in range(STEPS):
        is_odd = np.isin(np.arange(RANKS), odd) & (number >= FIRST_SLOW)
        load_us = np.where(is_odd & (fault == "loader"), LOAD_US, 10.0)
        lag_us = np.where(is_odd & (fault == "launches"), LAG_US, 0.0)[:, None] * np.arange(1, len(own) + 1)
        launched_us = (cpu_us + load_us)[:, None] + QUICKER * issued_us + lag_us
        longer = np.where(is_odd & (fault == "kernels"), 1.5, 1.0)[:, None]
        lasts_us = took_us * longer * noise.normal(1, 0.01, (RANKS, len(own)))
        spans = np.empty((len(own), 2, RANKS))
        for at in range(len(own)):
            start_us = np.maximum(launched_us[:, at] + 5, free_us)
            free_us = start_us + lasts_us[:, at]
            if is_shared[at]:
                free_us = np.full(RANKS, start_us.max() + took_us[at] / 10)
            spans[at] = start_us, free_us
        ends_us = launched_us[:, -1] + QUICKER * (length - issued_us[-1])
        for rank, listed in enumerate(lists):
            for at, (_, launch, one) in enumerate(own):
                args = {"correlation": number * len(own) + at}
                named = {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"} if is_shared[at] else {}
                start_us, end_us = spans[at, :, rank].tolist()
                ran = {"ts": start_us, "dur": end_us - start_us, "args": {**one["args"], **args}}
                listed.append({**launch, "ts": float(launched_us[rank, at]), "dur": 2.0, "args": args})
                listed.append({**one, **named, **ran})
            for one, first, past in calls:
                if past > first:
                    around_us = launched_us[rank, [first, past - 1]] + (-0.5, 2.5)
                    listed.append({**one, "ts": float(around_us[0]), "dur": float(np.ptp(around_us))})
            mark = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": float(cpu_us[rank]), "args": {}}
            listed.append({**mark, "name": f"ProfilerStep#{number}", "dur": float(ends_us[rank] - cpu_us[rank])})
            loads = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            listed.append({**mark, "name": loads, "dur": float(load_us[rank])})
        cpu_us = np.maximum(ends_us + 1, free_us - AHEAD_US)
    folder.mkdir()
    for rank, listed in enumerate(lists):
        group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [*range(RANKS)]}
        whole = {"distributedInfo": {"rank": rank, "world_size": RANKS, "pg_config": [group]}, "traceEvents": listed}
        (folder / f"rank-{rank}.json").write_bytes(orjson.dumps(whole))
    return folder


def verdicts_on(folder: Path, out: Path) -> list[Verdict]:
    import_trace("kineto", folder, out)
    trace = read_trace(out)
    newest = {one.verdict_id: one for one in judge_whole(LocalPipeline(trace.job), trace).verdicts}
    return list(newest.values())


@pytest.mark.parametrize(("name", "fault", "layer", "cause", "texts"), [
    ("nccl_data", "kernels", "unknown", "gpu_kernels", ("kernels of rank 2 are 50% longer",)),
    ("nccl_data", "launches", "software", "gpu_idle",
     ("does not run ahead of its GPU", "void within steps of rank 2")),
    ("nccl_data", "loader", "data", "data_loader", ()),
    ("sampled_rank-0", "kernels", "hardware", "gpu_kernels", ("gemm kernels of rank 2 are", "rate of mm of rank 2")),
    ("sampled_rank-0", "launches", "software", "gpu_idle", ("does not run ahead of its GPU",)),
])  # fmt: skip
def test_the_cause_of_a_slow_rank_is_named_by_its_gpus_metrics(
    shared_trace: Shared, tmp_path: Path, name: str, fault: str, layer: str, cause: str, texts: tuple[str, ...]
) -> None:
    folder = run_again(shared_trace("raw/hta") / f"{name}.json.gz", tmp_path / "in", fault)
    [verdict] = verdicts_on(folder, tmp_path / "out")
    assert (verdict.kind, verdict.suspects[0].ranks) == ("slow_rank", (ODD,))
    assert (verdict.layer, verdict.cause) == (layer, cause)
    assert (verdict.cause_share or 0) >= 0.8
    assert [text for text in texts if text not in verdict.evidence] == []


@pytest.mark.parametrize(("fault", "layer", "cause", "text"), [
    ("launches", "software", "gpu_idle", "does not run ahead of its GPU"),
    ("kernels", "unknown", None, "rate of mm of rank 0 is 20.2 TFLOP/s, that of its windows before 28.3 TFLOP/s"),
])  # fmt: skip
def test_what_slows_all_ranks_alike_is_told_by_their_past_and_accuses_nobody(
    shared_trace: Shared, tmp_path: Path, fault: str, layer: str, cause: str | None, text: str
) -> None:
    folder = run_again(shared_trace("raw/hta") / "sampled_rank-0.json.gz", tmp_path / "in", fault, range(RANKS))
    [verdict] = verdicts_on(folder, tmp_path / "out")
    assert (verdict.kind, verdict.detector, verdict.suspects) == ("custom", "gpu_metrics", ())
    assert (verdict.layer, verdict.cause) == (layer, cause)
    assert text in verdict.evidence
    assert command_to_run(verdict).startswith("irregulars sql metrics_of_ranks")
    advice = plan_of(replace(verdict, state="open", close_reason=None)).sentence
    assert advice.startswith("drain nothing")
    assert ("the GPU of the ranks waited for launches" in advice) == (cause == "gpu_idle")


@pytest.mark.parametrize("name", ["nccl_data", "sampled_rank-0"])
def test_of_ranks_that_are_alike_nothing_is_told(shared_trace: Shared, tmp_path: Path, name: str) -> None:
    folder = run_again(shared_trace("raw/hta") / f"{name}.json.gz", tmp_path / "in", "none")
    assert verdicts_on(folder, tmp_path / "out") == []
    assert measure_trace(read_trace(tmp_path / "out")).differences == []


# --- plain ----------------------------------------------------------------------------------------------------------


def steps_of(events: Iterable[Event]) -> list[Event]:
    return [one for one in events if one["name"].startswith("ProfilerStep#") and not one["cat"].startswith("gpu")]


def past(one: Event) -> float:
    return float(one["ts"] + one["dur"])


def recomputed(events: Iterable[Event]) -> dict[str, tuple[float, int]]:
    """Return the value of each metric, and of how many values it is."""
    events = [one for one in events if one.get("ph") == "X"]
    # µs since the epoch are floats in steps of 0.25: lengths must not be added to them.
    origin = min(one["ts"] for one in events)
    events = [{**one, "ts": one["ts"] - origin} for one in events]
    kernels = sorted((one for one in events if one["cat"].lower() == "kernel"), key=lambda one: float(one["ts"]))
    launches = {
        one["args"]["correlation"]: one
        for one in events
        if one["cat"].lower() in ("cuda_runtime", "cuda_driver", "runtime") and "correlation" in one["args"]
    }
    steps = steps_of(events)
    found = {"steps_per_s": (1e6 * len(steps) / sum(one["dur"] for one in steps), len(steps))}
    latencies, launched = [], set()
    for one in kernels:
        number = one["args"].get("correlation")
        if number in launches and number not in launched:
            launched.add(number)
            latencies.append(1000 * (one["ts"] - launches[number]["ts"]))
    found["issue_latency_ns"] = median(latencies), len(latencies)
    return found | _recomputed_flops(events, kernels, launches) | _recomputed_void(kernels, launches, steps)


def _recomputed_flops(
    events: list[Event], kernels: list[Event], launches: Mapping[int, Event]
) -> dict[str, tuple[float, int]]:
    calls = [one for one in events if one["name"] in ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")]
    others = [one for one in kernels if "nccl" in one["name"].lower()]
    own: defaultdict[int, list[Event]] = defaultdict(list)
    for one in kernels:
        launch = launches.get(one["args"].get("correlation"))
        for at, call in enumerate(calls if launch else ()):
            assert launch is not None
            is_inside = call["ts"] <= launch["ts"] <= past(call)
            if is_inside and call["tid"] == launch["tid"]:
                own[at].append(one)
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0])
    for at, those in own.items():
        call = calls[at]
        is_shared = any(past(a) > b["ts"] and past(b) > a["ts"] for a in those for b in others)
        shapes = call["args"].get("Input Dims")
        if shapes and not is_shared:
            one, other = shapes[1:3] if "add" in call["name"] else shapes[:2]
            total = sums[f"flops_per_s.{call['name'].removeprefix('aten::')}"]
            total[0] += 2 * np.prod(one, dtype=float) * other[-1]
            total[1] += sum(kernel["dur"] for kernel in those) / 1e6
            total[2] += 1
    return {name: (flops / took_s, int(count)) for name, (flops, took_s, count) in sums.items()}


def _recomputed_void(
    kernels: list[Event], launches: Mapping[int, Event], steps: list[Event]
) -> dict[str, tuple[float, int]]:
    held: Counter[str] = Counter()
    for one in kernels:
        held[one["name"]] += one["dur"]
    major, sum_us = set(), 0.0
    for name, took in held.most_common():
        if sum_us < 0.95 * held.total():
            major.add(name)
        sum_us += took
    busy = [(one["ts"], past(one)) for one in kernels if one["name"] in major]
    spans = {}
    for step in steps:
        own = []
        for one in kernels:
            launch = launches.get(one["args"].get("correlation"))
            if launch and step["ts"] <= launch["ts"] <= past(step):
                own.append((one["ts"], past(one)))
        spans[int(step["name"].partition("#")[2])] = min(begin for begin, _ in own), max(end for _, end in own)
    between, minority, wholes, inner = 0.0, 0.0, 0.0, 0.0
    for number, (first, last) in spans.items():
        before = spans[number - 1][1] if number - 1 in spans else None
        begin = first if before is None else max(first, before)
        covered, reached = 0.0, begin
        for start, end in busy:
            covered += max(0, min(end, last) - max(start, reached))
            reached = max(reached, min(end, last))
        minority += last - begin - covered
        inner += last - (first if before is None else before)
        if before is not None:
            between += begin - before
            wholes += last - before
    return {
        "void_between_steps_ratio": (between / wholes, len(spans) - 1),
        "void_minority_kernels_ratio": (minority / inner, len(spans)),
    }
