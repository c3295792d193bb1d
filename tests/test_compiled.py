"""Each compiled loop says what its twin in numpy says, or leaves it to that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from irregulars import compiled
from irregulars.dtypes import Column
from irregulars.errors import RecordError
from irregulars.messages import plain_messages
from irregulars.messages.bounds import LAST_ITERATION, LATEST_NS, MOST_EXACT
from irregulars.messages.bundles import bundle_of, decode_rows, encode_bundle
from irregulars.messages.evidence import Evidence
from irregulars.messages.plain_messages import PlainColumns
from irregulars.messages.records import (
    BATCH_SCHEMAS,
    OPERATORS,
    RECV,
    SEND,
    UNKNOWN,
    Batch,
    Header,
    decode_batch,
    encode_batch,
    read_header,
)
from irregulars.streams.rank_hop import evidence_reduction, message_rows
from irregulars.streams.rank_hop.evidence_reduction import Closing, reduce_closings
from irregulars.streams.rank_hop.message_rows import Cut, MessageRows, RowSummary, summarize
from irregulars.streams.rank_hop.operator_reduction import Reduction
from irregulars.validation import MAX_RANK
from tests.fuzz.mutations import mutate

NAMES = ("world", "dp", "tp0", "pp")
T0 = 1_800_000_000_000_000_000
ODD_NUMBERS = (UNKNOWN, UNKNOWN + 1, -1, 0, 1, LAST_ITERATION, LAST_ITERATION + 1, (1 << 63) - 1)
ODD_TIMES = (UNKNOWN, -1, 0, LATEST_NS, LATEST_NS + 1, (1 << 63) - 1)
ODD_LENGTHS = (np.nan, -1.0, 0.0, float(MOST_EXACT), MOST_EXACT + 1.0)
ODD_PEERS = (UNKNOWN, -1, 0, MAX_RANK, MAX_RANK + 1)

pytestmark = pytest.mark.filterwarnings("error")


def test_the_compiled_loops_were_built() -> None:
    """Without a C compiler all works; but then nothing here would compare anything."""
    assert compiled.KERNEL is not None, "irregulars/_kernel.c must be built: pip install -e . with a C compiler"


# --- columns --------------------------------------------------------------------------------------------------------


def operators(random: Random, rows: int, odd: float) -> dict[str, Column]:
    """Operators of a rank in their order, some of them odd in one of their values."""

    def some(usual: list[Any], unusual: tuple[Any, ...]) -> list[Any]:
        return [random.choice(unusual) if random.random() < odd else value for value in usual]

    starts = sorted(T0 + random.randrange(10**6) for _ in range(rows))
    kinds = [random.choice((0, 1, SEND, RECV)) for _ in range(rows)]
    peers = [random.randrange(4) if kind in (SEND, RECV) else UNKNOWN for kind in kinds]
    return {
        "communicator": np.array([random.randrange(len(NAMES)) for _ in range(rows)], np.uint16),
        "operator": np.array(kinds, np.uint8),
        "sequence": np.array([random.randrange(5) for _ in range(rows)], np.int64),
        "peer": np.array(some(peers, ODD_PEERS), np.int64),
        "start_ns": np.array(some(starts, ODD_TIMES), np.int64),
        "elapsed_ns": np.array(some([float(random.randrange(1000)) for _ in starts], ODD_LENGTHS)),
        "size_bytes": np.array(some([1024.0] * rows, ODD_LENGTHS)),
        "iteration": np.array(some(sorted(random.randrange(4) for _ in starts), ODD_NUMBERS), np.int64),
    }


def batch_of(columns: Mapping[str, Column], rank: int = 0) -> Batch:
    return Batch(Header("commops", "job", 1, rank, 0, None, NAMES, "host/0"), columns)


def with_arrow(monkeypatch: pytest.MonkeyPatch, value: bytes, schema: str) -> Batch | Any:
    with monkeypatch.context() as without:
        without.setattr(plain_messages, "KERNEL", None)
        return decode_rows(value, schema)


def read_twice(value: bytes, schema: str) -> Batch | Any:
    """Read a message as a worker does once it has seen another one of the same structure."""
    decode_rows(value, schema)
    return decode_rows(value, schema)


def random_batch(random: Random, schema: str) -> Batch:
    rows = random.randrange(1, 30)
    columns: dict[str, Column] = {}
    for field in BATCH_SCHEMAS[schema]:
        kind = np.dtype(field.type.to_pandas_dtype())
        if kind.itemsize <= 2:
            columns[field.name] = np.array([random.randrange(2) for _ in range(rows)], kind)
            continue
        is_float = kind.kind == "f" or field.name in ("elapsed_ns", "size_bytes", "tokens", "not_finite")
        unknown = np.nan if is_float else UNKNOWN
        most = 2**31 if kind.itemsize == 4 else 2**40
        values = [
            unknown if field.nullable and random.random() < 0.2 else random.randrange(most) for _ in range(rows)
        ]
        columns[field.name] = np.array(values, np.float64 if is_float else np.int64)
    return Batch(Header(schema, "job", 1, 3, 5, None, NAMES), columns)


@pytest.mark.parametrize("schema", BATCH_SCHEMAS)
def test_columns_of_our_messages_are_those_that_arrow_reads(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(schema)
    for _ in range(50):
        value = encode_batch(random_batch(random, schema))
        found, wanted = read_twice(value, schema), with_arrow(monkeypatch, value, schema)
        assert isinstance(found.columns, PlainColumns)
        assert not isinstance(wanted.columns, PlainColumns)
        assert found.header == wanted.header
        assert_equal_columns(found.columns, wanted.columns)
        first = random.randrange(len(found))
        past = random.randrange(first, len(found)) + 1
        fresh = decode_batch(value, schema).columns
        assert isinstance(fresh, PlainColumns)
        part = {name: fresh.part(name, first, past) for name in fresh}
        assert_equal_columns(part, {name: column[first:past] for name, column in wanted.columns.items()})


def assert_equal_columns(found: Mapping[str, Column], wanted: Mapping[str, Column]) -> None:
    assert list(found) == list(wanted)
    for name, column in wanted.items():
        assert found[name].dtype == column.dtype, name
        np.testing.assert_array_equal(found[name], column, err_msg=name)


def test_a_changed_message_is_read_as_arrow_reads_it_or_left_to_arrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes of strangers: nothing is read outside of them, and nothing is taken that Arrow refuses."""
    random = Random(5)
    taken = 0
    for number in range(1500):
        schema = random.choice(list(BATCH_SCHEMAS))
        value = changed(random, encode_batch(random_batch(random, schema)), is_light=number % 2 == 0)
        try:
            wanted: Any = with_arrow(monkeypatch, value, schema)
        except RecordError:
            wanted = None
        try:
            found: Any = decode_rows(value, schema)
        except RecordError:
            found = None
        assert (found is None) == (wanted is None)
        if found is not None:
            assert found.header == wanted.header
            assert_equal_columns(found.columns, wanted.columns)
            taken += isinstance(found.columns, PlainColumns)
    assert taken > 100, "few changed messages reached the compiled loop: it shows little"


