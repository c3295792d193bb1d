"""How long the transfers of each lane took in each iteration, compared with the usual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MAD_TO_SIGMA, alike_codes, medians, round_to_bits
from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.arrays.runs import run_ends, run_lengths, run_starts
from irregulars.detectors.job.lanes import LANE_KINDS, Lane, LaneExcess, UsualLane
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.dtypes import Floats, Ints, Numbers
from irregulars.messages.records import OPERATOR_CODES, RECV, ROOTED, SEND

_KIND_NUMBERS: Final = {kind: number for number, kind in enumerate(LANE_KINDS)}
_EXCESS_BITS: Final = 9  # significant ones: an error of 0.2 % at most, where the noise of a lane is some per cent
_FIRSTS_KEPT: Final = 64  # ranks of an iteration that left first: more show nothing new
_NO_RING: Final = (*ROOTED, OPERATOR_CODES["all_to_all"])
_SPREAD_STEP: Final = 1 / 8  # transfers; `JOB.stray_transfers` is a multiple of it


def lane_of(graph: OperatorGraph, row: int) -> Lane:
    """Lane of a row's transfer."""
    operator, rank, peer = graph.operator.item(row), graph.rank.item(row), graph.peer.item(row)
    if operator == SEND:
        return Lane("pair", rank, peer)
    return Lane("pair", peer, rank) if operator == RECV else Lane("collective", graph.communicator.item(row))


class LaneTable(NamedTuple):
    """Transfers of each lane (first axis) in each iteration (second axis)."""

    lanes: list[Lane]
    iterations: Ints
    sums_ns: Numbers
    counts: Numbers
    sizes_bytes: Numbers


class LaneColumns(NamedTuple):
    """The `LaneExcess` of some lanes, as arrays: a row for each of them, in their order.

    ``keys`` (int64) are the number of the kind in `LANE_KINDS`, ``first`` and ``second``; ``values`` (float64) the
    fields of `LaneExcess`.
    """

    keys: Ints
    values: Floats


def lane_columns(lanes: Mapping[Lane, LaneExcess]) -> LaneColumns:
    """Return lanes as arrays."""
    keys = np.array([(_KIND_NUMBERS[kind], first, second) for kind, first, second in lanes], dtype=np.int64)
    fields = len(LaneExcess._fields)
    values = np.fromiter(chain.from_iterable(lanes.values()), np.float64, fields * len(lanes))
    return LaneColumns(keys.reshape(-1, 3), values.reshape(-1, fields))


def lane_table(graph: OperatorGraph) -> LaneTable:
    """Sum the transfers of each lane in each iteration.

    The transfer of a collective is the median of its members' transfers, which hold no waiting for late ones. It is
    the median since neither end of the range can be trusted: in a ring with one slow way some members leave as early
    as ever, and a member that is held up leaves late without any way being slow. The transfer of a pair is that of
    its recv, since a send may return before the bytes arrive; it holds no waiting for other messages of its batch.
    """
    rows = np.flatnonzero((~graph.is_p2p | (graph.operator == RECV)) & ~graph.is_partial)
    of_row, row, lane, lanes = _transfers(graph, rows)
    transfer_ns = medians(of_row, graph.own_transfer_ns[rows])
    return sum_lanes(lanes, lane, graph.iteration[row], transfer_ns, graph.moved_bytes[row])


def sum_lanes(lanes: list[Lane], lane: Ints, iteration: Ints, transfer_ns: Floats, size_bytes: Floats) -> LaneTable:
    """Sum transfers by lane and iteration; the columns are the index of its lane, its iteration, time and bytes."""
    iterations, at = np.unique(iteration, return_inverse=True)
    shape = (len(lanes), len(iterations))
    # A cell for each lane and iteration, so that one count serves the whole table.
    cell = lane * max(shape[1], 1) + at

    def by_cell(weights: Floats | None) -> Numbers:
        return np.bincount(cell, weights=weights, minlength=shape[0] * shape[1]).reshape(shape)

    return LaneTable(lanes, iterations, by_cell(transfer_ns), by_cell(None), by_cell(size_bytes))


