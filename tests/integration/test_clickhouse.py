"""The sink, the migrations and the investigations on a real ClickHouse."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from irregulars.errors import InputError, ServiceRefused, SinkBusy, SinkError, SinkRejected
from irregulars.sinks.clickhouse import ClickHouseSink, DatabaseSettings
from irregulars.sinks.connection import connect, connected
from irregulars.sinks.investigations import bind, run, shipped_investigations
from irregulars.sinks.migrate import keep, migrate, shipped_migrations
from irregulars.sinks.notices.mutes import opinion_on
from irregulars.sinks.protocol import Rows, Sink
from irregulars.sinks.tables import TABLES, table_of_opinions, table_of_samples, tables_of
from tests.chaos.faults import port_of
from tests.chaos.surroundings import Gates
from tests.conftest import ClickHouseAddress
from tests.infra.docs.test_fields import migration_for_added
from tests.integration.pipelines import own_database, store
from tests.integration.worker_runs import wait_until
from tests.sinks import made_up_job
from tests.sinks.sink_promises import check_sink, sort_by_key

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

pytestmark = pytest.mark.integration

ROWS: Rows = {
    **tables_of(made_up_job.over()),
    "bandwidth": table_of_samples([made_up_job.bandwidth(rank=3)]),
    "gpu_health": table_of_samples([made_up_job.gpu_health(rank=1, samples=30)]),
    "events": table_of_samples([made_up_job.events()]),
    "feedback": table_of_opinions(
        [opinion_on(made_up_job.verdict(2), is_right=False, who="ann", note="", time_ns=10**18)]
    ),
}
DEADLINE_S = 60.0


@pytest.fixture
def settings(database: DatabaseSettings) -> DatabaseSettings:
    return database


@pytest.fixture(scope="module")
def filled(clickhouse: ClickHouseAddress) -> Iterator[Client]:
    """A client of a database that holds the made-up job; read only."""
    with own_database(clickhouse, ROWS) as settings, connected(settings) as client:
        yield client


@pytest.fixture
def sink(settings: DatabaseSettings) -> Iterator[ClickHouseSink]:
    sink = ClickHouseSink(settings)
    sink.open()
    yield sink
    sink.close()


def read(settings: DatabaseSettings, table: str, final: str = "FINAL") -> pa.Table:
    """Every row of `table` in the order of its key, as Python wrote it."""
    schema = TABLES[table].schema
    with connected(settings) as client:
        found = client.query_arrow(f"SELECT {', '.join(schema.names)} FROM {table} {final}", use_strings=True)
    return sort_by_key(table, found.cast(schema))


def command(settings: DatabaseSettings, sql: str) -> Any:
    with connected(settings) as client:
        return client.command(sql)


class Wire:
    """A way to the database that can be cut."""

    def __init__(self, gates: Gates, url: str) -> None:
        gate = gates.open(port_of(url))
        self.url = f"http://127.0.0.1:{gate.port}"
        self.cut, self.mend = partial(gates.cut, gate), partial(gates.mend, gate)


@pytest.fixture
def wire(clickhouse: ClickHouseAddress) -> Iterator[Wire]:
    with Gates() as gates:
        yield Wire(gates, clickhouse.url)


# --- storing --------------------------------------------------------------------------------------------------------


def test_iterations_and_verdicts_are_stored_last(sink: ClickHouseSink, monkeypatch: pytest.MonkeyPatch) -> None:
    from clickhouse_connect.driver.client import Client

    stored: list[str] = []
    insert = Client.insert_arrow

    def noting(client: Client, table: str, *arguments: Any, **options: Any) -> Any:
        stored.append(table)
        return insert(client, table, *arguments, **options)

    monkeypatch.setattr(Client, "insert_arrow", noting)
    sink.write(ROWS)
    sink.flush()
    assert set(stored) == set(ROWS)
    assert stored[-2:] == [name for name in ROWS if name in ("iterations", "verdicts")]


def test_the_sink_keeps_every_promise(clickhouse: ClickHouseAddress) -> None:
    with ExitStack() as databases:

        def make() -> tuple[Sink, Callable[[str], pa.Table]]:
            settings = databases.enter_context(own_database(clickhouse))
            return ClickHouseSink(settings), lambda table: read(settings, table)

        check_sink(make)


def test_what_is_written_is_read_to_the_nanosecond(filled: Client) -> None:
    for table, one in TABLES.items():
        found = filled.query_arrow(f"SELECT {', '.join(one.schema.names)} FROM {table} FINAL", use_strings=True)
        wanted = ROWS[table].slice(2) if table == "verdicts" else ROWS[table]
        assert sort_by_key(table, found.cast(one.schema)).equals(sort_by_key(table, wanted)), table


def test_columns_are_those_that_python_knows_with_the_same_nulls(filled: Client) -> None:
    sql = "SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = {table:String}"
    for table, one in TABLES.items():
        found = dict(filled.query(sql, parameters={"table": table}).result_rows)
        assert found.pop("stored_at") == "DateTime('UTC')", table
        assert set(found) == set(one.schema.names), table
        nullable = {name for name, kind in found.items() if "Nullable(" in kind}
        assert nullable == {field.name for field in one.schema if field.nullable}, table


@pytest.mark.parametrize(("view", "others"), [("incidents", ("verdicts",)), ("accused", ("incidents", "suspects"))])
def test_a_column_of_a_view_has_a_comment_or_is_that_of_another_table(
    filled: Client, view: str, others: tuple[str, ...]
) -> None:
    sql = "SELECT name, comment FROM system.columns WHERE database = currentDatabase() AND table = {table:String}"
    own, *rest = (dict(filled.query(sql, parameters={"table": one}).result_rows) for one in (view, *others))
    assert own.keys() >= {"job", "lost_s"}
    assert {name for name, comment in own.items() if not comment} <= {name for one in rest for name in one}


def test_merging_in_the_background_changes_nothing(settings: DatabaseSettings) -> None:
    store(settings, ROWS)
    store(settings, ROWS)
    for name in TABLES:
        merged = read(settings, name)
        command(settings, f"OPTIMIZE TABLE {name} FINAL")
        assert read(settings, name, final="").equals(merged)


def test_an_older_revision_that_comes_later_does_not_replace_a_newer_one(settings: DatabaseSettings) -> None:
    store(settings, {"verdicts": ROWS["verdicts"].slice(2)})
    store(settings, {"verdicts": ROWS["verdicts"].slice(0, 2)})
    assert read(settings, "verdicts").column("revision").to_pylist() == [3]


def test_suspects_that_a_newer_revision_took_back_are_not_shown(settings: DatabaseSettings) -> None:
    acquitted = replace(made_up_job.judgements(), verdicts=[replace(made_up_job.verdict(3), revision=4, suspects=())])
    store(settings, ROWS)
    assert command(settings, "SELECT groupArray(revision) FROM newest_suspects") == "[3]"
    store(settings, tables_of(acquitted))
    assert command(settings, "SELECT count() FROM newest_suspects") == 0


def test_a_long_job_s_iterations_are_read_with_their_verdicts_in_little_memory(settings: DatabaseSettings) -> None:
    store(settings, {})
    fill = (
        "INSERT INTO iterations (job, iteration, started_at, elapsed_ns, is_irregular) "
        "SELECT 'long', number, toDateTime64(number, 9), 1, number % 2 FROM numbers(40000)",
        "INSERT INTO verdicts (job, verdict_id, revision, kind, first_iteration, past_last_iteration, last_seen_at) "
        "SELECT 'long', toString(number), 1, 'slow_rank', number * 80, number * 80 + 10, now64() FROM numbers(500)",
        # A job may count in steps of any size
        "INSERT INTO verdicts (job, verdict_id, revision, kind, first_iteration, past_last_iteration, last_seen_at) "
        "VALUES ('long', 'large', 1, 'custom', 39999, 9000000000000, now64())",
    )
    for sql in fill:
        command(settings, sql)
    named = "SELECT countIf(notEmpty(verdict_ids)) FROM judged_iterations WHERE job = 'long'"
    # Each verdict is named in its first iteration, and in those of odd number among its first ten.
    assert command(settings, f"{named} SETTINGS max_memory_usage = 200000000") == 500 * 6 + 1


def test_operators_whose_peer_alone_differs_are_two(settings: DatabaseSettings) -> None:
    columns = {name: column[:2].copy() for name, column in made_up_job.operators().items()}
    columns |= {"rank": np.array([2, 2]), "communicator": np.array(["pp", "pp"], dtype=object)}
    columns |= {"peer": np.array([0, 1])}
    store(settings, tables_of(replace(made_up_job.judgements(), operators=columns)))
    assert read(settings, "operators").num_rows == 2


def test_several_threads_may_write_to_one_sink(sink: ClickHouseSink, settings: DatabaseSettings) -> None:
    def write(first: int) -> None:
        sink.write({"iterations": ROWS["iterations"].slice(first, 5)})
        sink.flush()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(0, 40, 5), timeout=DEADLINE_S))
    assert read(settings, "iterations").num_rows == 40


def test_a_full_buffer_is_flushed_by_the_next_write(settings: DatabaseSettings) -> None:
    sink = ClickHouseSink(settings, buffer_rows=10)
    sink.open()
    sink.write({"iterations": ROWS["iterations"].slice(0, 10)})
    assert sink.buffered_rows == 10
    sink.write({"iterations": ROWS["iterations"].slice(10, 1)})
    assert sink.buffered_rows == 1
    assert read(settings, "iterations").num_rows == 10
    sink.close()


def test_rows_that_wait_for_long_are_stored_by_the_next_write(settings: DatabaseSettings) -> None:
    now_s = 100.0
    sink = ClickHouseSink(settings, buffer_s=5, clock=lambda: now_s)
    sink.open()
    for first, at_s in enumerate((100.0, 104.9)):
        now_s = at_s
        sink.write({"iterations": ROWS["iterations"].slice(first, 1)})
    assert sink.buffered_rows == 2
    now_s = 105.0
    sink.write({"iterations": ROWS["iterations"].slice(2, 1)})
    assert (sink.buffered_rows, read(settings, "iterations").num_rows) == (1, 2)
    now_s = 109.9  # the buffer's age counts from its first row, which came at 105
    sink.write({"iterations": ROWS["iterations"].slice(3, 1)})
    assert sink.buffered_rows == 2
    sink.close()


@pytest.mark.parametrize("writes", [[40], [7, 3, 1, 29], [10, 10, 20]])
def test_no_insert_has_more_rows_than_it_may(settings: DatabaseSettings, writes: list[int]) -> None:
    sink = ClickHouseSink(settings, buffer_rows=10)
    sink.open()
    never_merges = "max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1"
    command(settings, f"ALTER TABLE iterations MODIFY SETTING {never_merges}")
    for past, count in zip(itertools.accumulate(writes), writes, strict=True):
        sink.write({"iterations": ROWS["iterations"].slice(past - count, count)})
    sink.close()
    inserts = command(settings, "SELECT count() FROM iterations GROUP BY _part ORDER BY _part FORMAT TSV")
    assert max(map(int, str(inserts).split())) <= 10
    assert read(settings, "iterations").equals(sort_by_key("iterations", ROWS["iterations"]))


def test_a_sink_must_be_open(settings: DatabaseSettings) -> None:
    with pytest.raises(SinkError, match="must be open"):
        ClickHouseSink(settings).write(ROWS)


# --- when the database fails ----------------------------------------------------------------------------------------


def test_a_cut_connection_is_busy_with_growing_waits_and_no_loss(
    settings: DatabaseSettings, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ClickHouseSink(replace(settings, url=wire.url))
    sink.open()
    sink.write(ROWS)
    wire.cut()
    with pytest.raises(SinkBusy, match=r"got Error executing HTTP request: .*(closed|reset|aborted|refused)") as busy:
        sink.flush()
    assert [busy.value.retry_after_s, *(busy_wait_s(sink) for _ in range(7))] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    # Libraries' own warnings, as of urllib3 on a refused connection, are in no log of ours (`logging_config`).
    assert [one for one in caplog.records if not one.name.startswith("urllib3")] == []
    sink._failures = 5_000  # as if it had been away for a night
    assert busy_wait_s(sink) == 30
    wire.mend()
    sink.flush()
    assert read(settings, "iterations").num_rows == 40
    sink.write(ROWS)
    wire.cut()
    assert busy_wait_s(sink) == 0.5  # anew after a success
    wire.mend()
    sink.close()


def busy_wait_s(sink: ClickHouseSink) -> float:
    with pytest.raises(SinkBusy, match=r"127\.0\.0\.1") as busy:
        sink.flush()
    assert len(str(busy.value).splitlines()) == 1
    return busy.value.retry_after_s


def test_a_write_into_a_full_buffer_of_a_cut_sink_takes_nothing(settings: DatabaseSettings, wire: Wire) -> None:
    sink = ClickHouseSink(replace(settings, url=wire.url), buffer_rows=10)
    sink.open()
    sink.write({"iterations": ROWS["iterations"].slice(0, 10)})
    wire.cut()
    with pytest.raises(SinkBusy):
        sink.write({"iterations": ROWS["iterations"].slice(10, 10)})
    wire.mend()
    sink.close()
    assert read(settings, "iterations").num_rows == 10


def test_rows_that_the_database_blames_are_rejected_alone(sink: ClickHouseSink, settings: DatabaseSettings) -> None:
    command(settings, "ALTER TABLE iterations ADD CONSTRAINT early CHECK iteration < 35")
    for first in (0, 30):
        sink.write({"iterations": ROWS["iterations"].slice(first, 10)})
    sink.write({"jobs": ROWS["jobs"]})
    with pytest.raises(SinkRejected, match="table iterations") as rejection:
        sink.flush()
    [(name, rows)] = rejection.value.rows
    assert (name, rows.num_rows) == ("iterations", 10)
    sink.flush()
    assert read(settings, "iterations").num_rows == 10
    assert read(settings, "jobs").num_rows == 4


def test_a_write_that_stores_refused_rows_of_before_is_taken_itself(settings: DatabaseSettings) -> None:
    sink = ClickHouseSink(settings, buffer_rows=10)
    sink.open()
    command(settings, "ALTER TABLE iterations ADD CONSTRAINT late CHECK iteration >= 10")
    for first in (0, 10):
        sink.write({"iterations": ROWS["iterations"].slice(first, 10)})
    with pytest.raises(SinkRejected) as rejection:
        sink.flush()
    assert [rows.column("iteration").to_pylist() for _, rows in rejection.value.rows] == [list(range(10))]
    sink.close()
    assert read(settings, "iterations").column("iteration").to_pylist() == list(range(10, 20))


def test_a_table_that_is_gone_is_no_fault_of_the_rows(sink: ClickHouseSink, settings: DatabaseSettings) -> None:
    command(settings, "RENAME TABLE iterations TO elsewhere")
    sink.write(ROWS)
    busy_wait_s(sink)
    command(settings, "RENAME TABLE elsewhere TO iterations")
    sink.flush()
    assert read(settings, "iterations").num_rows == 40


def test_a_missing_database_is_refused_where_it_must_not_be_made(settings: DatabaseSettings) -> None:
    with pytest.raises(ServiceRefused, match=f"none named '{settings.database}'"):
        connect(settings)


# --- migrations -----------------------------------------------------------------------------------------------------


def test_migrating_twice_applies_nothing_the_second_time(settings: DatabaseSettings) -> None:
    with connected(settings, is_creating=True) as client:
        assert migrate(client) == [migration.version for migration in shipped_migrations()]
        assert migrate(client) == []


def test_workers_that_migrate_at_once_do_no_harm(settings: DatabaseSettings) -> None:
    workers = [ClickHouseSink(settings) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ClickHouseSink.open, workers, timeout=DEADLINE_S))
    for worker in workers:
        worker.close()
    store(settings, ROWS)
    assert command(settings, "SELECT count() FROM schema_migrations FINAL") == len(shipped_migrations())
    assert read(settings, "iterations").num_rows == 40


def test_a_migration_that_broke_off_is_taken_up_again(settings: DatabaseSettings) -> None:
    with connected(settings, is_creating=True) as client:
        first = shipped_migrations()[0]
        client.command(next(iter(first.statements())))
        assert migrate(client)[0] == 1


def test_columns_of_added_fields_reach_tables_with_rows(settings: DatabaseSettings) -> None:
    store(settings, ROWS)
    later = migration_for_added()
    with connected(settings) as client:
        assert migrate(client, [*shipped_migrations(), later]) == [later.version]
        assert migrate(client, [*shipped_migrations(), later]) == []
        for statement in later.statements():  # as where two workers migrate at once
            client.command(statement)
        assert rows_of(client, "SELECT verdict_id, made_up_retries FROM incidents") == [(made_up_job.VERDICT_ID, 0)]
        assert rows_of(client, "SELECT DISTINCT made_up_board FROM suspects") == [(None,)]
        columns = dict(rows_of(client, "SELECT name, type FROM system.columns WHERE table = 'verdicts'"))
        assert columns["made_up_retries"] == "Int64"
        names = rows_of(client, "SELECT name FROM schema_migrations FINAL ORDER BY version")
        assert names == [(one.name,) for one in (*shipped_migrations(), later)]
    store(settings, ROWS)  # a worker that is not updated yet goes on


def test_an_edited_migration_is_an_error_that_names_the_file(settings: DatabaseSettings) -> None:
    store(settings, ROWS)
    first, *others = shipped_migrations()
    with connected(settings) as client, pytest.raises(InputError, match=r"0001_tables\.sql must stay"):
        migrate(client, [replace(first, sql=first.sql + "SELECT 1;\n"), *others])


def test_a_migration_of_a_newer_release_is_left_alone(settings: DatabaseSettings) -> None:
    store(settings, ROWS)
    command(settings, "INSERT INTO schema_migrations (version, name, checksum) VALUES (9000, '9000_later.sql', 'x')")
    store(settings, ROWS)
    assert read(settings, "jobs").num_rows == 4


# --- investigations -------------------------------------------------------------------------------------------------

EXAMPLE = {
    "job": made_up_job.JOB, "rank": 3, "iteration": 22, "verdict_id": made_up_job.VERDICT_ID, "host": "node-0",
    "days": 36_500, "weeks": 5_200,
}  # fmt: skip
HEALTHY = {"open_now", "hang_positions", "silent_ranks", "repeat_offenders", "stacks_of_job", "trusted_checkpoints"}
"""Questions that rightly find nothing in the made-up job; see test_questions.py."""


def answer(client: Client, name: str, **values: object) -> list[dict[str, Any]]:
    found = run(client, name, values)
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def test_every_investigation_finds_what_is_there(filled: Client) -> None:
    for name, one in shipped_investigations().items():
        known = {p.name for p in one.parameters if p.is_required or p.name in ("days", "weeks")}
        found = answer(filled, name, **{key: EXAMPLE[key] for key in known})
        assert bool(found) == (name not in HEALTHY), name


def test_jobs_now_shows_how_far_and_how_fast(filled: Client) -> None:
    [job] = answer(filled, "jobs_now")
    assert (job["job"], job["world_size"], job["hosts"], job["last_iteration"]) == ("made-up", 4, 2, 39)
    assert (job["irregular_iterations"], job["open_verdicts"]) == (10, 0)
    assert job["recent_iteration_s"] == pytest.approx((30 * 0.1 + 10 * 0.24) / 40)


def test_irregular_iterations_are_those_and_name_their_verdict(filled: Client) -> None:
    rows = answer(filled, "irregular_iterations", job=made_up_job.JOB, attempt=0)
    assert sorted(row["iteration"] for row in rows) == list(made_up_job.SLOW)
    assert {row["times_usual"] for row in rows} == {2.4}
    assert rows[0]["verdict_ids"] == [made_up_job.VERDICT_ID]
    assert answer(filled, "irregular_iterations", job=made_up_job.JOB, attempt=1) == []


def test_blamed_shows_the_newest_revision_s_suspects(filled: Client) -> None:
    [row] = answer(filled, "blamed", job=made_up_job.JOB)
    assert (row["device"], row["rank"], row["peer"], row["probability"]) == (
        "link from eth0 on node-0 to node-1", 1, 3, 0.89,
    )  # fmt: skip
    assert row["evidence"].startswith("recv on rank 3")
    assert (row["severity"], row["recovers_ratio"]) == ("ticket", 0.9)


def test_pages_stand_before_tickets_before_notes_and_open_ones_before_closed_ones(settings: DatabaseSettings) -> None:
    severities = ("note", "ticket", "page", "ticket", None)
    verdicts = [
        replace(
            made_up_job.verdict(3), verdict_id=f"v{at}", severity=severity, lost_s=10.0 - at,
            state="open" if at == 3 else "closed",
        )
        for at, severity in enumerate(severities)
    ]  # fmt: skip
    store(settings, tables_of(replace(made_up_job.judgements(), verdicts=verdicts)))
    with connected(settings) as client:
        rows = answer(client, "most_urgent", days=36_500)
        assert [row["verdict_id"] for row in rows] == ["v2", "v3", "v1", "v0", "v4"]
        assert [row["severity"] for row in rows] == ["page", "ticket", "ticket", "note", None]
        told = {(row["device"], row["recovers_ratio"]) for row in rows}
        assert told == {("link from eth0 on node-0 to node-1", 0.9)}


def test_time_lost_is_shared_out_by_probability(filled: Client) -> None:
    [row] = answer(filled, "time_lost_by_device", days=36_500)
    assert (row["device"], row["device_kind"]) == ("link from eth0 on node-0 to node-1", "link")
    assert row["expected_lost_s"] == pytest.approx(1.2 * 0.89)


def test_a_rank_s_operators_come_in_order_of_time_with_the_unknown_last(filled: Client) -> None:
    rows = answer(filled, "rank_operators", job=made_up_job.JOB, rank=3, iteration=22)
    assert [row["operator"] for row in rows] == ["recv", "all_reduce"]
    assert (rows[0]["transfer_ms"], rows[0]["wait_ms"], rows[1]["elapsed_ms"]) == (24.9, 1.0, None)


def test_the_slowest_link_is_the_slow_one(filled: Client) -> None:
    rows = answer(filled, "slowest_links", job=made_up_job.JOB, first_iteration=21, past_last_iteration=24)
    assert [(row["source"], row["destination"], row["transfers"]) for row in rows] == [(1, 3, 3), (0, 2, 3)]
    assert (rows[0]["median_ms"], rows[0]["source_host"]) == (24.9, "node-0")


def test_the_rank_that_works_longest_stands_first(filled: Client) -> None:
    rows = answer(filled, "ranks_of_iteration", job=made_up_job.JOB, iteration=22)
    assert (rows[0]["rank"], rows[0]["times_median"], rows[0]["host"]) == (1, 1.2, "node-0")


def test_bandwidth_is_given_per_ten_seconds_and_device_beside_the_others(filled: Client) -> None:
    rows = answer(filled, "bandwidth_of_rank", job=made_up_job.JOB, rank=3)
    assert {row["device"] for row in rows} == {"eth0", "eth1"}
    assert sum(row["samples"] for row in rows) == 120
    assert {row["began"].second % 10 for row in rows} == {0}
    [row, *_] = answer(filled, "bandwidth_of_rank", job=made_up_job.JOB, rank=3, seconds=3600)
    assert row["samples"] > 12


def test_the_nic_that_moves_steadily_stands_first_of_its_class(filled: Client) -> None:
    rows = answer(filled, "patterns_of_iteration", job=made_up_job.JOB, iteration=22)
    assert [(row["communicator"], row["rank"]) for row in rows] == [("", 0), ("world", 1), ("world", 2), ("world", 3)]
    assert (rows[1]["tx_swing"], rows[1]["far_from_others"], rows[1]["is_abnormal"]) == (0.01, 1.0, True)
    assert (rows[0]["tx_swing"], rows[0]["far_from_others"]) == (None, None)
    newest = filled.command("SELECT max(iteration) FROM behaviour_patterns")
    assert {row["iteration"] for row in answer(filled, "patterns_of_iteration", job=made_up_job.JOB)} == {newest}


def test_a_suspect_s_gpu_is_shown_with_what_held_it_back(filled: Client) -> None:
    [row] = answer(filled, "gpu_health_of_verdict", job=made_up_job.JOB)
    assert (row["rank"], row["host"], row["device"], row["suspect_probability"]) == (1, "node-0", "gpu1", 0.89)
    assert (row["reasons"], row["throttled_ratio"], row["sm_clock_mhz"]) == ("power_cap, thermal", 1.0, 1200.0)
    assert (row["hottest_c"], row["xids"]) == (88.0, [79])


def test_a_parameter_travels_beside_the_sql_never_in_it(filled: Client) -> None:
    assert answer(filled, "irregular_iterations", job="' OR 1 = 1 --") == []


# --- transfers, and questions over many rows ------------------------------------------------------------------------

RECVS = (
    "SELECT job, attempt, iteration, rank, assumeNotNull(operators.peer) AS peer, communicator, sequence, "
    "started_at, size_bytes, transfer_ns FROM operators FINAL "
    "WHERE operators.operator = 'recv' AND operators.peer IS NOT NULL"
)
TRANSFERS = RECVS.partition(" WHERE ")[0].replace("operators FINAL", "transfers FINAL").replace(
    "assumeNotNull(operators.peer) AS peer", "peer"
)  # fmt: skip


def rejudged_operators() -> Rows:
    """The made-up job's operators, judged again: each third row has no transfer any more, the others longer ones."""
    columns = {name: column.copy() for name, column in made_up_job.operators().items()}
    columns["transfer_ns"] = np.where(np.arange(len(columns["rank"])) % 3 == 0, np.nan, columns["transfer_ns"] + 7e6)
    return {"operators": tables_of(replace(made_up_job.judgements(), operators=columns))["operators"]}