def changed(random: Random, value: bytes, *, is_light: bool) -> bytes:
    if not is_light:
        return mutate(value, random)
    bytes_ = bytearray(value)
    bytes_[random.randrange(len(bytes_))] ^= 1 << random.randrange(8)
    return bytes(bytes_)


@pytest.mark.parametrize("twice", [b'"schema":"gpu_health"', b'"version":99', b'"\\u0073chema":"gpu_health"'])
def test_a_header_that_names_a_key_twice_is_read_as_json_has_it(twice: bytes) -> None:
    """The last one counts; a header that is read quickly must not differ from one that is read slowly."""
    ours = b'{"schema":"commops","version":1,"job":"j","attempt":1,"rank":0,"rows_before":0,"names":[]}'
    assert read_header(ours, "commops") == Header("commops", "j", 1, 0)
    with pytest.raises(RecordError, match=r"^(schema|version) must be"):
        read_header(ours[:-1] + b"," + twice + b"}", "commops")


# --- a first look ---------------------------------------------------------------------------------------------------


def looked_at(batches: list[Batch]) -> tuple[list[RowSummary], list[RowSummary]]:
    """Summaries of a bundle's ranks by the compiled loop, and by numpy."""
    bundle = read_twice(encode_bundle(bundle_of(batches)), "commops")
    counts = list(map(len, batches))
    assert isinstance(bundle.columns, PlainColumns)
    plain = {name: bundle.columns[name] for name in bundle.columns}
    return summarize("commops", bundle.columns, counts), summarize("commops", plain, counts)


