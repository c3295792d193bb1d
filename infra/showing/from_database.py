"""Facts about a verdict: from the database by a few small answers, or from a recording that was just judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from irregulars.detectors.job.topology import Place, topology_of
from irregulars.dtypes import Column, Flags, Floats, Ints
from irregulars.errors import InputError
from irregulars.grouping import grouped
from irregulars.infra.showing.found import (
    AFTER_SHOWN,
    BEFORE_SHOWN,
    BINS,
    GPU_STATE,
    LOOKED_INTO,
    STRETCHES_SHOWN,
    WORK_KINDS,
    Cell,
    Earlier,
    Found,
    GpuState,
    Iteration,
    NicRates,
    Other,
    Periods,
    RateSample,
    Standing,
    device_name,
    is_same_device,
    periods_of,
    sampled_spans,
    span_of,
)
from irregulars.infra.showing.numerics import BANDS, NUMERIC_KINDS, Band, bands_of
from irregulars.infra.showing.transfers import (
    MEMBERS,
    PAUSES,
    SHOWN,
    TRANSFER_KINDS,
    TRANSFERS,
    Way,
    members_in,
    pauses_by_cause,
    pauses_in,
    transfers_in,
    ways_of,
)
from irregulars.messages.judgements import Judgements, Suspect, Verdict
from irregulars.messages.kinds import PLACE, STANDSTILLS
from irregulars.messages.reasons import decode_reasons
from irregulars.messages.records import PATHS, Batch
from irregulars.producers.trace.directory import Trace
from irregulars.sinks.investigations import run

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


_MOST_ITERATIONS: Final = 20_000  # of one verdict: those around its begin, and the newest
_MOST_NAMED: Final = 500  # iterations or ranks in one question: they stand in its address
_MOST_STANDING: Final = 100_000
_EARLIER_DAYS: Final = 90
_EARLIER_READ: Final = 50

_MOST_RANK_S: Final = 5_000_000
"""Samples of bandwidth that one question reads, as seconds of all ranks together: 5 minutes of 16,384 ranks.

Of a small job that is longer than samples are kept.
"""

_TOO_MUCH: Final = frozenset({158, 159, 160, 241, 307, 396})
"""ClickHouse error codes for a question that goes beyond a bound: of time, rows, bytes or memory."""

_NIC_RATES: Final = "NIC rates"

Row = Sequence[Any]
T = TypeVar("T")

# Fields of `Verdict` with another name in the table. Suspects have a table of their own, thresholds only the topic.
_RENAMED: Final = {
    "iterations": "(first_iteration, past_last_iteration)", "time_ns": "toUnixTimestamp64Nano(last_seen_at)",
}  # fmt: skip
_FIELDS: Final = tuple(one.name for one in fields(Verdict) if one.name not in ("suspects", "thresholds"))

_VERDICT: Final = f"""
SELECT {", ".join(_RENAMED.get(name, name) for name in _FIELDS)}
FROM incidents
WHERE {{which:String}} = '' OR verdict_id = {{which:String}} OR job = {{which:String}}
ORDER BY verdict_id = {{which:String}} DESC, state = 'open' DESC, last_seen_at DESC, lost_s DESC, verdict_id
LIMIT 1"""

_FIELDS_OF_SUSPECTS: Final = tuple(one.name for one in fields(Suspect))
_SUSPECTS: Final = f"""
SELECT {", ".join(_FIELDS_OF_SUSPECTS)}
FROM suspects FINAL
WHERE job = {{job:String}} AND verdict_id = {{verdict_id:String}} AND revision = {{revision:UInt32}}
ORDER BY position"""

_ITERATIONS: Final = """
SELECT iteration, toUnixTimestamp64Nano(started_at), elapsed_ns, reference_ns, is_irregular,
    toBool(has(verdict_ids, {verdict_id:String})), toBool(arrayExists(one -> one != {verdict_id:String}, verdict_ids))
FROM judged_iterations
WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration >= {first:Int64} AND iteration < {past:Int64}
    AND (phase = {phase:String} OR iteration = {opened:Int64}) -- an error may be found in an evaluation
