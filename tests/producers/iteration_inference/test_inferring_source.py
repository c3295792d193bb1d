"""Live sources without marks: recordings stripped of theirs, followed in pieces, and a training process's own way."""

from __future__ import annotations

import itertools
import logging
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from irregulars.infra.agent_settings import SourceTable, open_source
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.importers import following
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.iteration_inference.inferring_source import PAUSE_S, STATE_VERSION, InferringSource
from irregulars.producers.iteration_inference.online import InferenceLimits, OnlineInference
from irregulars.producers.publishing.sources import Record, Source, check_source
from irregulars.producers.torch_hook.exporters import AgentSocket
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.iterations import job_columns, number_iterations
from irregulars.producers.trace.source import TraceSource
from irregulars.state_codec import encode_state
from tests.producers.given_source import one_by_one
from tests.producers.importers.inspector_lines import collective, context, lines
from tests.producers.iteration_inference.made_up_jobs import border_errors
from tests.producers.torch_hook.sources import Rank
from tests.producers.trace.test_iterations import without_marks
from tests.waiting import DEADLINE_S, gather

RECORDINGS = Path(__file__).resolve().parents[2] / "recordings"
NAMES = sorted(path.name for path in RECORDINGS.glob("*-*"))


def unmarked(name: str, ranks: Sequence[int] | None = None) -> Trace:
    """A recording in which nothing says anything of iterations, or what one node sees of it."""
    trace = without_marks(read_trace(RECORDINGS / name))
    kept = [a.rank for a in trace.announcements] if ranks is None else ranks
    announcements = tuple(replace(a, sources=("commops",)) for a in trace.announcements if a.rank in kept)
    commops = {rank: trace.commops[rank] for rank in kept}
    return replace(trace, announcements=announcements, commops=commops, bandwidth={})


def followed(trace: Trace, *, max_rows: int = 64, position: str | None = None) -> Source:
    return TraceSource(trace, 0, max_rows=max_rows, position=position)


def drain(source: Source, most: int = 50, rows: float = np.inf) -> list[Record]:
    records: list[Record] = []
    while not source.is_exhausted and sum(len(r) for r in records if isinstance(r, Batch)) < rows:
        records += source.poll(most)
    return records


def numbers(records: Sequence[Record]) -> dict[int, np.ndarray]:
    """Iteration of each operator of each rank, in the order of its rows; nothing comes twice or is missing."""
    found: dict[int, list[np.ndarray]] = {}
    rows: dict[int, int] = {}
    for batch in (r for r in records if isinstance(r, Batch) and r.header.schema == "commops"):
        rank = batch.header.rank
        assert batch.header.rows_before == rows.get(rank, 0)
        rows[rank] = rows.get(rank, 0) + len(batch)
        found.setdefault(rank, []).append(batch.columns["iteration"])
    return {rank: np.concatenate(parts) for rank, parts in sorted(found.items())}


def errors(name: str, found: dict[int, np.ndarray]) -> np.ndarray:
    truth = read_trace(RECORDINGS / name)
    columns = job_columns(truth)[0]
    return border_errors(columns, np.concatenate([found[rank] for rank in truth.commops]))


@pytest.mark.parametrize(("name", "max_rows"), [
    *((name, 200) for name in NAMES), ("gloo-slow-nic", 7), ("gloo-clean", 1_500),
])  # fmt: skip
def test_a_job_followed_live_is_numbered_as_it_was_marked(name: str, max_rows: int) -> None:
    found = numbers(drain(InferringSource(followed(unmarked(name), max_rows=max_rows))))
    assert errors(name, found).max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_nodes_that_see_some_ranks_each_say_the_same(name: str) -> None:
    found: dict[int, np.ndarray] = {}
    for ranks in ([0, 1], [2], [3]):
        found |= numbers(drain(InferringSource(followed(unmarked(name, ranks)))))
    assert errors(name, found).max() <= 1