def lane_excess(table: LaneTable, iteration: int, usual: Mapping[Lane, UsualLane]) -> dict[Lane, LaneExcess]:
    """Compare the lanes of one iteration with the usual values."""
    at = np.flatnonzero(table.iterations == iteration)
    if len(at) == 0:
        return {}
    columns = [column[:, at[0]].tolist() for column in (table.sums_ns, table.counts, table.sizes_bytes)]
    found = {}
    for lane, total_ns, count, size_bytes in zip(table.lanes, *columns, strict=True):
        # A lane without a transfer in this iteration has no time to compare.
        own = usual.get(lane) if count else None
        if own is not None:
            usual_ns = own.mean_ns * count
            # Longer sequences move more bytes, and may take longer for that.
            if size_bytes > 0 and own.size_bytes > 0:
                usual_ns *= size_bytes / (own.size_bytes * count)
            excess_ns = total_ns - usual_ns
            noise_ns, most_ns = own.noise_ns * count, own.most_ns * count
            found[lane] = LaneExcess(excess_ns, usual_ns, noise_ns, size_bytes, 1.0, count, most_ns)
    return found


def usual_lanes(table: LaneTable) -> dict[Lane, UsualLane]:
    """Return the usual values for each lane: the median over these iterations, which had no fault.

    A handful of iterations shows little of one lane's noise: it may have been calm by chance, or be in one of two
    modes between which all of its kind change. So it has at least the noise that lanes which move as many bytes have
    together (the pooled variance of their times, relative to the median of each), and the time that lanes of its kind
    usually take counts as one that it had, up to twice its own: a pair within a host may be ten times as quick as
    those over the network, and is not as slow in any mode.
    """
    values = np.full((4, len(table.lanes)), np.nan)
    seen_in, number = np.unique(table.counts > 0, axis=0, return_inverse=True)
    for at, iterations in enumerate(seen_in):  # mostly one: all lanes in all iterations
        own = np.flatnonzero(number.reshape(-1) == at)
        sums, counts, sizes = (
            column[own][:, iterations] for column in (table.sums_ns, table.counts, table.sizes_bytes)
        )
        bytes_each = sizes / counts
        size = np.median(bytes_each, axis=1)
        # The times that the usual bytes would take, as in `lane_excess`
        is_sized = (bytes_each > 0) & (size[:, None] > 0)
        means = sums / counts * np.divide(size[:, None], bytes_each, out=np.ones_like(sums), where=is_sized)
        median = np.median(means, axis=1)
        noise = MAD_TO_SIGMA * np.median(np.abs(means - median[:, None]), axis=1)
        values[:, own] = median, noise, size, means.max(axis=1) - median
    median, noise, sizes, most = values
    kind = np.array([_KIND_NUMBERS[lane.kind] for lane in table.lanes], dtype=np.int64)
    alike, first = group_rows([kind, alike_codes(sizes, JOB.alike)])
    ratio = np.divide(noise, median, out=np.zeros(len(kind)), where=median > 0)
    members = np.bincount(alike, minlength=len(first))
    pooled = np.sqrt(np.bincount(alike, ratio**2, minlength=len(first)) / np.maximum(members, 1))
    are_enough = members[alike] >= JOB.often
    values[1] = np.where(are_enough, np.maximum(noise, pooled[alike] * median), noise)
    kind_takes = np.where(are_enough, medians(alike, median)[alike], median)
    values[3] = np.maximum(most, np.minimum(kind_takes, 2 * median) - median)
    return dict(zip(table.lanes, map(UsualLane._make, values.T.tolist()), strict=True))


