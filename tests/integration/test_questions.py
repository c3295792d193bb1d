"""The shipped questions on recorded jobs: each answer is held against what the stored rows say, counted in numpy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from irregulars.infra.console.heat_reading import Start, read_window
from irregulars.infra.console.incident import read_looks
from irregulars.infra.console.jobs import newest_iterations
from irregulars.infra.runs.analysis import judge_whole
from irregulars.infra.runs.trace_reports import measure_trace
from irregulars.infra.showing.from_database import find_verdict
from irregulars.messages.device_events import DeviceEvent, batch_of
from irregulars.messages.judgements import JudgedIteration, Judgements, Suspect, Verdict, with_first_names
from irregulars.messages.records import NUMERICS, UNKNOWN, Header
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.trace.directory import read_trace
from irregulars.sinks.connection import DatabaseSettings, connected
from irregulars.sinks.investigations import run
from irregulars.sinks.notices.mutes import opinion_on
from irregulars.sinks.tables import TABLES, table_of_opinions, table_of_samples, tables_of
from irregulars.streams.local_pipeline import LocalPipeline
from tests.conftest import ClickHouseAddress
from tests.detectors.numerics.test_numerics_judge import CASES, WRONG
from tests.infra.grafana.macros import View, expand
from tests.infra.grafana.queries import query
from tests.integration.pipelines import own_database, reading, store
from tests.integration.sql_page import PAGE, RECORDED, renewed
from tests.integration.test_clickhouse import answer
from tests.sinks import made_up_job
from tests.sinks.recorded_jobs import judged, rows_of_recording, with_columns, with_values

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

pytestmark = pytest.mark.integration

NIC, COMPUTE = "gloo-slow-nic", "gloo-slow-compute"
EVER = 36_500
MADE_UP = tables_of(made_up_job.judgements())
LINK = "link from eth0 on node-0 to node-1"


@pytest.fixture(scope="module")
def recorded(clickhouse: ClickHouseAddress) -> Iterator[Client]:
    """A client of a database that holds recorded jobs; read only."""
    with reading(clickhouse, *map(rows_of_recording, RECORDED)) as client:
        yield client


@pytest.fixture
def own(clickhouse: ClickHouseAddress) -> Iterator[DatabaseSettings]:
    """A database of the test's own, with tables."""
    with own_database(clickhouse, {}) as settings:
        yield settings


@pytest.fixture
def client(own: DatabaseSettings) -> Iterator[Client]:
    with connected(own) as client:
        yield client


def open_job(job: str, **values: Any) -> dict[str, pa.Table]:
    """The made-up job before its verdict closes; `values` go into the verdict's columns."""
    rows = with_columns(MADE_UP, job=job, verdict_id=f"{job}-v")
    rows = {**rows, "verdicts": rows["verdicts"].slice(1, 1), "suspects": rows["suspects"].slice(2, 1)}
    return with_columns(rows, ["verdicts"], **values)


def columns(name: str, table: str) -> dict[str, Any]:
    """Columns of a recording's rows, as numpy."""
    stored = rows_of_recording(name)[table]
    lists = {one.name for one in stored.schema if pa.types.is_list(one.type)}
    return {one: np.array(stored.column(one).to_pylist()) for one in stored.schema.names if one not in lists}


# --- now ------------------------------------------------------------------------------------------------------------


def test_what_is_open_says_whom_since_when_and_at_what_cost(own: DatabaseSettings, client: Client) -> None:
    store(own, MADE_UP, open_job("live"))
    [row] = answer(client, "open_now")
    assert (row["job"], row["severity"], row["device"], row["probability"]) == ("live", "ticket", LINK, 0.76)
    assert row["since"] == datetime.fromtimestamp(made_up_job.START_NS / 1e9 + 2, UTC).replace(tzinfo=None)
    assert (row["times_usual"], row["gpu_hours_per_hour"]) == (2.4, 2.22)  # 0.8 of 1.44 s of 4 GPUs


def test_what_an_open_verdict_costs_goes_on_between_its_revisions(own: DatabaseSettings, client: Client) -> None:
    at = datetime.fromtimestamp(made_up_job.START_NS / 1e9 + 2.4, UTC)
    values = {"past_last_iteration": 25, "last_seen_at": at, "lost_s": 0.8, "lasted_s": 1.0}
    for job, state in (("live", "open"), ("over", "closed")):
        rows = open_job(job, **values, state=state)
        store(own, with_columns(rows, ["iterations"], verdict_ids=[f"{job}-v"]))
    [row] = answer(client, "open_now")
    assert row["gpu_hours_per_hour"] == 3.2
    by_job = {row["job"]: row for row in answer(client, "most_urgent", days=EVER)}
    assert (by_job["live"]["lost_s"], by_job["over"]["lost_s"]) == (2.0, 0.8)  # 1.5 s of iterations since, 80 % lost
    verdict = find_verdict(client, "live")
    assert verdict is not None
    assert (verdict.iterations, verdict.lost_s, verdict.lasted_s) == ((20, 40), 2.0, 2.5)


def test_a_hang_is_open_while_its_state_says_so(own: DatabaseSettings, client: Client) -> None:
    hung = {"kind": "hang", "past_last_iteration": 40, "lost_s": 0.0, "last_seen_at": datetime.now(UTC)}
    over = {**hung, "state": "closed", "close_reason": "restarted"}
    store(own, open_job("hung", **hung), open_job("over", **over))
    [row] = answer(client, "open_now")
    assert row["job"] == "hung"
    waited_h = (datetime.now(UTC).replace(tzinfo=None) - row["since"]).total_seconds() / 3600
    assert row["gpu_hours_lost"] == pytest.approx(4 * waited_h, rel=1e-3)  # all GPUs have stood since then
    store(own, open_job("hung", **over, revision=9))
    assert answer(client, "open_now") == []
    assert run(client, "open_now").empty.startswith("No verdict is open, and no job hangs, of those in jobs_now")


