"""Where an iteration's time went, by the durations of its operators: some logs have no start times.

All members of a collective leave together. So the member that spent least time inside came last, its time inside is
the transfer, and the others waited for the rest of theirs. The time that a rank spent outside of operators is its own
work. The rank that made others wait most, less what it waited itself, is the one that the iteration waited for. Its
work and the transfers that it took part in stand for the critical path, which needs an order of events that nobody
logged.

So a slow rank is found, and a slow communicator, but not which device slows the communicator: on the lanes beside it
transfers cannot be told from short waits. Sends and recvs show nothing, since a send may return before the bytes are
gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from irregulars.detectors.arrays.row_keys import group_rows, largest_of_groups
from irregulars.detectors.job.lanes import EVERYBODY, Lane, LaneExcess, UsualLane
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.path.critical_path import Attribution, Piece
from irregulars.detectors.path.lane_tables import LaneTable, lane_excess, sum_lanes
from irregulars.detectors.path.usual_by_peers import lanes_by_peers
from irregulars.dtypes import Column, Floats, Ints
from irregulars.messages.records import RECV, ROOTED, SEND


class Work(NamedTuple):
    """Time that each rank spent outside of operators in an iteration, and its usual time; ns.

    ``common_factor`` is how many times as long as usual all ranks worked.
    """

    own_ns: Mapping[int, float]
    usual_ns: Mapping[int, float]
    common_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Waits:
    """Times of collectives, split into waiting and transfer; one row for each rank in each collective."""

    # Of each row
    rank: Ints
    iteration: Ints
    operator: Ints
    communicator: Ints
    waited_ns: Floats  # how long its rank waited for the last to come
    made_wait_ns: Floats  # how long others waited for its rank, at most; 0 where it did not come last
    lane: Ints  # index of its lane in `table`
    table: LaneTable  # the transfers of each lane


def find_waits(columns: Mapping[str, Column]) -> Waits:
    """Split the times of collectives, by comparing all members of each.

    `columns`: rows of some iterations as `detectors.path.operator_graph.build_graph` takes them. Operators that never
    ended, sends and recvs, rooted collectives, whose members need not leave together, and collectives of which a
    share is missing are left out.
    """
    names = ("rank", "iteration", "operator", "communicator", "sequence", "elapsed_ns", "size_bytes")
    is_usable = np.isfinite(columns["elapsed_ns"]) & ~np.isin(columns["operator"], (*ROOTED, SEND, RECV))
    rows = {name: columns[name][is_usable] for name in names}
    is_whole, collective = _whole_collectives(rows)
    rows = {name: column[is_whole] for name, column in rows.items()}
    elapsed_ns = rows["elapsed_ns"]
    size = int(collective.max(initial=-1)) + 1
    shortest_ns, longest_ns = np.full(size, np.inf), np.zeros(size)
    np.minimum.at(shortest_ns, collective, elapsed_ns)
    np.maximum.at(longest_ns, collective, elapsed_ns)
    waited_ns = elapsed_ns - shortest_ns[collective]
    communicators, lane = np.unique(rows["communicator"], return_inverse=True)
    lanes = [Lane("collective", communicator) for communicator in communicators.tolist()]
    _, row = np.unique(collective, return_index=True)  # one of each collective, in the order of their numbers
    return Waits(
        rank=rows["rank"],
        iteration=rows["iteration"],
        operator=rows["operator"],
        communicator=rows["communicator"],
        waited_ns=waited_ns,
        made_wait_ns=np.where(waited_ns == 0, (longest_ns - shortest_ns)[collective], 0.0),
        lane=lane,
        table=sum_lanes(
            lanes, lane[row], rows["iteration"][row], shortest_ns, largest_of_groups(collective, rows["size_bytes"])
        ),
    )


def attribute_untimed(waits: Waits, iteration: int, usual: Mapping[Lane, UsualLane], work: Work) -> Attribution:
    """Return where the excess of one iteration went; ``usual`` is that of each lane."""
    lanes = lane_excess(waits.table, iteration, usual)
    usual_ns = {rank: work.common_factor * ns for rank, ns in work.usual_ns.items() if rank in work.own_ns}
    excess_ns = {rank: work.own_ns[rank] - ns for rank, ns in usual_ns.items()}
    incomplete = frozenset(work.own_ns)  # the order of events is missing for all: once is no proof
    rows = np.flatnonzero((waits.iteration == iteration) & np.isin(waits.rank, list(excess_ns)))
    if len(rows) == 0:
        return Attribution(iteration, {}, {}, {}, excess_ns, incomplete)
    ranks, at = np.unique(waits.rank[rows], return_inverse=True)
    # Not the rank that waited least: ranks of a stage with fewer collectives wait less often. One that is late since
    # it waited for another made others wait by as much as it waited.
    rank = int(ranks[np.argmax(np.bincount(at, waits.made_wait_ns[rows] - waits.waited_ns[rows]))])
    own = rows[waits.rank[rows] == rank]
    pieces = _pieces(waits, own, lanes)
    last = own[np.argmax(waits.made_wait_ns[own])]
    where = rank, int(waits.operator[last]), int(waits.communicator[last])
    pieces[Lane("work", rank)] = Piece(Lane("work", rank), *where, work.own_ns[rank], usual_ns[rank])
    path_excess_ns = {lane: piece.excess_ns for lane, piece in pieces.items()}
    if work.common_factor != 1.0:
        path_excess_ns[EVERYBODY] = (work.common_factor - 1) * work.usual_ns[rank]
    return Attribution(iteration, path_excess_ns, pieces, {}, excess_ns, incomplete)


def attribute_untimed_by_peers(
    waits: Waits, iteration: int, work_ns: Mapping[int, float], late_ns: Mapping[int, float], topology: Topology
) -> Attribution:
    """Return where one iteration's time went beyond that of peers; ``late_ns``: how much longer each rank worked."""
    usual_ns = {rank: work_ns[rank] - ns for rank, ns in late_ns.items()}
    usual = lanes_by_peers(waits.table, iteration, topology)
    return attribute_untimed(waits, iteration, usual, Work(work_ns, usual_ns))


def _pieces(waits: Waits, rows: Ints, lanes: Mapping[Lane, LaneExcess]) -> dict[Lane, Piece]:
    """Return the transfers of one rank, those of a lane as one piece."""
    found = {}
    for row in rows[np.unique(waits.lane[rows], return_index=True)[1]].tolist():
        lane = waits.table.lanes[waits.lane[row]]
        if lane in lanes:
            where = int(waits.rank[row]), int(waits.operator[row]), int(waits.communicator[row])
            found[lane] = Piece(lane, *where, lanes[lane].usual_ns + lanes[lane].excess_ns, lanes[lane].usual_ns)
    return found


def _whole_collectives(rows: Mapping[str, Column]) -> tuple[Ints, Ints]:
    """Return the rows of collectives that miss no member, and the number of each one's collective."""
    collective, _ = group_rows([rows["communicator"], rows["sequence"]])
    shares = np.bincount(collective)[collective]
    most = np.zeros(int(rows["communicator"].max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(most, rows["communicator"], shares)
    # Of a communicator that never was complete the most that were seen together count as all.
    is_whole = np.flatnonzero((shares == most[rows["communicator"]]) & (shares > 1))
    return is_whole, np.unique(collective[is_whole], return_inverse=True)[1]
