"""How long the ranks of a pipeline work on its micro-batches, though the next recvs lie open beside the work.

A rank that posts its recvs early shows no gap while it waits for one: the recv is open, whether the rank works or
waits. But pipelines are first in, first out: the k-th message to the next stage is made of the k-th
message from the stage before, and backwards likewise. So the work on it begins when that message has come and the
rank is free, and ends with the send.

This holds for a stage that gets as many messages from each side as it sends on to the other. The first and the last
stage make messages of their own, and end others.
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


def microbatch_work_ns(graph: OperatorGraph, iteration: int, stage_of: Mapping[int, int]) -> dict[int, float]:
    """Return for each rank between the first and the last stage its work on micro-batches in an iteration, ns.

    Ranks whose messages do not pair up (some were lost, or they go to other stages) are left out.
    """
    last_stage = max(stage_of.values(), default=0)
    inner = [rank for rank, stage in stage_of.items() if 0 < stage < last_stage]
    rows = np.flatnonzero((graph.iteration == iteration) & np.isin(graph.rank, inner))
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
    known = ~np.isin(graph.rank[rows], graph.rank[_unpaired(graph, rows, step)])
    input_ns = _inputs_ns(graph, rows, step)
    main = known & (graph.operator[rows] != RECV)
    rows, input_ns = rows[main], _of_next_send(graph, rows[main], input_ns[main])
    is_passed_on = input_ns != _NEVER  # rows after the last send are of no micro-batch, and may be waiting
    return _work(graph, rows[is_passed_on], input_ns[is_passed_on])


def _unpaired(graph: OperatorGraph, rows: Ints, step: Ints) -> Ints:
    """Return some message of each rank that sends on more, or fewer, than it gets, or that skips a stage."""
    is_message = step != 0
    messages, way = rows[is_message], step[is_message]
    side, first = group_rows([graph.rank[messages], way])
    balance = np.bincount(side, np.where(graph.operator[messages] == SEND, 1, -1), minlength=len(first))
    return messages[first[(balance != 0) | (np.abs(way[first]) != 1)]]


def _inputs_ns(graph: OperatorGraph, rows: Ints, step: Ints) -> Ints:
    """Return for each send when the message had come that it passes on; `_NEVER` for other rows."""
    input_ns = np.full(len(rows), _NEVER)
    messages = np.flatnonzero(step)
    pair, first = group_rows([graph.rank[rows[messages]], step[messages], graph.ordinal[rows[messages]]])
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


def _work(graph: OperatorGraph, rows: Ints, input_ns: Ints) -> dict[int, float]:
    """Sum up the time before each row in which its rank had all it needed and ran nothing."""
    if not len(rows):
        return {}
    is_first: Flags = begins_run(graph.rank[rows])
    owner = run_numbers(graph.rank[rows])
    # A rank goes on beside a send that it leaves open: it is free as soon as that has begun.
    is_left_open = graph.is_worked_beside[rows] & (graph.operator[rows] == SEND)
    free_ns = np.where(is_left_open, graph.start_ns[rows], graph.end_ns[rows])
    ready_ns = np.maximum(np.where(is_first, _NEVER, np.append(_NEVER, free_ns[:-1])), input_ns)
    sums = np.bincount(owner, np.maximum(graph.start_ns[rows] - ready_ns, 0))
    return dict(zip(graph.rank[rows[is_first]].tolist(), sums.tolist(), strict=True))