@pytest.mark.parametrize("odd", [0.0, 0.01, 0.1])
def test_a_look_says_what_numpy_says(odd: float) -> None:
    random = Random(f"{odd}")
    plain = 0
    for _ in range(300):
        batches = [batch_of(operators(random, random.randrange(1, 12), odd), rank) for rank in range(3)]
        found, wanted = looked_at(batches)
        for one, other in zip(found, wanted, strict=True):
            assert one._replace(runs=None) == other._replace(runs=None)
            # numpy looks for runs only where every row of all ranks can be used
            assert one.runs == other.runs or not all(summary.is_usable for summary in wanted)
            plain += one.runs is not None
    assert plain > 10


def test_codes_of_operators_and_communicators_are_checked() -> None:
    random = Random(2)
    columns = operators(random, 5, 0.0)
    for name, code in (("operator", len(OPERATORS)), ("communicator", len(NAMES))):
        wrong = {**columns, name: np.where(np.arange(5) == 3, code, columns[name]).astype(columns[name].dtype)}
        decode_batch(encode_batch(batch_of(columns)), "commops")  # of the same structure
        with pytest.raises(RecordError, match=f"^{name} codes must be below {code}; got {code}$"):
            decode_batch(encode_batch(batch_of(wrong)), "commops")


# --- sums -----------------------------------------------------------------------------------------------------------


def closings(random: Random, odd: float) -> Iterator[Closing]:
    """Closings of some ranks, whose rows lie in one or two messages each."""
    for rank in range(random.randrange(1, 4)):
        columns = operators(random, random.randrange(1, 25), 0.0)
        columns["iteration"] = np.sort(columns["iteration"])
        if random.random() < odd:
            place = random.randrange(len(columns["operator"]))
            name, value = random.choice([("start_ns", T0 + 5), ("elapsed_ns", np.nan), ("iteration", 0)])
            columns[name][place] = value
        numbers = sorted({*columns["iteration"].tolist(), *random.sample(range(4), 2)})
        yield closing(list(cuts_of(random, columns, rank)), numbers)._replace(
            rank=rank, wide=frozenset(random.sample(NAMES, 2)),
            free_ns=[random.choice((UNKNOWN, T0 - 100, T0 + 500_000)) for _ in numbers],
        )  # fmt: skip


def closing(cuts: list[Cut], numbers: Sequence[int] = (0,)) -> Closing:
    """What rank 0 did in some iterations."""
    some = len(numbers)
    return Closing(
        attempt=1, rank=0, partition=0, wide=frozenset(), numbers=list(numbers), cuts=cuts, free_ns=[UNKNOWN] * some,
        entry_ns=UNKNOWN, start_ns=[T0 + number for number in numbers], elapsed_ns=[10**6] * some, phase=[0] * some,
        tokens=[np.nan] * some, numerics=[None] * some, audits=[()] * some, pauses=[()] * some, late_rows=0,
        lost_rows=0,
    )  # fmt: skip


def cuts_of(random: Random, columns: Mapping[str, Column], rank: int) -> Iterator[Cut]:
    border = random.randrange(len(columns["operator"]) + 1)
    offset = random.randrange(100)
    for first, past in ((0, border), (border, len(columns["operator"]))):
        if first == past:
            continue
        names = tuple(random.sample(NAMES, len(NAMES)))  # each message numbers them anew
        codes = np.array([names.index(NAMES[code]) for code in columns["communicator"].tolist()], np.uint16)
        own = {**columns, "communicator": codes}
        batch = read_twice(encode_batch(Batch(Header("commops", "job", 1, rank, 0, None, names), own)), "commops")
        offset += random.randrange(2)
        yield Cut(MessageRows(batch.columns, names, offset), first, past)