def test_jobs_now_says_what_is_wrong(own: DatabaseSettings, client: Client) -> None:
    noted = open_job("live", verdict_id="another", severity="note", lost_s=900.0)
    store(own, MADE_UP, open_job("live"), {"verdicts": noted["verdicts"]})
    rows = {row["job"]: row for row in answer(client, "jobs_now")}
    names = ("severity", "kind", "device", "verdict_id", "open_verdicts")
    assert [rows["live"][name] for name in names] == ["ticket", "slow_link", LINK, "live-v", 2]
    assert [rows["made-up"][name] for name in names] == [None, None, None, None, 0]


def test_days_count_from_today(own: DatabaseSettings, client: Client) -> None:
    now = datetime.now(UTC)
    store(own, open_job("today", last_seen_at=now), open_job("long-ago", last_seen_at=now - timedelta(days=40)))
    for name in ("most_urgent", "time_lost_by_device", "cost_by_switch", "repeat_offenders"):
        least = {"at_least": 1} if name == "repeat_offenders" else {}
        counted = {days: answer(client, name, days=days, **least) for days in (30, 50)}
        if name == "most_urgent":
            assert [{row["job"] for row in rows} for rows in counted.values()] == [{"today"}, {"today", "long-ago"}]
        else:
            assert [[row["jobs"] for row in rows] for rows in counted.values()] == [[1], [2]]


# --- a verdict ------------------------------------------------------------------------------------------------------


def test_a_suspicion_s_history_says_when_and_at_what_cost(recorded: Client) -> None:
    told = columns(NIC, "verdicts")
    rows = answer(recorded, "suspicion_history", verdict_id=told["verdict_id"][0])[::-1]
    assert [row["revision"] for row in rows] == told["revision"].tolist() == [1, 2, 3, 4]
    assert [row["event"] for row in rows] == ["opened", "continued", "continued", "closed"]
    assert [row["gpu_hours_lost"] for row in rows] == np.round(told["lost_s"] * 4 / 3600, 4).tolist()
    seen = [row["seen_at"] for row in rows]
    assert seen == sorted(set(seen))
    assert None not in {row["stored_at"] for row in rows}
    assert {(row["device"], row["host"]) for row in rows} == {("NIC eth0 on node-1", "node-1")}


def test_a_revision_that_accuses_nobody_has_a_line(own: DatabaseSettings, client: Client) -> None:
    acquitted = replace(made_up_job.verdict(3), revision=4, suspects=())
    store(own, MADE_UP, tables_of(replace(made_up_job.judgements(), verdicts=[acquitted])))
    assert [(row["revision"], row["device"]) for row in answer(client, "suspicion_history")][:2] == [
        (4, None), (3, "link from eth0 on node-0 to node-1"),
    ]  # fmt: skip


@pytest.mark.parametrize(("job", "rank", "position"), [
    ("ddp8-hang-before", 5, "past all_reduce 81 of world"),
    ("pp4dp2-hang-inside", 3, "inside recv 240 of ranks-1-7-by-2"),
])  # fmt: skip
def test_the_rank_that_hangs_is_first_others_wait(recorded: Client, job: str, rank: int, position: str) -> None:
    first, *others = answer(recorded, "hang_positions", job=job)
    assert (first["rank"], first["position"], first["suspect"]) == (rank, position, 0.96)
    assert {row["rank"] for row in others} == set(range(8)) - {rank}
    assert all(row["position"].startswith("inside ") and row["suspect"] is None for row in others)
    since = [row["since"] for row in others]
    assert since == sorted(since)


def test_a_job_that_did_not_hang_has_no_positions(recorded: Client) -> None:
    assert answer(recorded, "hang_positions", job=NIC) == []


# --- an iteration ---------------------------------------------------------------------------------------------------


def test_who_was_late_and_who_waited_is_what_the_operators_say(recorded: Client) -> None:
    rows = answer(recorded, "waits_of_iteration", job=NIC, limit=1000)
    chosen = run(recorded, "waits_of_iteration", {"job": NIC}).chosen["iteration"]
    told = rows_of_recording(NIC)["iterations"].to_pylist()
    assert chosen == max(row["iteration"] for row in told if row["is_irregular"] and row["verdict_ids"])
    own = columns(NIC, "operators")
    is_one = (own["iteration"] == chosen) & (own["communicator"] == "world")
    waits = own["wait_ns"][is_one].astype(float)
    [row] = [row for row in rows if row["communicator"] == "world"]
    assert row["late_rank"] == own["rank"][is_one][waits.argmin()]
    assert row["waiting_ranks"] == (waits > 0).sum() == 3
    assert row["longest_wait_ms"] == round(waits.max() / 1e6, 3)
    assert row["waited_rank_ms"] == round(waits.sum() / 1e6, 3)
    assert [row["longest_wait_ms"] for row in rows] == sorted((row["longest_wait_ms"] for row in rows), reverse=True)
    of_transfers = [row for row in rows if row["operator"] in ("send", "recv")]
    transfers = (own["iteration"] == chosen) & np.isin(own["operator"], ["send", "recv"])
    assert sorted(row["late_rank"] for row in of_transfers) == sorted(own["peer"][transfers])


def test_before_and_after_are_medians_of_the_windows(recorded: Client) -> None:
    whole, *ranks = answer(recorded, "before_and_after", job=NIC, window=20)
    of_job, of_ranks = columns(NIC, "iterations"), columns(NIC, "rank_iterations")
    before, after = (np.isin(of_job["iteration"], span) for span in (range(40, 60), range(60, 80)))
    assert whole["what"] == "iteration 60"  # where the newest verdict begins
    assert whole["before_ms"] == round(np.median(of_job["elapsed_ns"][before]) / 1e6, 3)
    assert whole["after_ms"] == round(np.median(of_job["elapsed_ns"][after]) / 1e6, 3)
    assert len(ranks) == 4
    for row in ranks:
        own = of_ranks["rank"] == int(row["what"].rpartition(" ")[2])
        for name, span in (("before_ms", range(40, 60)), ("after_ms", range(60, 80))):
            work = of_ranks["work_ns"][own & np.isin(of_ranks["iteration"], span)]
            assert row[name] == round(np.median(work) / 1e6, 3)
    assert [row["grown_ms"] for row in ranks] == sorted((row["grown_ms"] for row in ranks), reverse=True)