ORDER BY iteration < {begun:Int64} DESC, iteration DESC
LIMIT {limit:UInt32}"""

_PLACES: Final = """
SELECT rank, host, gpu, nic, switch, clock
FROM jobs FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64}
    AND rank IN {ranks:Array(UInt32)}
ORDER BY rank"""

CELLS: Final = """
SELECT iteration, intDiv(rank, {bin_ranks:UInt32}) AS bin, max(work_ns), argMax(rank, work_ns)
FROM rank_iterations FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration IN {wanted:Array(Int64)} AND work_ns IS NOT NULL
GROUP BY iteration, bin
ORDER BY iteration, bin"""

_RATES: Final = """
SELECT rank, device,
    if(countIf(is_before) = 0, NULL, maxIf(tx_bytes_per_s, is_before)),
    if(countIf(NOT is_before) = 0, NULL, maxIf(tx_bytes_per_s, NOT is_before)),
    if(countIf(is_before) = 0, NULL, maxIf(rx_bytes_per_s, is_before)),
    if(countIf(NOT is_before) = 0, NULL, maxIf(rx_bytes_per_s, NOT is_before)),
    if(countIf(NOT is_before) = 0, NULL, ({end:Int64} - {during_begin:Int64}) / countIf(NOT is_before))
FROM
(
    SELECT rank, device, tx_bytes_per_s, rx_bytes_per_s,
        sampled_at <= fromUnixTimestamp64Nano({before_end:Int64}, 'UTC') AS is_before
    FROM bandwidth FINAL
    WHERE job = {job:String} AND attempt = {attempt:Int64} AND path = 'nic'
        AND (sampled_at > fromUnixTimestamp64Nano({before_begin:Int64}, 'UTC')
            AND sampled_at <= fromUnixTimestamp64Nano({before_end:Int64}, 'UTC')
            OR sampled_at > fromUnixTimestamp64Nano({during_begin:Int64}, 'UTC')
            AND sampled_at <= fromUnixTimestamp64Nano({end:Int64}, 'UTC'))
)
GROUP BY rank, device
ORDER BY rank, device"""

_RATE_SAMPLES: Final = """
SELECT direction, stretch, if(countIf(is_own) = 0, NULL, maxIf(peak, is_own)),
    if(countIf(NOT is_own) = 0, NULL, minIf(peak, NOT is_own)),
    if(countIf(NOT is_own) = 0, NULL, medianIf(peak, NOT is_own)),
    if(countIf(NOT is_own) = 0, NULL, maxIf(peak, NOT is_own))
FROM
(
    SELECT rank, rank IN {ranks:Array(UInt32)} AS is_own, rate.1 AS direction,
        intDiv(toUnixTimestamp64Nano(sampled_at) - {begin:Int64} - 1, {width:Int64}) AS stretch, max(rate.2) AS peak
    FROM bandwidth FINAL
    ARRAY JOIN [('sent', tx_bytes_per_s), ('received', rx_bytes_per_s)] AS rate
    WHERE job = {job:String} AND attempt = {attempt:Int64} AND path = 'nic'
        AND sampled_at > fromUnixTimestamp64Nano({begin:Int64}, 'UTC')
        AND sampled_at <= fromUnixTimestamp64Nano({end:Int64}, 'UTC')
    GROUP BY rank, is_own, direction, stretch
)
GROUP BY direction, stretch
ORDER BY direction DESC, stretch"""

_GPUS: Final = """
SELECT rank, device, countIf(xid IS NULL), avg(sm_clock_mhz),
    avg(if(throttle_reasons IS NULL, NULL, throttle_reasons NOT IN ('', 'gpu_idle'))),
    arrayStringConcat(arraySort(groupUniqArrayIf(assumeNotNull(throttle_reasons),
        throttle_reasons NOT IN ('', 'gpu_idle'))), '; '),
    max(temperature_c), avg(power_w), sum(ecc_uncorrected), arraySort(groupUniqArray(xid))
