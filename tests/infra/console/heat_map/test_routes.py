"""The heat map's addresses on a real database with a real recording, and with names and numbers that mean harm."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import uvicorn
from starlette.applications import Starlette

from irregulars.infra.console import heat_reading as reading
from irregulars.infra.console.database import ConsoleDatabase, SharedAnswers
from irregulars.infra.console.heat_levels import HEADER
from irregulars.infra.console.heat_routes import heat_map_routes
from irregulars.messages.judgements import with_first_names
from irregulars.sinks.connection import DatabaseSettings
from irregulars.sinks.protocol import Rows
from irregulars.words import name_kind
from tests.conftest import ClickHouseAddress
from tests.infra.console.visits import serving
from tests.integration.pipelines import own_database, store
from tests.sinks.recorded_jobs import between, judged, rows_of_recording, with_columns
from tests.waiting import wait_for

pytestmark = pytest.mark.integration

JOB, SLOW_RANK = "gloo-slow-rank", 2
HOSTILE = ["a/b/../c", "x' OR 1=1 --", "<script>alert(1)</script>", "{job:String}", "ü\u202eп\t", "%2e%2e", "a?b#c"]


@pytest.fixture(scope="module")
def ask(clickhouse: ClickHouseAddress) -> Iterator[Ask]:
    """Asks the routes on a database with a recording, twice under hostile names."""
    # Else a window's version changes 15 s after its rows were stored: between two questions, where tests are slow
    rows = rows_of_recording(JOB)
    uneven = {name: table for name, table in with_columns(rows, job="uneven").items() if name != "suspects"}
    hostile = (with_columns(rows, job=name) for name in HOSTILE)
    holes = with_holes(with_columns(rows, job="holes"))
    with pytest.MonkeyPatch.context() as patch, own_database(clickhouse, rows, *hostile, holes, uneven) as settings:
        patch.setattr(reading, "_SETTLED_S", -1)
        with served(settings) as client:
            yield Ask(client)


class Ask:
    """A client that knows the addresses."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def get(self, path: str, job: str = JOB, attempt: int | str = 0, **values: Any) -> Any:
        headers = values.pop("headers", None)
        return self.client.get(f"/api/jobs/{quote(job, safe='')}/{attempt}/{path}", params=values, headers=headers)

    def window(self, job: str = JOB, **values: Any) -> dict[str, Any]:
        answer = self.get("heat-map", job, **values)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def asked(self, job: str = JOB, **values: Any) -> dict[str, Any]:
        window = self.window(job)
        return {name: window[name] for name in ("first", "last", "version")} | values

    def codes(self, job: str = JOB, **values: Any) -> np.ndarray:
        body = self.get("heat-map/tile", job, **self.asked(job), **values).content
        return tile_of(body)[1]


def tile_of(body: bytes) -> tuple[tuple[float, float], np.ndarray]:
    """Return the ends of a tile's scale, and its codes, row by row."""
    low, high, rows, columns, *_ = HEADER.unpack(body[: HEADER.size])
    return (low, high), np.frombuffer(body, np.uint8, rows * columns, HEADER.size).reshape(rows, columns)


def with_holes(rows: Rows) -> dict[str, pa.Table]:
    """Without rank 2 in the iterations below 80."""
    own = rows["rank_iterations"]
    is_hole = pc.and_(pc.equal(own["rank"], 2), pc.less(own["iteration"], 80))
    return {**rows, "rank_iterations": own.filter(pc.invert(is_hole))}


def test_the_window_tells_iterations_and_who_is_accused(ask: Ask) -> None:
    window = ask.window()
    table = rows_of_recording(JOB)["iterations"]
    assert window["ranks"] == 4
    assert (window["oldest"], window["newest"]) == (
        min(table["iteration"].to_pylist()),
        max(table["iteration"].to_pylist()),
    )
    assert window["elapsed_ns"] == pc.take(table["elapsed_ns"], pc.sort_indices(table["iteration"])).to_pylist()
    assert window["irregular"]
    assert [one["ranks"] for one in window["marks"] if one["position"] == 0] == [[SLOW_RANK]]
    assert {one["name"] for one in window["orders"]} >= {"rank", "host", "strange"}