def test_before_the_first_iteration_nothing_is_known(recorded: Client) -> None:
    whole = answer(recorded, "before_and_after", job=NIC, iteration=0, window=5)[0]
    assert (whole["before_ms"], whole["grown_ms"], whole["times_before"]) == (None, None, None)
    assert whole["after_ms"] > 0


def test_the_slowest_iterations_are_those_that_took_longest(recorded: Client) -> None:
    told = columns(NIC, "iterations")
    slowest = np.argsort(-told["elapsed_ns"], kind="stable")[:7]
    rows = answer(recorded, "slowest_iterations", job=NIC, limit=7)
    assert [row["iteration"] for row in rows] == told["iteration"][slowest].tolist()
    assert [row["elapsed_s"] for row in rows] == np.round(told["elapsed_ns"][slowest] / 1e9, 4).tolist()


def test_an_irregular_iteration_that_a_verdict_opened_from_is_without_one_nowhere(recorded: Client) -> None:
    told = judged(NIC)

    def without(iterations: Sequence[JudgedIteration]) -> set[int]:
        return {one.iteration for one in iterations if one.is_irregular and not one.verdict_ids}

    wanted = without(with_first_names(told.iterations, told.verdicts))
    assert wanted < without(told.iterations), "stored when the verdict had no name"
    asked = answer(recorded, "irregular_iterations", job=NIC, limit=1000)
    assert {row["iteration"] for row in asked if not row["verdict_ids"]} == wanted
    assert sum(row["without_verdict"] for row in answer(recorded, "irregular_parts", job=NIC)) == len(wanted)
    begin, end = (datetime.fromtimestamp(at, UTC) for at in (0, 4e9))
    sql = expand(query("irregular_moments"), View(begin, end, 1.0, {"job": NIC, "attempt": "0"}))
    moments = recorded.query(sql).named_results()
    assert {row["title"] for row in moments if row["tags"] == "no verdict"} == {f"iteration {at}" for at in wanted}
    lines = newest_iterations(recorded, [(NIC, 0)], 1000)[NIC, 0]
    assert {one.iteration for one in lines if one.is_irregular and not one.has_cause} == wanted
    window = read_window(recorded, Start(NIC, 0), 0, 10**6)
    named = zip(window.iterations.tolist(), window.is_irregular, window.verdict_ids, strict=True)
    assert {iteration for iteration, is_irregular, ids in named if is_irregular and not len(ids)} == wanted


# --- devices and hosts ----------------------------------------------------------------------------------------------


def test_a_host_s_history_has_every_job_that_ran_there(recorded: Client) -> None:
    rows = {row["job"]: row for row in answer(recorded, "host_history", host="node-2")}
    assert set(rows) == {name.removeprefix("bench/") for name in RECORDED}
    hung = rows.pop("ddp8-hang-before")
    assert (hung["ranks"], hung["devices"], hung["kinds"]) == ([4, 5], ["GPU 1 on node-2"], ["hang"])
    assert hung["highest_probability"] == 0.96
    assert {(row["verdicts"], row["highest_probability"]) for row in rows.values()} == {(0, None)}


def test_a_link_is_in_the_history_of_both_its_hosts(own: DatabaseSettings, client: Client) -> None:
    store(own, MADE_UP)
    for host in ("node-0", "node-1"):
        [row] = answer(client, "host_history", host=host)
        assert (row["devices"], row["expected_gpu_hours_lost"]) == ([LINK], round(1.2 * 4 / 3600 * 0.89, 3))
        assert [row["device"] for row in answer(client, "device_history", host=host)] == [LINK]
    assert answer(client, "device_history", host="node-1", nic="eth0") == []  # it begins at that of node-0


def test_a_device_s_history_is_its_own(recorded: Client, own: DatabaseSettings, client: Client) -> None:
    [row] = answer(recorded, "device_history", host="node-1", nic="eth0")
    assert (row["device"], row["job"], row["kind"]) == ("NIC eth0 on node-1", NIC, "slow_nic")
    assert (row["first_iteration"], row["past_last_iteration"]) == (60, 81)
    assert answer(recorded, "device_history", host="node-1", nic="eth1") == []
    assert [row["device"] for row in answer(recorded, "device_history", host="node-2", gpu=1)] == ["GPU 1 on node-2"]
    store(own, rows_of_recording("bench/ddp8-leaf-ports"))
    assert {row["job"] for row in answer(client, "device_history", switch="leaf-1")} == {"ddp8-leaf-ports"}
    assert answer(client, "device_history", switch="leaf-0") == []


def test_several_ranks_are_not_the_gpu_of_the_first_of_them(own: DatabaseSettings, client: Client) -> None:
    # An older worker stored that GPU with them.
    store(own, with_columns(open_job("live"), ["suspects"], device="gpu", ranks=[1, 2, 3], peer=None, gpu=1))
    [row] = answer(client, "open_now")
    assert row["device"] == "rank 1 on node-0 and 2 more"
    assert answer(client, "device_history", host="node-0", gpu=1) == []


def test_a_repeat_offender_is_named_once_with_its_jobs(own: DatabaseSettings, client: Client) -> None:
    again = with_columns(rows_of_recording(NIC), job="again", verdict_id="again-v")
    stages = [with_columns(open_job(job), ["suspects"], device="stage") for job in ("stage-a", "stage-b")]
    store(own, rows_of_recording(NIC), rows_of_recording(COMPUTE), again, *stages)
    [row] = answer(client, "repeat_offenders", days=EVER)
    assert (row["device"], row["verdicts"], row["jobs"]) == ("NIC eth0 on node-1", 2, 2)
    assert (row["kinds"], sorted(row["some_jobs"])) == (["slow_nic"], ["again", NIC])
    assert row["reports"] == 0
    assert answer(client, "repeat_offenders", days=EVER, percent=100) == []
    assert answer(client, "repeat_offenders", days=EVER, at_least=3) == []