@pytest.mark.parametrize("first_rows", [40, 700])
def test_after_a_restart_numbers_go_on(tmp_path: Path, first_rows: int) -> None:
    """While it is learned, when all is held back, and later."""
    trace, path = unmarked("gloo-slow-rank"), tmp_path / "state" / "torch.json"
    first = InferringSource(followed(trace), state_path=path)
    before = [record for _ in range(first_rows // 20) for record in first.poll(20)]
    first.close()
    second = InferringSource(followed(trace, position=first.position()), state_path=path)
    assert not any(isinstance(record, Announcement) for record in second.poll(0))
    assert errors("gloo-slow-rank", numbers([*before, *drain(second)])).max() <= 1


def test_after_a_crash_numbers_go_on_without_the_rows_that_waited(tmp_path: Path) -> None:
    trace, path, clock = unmarked("gloo-clean"), tmp_path / "torch.json", [0.0]
    whole = numbers(drain(InferringSource(followed(trace))))
    first = InferringSource(followed(trace), state_path=path, clock_s=lambda: clock[0])
    before = drain(first, 60, rows=900)
    clock[0] = 10.0
    before += first.poll(60)  # the state is written, and nobody closes the source
    lost = followed(trace, position=first.position())
    lost.poll(100)
    second = InferringSource(followed(trace, position=lost.position()), state_path=path)
    for batch in (r for r in drain(second) if isinstance(r, Batch)):
        rank, first_row = batch.header.rank, batch.header.rows_before
        own = batch.columns["iteration"]
        expected = whole[rank][first_row : first_row + len(batch)]
        is_known = own != UNKNOWN
        assert (own[is_known] == expected[is_known]).all()
        assert (~is_known).sum() <= (expected == UNKNOWN).sum() + 24  # up to the rank's next anchor


def test_it_keeps_the_protocol_of_sources(tmp_path: Path) -> None:
    trace, path = unmarked("gloo-slow-nic"), tmp_path / "torch.json"

    def open(position: str | None) -> Source:
        if position is None:
            path.unlink(missing_ok=True)
        return InferringSource(followed(trace, position=position), state_path=path)

    check_source(open)


def test_a_source_that_begins_anew_is_numbered_anew(tmp_path: Path) -> None:
    trace, path = unmarked("gloo-clean"), tmp_path / "torch.json"
    first = InferringSource(followed(trace), state_path=path)
    drain(first, rows=500)
    first.close()
    again = [r for r in drain(InferringSource(followed(trace), state_path=path)) if isinstance(r, Batch)]
    begins = {batch.header.rank: at for at, batch in enumerate(again) if batch.header.rows_before == 0}
    anew = [batch for at, batch in enumerate(again) if at >= begins[batch.header.rank]]
    assert errors("gloo-clean", numbers(anew)).max() <= 1


@pytest.mark.parametrize("change", [
    lambda value: b'{"version": 2, "crc32": 1131443047}\n{"jobs":[],"ready":[]}',
    lambda value: b"",
    lambda value: value[:40] + bytes([value[40] ^ 1]) + value[41:],
    lambda value: encode_state({"jobs": [{"job": "j", "rows": 3}]}, STATE_VERSION),
], ids=["version 2", "empty", "changed", "another state"])  # fmt: skip
def test_a_state_that_can_t_be_read_is_told_and_numbers_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "torch.json"
    before = InferringSource(followed(unmarked("gloo-clean")), state_path=path)
    drain(before, rows=200)
    before.close()
    value = path.read_bytes()
    assert change(value) != value
    path.write_bytes(change(value))
    with caplog.at_level(logging.WARNING):
        source = InferringSource(followed(unmarked("gloo-clean")), state_path=path)
    assert "event=inference_not_restored" in caplog.text
    assert errors("gloo-clean", numbers(drain(source))).max() <= 1


def records_of(name: str) -> list[Record]:
    return drain(followed(unmarked(name), max_rows=20))


def test_marks_that_come_later_are_kept_and_what_waited_leaves_as_it_came() -> None:
    trace = read_trace(RECORDINGS / "gloo-clean")
    announcements = [replace(a, sources=("commops",)) for a in trace.announcements]
    records = drain(followed(trace, max_rows=30))
    batches = [r for r in records if isinstance(r, Batch) and r.header.schema == "commops"]
    warm_up = [Batch(b.header, {**b.columns, "iteration": np.full(len(b), UNKNOWN)}) for b in batches[:4]]
    source = InferringSource(one_by_one([*announcements, *warm_up, *batches[4:]]))
    passed = [r for _ in range(len(announcements) + len(batches)) for r in source.poll(1_000)]
    left = [r for r in passed if isinstance(r, Batch)]
    for one, other in zip(left, [*warm_up, *batches[4:]], strict=True):
        assert one.header == other.header
        np.testing.assert_array_equal(one.columns["iteration"], other.columns["iteration"])


def test_a_job_that_announces_iterations_passes_at_once() -> None:
    trace = read_trace(RECORDINGS / "gloo-clean")
    source = InferringSource(TraceSource(trace, 0, max_rows=16))
    assert all(len(source.poll(16)) for _ in range(5))


def test_a_job_that_takes_long_to_learn_is_left_alone_and_keeps_all_its_rows() -> None:
    """A clock on which each look at a batch takes a second: the time for learning is used up after three."""
    seconds = itertools.count()
    slow = followed(unmarked("gloo-clean"), max_rows=20)
    source = InferringSource(slow, limits=InferenceLimits(rows=400), clock_s=lambda: float(next(seconds)))
    found = numbers(drain(source))
    whole = numbers(drain(followed(unmarked("gloo-clean"))))
    assert {rank: len(own) for rank, own in found.items()} == {rank: len(own) for rank, own in whole.items()}
    assert all((own == UNKNOWN).mean() > 0.9 for own in found.values())


def test_what_waits_leaves_before_its_rank_ends() -> None:
    records = records_of("gloo-clean")[:10]
    own = next(r for r in records if isinstance(r, Batch)).header
    ended = Heartbeat(own.job, own.attempt, own.rank, {}, "ended", "finished")
    source = InferringSource(one_by_one([*records, ended]))
    passed = [r for _ in range(len(records) + 1) for r in source.poll(1_000)]
    assert passed[-1] is ended
    assert sum(isinstance(r, Batch) for r in passed) == sum(isinstance(r, Batch) for r in records)


def test_a_start_of_the_same_name_that_ends_or_goes_on_spoils_no_numbers() -> None:
    own = [
        replace(r, header=replace(r.header, start="b")) if isinstance(r, Batch) else replace(r, start="b")
        for r in drain(followed(unmarked("gloo-clean"), max_rows=200))
    ]
    batches = [r for r in own if isinstance(r, Batch)]
    before = [replace(r, header=replace(r.header, start="a")) for r in batches[:8]]
    ends = [Heartbeat(r.header.job, r.header.attempt, r.header.rank, state="ended", start="a") for r in before]
    announcements = [r for r in own if isinstance(r, Announcement)]
    given, clock = [*announcements, *before, *ends, *batches], [0.0]
    source = InferringSource(one_by_one(given), clock_s=lambda: clock[0])
    passed = [r for _ in given for r in source.poll(10_000)]
    clock[0] = PAUSE_S + 1
    left = [r for r in [*passed, *source.poll(10_000)] if isinstance(r, Batch)]
    assert [id(one) for one in left if one.header.start == "a"] == list(map(id, before))
    assert errors("gloo-clean", numbers([one for one in left if one.header.start == "b"])).max() <= 1


def test_what_waits_leaves_when_its_job_falls_silent() -> None:
    records, clock = records_of("gloo-clean")[:8], [0.0]
    source = InferringSource(one_by_one(records), clock_s=lambda: clock[0])
    waiting = sum(isinstance(r, Batch) for r in records)
    passed = [r for _ in records for r in source.poll(1_000)]
    assert not any(isinstance(r, Batch) for r in passed)
    clock[0] = PAUSE_S + 1
    assert sum(isinstance(r, Batch) for r in source.poll(1_000)) == waiting


def test_after_a_pause_of_hours_numbers_go_on() -> None:
    trace, clock = unmarked("gloo-slow-rank"), [0.0]
    source = InferringSource(followed(trace), clock_s=lambda: clock[0])
    before = drain(source, rows=900)
    clock[0] = 3 * 3600.0
    source.poll(0)  # nothing comes, for hours
    assert errors("gloo-slow-rank", numbers([*before, *drain(source)])).max() <= 1


def test_a_new_attempt_is_numbered_from_its_beginning() -> None:
    trace = unmarked("gloo-clean")
    second = replace(
        trace, announcements=tuple(replace(a, attempt=1) for a in trace.announcements),
        commops={k: Batch(replace(b.header, attempt=1), b.columns) for k, b in trace.commops.items()}, attempt=1,
    )  # fmt: skip
    both = [*drain(followed(trace, max_rows=40))[:60], *drain(followed(second, max_rows=40))]
    source = InferringSource(one_by_one(both))
    passed = [r for _ in both for r in source.poll(10_000)]
    found = numbers([r for r in passed if isinstance(r, Batch) and r.header.attempt == 1])
    assert min(part[part != UNKNOWN].min() for part in found.values()) == 0


def test_training_processes_that_mark_nothing_are_numbered_by_their_agent(tmp_path: Path) -> None:
    """The ring, the socket, the agent's source, as in production; operators are written by hand."""
    table = SourceTable("torch", "torch", {"path": str(tmp_path / "agent.sock")}, "agent.toml")
    source = open_source(table, tmp_path)
    stopping, ranks = threading.Event(), [Rank(number, capacity=1_000, is_unmarked=True) for number in range(2)]
    way_out = AgentSocket(tmp_path / "agent.sock", lambda error: pytest.fail(str(error)))
    senders = [threading.Thread(target=way_out.run, args=(rank.source, stopping.wait)) for rank in ranks]
    for rank in ranks:
        rank.train_unmarked(40)
    stopping.set()
    for sender in senders:
        sender.start()
    records = gather(lambda: source.poll(1_000), lambda found: sum(isinstance(one, Heartbeat) for one in found) == 2)
    for sender in senders:
        sender.join(DEADLINE_S)
    source.close()
    found = numbers(records)
    assert list(found) == [0, 1]
    for own in found.values():
        assert own.tolist() == [number for number in range(40) for _ in range(3)]


SHARDED = (
    ("AllGather", 1 << 20), ("AllGather", 1 << 19), ("ReduceScatter", 1 << 20), ("ReduceScatter", 1 << 19),
    ("AllReduce", 4),
)  # fmt: skip


def test_operators_that_nccl_counts_apart_are_numbered_live_and_as_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "ANNOUNCE_S", 0.0)  # the logs do not grow
    logs, iterations = tmp_path / "logs", 30
    logs.mkdir()
    # Logs of two processes that shard their parameters: NCCL counts the operators of each kind apart.
    for process in range(2):
        counts, told, now_us = Counter[str](), [], 0
        for _ in range(iterations):
            now_us += 20_000
            for name, size in SHARDED:
                counts[name] += 1
                now_us += 1_000
                one = collective(counts[name], 300, now_us + 10 * process, name)
                one["coll_perf"]["coll_msg_size_bytes"] = size
                told.append({**context(process), **one})
        (logs / f"host-pid{process}.log").write_bytes(lines(*told))
    options = {"directory": str(logs), "job": "job", "world_size": 2}
    source = open_source(SourceTable("nccl-inspector", "logs", options, "agent.toml"), tmp_path)
    records = gather(lambda: source.poll(70), lambda found: sum(len(r) for r in found if isinstance(r, Batch)) >= 300)
    source.close()
    import_trace("nccl-inspector", logs, tmp_path / "trace")
    recorded = number_iterations(read_trace(tmp_path / "trace"))
    assert recorded.report is not None
    assert "inferred 30 from the operators on 0xab" in recorded.report
    truth = np.repeat(np.arange(iterations), len(SHARDED)).tolist()
    for rank, own in numbers(records).items():
        assert own.tolist() == truth
        assert np.sort(recorded.trace.commops[rank].columns["iteration"]).tolist() == truth


@pytest.mark.parametrize("is_far", [True, False])
def test_sequences_far_away_or_in_wide_steps_cost_no_memory(is_far: bool) -> None:
    """An array of all numbers up to one took 32 GiB; of an exporter that counts in ns a table of them 8 TB."""
    trace = unmarked("gloo-clean")
    changed = {rank: Batch(b.header, deepcopy(dict(b.columns))) for rank, b in trace.commops.items()}
    if is_far:
        world = changed[0].header.names.index("world")
        own = np.flatnonzero(changed[0].columns["communicator"] == world)
        changed[0].columns["sequence"][own[20]] = 2**32 - 1
    else:
        for one in changed.values():
            one.columns["sequence"] = one.columns["sequence"] * 10**12
    tracemalloc.start()
    try:
        found = numbers(drain(InferringSource(followed(replace(trace, commops=changed)))))
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert {rank: len(own) for rank, own in found.items()} == {r: len(b) for r, b in trace.commops.items()}


@pytest.mark.parametrize("part", ["infer_arranged", "learn_cadence", "arrange_operators", "OnlineInference._leave"])
def test_a_job_whose_inference_fails_passes_as_it_came_and_ends_no_agent(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("odd rows")

    monkeypatch.setattr(f"{OnlineInference.__module__}.{part}", fail)
    records = records_of("gloo-clean")
    source = InferringSource(one_by_one(records))
    left = [r for _ in records for r in source.poll(1_000_000) if isinstance(r, Batch)]
    assert list(map(id, left)) == [id(r) for r in records if isinstance(r, Batch)]
    (line,) = [one for one in caplog.messages if one.startswith("event=inference_failed")]
    assert "reason='MemoryError: odd rows'" in line