def test_the_slow_rank_is_the_strangest_and_its_cells_are(ask: Ask) -> None:
    found = ask.get("heat-map/strangest", **ask.asked()).json()["cells"]
    assert found[0]["rank"] == SLOW_RANK
    codes = ask.codes()
    assert codes.shape == (4, len(ask.window()["elapsed_ns"]))
    assert codes[SLOW_RANK, 62:78].min() > codes[:, :50].max()
    top = ask.get("heat-map/rows", **ask.asked(order="strange")).json()
    assert top["ranks"][0] == SLOW_RANK
    assert ask.codes(order="strange")[0].tolist() == codes[SLOW_RANK].tolist()


def test_what_is_not_stored_is_missing_and_nothing_else_is(ask: Ask) -> None:
    codes = ask.codes("holes", quantity="work")
    numbers = np.array([*range(ask.window("holes")["first"], ask.window("holes")["last"] + 1)])
    assert ((codes == 0) == ((np.arange(4) == 2)[:, None] & (numbers < 80))).all()
    assert (ask.codes("holes", quantity="work", ranks_per_bin=4) > 0).all()


def test_a_cell_is_told_as_it_is_stored(ask: Ask) -> None:
    iteration = ask.window()["first"] + 70
    cell = ask.get("heat-map/cell", **ask.asked(iteration=iteration, rank=SLOW_RANK)).json()
    own = rows_of_recording(JOB)["rank_iterations"]
    (row,) = own.filter(pc.and_(pc.equal(own["rank"], SLOW_RANK), pc.equal(own["iteration"], iteration))).to_pylist()
    assert (cell["work_ns"], cell["elapsed_ns"]) == (row["work_ns"], row["elapsed_ns"])
    assert cell["work_ns"] > 2 * cell["usual_ns"]
    assert (cell["most_rank"], cell["longer"], cell["ranks"]) == (SLOW_RANK, 0, 4)
    assert [one["verdict_id"] for one in cell["verdicts"]] == [f"{JOB}:0:60:0"]
    nothing = ask.get("heat-map/cell", iteration=10**6, rank=0).json()
    assert nothing == {"iteration": 10**6, "rank": 0, "verdicts": []}


def test_the_chart_has_all_iterations_and_their_references(ask: Ask) -> None:
    times = ask.get("iteration-times").json()
    assert len(times["elapsed_us"]) == len(times["reference_us"]) == len(ask.window()["elapsed_ns"])
    assert times["reference_us"][0] is None
    assert [one["verdict_id"] for one in times["marks"]] == [f"{JOB}:0:60:0"]
    some = ask.get("iteration-times", around=100, iterations=20).json()
    assert some["iterations"] == {"first": 90, "count": 20}


def test_a_verdict_that_accuses_nobody_is_marked_and_stands_beside_the_iterations_that_it_explains(ask: Ask) -> None:
    times = ask.get("iteration-times", "uneven").json()
    [mark] = times["marks"]
    assert (mark["verdict_id"], mark["name"]) == (f"{JOB}:0:60:0", name_kind(mark["kind"]))
    told = judged(JOB)
    explained = [one for one in with_first_names(told.iterations, told.verdicts) if one.is_irregular]
    wanted = {str(one.iteration): list(one.verdict_ids) for one in explained if one.verdict_ids}
    assert times["verdicts"] == wanted != {}
    assert [one["ranks"] for one in ask.window("uneven")["marks"]] == [[]]


@pytest.mark.parametrize(("around", "first"), [(0, 0), (80, 75), (10**9, None), (-5, 0)])
def test_a_window_is_full_wherever_it_is_asked_for(ask: Ask, around: int, first: int | None) -> None:
    window = ask.window(around=around, iterations=10)
    assert window["last"] - window["first"] == 9
    assert window["first"] == (window["newest"] - 9 if first is None else first)