def test_transfers_are_the_newest_rows_of_all_recvs(settings: DatabaseSettings) -> None:
    store(settings, ROWS)
    with connected(settings) as client:
        for rows in (rejudged_operators(), {"operators": rejudged_operators()["operators"].slice(1, 9)}):
            store(settings, rows)
            assert rows_of(client, TRANSFERS) == rows_of(client, RECVS)
            assert rows_of(client, TRANSFERS)
        client.command("OPTIMIZE TABLE transfers FINAL")
        assert rows_of(client, TRANSFERS.replace("FINAL", "")) == rows_of(client, RECVS)


def test_the_slowest_links_are_those_that_operators_show(settings: DatabaseSettings) -> None:
    store(settings, ROWS, rejudged_operators())
    with connected(settings) as client:
        values = bind(shipped_investigations()["slowest_links"], {"job": made_up_job.JOB})
        sql = shipped_investigations()["slowest_links"].sql.replace("FROM transfers FINAL", f"FROM ({RECVS})")
        assert RECVS in sql
        found = run(client, "slowest_links", {"job": made_up_job.JOB})
        assert found.rows == tuple(tuple(row) for row in client.query(sql, parameters=values).result_rows)
        assert found.rows


def rows_of(client: Client, sql: str) -> list[Any]:
    return list(client.query(f"SELECT * FROM ({sql}) ORDER BY ALL").result_rows)