def with_slow_transfers(
    lanes: Mapping[Lane, LaneExcess], graph: OperatorGraph, iteration: int, usual_transfer_ns: Floats
) -> dict[Lane, LaneExcess]:
    """Fill in over how many transfers each lane's excess is spread (`LaneExcess.slow_transfers`).

    The number is in whole `_SPREAD_STEP`, the excess has `_EXCESS_BITS`: the rest is noise, and snapshots hold all.
    """
    is_seen = ~graph.is_p2p | (graph.operator == RECV)
    rows = np.flatnonzero((graph.iteration == iteration) & is_seen & np.isfinite(usual_transfer_ns))
    found = _transfers(graph, rows)
    longer_ns = medians(found.of_row, graph.own_transfer_ns[rows] - usual_transfer_ns[rows])  # as in `lane_table`
    excess_ns = np.maximum(longer_ns, 0.0)
    usual_ns = np.maximum(usual_transfer_ns[found.row], 1.0)
    columns = (excess_ns, excess_ns**2, excess_ns**2 / usual_ns, usual_ns, usual_ns**2)
    sums = [np.bincount(found.lane, column, minlength=len(found.lanes)) for column in columns]
    total_ns, squares, ratios, usual_total_ns, usual_squares = sums
    counts = np.divide(total_ns**2, squares, out=np.ones(len(squares)), where=squares > 0)
    # One transfer takes nearly all of the lane's usual time: the gradients, beside a loss of 4 bytes. In a slow lane
    # it has nearly all of the excess as well. Only if transfers that usually take little have the excess they hung.
    is_of_one = usual_total_ns**2 < JOB.stray_transfers * usual_squares
    is_of_one &= 2 * total_ns**2 > ratios * usual_total_ns
    least = np.minimum(np.bincount(found.lane, minlength=len(found.lanes)), JOB.stray_transfers)
    counts = np.where(is_of_one, np.maximum(counts, least), counts)
    slow = dict(zip(found.lanes, (np.floor(counts / _SPREAD_STEP) * _SPREAD_STEP).tolist(), strict=True))
    rounded_ns = round_to_bits(np.array([own.excess_ns for own in lanes.values()], dtype=np.float64), _EXCESS_BITS)
    return {
        lane: own._replace(excess_ns=ns, slow_transfers=slow.get(lane, 1.0))
        for (lane, own), ns in zip(lanes.items(), rounded_ns.tolist(), strict=True)
    }


def left_first(
    graph: OperatorGraph, iteration: int, lanes: Mapping[Lane, LaneExcess], members: Mapping[int, Sequence[int]]
) -> tuple[tuple[int, int], ...]:
    """Return communicator and rank for slow collectives of an iteration, at most `_FIRSTS_KEPT`: the rank left first.

    In a ring with one slow way the ranks behind it leave last, each time the same ones. Where all ways are slow alike
    it changes from one to the next. Where all left at about the same time nobody was first; a rooted collective and
    an all_to_all are no rings. All members must be known, and the times be of one clock.
    """
    slow = [lane.first for lane, own in lanes.items() if lane.kind == "collective" and own.excess_ns > own.most_ns]
    is_ring = ~graph.is_p2p & ~np.isin(graph.operator, _NO_RING)
    is_told = (graph.iteration == iteration) & is_ring & ~graph.is_partial & np.isin(graph.communicator, slow)
    rows = np.flatnonzero(is_told)
    order = rows[np.lexsort((graph.rank[rows], graph.end_ns[rows], graph.group[rows]))]
    starts = run_starts(graph.group[order])
    first, last = order[starts], order[run_ends(graph.group[order])]
    codes, of_first = np.unique(graph.communicator[first], return_inverse=True)
    sizes = np.array([len(members.get(one, ())) for one in codes.tolist()], dtype=np.int64)
    is_whole = run_lengths(starts, len(order)) == sizes[of_first]
    apart_ns = graph.end_ns[last] - graph.end_ns[first]
    alike_ns = np.maximum(graph.slack_ns[first], JOB.alike * graph.transfer_ns[last])
    first = first[is_whole & (apart_ns > alike_ns)][:_FIRSTS_KEPT]
    return tuple(zip(graph.communicator[first].tolist(), graph.rank[first].tolist(), strict=True))


class _Transfers(NamedTuple):
    """Transfers of some rows. A collective is one transfer, however many members logged it."""

    of_row: Ints  # number of the transfer of each row
    row: Ints  # a row of each transfer
    lane: Ints  # index of the lane of each transfer
    lanes: list[Lane]


def _transfers(graph: OperatorGraph, rows: Ints) -> _Transfers:
    of_row, first = group_rows([graph.group[rows]])
    row = rows[first]
    is_p2p = graph.is_p2p[row]
    ends = [is_p2p.astype(np.int64), np.where(is_p2p, graph.source[row], graph.communicator[row])]
    ends.append(np.where(is_p2p, graph.destination[row], -1))
    lane, first_of_lane = group_rows(ends)
    unique = np.stack([end[first_of_lane] for end in ends], axis=1).tolist()
    lanes = [Lane("pair" if is_pair else "collective", one, two) for is_pair, one, two in unique]
    return _Transfers(of_row, row, lane, lanes)
