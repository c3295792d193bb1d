"""`irregulars walk` shows what really happens: the parts that it names, and the verdicts of `analyze`."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import analyze
from irregulars.infra.runs.walk import WalkedJob, walk
from irregulars.infra.runs.walk_stations import Place, choose, stations
from irregulars.messages.records import OPERATORS, decode_batch
from irregulars.producers.simulator.job.faults import parse_fault
from irregulars.producers.simulator.job.settings import SimulatorSettings
from irregulars.producers.simulator.logs.source import simulate_trace
from irregulars.producers.trace.directory import read_trace
from tests.infra.docs.made_parts import walk_output

ROOT = Path(__file__).resolve().parents[3]
NAMES = ["rows", "batch", "closed", "evidence", "judged", "path", "cause", "verdict", "alert"]


@pytest.fixture(scope="module")
def job() -> WalkedJob:
    return walk(read_trace(ROOT / "tests" / "recordings" / "gloo-slow-nic"))


def station(job: WalkedJob, name: str, place: Place | None = None) -> dict[str, Any]:
    (found,) = [one for one in stations(job, place or choose(job)) if one.name == name]
    return found.values


def test_its_verdicts_are_those_of_analyze(job: WalkedJob) -> None:
    newest = {verdict.verdict_id: verdict for verdict in job.revisions}
    assert list(newest.values()) == analyze(job.trace).verdicts


def test_evidence_of_a_larger_job_travels_together_and_its_verdicts_are_those_of_analyze(tmp_path: Path) -> None:
    fault = parse_fault("slow_rank:rank=5,from=30,factor=1.6")
    simulate_trace(tmp_path, SimulatorSettings(dp=8, pp=2, tp=1, iterations=45, faults=(fault,)))
    parts: list[tuple[int, int]] = []
    larger = walk(read_trace(tmp_path), on_part=lambda done, total: parts.append((done, total)))
    newest = {verdict.verdict_id: verdict for verdict in larger.revisions}
    assert list(newest.values()) == analyze(larger.trace).verdicts
    assert [verdict.kind for verdict in newest.values()] == ["slow_rank"]
    assert len(larger.bus.topics["evidence"]) < 45, "less than a message an iteration, for all 16 ranks"
    assert parts == [(number, len(parts)) for number in range(1, len(parts) + 1)]


def test_the_parts_that_it_names_are_where_it_says(job: WalkedJob) -> None:
    way = stations(job, choose(job))
    assert [one.name for one in way] == NAMES
    for part in [part for one in way for part in one.done_by]:
        file, name = part.split(": ")
        assert callable(getattr(importlib.import_module("irregulars." + file[:-3].replace("/", ".")), name))
        assert (ROOT / file).exists()


def test_the_rows_are_in_the_message(job: WalkedJob) -> None:
    sent, rows = station(job, "batch"), station(job, "rows")["rows"]
    message = job.bus.topics["commops"][sent["offset"]]
    batch = decode_batch(message.value, "commops")
    own = batch.columns["iteration"] == choose(job).iteration
    assert (message.key.decode(), len(message.value)) == (sent["key"], sent["message_bytes"])
    assert [OPERATORS[code] for code in batch.columns["operator"][own]] == [row["operator"] for row in rows]
    assert batch.columns["start_ns"][own].tolist() == [row["start_ns"] for row in rows]


def test_the_evidence_adds_up_to_the_rows(job: WalkedJob) -> None:
    rows, evidence = station(job, "rows")["rows"], station(job, "evidence")
    assert evidence["operators"] == len(rows)
    assert evidence["communication_ns"] == sum(row["elapsed_ns"] for row in rows)
    assert evidence["commops_offsets"] == [station(job, "batch")["offset"]]


def test_it_follows_the_suspect_into_the_iteration_with_which_the_verdict_opened(job: WalkedJob) -> None:
    place = choose(job)
    (opened,) = [one for one in job.revisions if one.event == "opened"]
    assert place.rank == opened.suspects[0].rank == 1
    assert place.iteration == opened.iterations[1] - 1
    assert station(job, "verdict")["verdict"]["verdict_id"] == opened.verdict_id
    assert station(job, "cause")["causes"][0]["kind"] == opened.kind == "slow_nic"
    judged = station(job, "judged")
    assert judged["elapsed_ns"] > judged["limit_ns"] >= 1.1 * judged["mean_ns"]
    assert station(job, "alert")["summary"].startswith("OPENED slow NIC")


def test_a_regular_iteration_ends_where_it_is_judged(job: WalkedJob) -> None:
    place = choose(job, rank=2, iteration=40)
    assert station(job, "judged", place)["is_irregular"] is False
    for name in ("path", "verdict", "alert"):
        assert station(job, name, place) == {}


def test_the_path_tiles_the_excess(job: WalkedJob) -> None:
    path = station(job, "path")
    assert np.isclose(sum(lane["excess_ns"] for lane in path["lanes"]), path["excess_ns"], rtol=0.1)
    assert path["read_back"]["ranks"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"rank": 9}, "rank must be one with operators in iteration 62; got 9"),
        ({"iteration": 4000}, r"iteration must be one that was judged \(0 to 159\); got 4000"),
    ],
)
def test_what_is_not_there_can_t_be_followed(job: WalkedJob, wanted: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(job, **wanted)


def test_a_job_without_a_verdict_can_be_walked() -> None:
    directory = str(ROOT / "tests" / "recordings" / "gloo-clean")
    found = json.loads(walk_output(directory, "--json"))
    assert [one["station"] for one in found["stations"]] == NAMES
    assert "verdict" not in found["stations"][-2]