@pytest.fixture(scope="module")
def crowded(clickhouse: ClickHouseAddress) -> Iterator[Client]:
    """A client of a database with many rows of one job, whose newest attempt was not stored last; read only."""
    with own_database(clickhouse, {}) as settings, connected(settings) as client:
        operator = "'j', {attempt}, intDiv(number, 600), intDiv(number, 60) % 10, 'c', 'all_reduce', number % 60"
        rank = "'j', {attempt}, intDiv(number, 60), number % 60, 60, 0"
        at = "addSeconds(toDateTime64('2026-10-01', 9, 'UTC'), number)"
        sampled = f"'j', {{attempt}}, number % 10, 'nic', 'eth0', {at}, {{attempt}} * 1e9"
        for attempt in (0, 2, 1):
            for table, columns, values in (
                ("operators", "job, attempt, iteration, rank, communicator, operator, sequence", operator),
                ("rank_iterations", "job, attempt, iteration, rank, operators, late_rows", rank),
                ("bandwidth", "job, attempt, rank, path, device, sampled_at, tx_bytes_per_s", sampled),
            ):
                row = values.format(attempt=attempt)
                client.command(f"INSERT INTO {table} ({columns}) SELECT {row} FROM numbers(100000)")
        yield client


@pytest.mark.parametrize(("name", "table", "values"), [
    ("rank_operators", "operators", {"rank": 3, "iteration": 60}),
    ("ranks_of_iteration", "rank_iterations", {"iteration": 60}),
])  # fmt: skip
def test_a_question_about_one_iteration_reads_a_small_part(
    crowded: Client, name: str, table: str, values: dict[str, object]
) -> None:
    investigation = shipped_investigations()[name]
    of_newest, of_chosen = (bind(investigation, {"job": "j", **values, **more}) for more in ({}, {"attempt": 2}))
    found = crowded.query(investigation.sql, of_newest, settings={"wait_end_of_query": 1})
    assert int(found.summary["read_rows"]) < 0.4 * crowded.command(f"SELECT count() FROM {table}")
    assert found.result_rows == crowded.query(investigation.sql, of_chosen).result_rows
    assert len(found.result_rows) > 10


