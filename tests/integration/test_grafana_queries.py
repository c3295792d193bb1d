"""Each question of Grafana's dashboards, on recorded jobs, as its ClickHouse plug-in sends it, answers rightly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from irregulars.messages.opinions import Opinion
from irregulars.sinks.protocol import Rows
from irregulars.sinks.tables import table_of_opinions, table_of_samples
from tests.conftest import ClickHouseAddress
from tests.infra.grafana.dashboards import DASHBOARDS, Json
from tests.infra.grafana.macros import View, expand
from tests.infra.grafana.queries import query
from tests.integration.pipelines import reading
from tests.integration.test_clickhouse import answer
from tests.integration.test_questions import columns, open_job
from tests.sinks import made_up_job
from tests.sinks.recorded_jobs import rows_of_recording, with_columns

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

pytestmark = pytest.mark.integration

NIC, COMPUTE, RACKS = "gloo-slow-nic", "gloo-slow-compute", "bench/ddp16-nic-both"
EVIL = 'a\\\' OR 1 = 1 -- "${host}" $__timeFilter(x) 100% {job:String} [[job]] ü\\'
"""A name of a job that would end quotes, and looks like variables, macros and parameters."""

Row = dict[str, Any]


def view(job: str, interval_s: float = 0.001, **variables: str) -> View:
    """All days of the recordings, with the newest verdict of a job."""
    chosen = {
        "job": job.removeprefix("bench/"),
        "attempt": str(attempt_of(job)),
        "verdict": "",
        "host": "*",
        **variables,
    }
    return View(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 31, tzinfo=UTC), interval_s, chosen)


def attempt_of(job: str) -> int:
    return int(columns(job, "iterations")["attempt"][0]) if job in (NIC, COMPUTE, RACKS) else 0


def verdict_of(job: str) -> str:
    return str(columns(job, "verdicts")["verdict_id"][-1])


def gpus(job: str, ranks: range) -> Iterator[Rows]:
    """A state of each rank's GPU in the middle of the job's verdict."""
    told = columns(job, "iterations")
    middle = told["started_at"][told["iteration"] == columns(job, "verdicts")["first_iteration"][-1] + 2][0]
    for rank in ranks:
        rows = {"gpu_health": table_of_samples([made_up_job.gpu_health(rank=rank, samples=2)]).slice(0, 1)}
        yield with_columns(rows, job=job, attempt=attempt_of(job), sampled_at=middle)


def word_on(job: str) -> Rows:
    told = columns(job, "verdicts")
    opinion = Opinion(
        job=job, verdict_id=verdict_of(job), who="ann", time_ns=1_795_300_000 * 10**9, is_right=True, kind="slow_nic",
        iterations=(int(told["first_iteration"][-1]), int(told["past_last_iteration"][-1])), note="", device=None,
        rank=None, probability=0.9,
    )  # fmt: skip
    return {"feedback": table_of_opinions([opinion])}


@pytest.fixture(scope="module")
def recorded(clickhouse: ClickHouseAddress) -> Iterator[Client]:
    """A client of a database with recorded jobs, one of them run twice, one verdict open; read only."""
    again = with_columns(rows_of_recording(NIC), job="again", verdict_id="again-v")
    live, evil = open_job("live"), with_columns(rows_of_recording(COMPUTE), job=EVIL, verdict_id=EVIL)
    recorded = map(rows_of_recording, (NIC, COMPUTE, RACKS))
    with reading(clickhouse, *recorded, again, live, evil, *gpus(NIC, range(4)), word_on(NIC)) as client:
        yield client


def rows(client: Client, sql: str, seen: View) -> list[Row]:
    found = client.query(expand(sql, seen))
    return [dict(zip(found.column_names, row, strict=True)) for row in found.result_rows]


def asked() -> Iterator[tuple[str, str, Json]]:
    """Name of the dashboard, name of the panel, variable or annotation, and the target."""
    for name, make in DASHBOARDS.items():
        made = make()
        for panel in made["panels"]:
            yield from ((name, panel["title"], one) for one in panel["targets"] if "rawSql" in one)
        for one in made["templating"]["list"]:
            if "rawSql" in (one.get("query") or ""):
                yield name, f"variable {one['name']}", one["query"]
        yield from ((name, f"annotation {one['name']}", one["target"]) for one in made["annotations"]["list"])


ASKED = list(asked())


@pytest.mark.parametrize(("name", "title", "target"), ASKED, ids=[f"{one[0]}-{one[1]}" for one in ASKED])
def test_each_panel_has_rows(recorded: Client, name: str, title: str, target: Json) -> None:
    found = recorded.query(expand(target["rawSql"], view(NIC, verdict=verdict_of(NIC))))
    assert found.result_rows
    if target["queryType"] == "timeseries":  # the plug-in makes series of it: a time first, never null, ascending
        assert found.column_names[0] == "time"
        assert found.column_types[0].name.startswith("DateTime")
        times = [row[0] for row in found.result_rows]
        assert times == sorted(times)


def test_of_a_stretch_the_longest_iteration_is_shown(recorded: Client) -> None:
    told = columns(NIC, "iterations")
    elapsed_s = told["elapsed_ns"] / 1e9
    fine = rows(recorded, query("iteration_times"), view(NIC))
    assert [row["longest"] for row in fine] == elapsed_s[np.argsort(told["started_at"])].tolist()
    assert sum(row["irregular"] is not None for row in fine) == sum(bool(one) for one in told["is_irregular"])
    coarse = rows(recorded, query("iteration_times"), view(NIC, 3600.0))
    assert [row["longest"] for row in coarse] == [elapsed_s.max()]


def test_a_checkpoint_is_no_slow_iteration(clickhouse: ClickHouseAddress) -> None:
    trained = open_job("saves")
    written = {"iterations": trained["iterations"].slice(35, 1)}
    slow = with_columns(written, phase="checkpoint", elapsed_ns=6 * 10**9)
    with reading(clickhouse, trained, slow) as client:
        [worst] = rows(client, query("worst_iterations_by_job"), view("saves", 86_400.0))
        [times] = rows(client, query("iteration_times"), view("saves", 86_400.0))
        [job] = answer(client, "jobs_now")
    assert (worst["times_usual"], times["longest"]) == (2.4, 0.24)  # of the slow link
    assert job["recent_iteration_s"] == round((29 * 0.1 + 10 * 0.24) / 39, 3)


def excess_s(job: str) -> dict[tuple[int, int], float]:
    """Own work beyond the median over ranks, by iteration and rank."""
    told = columns(job, "rank_iterations")
    work: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for iteration, rank, work_ns in zip(told["iteration"], told["rank"], told["work_ns"], strict=True):
        work[int(iteration)][int(rank)] = work_ns / 1e9
    return {
        (iteration, rank): own - float(np.median(list(ranks.values())))
        for iteration, ranks in work.items()
        for rank, own in ranks.items()
    }


def test_the_rank_that_stands_out_is_named_in_each_iteration(recorded: Client) -> None:
    told = excess_s(COMPUTE)
    longest: dict[int, tuple[float, int]] = {}
    for (iteration, rank), excess in told.items():
        longest[iteration] = max(longest.get(iteration, (-1.0, -1)), (excess, rank))
    places = {int(one["rank"]): one["host"] for one in rows_of_recording(COMPUTE)["jobs"].to_pylist()}
    found = rows(recorded, query("spread_by_rank"), view(COMPUTE))
    assert [row["rank_name"] for row in found] == [
        f"rank {rank} on {places[rank]}" for _, (_, rank) in sorted(longest.items())
    ]
    assert [row["spread_s"] for row in found] == pytest.approx([longest[one][0] for one in sorted(longest)])


def beyond_usual_s(job: str) -> dict[int, dict[int, float]]:
    """Excess beyond the rank's own median excess, by rank and iteration."""
    by_rank: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for (iteration, rank), excess in excess_s(job).items():
        by_rank[rank][iteration] = excess
    usual = {rank: float(np.median(list(told.values()))) for rank, told in by_rank.items()}
    return {rank: {one: excess - usual[rank] for one, excess in told.items()} for rank, told in by_rank.items()}


