"""Bundles: batches of several ranks in one message, so that the cost of a message is paid once for all of them.

An agent sends the rows that its ranks have in a moment as one message: of eight GPUs an eighth of the messages. The
ranks of a bundle are of one `group`, which never changes for a rank within an attempt: all that its ranks send has
one key, and meets in one worker. The message is an Arrow IPC stream like that of a batch, with the rows of the first
rank, then those of the second, and so on; the header lists the fields of each batch once:

=================  ====================================================================
``ranks``          the ranks, ascending
``rows``           how many rows each of them has
``rows_before``    of each, as `Header` says
``watermarks_ns``  of each, as `Header` says; null: not known
``names``          one dictionary for all
``since_ns``       of each, as `Header` says; absent: none of them has one
=================  ====================================================================

A worker older than bundles refuses them by their version: upgrade workers first, then agents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from irregulars.errors import RecordError
from irregulars.messages.records import (
    BATCH_HEADERS,
    CODED,
    FIELDS,
    VERSION,
    Batch,
    Header,
    column_of,
    decode_table,
    encode_arrow,
    header_of,
    header_values,
    quick_header,
    rows_of,
    to_record_batch,
    without_unknown_start,
)
from irregulars.validation import Count, Integer, JobName, Label, Name, Rank, RowCount, checked

BUNDLE_VERSION: Final = 2
"""Of the messages that hold a bundle; those of single batches are of version 1, which older workers read."""

# Of a host in the name of a group: with the number of its block it stays below `MAX_NAME_CHARACTERS`.
_LONGEST_HOST: Final = 1000

MAX_GROUP_RANKS: Final = 64  # ranks of one group: a host's, and all that they send is one worker's


@dataclass(frozen=True, slots=True)
class BundleHeader:
    """Whose rows a bundle holds; see the module."""

    schema: str
    job: JobName
    attempt: Count
    group: Name
    ranks: Annotated[tuple[Rank, ...], Meta(min_length=1, max_length=MAX_GROUP_RANKS)]
    rows: tuple[RowCount, ...]
    rows_before: tuple[RowCount, ...]
    watermarks_ns: tuple[Integer | None, ...]
    names: tuple[Label, ...] = ()
    start: Name | None = None
    since_ns: tuple[Count | None, ...] | None = None

    @property
    def sinces_ns(self) -> tuple[Count | None, ...]:
        """Since when each of the ranks has the place from which its rows come."""
        return self.since_ns or (None,) * len(self.ranks)


_HEADERS: Final = msgspec.json.Decoder(BundleHeader)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Rows of several ranks as numpy columns of equal length, those of one rank after those of another."""

    header: BundleHeader
    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return rows_of(self.columns)

    def batches(self) -> Iterator[Batch]:
        """Give the batch of each rank that has rows; its columns are views of the bundle's."""
        own = self.header
        for place, (first, past) in enumerate(pairwise((0, *accumulate(own.rows)))):
            if first < past:
                header = Header(
                    own.schema, own.job, own.attempt, own.ranks[place], own.rows_before[place],
                    own.watermarks_ns[place], own.names, own.group, own.start,
                    own.sinces_ns[place],
                )  # fmt: skip
                yield Batch(header, {name: column[first:past] for name, column in self.columns.items()})


def group_of(host: str | None, rank: int) -> str | None:
    """Return the group of a rank: those of its host, in blocks of `MAX_GROUP_RANKS`; None where the host is unknown.

    >>> group_of("node-3", 24), group_of("node-3", 70), group_of(None, 24)
    ('node-3/0', 'node-3/1', None)
    """
    return None if not host else f"{host[:_LONGEST_HOST]}/{rank // MAX_GROUP_RANKS}"


def bundle_of(batches: Sequence[Batch]) -> Bundle:
    """Put batches of one schema, job, start and group together: one of each rank, which come in any order."""
    batches = sorted(batches, key=lambda batch: batch.header.rank)
    first, sinces = batches[0].header, [batch.header.since_ns for batch in batches]
    names = tuple(dict.fromkeys(name for batch in batches for name in batch.header.names))
    header = BundleHeader(
        schema=first.schema,
        job=first.job,
        attempt=first.attempt,
        group=first.group or "",
        ranks=tuple(batch.header.rank for batch in batches),
        rows=tuple(map(len, batches)),
        rows_before=tuple(batch.header.rows_before for batch in batches),
        watermarks_ns=tuple(batch.header.watermark_ns for batch in batches),
        names=names,
        start=first.start,
        since_ns=tuple(sinces) if any(sinces) else None,
    )
    codes = {one: code for code, one in enumerate(names)}
    columns: dict[str, np.ndarray] = {}
    # Those of the batch that has most, among which are those of all others: a rank may lack numerics, which are
    # unknown then (`column_of`).
    for name in max((batch.columns for batch in batches), key=len):
        own = [column_of(batch.columns, FIELDS[first.schema][name], len(batch)) for batch in batches]
        if name in CODED:  # indices into the names of each batch become indices into those of all
            for place, batch in enumerate(batches):
                if batch.header.names != names:
                    table = [codes[one] for one in batch.header.names] or [0]
                    own[place] = np.array(table, dtype=own[place].dtype)[own[place]]
        columns[name] = np.concatenate(own)
    return Bundle(header, columns)


def encode_bundle(bundle: Bundle) -> bytes:
    """Encode a bundle as one Arrow IPC stream, without compression (the Kafka producer compresses)."""
    header = {name: getattr(bundle.header, name) for name in BundleHeader.__slots__ if name != "schema"}
    rows = to_record_batch(bundle.header.schema, bundle.columns)
    return encode_arrow(bundle.header.schema, without_unknown_start(header), rows, version=BUNDLE_VERSION)


def decode_rows(value: bytes | None, expected: str) -> Batch | Bundle:
    """Decode one message of the topic of schema `expected`: a batch, or a bundle of batches; raises `RecordError`."""
    header, columns = decode_table(value, expected, _read_header)
    if isinstance(header, Header):
        return Batch(header, columns)
    rows, count = rows_of(columns), len(header.ranks)
    for name in ("rows", "rows_before", "watermarks_ns", "sinces_ns"):
        if len(getattr(header, name)) != count:
            raise RecordError(f"{name} must have a value for each of {count} ranks; got {len(getattr(header, name))}")
    if any(rank >= following for rank, following in pairwise(header.ranks)):
        raise RecordError(f"ranks must be ascending; got {list(header.ranks)}")
    if sum(header.rows) != rows:
        raise RecordError(f"rows of the ranks must be {rows} together, as many as there are; got {sum(header.rows)}")
    return Bundle(header, columns)


def decode_batches(value: bytes | None, expected: str) -> list[Batch]:
    """Decode one message as `decode_rows` does, as the batches of its ranks."""
    rows = decode_rows(value, expected)
    return [rows] if isinstance(rows, Batch) else list(rows.batches())


def _read_header(metadata: bytes | None, expected: str) -> Header | BundleHeader:
    # The quick ways first: nearly all headers are as our own producers write them.
    known: Header | BundleHeader | None = quick_header(metadata, expected, BUNDLE_VERSION, _HEADERS)
    known = known or quick_header(metadata, expected, VERSION, BATCH_HEADERS)
    if known is not None:
        return known
    values = header_values(metadata, expected, BUNDLE_VERSION)
    if values["version"] < BUNDLE_VERSION:
        return header_of(values)
    header: BundleHeader = checked({"names": None, **values}, BundleHeader, "", "header", RecordError)
    return header
