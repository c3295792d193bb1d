from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.errors import SinkRejected
from irregulars.messages.announcements import Ranks
from irregulars.messages.judgements import Judgements
from irregulars.messages.opinions import Opinion
from irregulars.messages.records import NUMERICS, UNKNOWN, Batch, Header
from irregulars.sinks.tables import TABLES, conform, table_of_opinions, table_of_samples, tables_of
from tests.sinks import made_up_job

TABLES_OF_JOB = tables_of(made_up_job.judgements())


def values(table: str, column: str) -> list[Any]:
    found = TABLES_OF_JOB[table].column(column)
    return found.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(found.type) else found.to_pylist()


@pytest.mark.parametrize("name", TABLES_OF_JOB)
def test_converted_rows_have_keys_of_their_own_and_can_be_written_as_they_are(name: str) -> None:
    table = TABLES_OF_JOB[name]
    assert conform({name: table})[name].equals(table)
    keys = [name for name in TABLES[name].key if name not in ("started_at", "sampled_at")]
    if TABLES[name].version is None:
        assert len({tuple(row.values()) for row in table.select(keys).to_pylist()}) == table.num_rows


def test_unknown_times_and_numbers_become_null_and_never_zero() -> None:
    is_open = [elapsed is None for elapsed in values("operators", "elapsed_ns")]
    assert sum(is_open) == len(made_up_job.SLOW)
    assert [start is None for start in values("operators", "started_at")] == is_open
    assert values("iterations", "reference_ns")[0] is None
    slow, quiet = made_up_job.SLOW[0], made_up_job.SLOW[0] - 1
    assert [values("iterations", name)[slow] for name in ("part", "part_rank", "part_ns")] == [
        "work of rank 1 before all_reduce on world", 1, 200e6,
    ]  # fmt: skip
    assert [values("iterations", name)[quiet] for name in ("part", "part_rank", "last_rank")] == [None, None, 1]
    assert values("rank_iterations", "score")[0] is None
    assert values("rank_iterations", "loss")[:2] == [None, 2.501]
    assert values("rank_iterations", "parameters_checksum")[:5] == [0, 0, 1, 1, None]
    assert None in values("operators", "peer")


def test_an_infinite_norm_is_stored_as_it_is_and_an_infinite_score_is_not_known() -> None:
    at = made_up_job.FLIPPED * made_up_job.RANKS + 3
    assert values("rank_iterations", "grad_norm")[at - 1 : at + 1] == [1.0, math.inf]
    assert values("rank_iterations", "not_finite")[at] == 1
    columns = {**made_up_job.rank_iterations(), "score": np.full(160, np.inf)}
    found = tables_of(Judgements("j", rank_iterations=columns))["rank_iterations"]
    assert found["score"].null_count == 160


def test_votes_of_audits_are_rows_of_their_own() -> None:
    assert values("audits", "iteration") == [10] * 4 + [35] * 4
    assert values("audits", "rank") == [0, 1, 2, 3] * 2
    assert set(values("audits", "of_rank")) == {0}
    assert values("audits", "checksum") == [770] * 4 + [2695] * 3 + [2696]


@pytest.mark.parametrize(
    ("replicas", "first"), [((5, 2, 9), 2), (Ranks([[8, 24, 8], [3, 5, 1]]), 3), ((), None), (None, None)]
)
def test_replicas_are_named_by_their_first_rank(replicas: Sequence[int] | None, first: int | None) -> None:
    announcement = dataclasses.replace(made_up_job.announcement(2), replicas=replicas)
    [found] = tables_of(Judgements("j", announcements=[announcement]))["jobs"]["replicas_of"].to_pylist()
    assert found == first


def test_times_keep_their_nanoseconds() -> None:
    first = made_up_job.judged(0)
    judgements = Judgements(made_up_job.JOB, iterations=[dataclasses.replace(first, start_ns=first.start_ns + 1)])
    assert tables_of(judgements)["iterations"].column("started_at").cast(pa.int64()).to_pylist() == [
        first.start_ns + 1
    ]


def test_communicators_and_suspects_keep_their_order_and_nothing_decided_gives_no_tables() -> None:
    assert values("jobs", "communicators")[1] == ["world", "pp1"]
    assert values("jobs", "communicator_kinds")[1] == ["world", "pp"]
    assert values("jobs", "communicator_sizes")[1] == [4, 2]
    found = zip(values("suspects", "revision"), values("suspects", "position"), strict=True)
    assert list(found) == [(1, 0), (1, 1), (2, 0), (3, 0)]
    assert values("suspects", "device")[:2] == ["link", "nic"]
    assert tables_of(Judgements("quiet")) == {}


def test_names_of_a_batch_are_those_of_its_rows_and_none_gives_none() -> None:
    table = table_of_samples([made_up_job.bandwidth(samples=4)])
    assert table.column("device").to_pylist() == ["eth0", "eth1", "eth0", "eth1"]
    assert set(table.column("path").to_pylist()) == {"nic"}
    assert table.column("tx_bytes_per_s").to_pylist() == [None, 2.5e9, 2.5e9, 2.5e9]
    batch = made_up_job.gpu_health(samples=22)
    table = table_of_samples([batch])
    assert table.column("throttle_reasons").to_pylist()[18:] == ["", "", "power_cap, thermal", None]
    assert table.column("xid").to_pylist()[20:] == [None, 79]
    assert table.column("device").to_pylist() == ["gpu1"] * 22
    columns = {name: array[:0] for name, array in made_up_job.bandwidth().columns.items()}
    assert table_of_samples([Batch(Header("bandwidth", "j", 0, 1), columns)]).num_rows == 0


