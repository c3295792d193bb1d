"""How long the ranks of a pipeline work on its micro-batches, though the next recvs lie open beside the work.

A rank that posts its recvs early shows no gap while it waits for one: the recv is open, whether the rank works or
waits. But pipelines are first in, first out: the k-th message to the next stage is made of the k-th
message from the stage before, and backwards likewise. So the work on it begins when that message has come and the
rank is free, and ends with the send.

This holds for a stage that gets as many messages from each side as it sends on to the other. The last stage turns
them round: the k-th that it sends is made of the k-th that it gets. The first stage begins some micro-batches before
one comes back; then a backward and a forward pass precede each of its sends, and of such cycles it has as many as
there are micro-batches, though the last ones end in no message.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.arrays.runs import begins_run, run_numbers
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.dtypes import Flags, Ints
from irregulars.messages.records import RECV, SEND

_NEVER = np.iinfo(np.int64).min


def microbatch_work_ns(
    graph: OperatorGraph, iteration: int, stage_of: Mapping[int, int], *, of_ends: bool = False
) -> dict[int, float]:
    """Return for each rank between the first and the last stage its work on micro-batches in an iteration, ns.

    Ranks whose messages do not pair up (some were lost, or they go to other stages) are left out.

    `of_ends`: return it of the first and the last stage too; of a first one that begins all micro-batches before one
    comes back it is not known.
    """
    last_stage = max(stage_of.values(), default=0)
    asked = [rank for rank, stage in stage_of.items() if 0 < stage < last_stage or (of_ends and last_stage)]
    rows = np.flatnonzero((graph.iteration == iteration) & np.isin(graph.rank, asked))
    rows = rows[np.lexsort((graph.start_ns[rows], graph.rank[rows]))]
    if not len(rows):
        return {}
    # For each row how many stages its message goes up (negative: down); 0 for all but messages between stages.
    ranks = np.array(sorted(stage_of))
    stages = np.array([stage_of[rank] for rank in ranks.tolist()])
    is_message = graph.is_p2p[rows] & np.isin(graph.peer[rows], ranks)
    own, other = (
        stages[np.searchsorted(ranks, one)]
        for one in (graph.rank[rows], np.where(is_message, graph.peer[rows], graph.rank[rows]))
    )
    step = np.where(graph.operator[rows] == SEND, other - own, own - other)
    is_first = own == 0
    step = np.where(is_first | (own == last_stage), np.abs(step), step)  # there is one side: they turn messages round
    known = ~np.isin(graph.rank[rows], graph.rank[_unpaired(graph, rows, step)])
    rows, step, is_first = rows[known], step[known], is_first[known]
    input_ns = _inputs_ns(graph, rows, step, _begun_before(graph, rows, is_first & (step != 0)))
    main = graph.operator[rows] != RECV
    return _work(graph, rows[main], _of_next_send(graph, rows[main], input_ns[main]), step[main] != 0)


def _unpaired(graph: OperatorGraph, rows: Ints, step: Ints) -> Ints:
    """Return some message of each rank that sends on more, or fewer, than it gets, or that skips a stage."""
    is_message = step != 0
    messages, way = rows[is_message], step[is_message]
    side, first = group_rows([graph.rank[messages], way])
    balance = np.bincount(side, np.where(graph.operator[messages] == SEND, 1, -1), minlength=len(first))
    return messages[first[(balance != 0) | (np.abs(way[first]) != 1)]]


def _begun_before(graph: OperatorGraph, rows: Ints, of_first: Flags) -> Ints:
    """Return for each row by how many of its rank's sends its message is ahead of the one that it is made into.

    `of_first`: the messages of the first stage, which begins as many micro-batches before the first one comes back.
    """
    recv, send = (rows[of_first & (graph.operator[rows] == one)] for one in (RECV, SEND))
    if not len(recv):
        return np.zeros(len(rows), dtype=np.int64)
    rank, own = np.unique(graph.rank[recv], return_inverse=True)
    came_ns = np.full(len(rank), np.iinfo(np.int64).max)
    np.minimum.at(came_ns, own, graph.end_ns[recv])
    own = np.searchsorted(rank, graph.rank[send])
    most = int(np.bincount(own, graph.start_ns[send] < came_ns[own]).max())
    return np.where(of_first & (graph.operator[rows] == RECV), most, 0)


def _inputs_ns(graph: OperatorGraph, rows: Ints, step: Ints, ahead: Ints) -> Ints:
    """Return for each send when the message had come that it passes on; `_NEVER` for other rows."""
    input_ns = np.full(len(rows), _NEVER)
    messages = np.flatnonzero(step)
    ordinal = graph.ordinal[rows[messages]] + ahead[messages]
    pair, first = group_rows([graph.rank[rows[messages]], step[messages], ordinal])
    is_recv = graph.operator[rows[messages]] == RECV
    came_ns = np.full(len(first), _NEVER)
    came_ns[pair[is_recv]] = graph.end_ns[rows[messages[is_recv]]]
    input_ns[messages[~is_recv]] = came_ns[pair[~is_recv]]
    return input_ns


def _of_next_send(graph: OperatorGraph, rows: Ints, input_ns: Ints) -> Ints:
    """Return the input of the send that each row belongs to: the next one of its rank, itself included."""
    place = np.where(graph.operator[rows] == SEND, np.arange(len(rows)), len(rows))
    following = np.minimum.accumulate(place[::-1])[::-1]
    found = np.minimum(following, len(rows) - 1)
    has_one = (following < len(rows)) & (graph.rank[rows[found]] == graph.rank[rows])
    return np.where(has_one, input_ns[found], _NEVER)


def _work(graph: OperatorGraph, rows: Ints, input_ns: Ints, is_message: Flags) -> dict[int, float]:
    """Sum up the time before each row in which its rank had all it needed and ran nothing."""
    is_passed_on = input_ns != _NEVER  # other rows are of no whole cycle, and may be waiting
    is_first, owner = begins_run(graph.rank[rows]), run_numbers(graph.rank[rows])
    # A rank goes on beside a send that it leaves open: it is free as soon as that has begun.
    is_left_open = graph.is_worked_beside[rows] & (graph.operator[rows] == SEND)
    free_ns = np.where(is_left_open, graph.start_ns[rows], graph.end_ns[rows])
    ready_ns = np.maximum(np.where(is_first, _NEVER, np.append(_NEVER, free_ns[:-1])), input_ns)
    worked_ns = np.where(is_passed_on, np.maximum(graph.start_ns[rows] - ready_ns, 0), 0)
    cycles = np.bincount(owner, is_message & is_passed_on)
    each_ns = np.bincount(owner, worked_ns)[cycles > 0] / cycles[cycles > 0]
    sums = each_ns * np.bincount(owner, is_message)[cycles > 0]
    return dict(zip(graph.rank[rows[is_first]][cycles > 0].tolist(), sums.tolist(), strict=True))