def test_what_a_device_reported_counts_beside_its_verdicts(own: DatabaseSettings, client: Client) -> None:
    again = with_columns(rows_of_recording(NIC), job="again", verdict_id="again-v")
    now_ns = time.time_ns()
    reported = [
        DeviceEvent(now_ns - number * 10**9, 2, "link_errors", "node-1", "eth0", 3, "symbol_error")
        for number in range(3)
    ]
    rows = {"events": table_of_samples([batch_of(reported, Header("events", NIC, 0, 2))])}
    store(own, rows_of_recording(NIC), again, rows)
    [row] = answer(client, "repeat_offenders", days=EVER)
    assert (row["device"], row["reports"]) == ("NIC eth0 on node-1", 3)
    assert row["recent"] >= 2.99
    [row] = answer(client, "reported_events")
    assert (row["host"], row["device"], row["events"], row["kinds"]) == ("node-1", "eth0", 3, ["link_errors"])
    assert answer(client, "reported_events", host="node-2") == []


def test_stacks_are_shown_and_stand_against_no_device(own: DatabaseSettings, client: Client) -> None:
    now_ns, host = time.time_ns(), "node-1"
    seen = [
        *(DeviceEvent(now_ns + at, 2, "stack", host, "MainThread", at, f"f{at} (a.py:{at})") for at in range(12)),
        DeviceEvent(now_ns + 12, 2, "stack", host, "loader", 0, "read (b.py:1)"),
        *(DeviceEvent(now_ns - 10**9 + at, 2, "function", host, "MainThread", 900 - at, f"g{at}") for at in range(2)),
    ]
    rows = {"events": table_of_samples([batch_of(seen, Header("events", NIC, 0, 2))])}
    store(own, rows_of_recording(NIC), rows)
    found = answer(client, "stacks_of_job", job=NIC)
    assert [(row["rank"], row["thread"]) for row in found] == [(2, "MainThread"), (2, "loader"), (2, "MainThread")]
    assert found[0]["lines"].splitlines() == [f"f{at} (a.py:{at})" for at in range(12)]
    assert found[2]["lines"].splitlines() == ["90 % g0", "90 % g1"]
    assert answer(client, "reported_events") == []
    verdict = find_verdict(client, NIC)
    assert verdict is not None
    [function, stack] = read_looks(client, verdict, now_ns - 10**10, now_ns + 10**10)
    assert [name for name, _ in stack.threads] == ["MainThread", "loader"]
    assert function.threads == (("MainThread", ("90 % g0", "90 % g1")),)


def test_senders_and_receivers_make_a_matrix(recorded: Client) -> None:
    rows = answer(recorded, "transfer_matrix", job=NIC)
    slow = max(rows, key=lambda row: row["median_ms"])
    assert 1 in (slow["sender"], slow["receiver"]), "the rank on node-1, whose NIC is slow"
    assert {(row["sender"], row["receiver"]) for row in rows} == {(0, 2), (1, 3)}
    halves = answer(recorded, "transfer_matrix", job=NIC, slices=2)
    assert sum(row["transfers"] for row in halves) == sum(row["transfers"] for row in rows)
    assert len({row["from_iteration"] for row in halves}) == 2


def test_communicators_are_ranked_against_their_like(recorded: Client) -> None:
    rows = answer(recorded, "slowest_communicators", job=NIC)
    ratios = [row["times_its_like"] for row in rows]
    assert ratios == sorted(ratios, reverse=True)
    assert {row["kind"] for row in rows} == {"tp", "world"}
    assert all(row["median_ms"] > 0 and row["size"] >= 2 for row in rows)


def test_metrics_of_ranks_are_those_of_their_rows(recorded: Client) -> None:
    rows = answer(recorded, "metrics_of_ranks", job=NIC)
    own = columns(NIC, "rank_iterations")
    found = {row["rank"]: row["median"] for row in rows if row["metric"] == "steps_per_s"}
    assert found == {
        rank: pytest.approx(np.median(1e9 / own["elapsed_ns"][own["rank"] == rank].astype(float)), rel=0.02)
        for rank in range(4)
    }
    stored = columns(NIC, "operators")
    is_reduced = (stored["operator"] == "all_reduce") & (stored["communicator"] == "world") & (stored["rank"] == 1)
    size_bytes, transfer_ns = (stored[name][is_reduced].astype(float) for name in ("size_bytes", "transfer_ns"))
    [row] = [row for row in rows if (row["metric"], row["communicator"], row["rank"]) == ("all_reduce", "world", 1)]
    assert row["count"] == is_reduced.sum()
    low, high = (np.quantile(1.5 * size_bytes / transfer_ns, 0.5, method=side) for side in ("lower", "higher"))
    assert 0.98 * low < row["median"] < 1.02 * high  # half of the stored iterations are slow
    assert [row["times_its_like"] for row in rows] == sorted(row["times_its_like"] for row in rows)
    later = answer(recorded, "metrics_of_ranks", job=NIC, iterations=20)
    assert sum(row["count"] for row in later) < sum(row["count"] for row in rows)