@pytest.mark.parametrize("job", [COMPUTE, RACKS])
def test_the_heat_map_keeps_the_extremes_of_each_rank(recorded: Client, job: str) -> None:
    highest = {rank: max(told.values()) for rank, told in beyond_usual_s(job).items()}
    [*found] = rows(recorded, query("extremes"), view(job, 86_400.0))
    assert {row["rank_name"]: row["excess_s"] for row in found} == {
        f"rank {rank:06}": pytest.approx(excess) for rank, excess in highest.items()
    }
    worst = rows(recorded, query("worst_ranks"), view(job))
    assert [row["most_s"] for row in worst] == pytest.approx(sorted(highest.values(), reverse=True))
    assert highest[worst[0]["rank"]] == max(highest.values())


def test_the_slow_rank_s_line_is_hot_while_it_was_slow(recorded: Client) -> None:
    verdict, times = columns(COMPUTE, "verdicts"), columns(COMPUTE, "iterations")
    told = rows(recorded, query("extremes"), view(COMPUTE))
    is_slow = (times["iteration"] >= verdict["first_iteration"][-1]) & (
        times["iteration"] < verdict["past_last_iteration"][-1]
    )
    begun = {one.to_pydatetime(warn=False).replace(tzinfo=None) for one in times["started_at"][is_slow]}
    begun = {one.replace(microsecond=one.microsecond // 1000 * 1000) for one in begun}
    hot: defaultdict[str, list[float]] = defaultdict(list)
    for row in told:
        if row["time"] in begun:
            hot[row["rank_name"]].append(row["excess_s"])
    medians = {name: float(np.median(values)) for name, values in hot.items()}
    assert max(medians, key=lambda name: medians[name]) == "rank 000003"


def test_the_suspects_are_those_of_each_revision(recorded: Client) -> None:
    told = columns(NIC, "suspects")
    found = rows(recorded, query("suspects"), view(NIC, verdict=verdict_of(NIC)))
    assert sorted(row["probability"] for row in found) == sorted(told["probability"])
    assert {row["suspect"] for row in found} == {"NIC eth0 on node-1"}


def test_a_verdict_costs_what_it_lost_while_its_cause_was_seen(recorded: Client) -> None:
    [row] = rows(recorded, query("verdict"), view("live", verdict="live-v"))
    assert (row["state"], row["severity"]) == ("open", "ticket")
    assert round(row["gpu_hours_per_hour"], 2) == 2.22  # 0.8 of 1.44 s of 4 GPUs


def test_the_span_of_a_verdict_is_marked(recorded: Client) -> None:
    told, verdict = columns(NIC, "iterations"), columns(NIC, "verdicts")
    [row] = rows(recorded, query("verdict_spans"), view(NIC))
    begin = told["started_at"][told["iteration"] == verdict["first_iteration"][-1]][0]
    assert row["time"] == begin.to_pydatetime(warn=False).replace(tzinfo=None)
    assert row["timeEnd"] > row["time"]
    assert row["text"].startswith("slow nic: NIC eth0 on node-1, ")
    assert row["tags"] == f"{verdict['severity'][-1]},closed"


def test_a_device_in_two_jobs_is_a_repeat_offender_and_its_hours_add_up(recorded: Client) -> None:
    offenders = rows(recorded, query("repeat_offenders"), view(NIC))  # the job with the evil name ran before too
    assert {one["device"] for one in offenders} == {"NIC eth0 on node-1", "rank 3 on node-3"}
    [row] = [one for one in offenders if one["device"].startswith("NIC")]
    assert (row["device"], row["verdicts"], row["jobs"], row["kinds"]) == ("NIC eth0 on node-1", 2, 2, "slow_nic")
    lost = columns(NIC, "verdicts")["lost_s"][-1] * 4 / 3600 * columns(NIC, "suspects")["probability"][-1]
    assert row["gpu_hours"] == pytest.approx(2 * lost)
    by_device = {one["device"]: one for one in rows(recorded, query("lost_by_device"), view(NIC))}
    assert by_device["NIC eth0 on node-1"]["gpu_hours"] == pytest.approx(2 * lost)


def test_a_host_is_chosen_or_all(recorded: Client) -> None:
    values = [row["value"] for row in rows(recorded, query("hosts"), view(NIC))]
    assert values[0] == "*"
    assert "node-1" in values[1:] == sorted(values[1:])
    found = rows(recorded, query("lost_by_device"), view(NIC, host="node-1"))
    assert {row["host"] for row in found} == {"node-1"}


def test_a_suspect_s_nic_is_held_against_the_others(recorded: Client) -> None:
    told = columns(NIC, "bandwidth")
    is_nic = told["path"] == "nic"
    peak = np.fmax(told["tx_bytes_per_s"].astype(float), told["rx_bytes_per_s"].astype(float))
    [row] = rows(recorded, query("nic_rates"), view(NIC, 86_400.0, verdict=verdict_of(NIC)))
    of_rank = {rank: float(np.nanmax(peak[is_nic & (told["rank"] == rank)])) for rank in range(4)}
    assert row["suspect"] == pytest.approx(of_rank.pop(1))
    assert row["highest_of_others"] == pytest.approx(max(of_rank.values()))
    assert row["lowest_of_others"] == pytest.approx(min(of_rank.values()))
    [row] = rows(recorded, query("nic_rates"), view(NIC, 86_400.0, verdict="accuses nobody"))
    assert row["suspect"] is None
    # Several ranks may share a NIC that is capped: none of them is one of the others.
    [shared] = recorded.query(
        "SELECT ranks FROM accused WHERE verdict_id = %(verdict)s AND position = 0", {"verdict": verdict_of(RACKS)}
    ).first_row
    found = rows(recorded, query("nic_rates"), view(RACKS, 86_400.0, verdict=verdict_of(RACKS)))
    told = columns(RACKS, "bandwidth")
    own = (told["path"] == "nic") & np.isin(told["rank"], list(shared))
    peak = np.fmax(told["tx_bytes_per_s"].astype(float), told["rx_bytes_per_s"].astype(float))
    assert max(row["suspect"] for row in found) == pytest.approx(float(np.nanmax(peak[own])))


def test_a_job_s_name_is_never_sql(recorded: Client) -> None:
    chosen: Mapping[str, str] = {"verdict": EVIL}
    assert EVIL in [row["job"] for row in rows(recorded, query("job_names"), view(NIC))]
    times = rows(recorded, query("iteration_times"), view(EVIL, **chosen))
    assert len(times) == len(columns(COMPUTE, "iterations")["iteration"])
    [verdict] = rows(recorded, query("verdict"), view(EVIL, **chosen))
    assert verdict["kind"] == columns(COMPUTE, "verdicts")["kind"][-1]
    assert [row["verdict_id"] for row in rows(recorded, query("verdict_names"), view(EVIL))] == [EVIL]
    assert rows(recorded, query("iteration_times"), view(EVIL[:-1])) == []


def test_without_any_job_panels_stay_empty_and_fail_not(clickhouse: ClickHouseAddress) -> None:
    seen = replace(view(NIC), variables={"job": "", "attempt": "", "verdict": "", "host": ""})
    with reading(clickhouse, {}) as client:
        for name, title, target in ASKED:
            found = client.query(expand(target["rawSql"], seen)).result_rows
            assert len(found) <= 1, (name, title)