@pytest.mark.parametrize("job", HOSTILE)
def test_a_job_of_any_name_is_itself_and_no_other(ask: Ask, job: str) -> None:
    window = ask.window(job)
    assert window["job"] == job
    assert ask.codes(job).shape == (4, len(window["elapsed_ns"]))
    answer = ask.get("heat-map", job)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(("path", "values"), [
    ("heat-map", {"around": "9" * 30}),
    ("heat-map", {"iterations": "0"}),
    ("heat-map", {"iterations": "99999999"}),
    ("heat-map/tile", {"quantity": "work_ns) FROM jobs --"}),
    ("heat-map/tile", {"order": "../rank"}),
    ("heat-map/tile", {"ranks_per_bin": "3"}),
    ("heat-map/tile", {"ranks_per_bin": "131072"}),
    ("heat-map/tile", {"row": "1"}),
    ("heat-map/tile", {"column": "-1"}),
    ("heat-map/cell", {"iteration": "1"}),
    ("heat-map/cell", {"rank": "4294967296", "iteration": "1"}),
    ("iteration-times", {"iterations": "100001"}),
])  # fmt: skip
def test_a_value_out_of_range_is_refused_and_named(ask: Ask, path: str, values: dict[str, str]) -> None:
    answer = ask.get(path, **(ask.asked() | values if path == "heat-map/tile" else values))
    assert answer.status_code == 400
    assert " must be " in answer.json()["error"]


@pytest.mark.parametrize(("job", "attempt"), [("no such job", 0), (JOB, 7), (JOB, 10**25)])
def test_a_job_that_is_not_there_is_told_in_one_line(ask: Ask, job: str, attempt: int) -> None:
    for path in ("heat-map", "iteration-times"):
        answer = ask.get(path, job, attempt)
        assert answer.status_code == 400
        assert len(answer.json()["error"].splitlines()) == 1


def test_what_did_not_change_is_not_sent_again_and_what_did_is_gone(ask: Ask) -> None:
    for path, values in (("heat-map", {}), ("heat-map/tile", ask.asked()), ("iteration-times", {})):
        first = ask.get(path, **values)
        again = ask.get(path, headers={"If-None-Match": first.headers["etag"]}, **values)
        assert (again.status_code, again.content) == (304, b"")
    assert "immutable" in ask.get("heat-map/tile", **ask.asked()).headers["cache-control"]
    gone = ask.get("heat-map/tile", **ask.asked() | {"version": "0" * 16})
    assert (gone.status_code, gone.headers["cache-control"]) == (410, "no-store")


def test_rows_judged_anew_have_another_version(clickhouse: ClickHouseAddress) -> None:
    rows = rows_of_recording(JOB)
    with own_database(clickhouse, rows) as settings, served(settings) as client:
        ask = Ask(client)
        before = ask.asked()
        store(settings, {"iterations": longer(rows["iterations"].slice(5, 1))})
        # Answers are shared for two seconds.
        wait_for(lambda: ask.asked()["version"] != before["version"])
        wait_for(lambda: ask.get("heat-map/tile", **before).status_code == 410)