def test_metrics_of_profiles_are_stored_as_they_were_measured(
    own: DatabaseSettings, client: Client, shared_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    import_trace("kineto", shared_trace("raw/kineto-dlrm8"), tmp_path / "out")
    trace = read_trace(tmp_path / "out")
    stored = tables_of(judge_whole(LocalPipeline(trace.job), trace))
    store(own, stored, {"events": table_of_samples([*trace.events.values()])})
    rows = answer(client, "metrics_of_ranks", job=trace.job, limit=1000)
    found = {(row["rank"], row["metric"]): row for row in rows if not row["communicator"]}
    told = measure_trace(trace).ranks
    assert {(rank, name) for rank, metrics in told.items() for name in metrics} == found.keys()
    for rank, metrics in told.items():
        for name, factor in (("issue_latency_ns", 1e-6), ("flops_per_s.addmm", 1e-12)):
            own_row = found[rank, name]
            assert own_row["count"] == metrics[name].count
            assert own_row["median"] == pytest.approx(factor * metrics[name].quantiles[5], rel=0.1, abs=1e-4)
    assert answer(client, "reported_events", days=EVER) == []


# --- jobs and cost --------------------------------------------------------------------------------------------------


def test_the_cost_of_a_job_is_its_verdicts_share_of_what_it_trained(recorded: Client) -> None:
    [row] = [row for row in answer(recorded, "cost_by_job", days=EVER) if row["job"] == NIC]
    trained_s, lost_s = columns(NIC, "iterations")["elapsed_ns"].sum() / 1e9, columns(NIC, "verdicts")["lost_s"][-1]
    assert (row["gpu_hours"], row["gpu_hours_lost"]) == (round(trained_s * 4 / 3600, 3), round(lost_s * 4 / 3600, 3))
    assert row["percent"] == round(100 * lost_s / trained_s, 2)
    assert (row["pages"], row["tickets"], row["notes"]) == (0, 1, 0)


def test_the_cost_of_a_rack_is_shared_out_by_probability(recorded: Client) -> None:
    [row] = [row for row in answer(recorded, "cost_by_switch", days=EVER) if row["switch"] == "leaf-2"]
    verdict, suspects = columns("bench/ddp16-nic-both", "verdicts"), columns("bench/ddp16-nic-both", "suspects")
    newest = suspects["revision"] == verdict["revision"].max()
    share = suspects["probability"][newest & (suspects["switch"] == "leaf-2")].sum()
    assert row["expected_gpu_hours_lost"] == round(verdict["lost_s"][-1] * 16 / 3600 * share, 3) > 0
    assert row["costliest_device"] == "NIC eth1 on node-4"


def test_a_device_that_only_ranks_name_is_one_of_its_job(own: DatabaseSettings, client: Client) -> None:
    stage = {"device": "stage", "rank": 0, "ranks": [0, 1], "peer": None, "switch": "leaf-1"}
    store(own, *(with_columns(open_job(job), ["suspects"], **stage) for job in ("a", "b")))
    devices = answer(client, "time_lost_by_device", days=EVER)
    assert {(row["device"], row["jobs"]) for row in devices} == {
        ("pipeline stage of rank 0 in a", 1), ("pipeline stage of rank 0 in b", 1),
    }  # fmt: skip
    [row] = answer(client, "cost_by_switch", days=EVER)
    assert (row["switch"], row["verdicts"]) == (None, 2)


def test_costs_of_weeks_are_split_by_what_was_wrong(own: DatabaseSettings, client: Client) -> None:
    now = datetime.now(UTC)
    monday = (now - timedelta(days=now.weekday())).date()
    before = datetime.combine(monday, datetime.min.time(), UTC) - timedelta(seconds=1)
    store(
        own,
        open_job("device", last_seen_at=now, lost_s=900.0, severity="page"),
        open_job("stage", last_seen_at=now, lost_s=1800.0, kind="slow_stage"),
        open_job("hang", last_seen_at=before, lost_s=2700.0, kind="hang", state="closed"),
    )
    this, last = answer(client, "cost_by_week")
    assert (this["week"], last["week"]) == (monday, monday - timedelta(days=7))
    names = ("verdicts", "pages", "gpu_hours_lost", "of_devices", "of_the_job")
    assert [this[name] for name in names] == [2, 1, 3, 1, 2]
    assert (last["gpu_hours_lost"], last["of_hangs"]) == (3, 3)
    assert [row["week"] for row in answer(client, "cost_by_week", weeks=1)] == [monday]


def test_jobs_are_compared_by_the_times_of_their_iterations(recorded: Client) -> None:
    [row] = [row for row in answer(recorded, "jobs_compared") if row["job"] == NIC]
    told = columns(NIC, "iterations")
    elapsed_s = told["elapsed_ns"] / 1e9
    assert row["median_s"] == round(np.median(elapsed_s), 4)
    assert row["p95_s"] == round(np.quantile(elapsed_s, 0.95), 4)
    judged = [bool(one) for one in told["is_irregular"] if one is not None]
    assert row["irregular_pct"] == round(100 * np.mean(judged), 2)


# --- numerics -------------------------------------------------------------------------------------------------------

RANKS = 8
HALVES = (range(4), range(4, 8))
"""Of two sharded replicas: those of a half hold the same, those of both differ."""


def numeric_job(
    attempt: int = 0, first: int = 0, last: int = 59, *, checkpoints: Sequence[int] = (), **changes: Any
) -> dict[str, pa.Table]:
    """One attempt of a job of eight ranks; `changes` are functions of iteration and rank, by column."""
    iteration, rank = (
        grid.ravel() for grid in np.meshgrid(np.arange(first, last + 1), np.arange(RANKS), indexing="ij")
    )
    columns = {
        **{name: np.zeros(len(rank), dtype=np.int64) for name in ("operators", "late_rows", "lost_rows")},
        **{name: np.full(len(rank), 1e8) for name in ("elapsed_ns", "work_ns")},
        "attempt": np.full(len(rank), attempt), "iteration": iteration, "rank": rank,
        "start_ns": made_up_job.START_NS + iteration * 100_000_000, "score": np.full(len(rank), np.nan),
        "loss": 3 - iteration / 100 + rank / 1000, "grad_norm": np.ones(len(rank)),
        "local_grad_norm": np.full(len(rank), np.nan), "update_rms": np.full(len(rank), np.nan),
        "attention_logit": np.full(len(rank), np.nan),
        "not_finite": np.zeros(len(rank)), "parameters_checksum": 100 * iteration + rank // 4,
        **{name: values(iteration, rank) for name, values in changes.items() if callable(values)},
    }  # fmt: skip
    return tables_of(
        Judgements(
            "numeric",
            announcements=[
                replace(made_up_job.announcement(0), job="numeric", attempt=attempt, rank=one, world_size=RANKS,
                        host=f"node-{one // 2}", gpu=one % 2, replicas=tuple(HALVES[one // 4]))
                for one in range(RANKS)
            ],
            iterations=[
                replace(made_up_job.judged(5), job="numeric", attempt=attempt, iteration=one,
                        phase="checkpoint" if one in checkpoints else "train")
                for one in range(first, last + 1)
            ],
            rank_iterations=columns, audits=changes.get("audits", {}), verdicts=changes.get("verdicts", ()),
        )
    )  # fmt: skip


def test_the_share_of_time_that_checkpoints_take_is_that_of_their_iterations(
    own: DatabaseSettings, client: Client
) -> None:
    store(own, numeric_job(checkpoints=(10, 20, 30)))
    [row] = answer(client, "jobs_compared")
    assert (row["iterations"], row["checkpoint_pct"]) == (57, 5.0)


def numeric_verdict(kind: str, iteration: int, *, attempt: int = 0, suspects: tuple[Suspect, ...] = ()) -> Verdict:
    return replace(
        made_up_job.verdict(1), job="numeric", verdict_id=f"{kind}-{iteration}", kind=kind, attempt=attempt,
        iterations=(iteration, iteration + 1), suspects=suspects,
    )  # fmt: skip


def audited(iterations: Sequence[int], apart: dict[int, Sequence[int]]) -> dict[str, np.ndarray]:
    """Audits of rank 1 by all ranks; `apart` says which ranks get other gradients, each its own, by iteration."""
    iteration, rank = (grid.ravel() for grid in np.meshgrid(np.array(iterations), np.arange(RANKS), indexing="ij"))
    is_apart = [one in apart.get(at, ()) for at, one in zip(iteration.tolist(), rank.tolist(), strict=True)]
    return {
        "attempt": np.zeros_like(rank), "iteration": iteration, "rank": rank, "of_rank": np.ones_like(rank),
        "start_ns": made_up_job.START_NS + iteration * 100_000_000, "checksum": np.where(is_apart, 10 + rank, 5),
    }  # fmt: skip


def test_loss_and_norm_have_a_band_and_the_rank_outside_of_it(own: DatabaseSettings, client: Client) -> None:
    def loss(iteration: np.ndarray, rank: np.ndarray) -> np.ndarray:
        return np.where(iteration == 57, 2.0, np.where((iteration == 58) & (rank == 6), 9.5, 2 + rank / 100))

    def norm(iteration: np.ndarray, rank: np.ndarray) -> np.ndarray:
        return np.where((iteration == 59) & (rank == 2), np.inf, np.where(rank == 0, np.nan, 4.0))

    def elements(iteration: np.ndarray, rank: np.ndarray) -> np.ndarray:
        return np.where((iteration == 59) & (rank == 2), 3.0, 0.0)

    store(own, numeric_job(loss=loss, grad_norm=norm, not_finite=elements))
    newest, spike, even = answer(client, "numerics_of_job", limit=3)
    assert [row["iteration"] for row in (newest, spike, even)] == [59, 58, 57]
    assert (newest["grad_norm"], newest["grad_norm_highest"], newest["grad_norm_rank"]) == (4, np.inf, 2)
    assert (newest["not_finite"], spike["not_finite"], newest["ranks"]) == (3, 0, 8)
    assert [spike[name] for name in ("loss", "loss_lowest", "loss_highest", "loss_rank")] == [2.03, 2, 9.5, 6]
    assert (even["loss_rank"], even["grad_norm_rank"], even["local_norm"]) == (None, None, None)
    assert [row["iteration"] for row in answer(client, "numerics_of_job", iteration=30, limit=2)] == [30, 29]


def test_where_all_norms_but_one_are_infinite_that_one_is_named(own: DatabaseSettings, client: Client) -> None:
    store(own, numeric_job(grad_norm=lambda iteration, rank: np.where(rank == 5, 1.0, np.inf)))
    [row] = answer(client, "numerics_of_job", limit=1)
    assert (row["grad_norm"], row["grad_norm_rank"]) == (np.inf, 5)


def test_a_rank_apart_from_its_replicas_is_named_and_no_shard(own: DatabaseSettings, client: Client) -> None:
    def checksum(iteration: np.ndarray, rank: np.ndarray) -> np.ndarray:
        # Rank 6 from 20 on, until its state is copied in 40; in 50 the first half is two against two.
        is_apart = (rank == 6) & (iteration >= 20) & (iteration < 40)
        return 100 * iteration + rank // 4 + 7 * is_apart + 9 * ((iteration == 50) & (rank < 2))

    store(own, numeric_job(parameters_checksum=checksum))
    first, *others = answer(client, "replicas_apart")
    names = ("rank", "host", "gpu", "first_iteration", "last_iteration", "apart_in", "undecided_in", "replicas")
    assert [first[name] for name in names] == [6, "node-3", 0, 20, 39, 20, 0, 4]
    assert [(row["rank"], row["apart_in"], row["undecided_in"]) for row in others] == [(r, 0, 1) for r in range(4)]
    [few] = answer(client, "replicas_apart", iteration=45, window=10)
    assert (few["first_iteration"], few["last_iteration"]) == (36, 39)
    assert answer(client, "replicas_apart", iteration=19) == []


def test_ranks_that_announce_no_replicas_are_not_apart(own: DatabaseSettings, client: Client) -> None:
    rows = numeric_job(parameters_checksum=lambda iteration, rank: iteration + rank)
    assert len(rows["jobs"]) == RANKS
    store(own, with_columns(rows, ["jobs"], replicas_of=None))
    assert answer(client, "replicas_apart") == []
    store(own, rows)
    assert {row["undecided_in"] for row in answer(client, "replicas_apart")} == {60}


def test_replicas_not_announced_are_those_equal_at_first(own: DatabaseSettings, client: Client) -> None:
    def checksum(iteration: np.ndarray, rank: np.ndarray) -> np.ndarray:
        return (
            100 * iteration + rank // 4 + 7 * ((rank == 6) & (iteration >= 20)) + 9 * ((rank == 1) & (iteration > 4))
        )

    store(own, with_columns(numeric_job(parameters_checksum=checksum), ["jobs"], replicas_of=None))
    [row] = answer(client, "replicas_apart")  # rank 1 was apart too soon to be known as a replica
    assert (row["rank"], row["host"], row["first_iteration"], row["replicas"]) == (6, "node-3", 20, 4)


@pytest.mark.parametrize("case", ["weight", "weight, sets not announced", "audit"])
def test_a_judged_job_s_corruption_is_in_its_numbers_too(own: DatabaseSettings, client: Client, case: str) -> None:
    trace = next(one[1] for one in CASES if one[0] == case)
    judgements = replace(judge_whole(LocalPipeline(trace.job), trace), announcements=list(trace.announcements))
    store(own, tables_of(judgements))
    question = "audits_apart" if case == "audit" else "replicas_apart"
    rows = answer(client, question, job=trace.job)
    assert {(row["rank"], row["host"]) for row in rows} == {(2, "node-2")}
    assert min(row.get("first_iteration", row.get("iteration")) for row in rows) == WRONG
    other = {"audits_apart", "replicas_apart"} - {question}
    assert answer(client, other.pop(), job=trace.job) == []
    [newest, *_] = answer(client, "numerics_of_job", job=trace.job)
    assert (newest["iteration"], newest["ranks"]) == (99, 4)
    assert newest["loss_lowest"] < newest["loss"] < newest["loss_highest"]


def test_who_disagrees_in_an_audit_is_named_if_a_side_is_larger(own: DatabaseSettings, client: Client) -> None:
    store(own, numeric_job(audits=audited([10, 20, 30], {20: [5], 30: [0, 1, 2, 3]})))
    rows = answer(client, "audits_apart")
    assert [row["iteration"] for row in rows] == [30] * 8 + [20]
    assert {(row["agreed"], row["is_decided"]) for row in rows[:8]} == {(4, False)}
    names = ("of_rank", "rank", "host", "gpu", "voters", "agreed", "is_decided")
    assert [rows[8][name] for name in names] == [1, 5, "node-2", 1, 8, 7, True]


SUSPECT = (Suspect("gpu", 5, (5,), 0.9),)


def trusted(client: Client, checksum_steps: int = 1) -> dict[tuple[int, int], tuple[bool | None, str | None]]:
    rows = answer(client, "trusted_checkpoints", job="numeric", checksum_steps=checksum_steps)
    return {(row["attempt"], row["iteration"]): (row["is_trusted"], row["verdict_id"]) for row in rows}


def test_a_checkpoint_from_before_a_doubt_is_trusted_if_checked(own: DatabaseSettings, client: Client) -> None:
    def each_tenth(iteration: np.ndarray, rank: np.ndarray) -> np.ndarray:
        return np.where(iteration % 10 == 0, 100 * iteration, UNKNOWN)

    spikes = [numeric_verdict("loss_spike", 2), numeric_verdict("slow_nic", 1, suspects=SUSPECT)]
    bad = numeric_verdict("corruption", 40, suspects=SUSPECT)
    # Seen in 40; the check before that was in 30, and what was written in 35 may have it.
    store(own, numeric_job(checkpoints=[5, 30, 35, 45], verdicts=[*spikes, bad], parameters_checksum=each_tenth))
    yes, no = (True, None), (False, "corruption-40")
    assert trusted(client) == {(0, 5): yes, (0, 30): yes, (0, 35): no, (0, 45): no}
    assert {row["checked_by"] for row in answer(client, "trusted_checkpoints")} == {"norms, checksums"}
    # With audits as well, the earlier of the last checks counts: an audit saw it not, and so did no other.
    audits = audited([5, 40], {40: [5]})
    store(own, numeric_job(audits=audits, parameters_checksum=each_tenth, checkpoints=[5, 30, 35, 45]))
    assert trusted(client) == {(0, 5): yes, (0, 30): no, (0, 35): no, (0, 45): no}
    assert {row["checked_by"] for row in answer(client, "trusted_checkpoints")} == {"audits, norms, checksums"}


def test_doubt_begins_one_round_of_checksums_before_the_verdict(own: DatabaseSettings, client: Client) -> None:
    bad = numeric_verdict("corruption", 40, suspects=SUSPECT)
    store(own, numeric_job(checkpoints=[30, 31, 39], verdicts=[bad]))
    yes, no = (True, None), (False, "corruption-40")
    assert trusted(client) == {(0, 30): yes, (0, 31): yes, (0, 39): yes}
    assert trusted(client, checksum_steps=10) == {(0, 30): yes, (0, 31): no, (0, 39): no}
    assert set(trusted(client, checksum_steps=64).values()) == {no}
    for at, (is_right, wanted) in enumerate(((True, no), (False, yes))):
        said = opinion_on(bad, is_right=is_right, who="ann", note="", time_ns=made_up_job.START_NS + at)
        store(own, {"feedback": table_of_opinions([said])})
        assert set(trusted(client, checksum_steps=64).values()) == {wanted}


def test_where_nothing_was_checked_doubt_begins_with_the_attempt(own: DatabaseSettings, client: Client) -> None:
    def never(iteration: np.ndarray, rank: np.ndarray) -> np.ndarray:
        return np.full(len(rank), UNKNOWN)

    spike = numeric_verdict("loss_spike", 60, attempt=1, suspects=SUSPECT)
    store(
        own,
        numeric_job(0, 0, 50, checkpoints=[20], parameters_checksum=never),
        numeric_job(1, 21, 70, checkpoints=[21, 40], verdicts=[spike], parameters_checksum=never),
        numeric_job(2, 41, 50, checkpoints=[45], parameters_checksum=never),
        numeric_job(3, 21, 50, checkpoints=[30], parameters_checksum=never),  # it went back
    )
    yes, no = (True, None), (False, "loss_spike-60")
    assert trusted(client) == {(0, 20): yes, (1, 21): no, (1, 40): no, (2, 45): no, (3, 30): yes}


def test_a_spike_of_one_rank_is_a_doubt_and_one_of_all_ranks_is_none(own: DatabaseSettings, client: Client) -> None:
    spikes = [numeric_verdict("loss_spike", 10), numeric_verdict("loss_spike", 20, suspects=SUSPECT)]
    store(own, numeric_job(checkpoints=[15, 25], verdicts=spikes))
    assert trusted(client) == {(0, 15): (True, None), (0, 25): (False, "loss_spike-20")}


def test_a_doubt_lasts_until_an_attempt_goes_back_behind_it(own: DatabaseSettings, client: Client) -> None:
    bad = numeric_verdict("corruption", 40, suspects=SUSPECT)
    store(
        own,
        numeric_job(0, 0, 50, checkpoints=[30, 45], verdicts=[bad]),
        numeric_job(1, 46, 60, checkpoints=[55]),  # from the checkpoint of 45
        numeric_job(2, 0, 20, checkpoints=[10]),  # its numbers begin anew: where it came from is not known
        numeric_job(3, 31, 60, checkpoints=[50]),  # from the checkpoint of 30
        numeric_job(4, 51, 70, checkpoints=[65]),  # from that of attempt 3
    )
    yes, no = (True, None), (False, "corruption-40")
    assert trusted(client) == {(0, 30): yes, (0, 45): no, (1, 55): no, (2, 10): no, (3, 50): yes, (4, 65): yes}


def test_of_an_attempt_that_sends_no_numbers_none_is_trusted(own: DatabaseSettings, client: Client) -> None:
    rows = numeric_job(checkpoints=[30])
    store(own, with_columns(rows, ["rank_iterations"], **dict.fromkeys(NUMERICS)))
    assert trusted(client) == {(0, 30): (None, None)}


# --- the pipeline ---------------------------------------------------------------------------------------------------


def gappy_job(gone: int = 35) -> dict[str, pa.Table]:
    """The made-up job without rank 3 from an iteration on, and with late rows of rank 0 in the newest iteration."""
    rows = with_columns(MADE_UP, job="gappy")
    iterations, ranks = rows["iterations"], rows["rank_iterations"]
    late = with_values(ranks.slice(39 * 4, 1), {"late_rows": 7, "lost_rows": 9})
    without = [ranks.slice(at * 4, 3) for at in range(gone, 39)]
    fewer = with_values(iterations.slice(gone), {"ranks_reported": 3})
    return {
        **rows,
        "iterations": pa.concat_tables([iterations.slice(0, gone), fewer]),
        "rank_iterations": pa.concat_tables([ranks.slice(0, gone * 4), *without, late, ranks.slice(39 * 4 + 1, 2)]),
    }


def test_the_pipeline_s_health_counts_late_rows_and_silent_ranks(own: DatabaseSettings, client: Client) -> None:
    store(own, MADE_UP, gappy_job())
    rows = {row["job"]: row for row in answer(client, "pipeline_health", iterations=5)}
    names = ("iterations", "iterations_without_all_ranks", "late_rows", "silent_ranks", "lost_rows")
    assert [rows["gappy"][name] for name in names] == [5, 5, 7, 1, 9]
    assert [rows["made-up"][name] for name in names] == [5, 0, 0, 0, 0]
    assert rows["gappy"]["behind_s"] > 0
    more = {row["job"]: row for row in answer(client, "pipeline_health", iterations=10)}
    assert [more["gappy"][name] for name in names] == [10, 5, 7, 0, 9]


@pytest.mark.parametrize(("gone", "silent"), [(20, 1), (21, 0)])
def test_as_many_are_silent_as_are_listed(own: DatabaseSettings, client: Client, gone: int, silent: int) -> None:
    store(own, gappy_job(gone))
    [row] = answer(client, "pipeline_health")
    assert (row["iterations"], row["silent_ranks"]) == (40, silent)
    assert len(answer(client, "silent_ranks")) == silent


def test_no_rank_is_silent_before_the_first_iteration(own: DatabaseSettings, client: Client) -> None:
    store(own, MADE_UP, {"jobs": with_columns(MADE_UP, attempt=1)["jobs"]})
    [row] = answer(client, "pipeline_health")
    assert (row["attempt"], row["iterations"], row["silent_ranks"]) == (1, 0, None)


def test_silent_ranks_are_named_with_the_last_iteration_that_they_sent(own: DatabaseSettings, client: Client) -> None:
    store(own, gappy_job())
    [row] = answer(client, "silent_ranks", iterations=5)
    assert row == {"rank": 3, "host": "node-1", "gpu": 1, "last_iteration": 34, "newest_iteration_of_job": 39}
    assert answer(client, "silent_ranks", iterations=6) == []


def test_what_a_limit_leaves_out_is_told_and_only_then(recorded: Client) -> None:
    whole = run(recorded, "slowest_iterations", {"job": NIC, "limit": 1000})
    found = run(recorded, "slowest_iterations", {"job": NIC, "limit": 3})
    assert (found.rows, found.cut_at) == (whole.rows[:3], 3)
    assert whole.cut_at is None
    assert run(recorded, "slowest_iterations", {"job": NIC, "limit": len(whole.rows)}).cut_at is None
    assert run(recorded, "bandwidth_of_rank", {"job": NIC, "rank": 0, "limit": 2**32 - 1}).cut_at is None


# --- what is left to the database -----------------------------------------------------------------------------------


def test_without_a_job_it_is_the_newest_one_and_that_is_told(recorded: Client) -> None:
    found = run(recorded, "slowest_iterations", {"limit": 3})
    assert found.chosen == {"job": "pp4dp2-hang-inside"}
    assert found.rows == run(recorded, "slowest_iterations", {"job": "pp4dp2-hang-inside", "limit": 3}).rows
    assert run(recorded, "slowest_iterations", {"job": NIC}).chosen == {}
    nothing = run(recorded, "ranks_of_iteration")  # the newest job has no irregular iteration
    assert (nothing.rows, nothing.chosen) == ((), {"job": "pp4dp2-hang-inside"})


def test_the_newest_irregular_iteration_is_of_the_wanted_attempt(own: DatabaseSettings, client: Client) -> None:
    store(own, MADE_UP, with_columns(MADE_UP, attempt=1))
    store(own, {"iterations": with_columns(MADE_UP, attempt=1, verdict_ids=[])["iterations"]})
    assert run(client, "ranks_of_iteration", {"attempt": 0}).chosen["iteration"] == 29
    assert run(client, "ranks_of_iteration").rows


def test_in_an_empty_database_nothing_is_found_and_it_says_what_that_means(client: Client) -> None:
    for name in ("waits_of_iteration", "jobs_now", "suspicion_history", "before_and_after"):
        found = run(client, name)
        assert (found.rows, found.chosen) == ((), {})
        assert len(found.columns) > 5
        assert found.empty


def test_the_page_s_examples_are_what_the_database_answers(recorded: Client) -> None:
    assert renewed(recorded) == PAGE.read_text("utf-8"), "run: python -m tests.integration.sql_page"


def test_tables_that_python_fills_are_all_in_the_recordings() -> None:
    """So that a new table gets its questions' tests here."""
    filled = {
        name for recording in RECORDED for name, table in rows_of_recording(recording).items() if table.num_rows
    }
    assert set(TABLES) - filled <= {"gpu_health", "events", "feedback", "detector_scores", "audits", "pauses"}
