"""How long the ranks of a pipeline work on its micro-batches, though the next recvs lie open beside the work.

A rank that posts its recvs early shows no gap while it waits for one: the recv is open, whether the rank works or
waits. But pipelines are first in, first out: the k-th message to the next stage is made of the k-th
message from the stage before, and backwards likewise. So the work on it begins when that message has come and the
rank is free, and ends with the send.

This holds for a stage that gets as many messages from each side as it sends on to the other. The last stage turns
them round: the k-th that it sends is made of the k-th that it gets. The first stage begins some micro-batches before
one comes back; then a backward and a forward pass precede each of its sends, and of such cycles it has as many as
there are micro-batches, though the last ones end in no message.

Where each stage holds several chunks of the model, messages go round: from the last stage to the first. Rounds of as
many micro-batches as there are stages pass one chunk after the other. In each round the passes of the first chunk
begin at the first stage without a message, and those of the last chunk end at the last one without one; backwards
likewise.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.arrays.runs import begins_run, run_numbers
from irregulars.detectors.job.thresholds import JOB
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
    goes_round = (np.abs(step) == last_stage) & (last_stage > 1)
    step = np.where(goes_round, -np.sign(step), step)
    is_in_ring = np.isin(graph.rank[rows], graph.rank[rows[goes_round]])
    # There is one side: they turn messages round.
    step = np.where(((own == 0) | (own == last_stage)) & ~is_in_ring, np.abs(step), step)
    ahead, pairs_up = _passes_ahead(graph, rows, step, is_in_ring, last_stage + 1)
    ahead += _begun_before(graph, rows, (own == 0) & ~is_in_ring & (step != 0))
    known = ~np.isin(graph.rank[rows], graph.rank[rows[~pairs_up]])
    rows, step, has_chunks = rows[known], step[known], ((own == 0) & is_in_ring)[known]
    is_vague = _is_queued(graph, rows, step) | _is_after_ended(graph, rows, step, has_chunks)
    input_ns = np.where(is_vague, _NEVER, _inputs_ns(graph, rows, step, ahead[known]))
    main = graph.operator[rows] != RECV
    return _work(graph, rows[main], input_ns[main], step[main])


def _passes_ahead(graph: OperatorGraph, rows: Ints, step: Ints, is_in_ring: Flags, stages: int) -> tuple[Ints, Flags]:
    """Return for each row by how many passes its message is ahead of its ordinal, and whether it pairs up.

    A rank's messages do not if it sends on more, or fewer, than it gets, or if they skip a stage. At the ends of a
    ring, which have all passes on one side alone, those are as many more as there are micro-batches.
    """
    ahead, pairs_up = np.zeros(len(rows), dtype=np.int64), np.ones(len(rows), dtype=bool)
    messages = np.flatnonzero(step)
    if not len(messages):
        return ahead, pairs_up
    side, first = group_rows([graph.rank[rows[messages]], step[messages]])
    is_recv = graph.operator[rows[messages]] == RECV
    recvs = np.bincount(side, is_recv, minlength=len(first)).astype(np.int64)
    sends = np.bincount(side, minlength=len(first)) - recvs
    # Passes that begin at this stage without a message; negative: that end at it without one
    begun = sends - recvs
    in_ring = is_in_ring[messages[first]]
    micro_batches = np.maximum(np.abs(begun), 1)
    fewer = np.minimum(sends, recvs)
    is_whole = (begun == 0) | (in_ring & (fewer > 0) & (fewer % micro_batches == 0))
    rank, owner = np.unique(graph.rank[rows[messages[first]]], return_inverse=True)
    is_whole &= (np.bincount(owner, begun, minlength=len(rank)) == 0)[owner]
    pairs_up[messages] = is_whole[side] & (np.abs(step[messages]) == 1)
    a_round = micro_batches // np.maximum(micro_batches // stages, 1)
    others = np.maximum(fewer // micro_batches, 1) * a_round  # passes of a round with messages on both sides
    is_fewer = (begun[side] != 0) & (is_recv == (begun[side] > 0))
    rounds = graph.ordinal[rows[messages]] // others[side] + (begun[side] > 0)
    ahead[messages] = np.where(is_fewer, rounds * a_round[side], 0)
    return ahead, pairs_up


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


def _is_queued(graph: OperatorGraph, rows: Ints, step: Ints) -> Flags:
    """Return whether a row is a send that began as the rank's send before to the same side ended, in its own time.

    The rank worked on beside that one, and was through with the work before this one at any time before.
    """
    queued = np.zeros(len(rows), dtype=bool)
    sends = np.flatnonzero((step != 0) & (graph.operator[rows] == SEND))
    sends = sends[np.lexsort((sends, step[sends], graph.rank[rows[sends]]))]
    before, after = sends[:-1], sends[1:]
    is_next = (step[before] == step[after]) & (graph.rank[rows[before]] == graph.rank[rows[after]])
    one, two = rows[before], rows[after]
    end_ns = graph.end_ns[one] + graph.slack_ns[one] + JOB.negligible * (graph.end_ns[one] - graph.start_ns[one])
    queued[after] = is_next & graph.is_worked_beside[one] & (graph.start_ns[two] <= end_ns)
    return queued


def _is_after_ended(graph: OperatorGraph, rows: Ints, step: Ints, has_chunks: Flags) -> Flags:
    """Return whether a row is a send of a forward pass with a backward pass before it that ended without a message.

    Once backward passes are sent, those alternate with forward ones. `has_chunks`: rows of the first stage in a ring.
    """
    found = np.zeros(len(rows), dtype=bool)
    sends = np.flatnonzero(has_chunks & (step != 0) & (graph.operator[rows] == SEND))
    if len(sends):
        place, is_up = np.arange(len(sends)), step[sends] > 0
        begin = np.maximum.accumulate(np.where(begins_run(graph.rank[rows[sends]]), place, 0))
        last_back = np.maximum.accumulate(np.where(is_up, -1, place))
        found[sends] = is_up & (begin <= last_back) & (last_back < place - 1)
    return found


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


def _work(graph: OperatorGraph, rows: Ints, input_ns: Ints, step: Ints) -> dict[int, float]:
    """Sum up the time before each row in which its rank had all it needed and ran nothing.

    `input_ns`: of sends whose work is known when the message had come that they pass on. Passes of one way are taken
    to last as long each, also those without a message.
    """
    if not len(rows):
        return {}
    is_first, owner = begins_run(graph.rank[rows]), run_numbers(graph.rank[rows])
    # The send that each row belongs to: the next one of its rank, itself included
    place = np.where(graph.operator[rows] == SEND, np.arange(len(rows)), len(rows))
    following = np.minimum.accumulate(place[::-1])[::-1]
    found = np.minimum(following, len(rows) - 1)
    has_one = (following < len(rows)) & (owner[found] == owner)
    input_ns = np.where(has_one, input_ns[found], _NEVER)
    is_passed_on = input_ns != _NEVER  # other rows are of no whole cycle, and may be waiting
    # A rank goes on beside a send that it leaves open: it is free as soon as that has begun.
    is_left_open = graph.is_worked_beside[rows] & (graph.operator[rows] == SEND)
    free_ns = np.where(is_left_open, graph.start_ns[rows], graph.end_ns[rows])
    ready_ns = np.maximum(np.where(is_first, _NEVER, np.append(_NEVER, free_ns[:-1])), input_ns)
    worked_ns = np.where(is_passed_on, np.maximum(graph.start_ns[rows] - ready_ns, 0), 0)
    way, first = group_rows([owner, np.where(has_one, step[found], 0)])
    sends = np.bincount(way, step != 0, minlength=len(first))
    cycles = np.bincount(way, (step != 0) & is_passed_on, minlength=len(first))
    of_rank, is_way = owner[first], sends > 0
    passes = np.zeros(int(owner[-1]) + 1)
    np.maximum.at(passes, of_rank, sends)
    each_ns = np.bincount(way, worked_ns, minlength=len(first)) / np.maximum(cycles, 1)
    sums = np.bincount(of_rank[is_way], (each_ns * passes[of_rank])[is_way], minlength=len(passes))
    known = (passes > 0) & (np.bincount(of_rank[is_way], cycles[is_way] == 0, minlength=len(passes)) == 0)
    return dict(zip(graph.rank[rows[is_first]][known].tolist(), sums[known].tolist(), strict=True))