FROM gpu_health FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64}
    AND sampled_at >= fromUnixTimestamp64Nano({begin:Int64}, 'UTC')
    AND sampled_at <= fromUnixTimestamp64Nano({end:Int64}, 'UTC')
GROUP BY rank, device
ORDER BY rank, device"""

_EARLIER: Final = """
SELECT known.job, known.verdict_id, known.kind, known.first_iteration, known.past_last_iteration, known.lost_s,
    known.world_size, toUnixTimestamp64Nano(known.last_seen_at)
FROM (SELECT * FROM verdicts FINAL) AS known
INNER JOIN (SELECT * FROM newest_suspects WHERE position = 0) AS suspects
    ON suspects.job = known.job AND suspects.verdict_id = known.verdict_id
WHERE suspects.device = {device:String}
    AND ({host:String} = '' OR suspects.host = {host:String})
    AND ({gpu:Int64} < 0 OR suspects.gpu = {gpu:Int64})
    AND ({nic:String} = '' OR suspects.nic = {nic:String})
    AND ({switch:String} = '' OR suspects.switch = {switch:String})
    AND ({only_job:String} = '' OR (suspects.job = {only_job:String} AND suspects.ranks = {ranks:Array(UInt32)}))
    AND NOT (known.job = {job:String} AND known.verdict_id = {verdict_id:String})
    AND known.last_seen_at < fromUnixTimestamp64Nano({seen_ns:Int64}, 'UTC')
    AND known.last_seen_at >= fromUnixTimestamp64Nano({seen_ns:Int64}, 'UTC') - toIntervalDay({days:UInt32})