@pytest.mark.parametrize("odd", [0.0, 0.3])
def test_sums_are_those_of_numpy(odd: float, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(f"sums {odd}")
    compiled_sums = 0
    for _ in range(120):
        closed = list(closings(random, odd))
        is_compiled = by_kernel(closed)
        compiled_sums += sum(is_compiled)
        plain = [one for one, is_own in zip(closed, is_compiled, strict=True) if is_own]
        others = [one for one, is_own in zip(closed, is_compiled, strict=True) if not is_own]
        found = reduce_closings("job", closed)
        with monkeypatch.context() as without:
            without.setattr(evidence_reduction, "KERNEL", None)
            wanted = [row for some in (plain, others) if some for row in reduce_closings("job", some)]
        assert_equal_evidence(found, wanted)
    assert compiled_sums > 50


def test_a_rank_that_only_numpy_can_do_keeps_no_other_from_the_compiled_loop() -> None:
    random = Random(7)
    columns = operators(random, 20, 0.0) | {"iteration": np.zeros(20, np.int64)}
    plain = closing(list(cuts_of(random, columns, 0)))
    odd = closing(list(cuts_of(random, columns | {"elapsed_ns": np.full(20, np.nan)}, 0)))
    ranks = [one._replace(rank=rank) for rank, one in enumerate([plain, plain, plain, odd, plain, plain])]
    assert by_kernel(ranks) == [True, True, True, False, True, True]
    rows = [row for row in reduce_closings("job", ranks) if isinstance(row, Evidence)]
    assert [row.columns["rank"].tolist() for row in rows] == [[0, 1, 2, 4, 5], [3]]


def test_operators_that_began_at_different_times_are_different_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their sequence: a producer may have none to give."""
    columns = {
        "communicator": np.zeros(4, np.uint16),
        "operator": np.array([SEND, RECV, SEND, RECV], np.uint8),
        "sequence": np.zeros(4, np.int64),
        "peer": np.ones(4, np.int64),
        "start_ns": T0 + np.array([10, 10, 20, 20]),
        "elapsed_ns": np.full(4, 5.0),
        "size_bytes": np.full(4, np.nan),
        "iteration": np.zeros(4, np.int64),
    }
    batch = read_twice(encode_batch(batch_of(columns)), "commops")
    made = closing([Cut(MessageRows(batch.columns, NAMES, 3), 0, 4)])
    found = reduce_closings("job", [made])
    with monkeypatch.context() as without:
        without.setattr(evidence_reduction, "KERNEL", None)
        wanted = reduce_closings("job", [made])
    assert_equal_evidence(found, wanted)
    assert [int(row.columns["operators"].sum()) for row in found if isinstance(row, Evidence)] == [4]


def by_kernel(closed: list[Closing]) -> list[bool]:
    """For each rank whether the compiled loop does it."""
    found = evidence_reduction._compiled_sums(evidence_reduction._work_on(closed))
    return [True] * len(closed) if isinstance(found, Reduction) else (~found).tolist()


def assert_equal_evidence(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.names == other.names
        assert_equal_columns(one.columns, other.columns)
        for name in ("offsets", "classes", "patterns"):
            entries, expected = getattr(one, name), getattr(other, name)
            np.testing.assert_array_equal(entries.counts, expected.counts, err_msg=name)
            assert_equal_columns(entries.columns, expected.columns)


def test_the_kernel_refuses_what_does_not_fit_together() -> None:
    kernel = compiled.KERNEL
    assert kernel is not None
    batch = read_twice(encode_batch(batch_of(operators(Random(1), 4, 0.0))), "commops")
    columns = batch.columns
    assert isinstance(columns, PlainColumns)
    looks, runs = np.empty((1, 6), np.int64), np.empty((4, 4), np.int64)
    with pytest.raises(ValueError, match=r"^layout, counts, looks and runs must fit together$"):
        kernel.look(columns.value, columns.places, np.array([5]), 4, looks, runs)
    with pytest.raises(ValueError, match=r"^layout, counts, looks and runs must fit together$"):
        kernel.look(columns.value[:-200], columns.places, np.array([4]), 4, looks, runs)
    with pytest.raises(ValueError, match=r"^plan must describe each of the fields$"):
        kernel.plain_layout(columns.value, b"\x09abc", 1, 10)


def test_without_the_compiled_loops_all_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRREGULARS_COMPILED", "0")
    assert compiled.load_kernel() is None
    monkeypatch.setattr(plain_messages, "KERNEL", None)
    monkeypatch.setattr(message_rows, "KERNEL", None)
    batch = batch_of(operators(Random(1), 4, 0.0))
    assert_equal_columns(dict(decode_batch(encode_batch(batch), "commops").columns), batch.columns)