def test_the_newest_attempt_is_the_largest_not_the_last_that_was_stored(crowded: Client) -> None:
    rows = answer(crowded, "bandwidth_of_rank", job="j", rank=3)
    assert {row["tx_mean_gbytes_per_s"] for row in rows} == {2.0}
    assert {row["others_tx_peak_gbytes_per_s"] for row in rows} == {2.0}


def test_few_lines_of_bandwidth_are_the_newest_of_many_over_gaps_and_replays(settings: DatabaseSettings) -> None:
    store(settings, ROWS, ROWS)
    gap = "INTERVAL if(device = 'eth0', 90, 2880) MINUTE"
    names = ", ".join(TABLES["bandwidth"].schema.names)
    older = names.replace("sampled_at", f"sampled_at - {gap} AS sampled_at")
    command(settings, f"INSERT INTO bandwidth ({names}) SELECT {older} FROM bandwidth FINAL")
    with connected(settings) as client:
        every = answer(client, "bandwidth_of_rank", job=made_up_job.JOB, rank=3)
        assert len({row["began"] for row in every}) > 3
        for lines in (1, 2, 3, 7):
            assert answer(client, "bandwidth_of_rank", job=made_up_job.JOB, rank=3, limit=lines) == every[:lines]


# --- retention ------------------------------------------------------------------------------------------------------