ORDER BY known.last_seen_at DESC, known.verdict_id
LIMIT {limit:UInt32}"""


_OTHERS: Final = """
SELECT verdict_id, kind
FROM incidents
WHERE job = {job:String} AND attempt = {attempt:Int64} AND state = 'open' AND verdict_id != {verdict_id:String}
ORDER BY lost_s DESC, verdict_id
LIMIT {limit:UInt32}"""


def find_verdict(client: Client, which: str = "") -> Verdict | None:
    """Return a verdict: by its id, or the newest one of a job, or the newest of all; open ones first.

    It has its newest revision; None where nothing is stored at all. Raises `InputError` if `which` names neither a
    verdict nor a job with one.
    """
    rows = client.query(_VERDICT, parameters={"which": which}).result_rows
    if not rows and which:
        raise InputError(f"verdict must be the id of one that is stored, or a job that has one; got {which!r}. "
                         "See: irregulars sql most_urgent")  # fmt: skip
    return _verdict(client, rows[0]) if rows else None


def _verdict(client: Client, row: Row) -> Verdict:
    values = _values(_FIELDS, row)
    wanted = {name: values[name] for name in ("job", "verdict_id", "revision")}
    rows = client.query(_SUSPECTS, parameters=wanted).result_rows
    suspects = tuple(Suspect(**_values(_FIELDS_OF_SUSPECTS, own)) for own in rows)
    values |= {"delta": _number(values["delta"]), "explanation": decode_reasons(values["explanation"])}
    return Verdict(**values, suspects=suspects)


def _values(names: Sequence[str], row: Row) -> dict[str, Any]:
    """Return a row as fields of a record: an array of the database is a tuple there."""
    known = zip(names, row, strict=True)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known}


def found_in_database(client: Client, verdict: Verdict, source: str, now_ns: int) -> Found:
    """Return the stored facts about a verdict."""
    return _Reader(client, verdict).read(source, now_ns)


class _Reader:
    """Asks one question after the other; each answer decides on the next."""

    def __init__(self, client: Client, verdict: Verdict) -> None:
        self._client = client
        self._verdict = verdict
        self._suspect = verdict.suspects[0] if verdict.suspects else None
        self._job: dict[str, Any] = {"job": verdict.job, "attempt": verdict.attempt}
        self._unread: list[str] = []

    def read(self, source: str, now_ns: int) -> Found:
        verdict = self._verdict
        first, past = verdict.iterations
        # Its begin must be among them, and what was before it, however long it has lasted.
        phase, begin = _compared(verdict)
        rows = self._ask(_ITERATIONS, verdict_id=verdict.verdict_id, first=begin, opened=first, phase=phase,
                         begun=first + LOOKED_INTO, past=past + AFTER_SHOWN, limit=_MOST_ITERATIONS)  # fmt: skip
        iterations = [Iteration(*row) for row in sorted(rows, key=itemgetter(0))]
        periods = periods_of(verdict, iterations)
        bin_ranks = -(-verdict.world_size // BINS) or 1
        places, clock = self._places()
        is_numeric = verdict.kind in NUMERIC_KINDS
        wanted = _charted(iterations) if is_numeric else periods.looked_into.tolist()
        cells: Sequence[Row] = ()
        bands: Sequence[Row] = ()
        if wanted and verdict.kind in WORK_KINDS:
            cells = self._part("times of ranks", lambda: self._ask(CELLS, wanted=wanted, bin_ranks=bin_ranks))
        if wanted and is_numeric:
            bands = self._part("numbers of ranks", lambda: self._ask(BANDS, wanted=wanted))
        others = self._ask(_OTHERS, verdict_id=verdict.verdict_id, limit=_EARLIER_READ)
        return Found(
            verdict=verdict, source=source, now_ns=now_ns, clock=clock,
            iterations=iterations, places=places,
            cells=read_cells(cells),
            bin_ranks=bin_ranks, numerics=[Band(*row) for row in bands],
            ways=self._part("transfers", lambda: self._ways(periods)) if verdict.kind in TRANSFER_KINDS else (),
            pauses=self._part("pauses", lambda: self._pauses(periods)) if verdict.kind in WORK_KINDS else (),
            standing=self._standing() if verdict.kind in STANDSTILLS else (),
            rates=self._part(_NIC_RATES, lambda: self._rates(iterations, periods)),
            rate_samples=self._part(_NIC_RATES, lambda: self._rate_samples(self._newest(span_of(iterations)))),
            gpus=self._part(GPU_STATE, lambda: self._gpus(iterations)),
            earlier=self._earlier(now_ns),
            others=[Other(verdict_id, kind) for verdict_id, kind in others],
            unread=tuple(dict.fromkeys(self._unread)),
        )  # fmt: skip

    def _ask(self, question: str, **values: Any) -> Sequence[Row]:
        return self._client.query(question, parameters={**self._job, **values}).result_rows

    def _part(self, name: str, read: Callable[[], Sequence[T]]) -> Sequence[T]:
        """Return what `read` does; empty where the database can't do it in time.

        Later parts are not asked for then: each could take as long again, and a page has one deadline for all.
        """
        from clickhouse_connect.driver.exceptions import ClickHouseError

        if not self._unread:
            try:
                return read()
            except ClickHouseError as error:
                if getattr(error, "code", None) not in _TOO_MUCH:
                    raise
        self._unread.append(name)
        return ()

    def _newest(self, span: tuple[int, int]) -> tuple[int, int]:
        """Return the end of a span of which the samples of all ranks can be read in time."""
        most_ns = _MOST_RANK_S * 10**9 // max(self._verdict.world_size, 1)
        return max(span[0], span[1] - most_ns), span[1]

    def _places(self) -> tuple[dict[int, Place], str]:
        """Return where the ranks live that the verdict names, and the clock."""
        suspects, reasons = self._verdict.suspects[:_MOST_NAMED], self._verdict.explanation
        ranks = {rank for one in suspects for rank in (one.rank, one.peer) if rank is not None}
        ranks |= set() if reasons is None else reasons.ranks
        rows = self._ask(_PLACES, ranks=sorted(ranks))
        return {row[0]: Place(*row[1:5]) for row in rows}, str(rows[0][5]) if rows else ""

    def _ways(self, periods: Periods) -> list[Way]:
        transfers = self._ask(TRANSFERS, wanted=periods.during[-SHOWN:].tolist())
        ranks = () if self._suspect is None else self._suspect.ranks
        members = self._ask(MEMBERS, ranks=list(ranks)) if transfers else ()
        return ways_of(transfers, {name: (kind, own) for name, kind, own in members}, self._suspect)

    def _pauses(self, periods: Periods) -> list[Way]:
        ranks = [] if self._suspect is None else list(self._suspect.ranks[:_MOST_NAMED])
        wanted = periods.looked_into.tolist()
        rows = self._ask(PAUSES, wanted=wanted, ranks=ranks) if ranks else ()
        return pauses_by_cause(rows, wanted, self._verdict.iterations[0])

    def _standing(self) -> list[Standing]:
        """Return the places where ranks stand, each with its ranks, the suspects' first."""
        wanted = {"job": self._verdict.job, "verdict_id": self._verdict.verdict_id, "limit": _MOST_STANDING}
        answer = run(self._client, "hang_positions", wanted)
        rows = (dict(zip(answer.columns, row, strict=True)) for row in answer.rows)
        found = grouped(((one["position"], one["suspect"] is not None), one) for one in rows)
        return [
            Standing(where, tuple(one["rank"] for one in own), own[0]["suspect"], str(own[0]["since"] or ""))
            for (where, _), own in found.items()
        ]

    def _rates(self, iterations: Sequence[Iteration], periods: Periods) -> list[NicRates]:
        # Without iterations before it the first span is empty, and samples of the cause alone are read.
        before, during = map(self._newest, sampled_spans(iterations, periods))
        if during[1] <= during[0]:
            return []
        rows = self._ask(_RATES, before_begin=before[0], before_end=before[1], during_begin=during[0], end=during[1])
        return [
            NicRates(rank, device, *(_number(one) for one in (sent, sending, received, receiving, interval_ns)))
            for rank, device, sent, sending, received, receiving, interval_ns in rows
        ]

    def _rate_samples(self, span: tuple[int, int]) -> list[RateSample]:
        if self._suspect is None or span[1] <= span[0]:
            return []
        ranks = list(self._suspect.traits.senders(self._suspect.ranks)[:_MOST_NAMED])
        width = -(-(span[1] - span[0]) // STRETCHES_SHOWN)
        rows = self._ask(_RATE_SAMPLES, ranks=ranks, begin=span[0], end=span[1], width=width)
        return [
            RateSample(direction, span[0] + (stretch + 1) * width, *map(_number, rates))
            for direction, stretch, *rates in rows
        ]

    def _gpus(self, iterations: Sequence[Iteration]) -> list[GpuState]:
        first, past = self._verdict.iterations
        begin, end = span_of(iterations, range(first, past))
        if end <= begin:
            return []
        return [
            GpuState(rank, device, samples, _number(clock), _number(throttled), reasons, _number(hottest),
                     _number(power), ecc, tuple(xids))
            for rank, device, samples, clock, throttled, reasons, hottest, power, ecc, xids in self._ask(
                _GPUS, begin=begin, end=end
            )
        ]  # fmt: skip

    def _earlier(self, now_ns: int) -> list[Earlier]:
        if self._suspect is None:
            return []
        names = device_name(self._suspect)
        # A device without a name of its own is known by its ranks, which count within its job alone.
        empty: dict[str, Any] = {"device": self._suspect.device, **dict.fromkeys(PLACE, ""), "gpu": -1}
        # Before the verdict, not before today: an old verdict is shown beside those that it followed.
        seen_ns = now_ns if self._verdict.time_ns is None else self._verdict.time_ns
        rows = self._ask(
            _EARLIER, **{**empty, **(names or {})}, only_job="" if names else self._verdict.job,
            ranks=list(self._suspect.ranks[:_MOST_NAMED]), verdict_id=self._verdict.verdict_id, seen_ns=seen_ns,
            days=_EARLIER_DAYS, limit=_EARLIER_READ,
        )  # fmt: skip
        return [Earlier(job, name, kind, (first, past), lost_s, world_size, seen)
                for job, name, kind, first, past, lost_s, world_size, seen in rows]  # fmt: skip


def _compared(verdict: Verdict) -> tuple[str, int]:
    """Return the phase of the iterations that are compared, and the first of them; checkpoints may lie far apart."""
    return ("checkpoint", 0) if verdict.kind == "slow_checkpoint" else ("train", verdict.iterations[0] - BEFORE_SHOWN)


def read_cells(rows: Sequence[Row]) -> list[Cell]:
    """Return the cells of an answer to `CELLS`."""
    return [Cell(iteration, number, float(work_ns), rank) for iteration, number, work_ns, rank in rows]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


_NIC: Final = PATHS.index("nic")
_COLUMNS: Final = {"sent": "tx_bytes_per_s", "received": "rx_bytes_per_s"}


def found_in_recording(directory: str, trace: Trace, judgements: Judgements, verdict: Verdict) -> Found:
    """Gather the facts about one verdict of a judged recording."""
    iterations = _iterations(judgements, verdict)
    periods = periods_of(verdict, iterations)
    ranks = judgements.rank_iterations
    newest = {one.verdict_id: one for one in judgements.verdicts if one.verdict_id != verdict.verdict_id}
    ranks_before = max((a.rank for a in trace.announcements), default=-1) + 1  # some log nothing
    bin_ranks = -(-ranks_before // BINS) or 1
    is_numeric = verdict.kind in NUMERIC_KINDS
    accused = verdict.suspects[0].ranks if verdict.suspects and verdict.kind in WORK_KINDS else ()
    wanted = periods.looked_into.tolist()
    return Found(
        verdict=verdict,
        recording=directory,
        source=directory,
        clock=trace.clock,
        iterations=iterations,
        places=topology_of(trace.announcements, {}).places,
        cells=_cells(ranks, periods.looked_into, bin_ranks) if verdict.kind in WORK_KINDS else (),
        bin_ranks=bin_ranks,
        numerics=bands_of(ranks, _charted(iterations)) if is_numeric else (),
        ways=_ways(trace, judgements, verdict, periods) if verdict.kind in TRANSFER_KINDS else (),
        pauses=pauses_by_cause(pauses_in(judgements.pauses, wanted, accused), wanted, verdict.iterations[0]),
        rates=list(_rates(trace.bandwidth, iterations, periods)),
        rate_samples=list(_rate_samples(trace.bandwidth, verdict, span_of(iterations))),
        earlier=list(_earlier(judgements, verdict)),
        others=[Other(one.verdict_id, one.kind) for one in sorted(newest.values(), key=lambda one: -one.lost_s)],
    )


def _ways(trace: Trace, judgements: Judgements, verdict: Verdict, periods: Periods) -> list[Way]:
    transfers = transfers_in(judgements.operators, periods.during[-SHOWN:].tolist())
    return ways_of(transfers, members_in(trace.announcements), verdict.suspects[0] if verdict.suspects else None)


def _charted(iterations: Sequence[Iteration]) -> list[int]:
    """Return the iterations whose numbers are drawn: the first of those that were read."""
    return [one.iteration for one in iterations[:_MOST_NAMED]]


def _iterations(judgements: Judgements, verdict: Verdict) -> list[Iteration]:
    phase, first = _compared(verdict)
    past = verdict.iterations[1] + AFTER_SHOWN
    return [
        Iteration(
            one.iteration, one.start_ns, one.elapsed_ns,
            one.reference_ns if np.isfinite(one.reference_ns) else None, one.is_irregular,
            verdict.verdict_id in one.verdict_ids, any(name != verdict.verdict_id for name in one.verdict_ids),
        )
        for one in sorted(judgements.iterations, key=lambda judged: judged.iteration)
        if first <= one.iteration < past and (one.phase == phase or one.iteration == verdict.iterations[0])
    ]  # fmt: skip


def _cells(ranks: Mapping[str, Column], iterations: Ints, bin_ranks: int) -> list[Cell]:
    if not ranks:
        return []
    own = np.flatnonzero(np.isin(ranks["iteration"], iterations) & np.isfinite(ranks["work_ns"].astype(np.float64)))
    # The longest work of each bin comes first, and `setdefault` keeps it.
    own = own[np.lexsort((-ranks["work_ns"][own], ranks["rank"][own] // bin_ranks, ranks["iteration"][own]))]
    cells: dict[tuple[int, int], Cell] = {}
    columns = (ranks[name][own].tolist() for name in ("iteration", "rank", "work_ns"))
    for iteration, rank, work_ns in zip(*columns, strict=True):
        cell = Cell(int(iteration), int(rank) // bin_ranks, float(work_ns), int(rank))
        cells.setdefault((cell.iteration, cell.bin), cell)
    return list(cells.values())


def _rates(bandwidth: Mapping[int, Batch], iterations: Sequence[Iteration], periods: Periods) -> Iterator[NicRates]:
    before, during = sampled_spans(iterations, periods)
    for rank, batch in bandwidth.items():
        time_ns = batch.columns["time_ns"]
        is_before, is_during = _within(time_ns, before), _within(time_ns, during)
        for code, device in enumerate(batch.header.names):
            own = (batch.columns["device"] == code) & (batch.columns["path"] == _NIC)
            if own.any():
                when = (own & is_before, own & is_during)
                sent, received = ([_peak(batch.columns[name][some]) for some in when] for name in _COLUMNS.values())
                interval_ns = (during[1] - during[0]) / max(1, int(when[1].sum()))
                yield NicRates(rank, device, sent[0], sent[1], received[0], received[1], interval_ns)


def _within(time_ns: Ints, span: tuple[int, int]) -> Flags:
    return (time_ns > span[0]) & (time_ns <= span[1])


def _peak(rates: Floats) -> float:
    known = rates[np.isfinite(rates)]
    return float(known.max()) if len(known) else math.nan


def _rate_samples(bandwidth: Mapping[int, Batch], verdict: Verdict, span: tuple[int, int]) -> Iterator[RateSample]:
    """Yield the accused NIC's highest rate in each stretch of time, beside that of all others."""
    if not verdict.suspects or not bandwidth or span[1] <= span[0]:
        return
    edges = np.linspace(span[0], span[1], STRETCHES_SHOWN + 1).astype(np.int64)
    first = verdict.suspects[0]
    is_own = np.isin(list(bandwidth), first.traits.senders(first.ranks))
    for direction, column in _COLUMNS.items():
        table = _peaks(bandwidth, column, edges)
        for at in np.flatnonzero(np.isfinite(table).any(axis=0)).tolist():
            own, others = _peak(table[is_own, at]), _spread(table[~is_own, at])
            yield RateSample(direction, int(edges[at + 1]), own, *others)


def _peaks(bandwidth: Mapping[int, Batch], column: str, edges: Ints) -> Floats:
    """Return the highest rate of each rank in each stretch; NaN without samples."""
    table = np.full((len(bandwidth), len(edges) - 1), np.nan)
    for row, batch in enumerate(bandwidth.values()):
        # A sample covers the time before it: one at an edge belongs to the stretch that ends there.
        place = np.searchsorted(edges, batch.columns["time_ns"], side="left") - 1
        is_inside = (place >= 0) & (place < table.shape[1]) & (batch.columns["path"] == _NIC)
        np.fmax.at(table[row], place[is_inside], batch.columns[column][is_inside])
    return table


def _spread(rates: Floats) -> tuple[float, float, float]:
    known = rates[np.isfinite(rates)]
    if not len(known):
        return (math.nan,) * 3
    return float(known.min()), float(np.median(known)), float(known.max())


def _earlier(judgements: Judgements, verdict: Verdict) -> Iterator[Earlier]:
    """Yield the other verdicts of the recording on the same device that began before, the newest first."""
    newest = {one.verdict_id: one for one in judgements.verdicts}
    for one in sorted(newest.values(), key=lambda other: -other.iterations[0]):
        is_before = one.verdict_id != verdict.verdict_id and one.iterations[0] <= verdict.iterations[0]
        if is_before and any(map(is_same_device, one.suspects[:1], verdict.suspects[:1])):
            yield Earlier(one.job, one.verdict_id, one.kind, one.iterations, one.lost_s, one.world_size, one.time_ns)