def test_samples_of_many_ranks_are_one_table_in_their_order() -> None:
    batches = [made_up_job.bandwidth(rank=rank, samples=2) for rank in (3, 0)]
    table = table_of_samples(batches)
    assert table.column("rank").to_pylist() == [3, 3, 0, 0]
    assert table.column("device").to_pylist() == ["eth0", "eth1"] * 2
    assert table == pa.concat_tables([table_of_samples([one]) for one in batches]).combine_chunks()


def test_samples_far_from_the_middle_one_of_their_batch_are_left_out() -> None:
    """Each week is a partition of its own: times of all weeks made a thousand parts of one message."""
    batch, honest = made_up_job.bandwidth(samples=100), made_up_job.bandwidth(rank=0, samples=2)
    weeks_ns = np.arange(100) * 7 * 86_400 * 10**9
    far = dataclasses.replace(batch, columns={**batch.columns, "time_ns": batch.columns["time_ns"] + weeks_ns})
    table = table_of_samples([far, honest])
    assert table.column("rank").to_pylist() == [1] * 9 + [0] * 2
    assert table.column("sampled_at").cast(pa.int64()).to_pylist()[4] == far.columns["time_ns"][50]


def test_half_a_surrogate_pair_is_rejected_as_any_value_that_does_not_fit() -> None:
    opinion = Opinion("j:0:1:0", "j", "slow_nic", (0, 2), is_right=True, who="\ud83d", time_ns=1)
    with pytest.raises(SinkRejected, match=r"rows of feedback must fit its columns; got .*surrogates not allowed"):
        table_of_opinions([opinion])
    batch = made_up_job.bandwidth()
    header = dataclasses.replace(batch.header, names=("\ud83d",) * len(batch.header.names))
    with pytest.raises(SinkRejected, match=r"bandwidth\.device must be string; got .*surrogates not allowed"):
        table_of_samples([dataclasses.replace(batch, header=header)])
    with pytest.raises(SinkRejected, match=r"rank_iterations\.rank must be uint32"):
        tables_of(Judgements("j", rank_iterations={**made_up_job.rank_iterations(), "rank": np.full(160, -1)}))
    verdict = dataclasses.replace(made_up_job.verdict(1), revision=-1)
    with pytest.raises(SinkRejected, match="rows of verdicts"):
        tables_of(Judgements("j", verdicts=[verdict]))


@pytest.mark.parametrize(("rows", "text"), [
    ({"nowhere": TABLES_OF_JOB["jobs"]}, "table must be one of"),
    ({"jobs": TABLES_OF_JOB["jobs"].drop_columns("rank")}, r"got none of \['rank'\]"),
    ({"jobs": TABLES_OF_JOB["jobs"].set_column(2, "rank", pa.array(["x"] * 4))}, "x"),
    ({"jobs": TABLES_OF_JOB["jobs"].set_column(2, "rank", pa.nulls(4, pa.uint32()))}, r"jobs\.rank must be known"),
])  # fmt: skip
def test_rows_that_do_not_fit_are_rejected_with_all_rows_of_the_write(rows: dict[str, pa.Table], text: str) -> None:
    with pytest.raises(SinkRejected, match=text) as rejection:
        conform({"verdicts": TABLES_OF_JOB["verdicts"], **rows})
    assert [name for name, _ in rejection.value.rows] == ["verdicts", *rows]


def test_columns_come_in_any_order_and_more_of_them_do_no_harm() -> None:
    table = TABLES_OF_JOB["jobs"]
    shuffled = table.select(table.column_names[::-1]).append_column("more", pa.array([1] * 4))
    assert conform({"jobs": shuffled})["jobs"].equals(table)


@given(
    st.lists(
        st.tuples(st.integers(0, 2**32 - 1), st.one_of(st.just(UNKNOWN), st.integers(-(2**62), 2**62))), max_size=20
    )
)
def test_every_start_survives_as_itself_or_as_null(rows: list[tuple[int, int]]) -> None:
    count = len(rows)
    columns = {
        "attempt": np.zeros(count, dtype=np.int64),
        "iteration": np.arange(count),
        "rank": np.array([rank for rank, _ in rows], dtype=np.int64),
        "start_ns": np.array([start for _, start in rows], dtype=np.int64),
        **{name: np.full(count, np.nan) for name in ("elapsed_ns", "work_ns", "score", *NUMERICS[:-1])},
        **{name: np.zeros(count, dtype=np.int64) for name in ("operators", "late_rows", "lost_rows", NUMERICS[-1])},
    }
    tables = tables_of(Judgements("j", rank_iterations=columns))
    found = tables["rank_iterations"].column("started_at").cast(pa.int64()).to_pylist() if count else []
    assert found == [None if start == UNKNOWN else start for _, start in rows]