def longer(iterations: pa.Table) -> pa.Table:
    """Return them, each a second longer."""
    at = iterations.schema.get_field_index("elapsed_ns")
    return iterations.set_column(at, iterations.schema.field(at), pc.add(iterations["elapsed_ns"], 10**9))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many iterations of cells each question asks for; all stored ones count as settled and are read at once."""
    monkeypatch.setattr(reading, "_SETTLED_S", -1)
    monkeypatch.setattr(SharedAnswers, "get", lambda self, key, make, keep_s=0.0: make())
    asked: list[int] = []
    of = reading._Cells.of

    def noted(self: Any, iterations: Any, *others: Any) -> Any:
        asked.append(len(iterations))
        return of(self, iterations, *others)

    monkeypatch.setattr(reading._Cells, "of", noted)
    return asked


def test_of_a_running_job_only_what_is_behind_is_read_and_sent(
    clickhouse: ClickHouseAddress, reads: list[int]
) -> None:
    rows = rows_of_recording(JOB)
    with own_database(clickhouse, between(rows, 0, 60)) as settings, served(settings) as client:
        ask = Ask(client)
        before = ask.asked()
        tile = ask.codes()
        store(settings, between(rows, 60, 70))
        reads.clear()
        window = ask.window(first=before["first"], version=before["version"])
        assert (window["first"], window["last"], window["unchanged"]) == (0, 69, 60)
        asked = {"first": 0, "last": 69, "version": window["version"]}
        ends, behind = tile_of(ask.get("heat-map/tile", **asked, skipped=60).content)
        assert behind.shape == (4, 10)
        assert reads == [10]
        ends_of_all, codes = tile_of(ask.get("heat-map/tile", **asked).content)
        assert ends == ends_of_all
        np.testing.assert_array_equal(codes[:, 60:], behind)
        assert codes[SLOW_RANK, 62:].min() > codes[:, :50].max()  # held against the times before
        assert tile.shape == (4, 60)
        for skipped in (70, -1):
            assert ask.get("heat-map/tile", **asked, skipped=skipped).status_code == 400
        assert ask.window(first=0, version="another")["unchanged"] == 0


def test_what_was_judged_anew_is_read_again_and_so_is_a_window_that_grew_too_long(
    clickhouse: ClickHouseAddress, reads: list[int]
) -> None:
    rows = rows_of_recording(JOB)
    with own_database(clickhouse, between(rows, 0, 60)) as settings, served(settings) as client:
        ask = Ask(client)
        before = ask.asked()
        assert ask.codes().shape == (4, 60)
        store(settings, between(rows, 60, 70), {"iterations": longer(between(rows, 20, 21)["iterations"])})
        reads.clear()
        window = ask.window(first=before["first"], version=before["version"])
        assert window["unchanged"] == 20
        asked = {"first": 0, "last": 69, "version": window["version"]}
        assert ask.get("heat-map/tile", **asked, skipped=20).status_code == 200
        assert reads == [11]
        newest = ask.window(first=0, version=window["version"], iterations=40)
        assert (newest["first"], newest["last"]) == (30, 69)


def test_the_chart_asks_for_iterations_behind_one(ask: Ask) -> None:
    whole = ask.get("iteration-times").json()
    behind = ask.get("iteration-times", after=99, first=0).json()
    assert behind["iterations"] == {"first": 100, "count": len(whole["elapsed_us"]) - 100}
    assert behind["elapsed_us"] == whole["elapsed_us"][100:]
    assert behind["irregular"] == [at - 100 for at in whole["irregular"] if at >= 100]
    assert behind["marks"] == whole["marks"]
    assert not behind["is_cut"]
    assert ask.get("iteration-times", after=99, iterations=5).json()["is_cut"]
    nothing = ask.get("iteration-times", after=10**9).json()
    assert (nothing["iterations"], nothing["elapsed_us"]) == ([], [])


def test_an_attempt_of_too_many_digits_is_refused(ask: Ask) -> None:
    for digits in (20, 5_000):
        answer = ask.client.get(f"/api/jobs/x/{'9' * digits}/heat-map")
        assert answer.status_code == 400
        assert "attempt must be a number" in answer.json()["error"]


@contextmanager
def served(settings: DatabaseSettings) -> Iterator[httpx.Client]:
    """Serve until the block ends; yields a client that knows where."""
    database = ConsoleDatabase(settings)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = Starlette(routes=heat_map_routes(database))
        config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", lifespan="off")
        try:
            with serving(config, listening) as url, httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
                yield client
        finally:
            database.close()