def ttl_of(settings: DatabaseSettings, table: str) -> str:
    engine = command(
        settings, f"SELECT engine_full FROM system.tables WHERE database = currentDatabase() AND name = '{table}'"
    )
    found = re.search(r"TTL (\S+ \+ \w+\(\d+\))", engine)
    assert found
    return found[1]


def test_what_is_set_to_be_kept_for_longer_is_kept_for_longer(settings: DatabaseSettings) -> None:
    store(settings, {})
    with connected(settings) as client:
        for table in (
            "operators", "transfers", "behaviour_patterns", "rank_iterations", "audits", "pauses", "detector_scores",
            "bandwidth", "gpu_health", "events",
        ):  # fmt: skip
            days = 7 if table in ("bandwidth", "gpu_health") else 30
            assert ttl_of(settings, table) == f"stored_at + toIntervalDay({days})"
            assert keep(client, {table: 60}) == [table]
            assert keep(client, {table: 60}) == []
            assert ttl_of(settings, table) == "stored_at + toIntervalDay(60)"


@pytest.mark.parametrize("table", ["operators", "rank_iterations"])
def test_rows_go_when_their_days_are_over_and_not_before(settings: DatabaseSettings, table: str) -> None:
    store(settings, {})
    with connected(settings) as client:
        keep(client, {table: 60})
        store_as_of_days_ago(settings, table, days=40)
        client.command(f"OPTIMIZE TABLE {table} FINAL")
        assert read(settings, table).num_rows == ROWS[table].num_rows
        keep(client, {table: 30})
        wait_until(lambda: read(settings, table).num_rows == 0, "rows gone")


def store_as_of_days_ago(settings: DatabaseSettings, table: str, days: int) -> None:
    names = ", ".join(TABLES[table].schema.names)
    store(settings, {table: ROWS[table]})
    command(settings, f"CREATE TABLE aged AS {table}")
    copy = f"INSERT INTO aged ({names}, stored_at) SELECT {names}, stored_at - INTERVAL {days} DAY FROM {table}"
    command(settings, f"{copy} SETTINGS insert_allow_materialized_columns = 1")
    command(settings, f"DROP TABLE {table}")
    command(settings, f"RENAME TABLE aged TO {table}")


def test_a_sink_keeps_what_it_was_told_and_leaves_other_tables_alone(settings: DatabaseSettings) -> None:
    store(settings, {})
    command(settings, "ALTER TABLE rank_iterations MODIFY TTL stored_at + INTERVAL 90 DAY")
    with closing(ClickHouseSink(settings, keep_days={"operators": 14})) as sink:
        sink.open()
    assert ttl_of(settings, "operators") == "stored_at + toIntervalDay(14)"
    assert ttl_of(settings, "rank_iterations") == "stored_at + toIntervalDay(90)"
