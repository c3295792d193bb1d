"""Sums of the operators of many iterations by the compiled loop, straight from the messages that hold them.

It does what `reduce_blocks` does, for rows that stand in their messages as they came, in order, without duplicates,
and all of which have ended: so nearly all are. Anything else it leaves to `reduce_blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final, NamedTuple

import numpy as np

from irregulars.compiled import KERNEL
from irregulars.detectors.path.operator_classes import unpack_class
from irregulars.dtypes import Column, Flags, Ints
from irregulars.messages.plain_messages import PlainColumns
from irregulars.messages.ragged import Ragged
from irregulars.streams.rank_hop.rows.message_rows import Cut, shared_codes
from irregulars.streams.rank_hop.rows.operator_reduction import Reduction, rounded_down

_SUMS: Final = np.dtype(
    [(name, np.int64) for name in ("first_start_ns", "last_end_ns", "operators", "offsets", "classes")]
    + [(name, np.float64) for name in ("work_ns", "communication_ns")]
)
_CLASSES: Final = np.dtype([("key", np.int64), ("count", np.int64), ("shortest_ns", np.float64)])


class Blocks(NamedTuple):
    """What is asked of the operators: a block is one iteration of one rank.

    Parameters
    ----------
    counts
        How many blocks each closing has.
    iteration, is_next, free_ns
        Of each block; see `reduce_blocks`.
    """

    counts: Ints
    iteration: Ints
    is_next: Flags
    free_ns: Ints


def sum_blocks(
    blocks: Blocks, cuts: Sequence[Sequence[Cut]], names: Sequence[str], wide: Set[str]
) -> Reduction | Flags:
    """Reduce the operators of some closings, or say which of them `reduce_blocks` has to do.

    Parameters
    ----------
    cuts
        The operators of each closing, as they stand in their messages.
    names
        Communicators: classes name them by their place here.
    wide
        Communicators of whose collectives classes are wanted.

    Returns
    -------
    All but the rows and their gaps, which are left empty.
    """
    assert KERNEL is not None
    sources = list({id(cut[0]): cut[0] for own in cuts for cut in own}.values())
    if not sources:
        return np.ones(len(cuts), dtype=np.bool_)
    places = {id(source): place for place, source in enumerate(sources)}
    columns = [source.columns for source in sources if isinstance(source.columns, PlainColumns)]
    rows = [(places[id(cut[0])], cut[1], cut[2], cut[0].offset) for own in cuts for cut in own]
    codes, begins = shared_codes(sources, names)
    found = KERNEL.reduce(
        [one.value for one in columns],
        [one.places for one in columns],
        begins,
        np.array(rows, np.int64),
        np.stack([np.fromiter(map(len, cuts), np.int64, len(cuts)), blocks.counts], axis=1),
        blocks.iteration,
        blocks.is_next,
        blocks.free_ns,
        codes,
        np.array([name in wide for name in names] or [False]),
    )
    if not isinstance(found, bytes):
        return _reduction(*found)
    is_odd = np.frombuffer(found, np.bool_)
    return is_odd if is_odd.any() else np.ones(len(cuts), dtype=np.bool_)


def _reduction(sums: bytes, offsets: bytes, classes: bytes) -> Reduction:
    of_blocks, of_classes = np.frombuffer(sums, _SUMS), np.frombuffer(classes, _CLASSES)
    communicator, operator, peer = unpack_class(of_classes["key"])
    own: dict[str, Column] = {name: np.ascontiguousarray(of_blocks[name]) for name in _SUMS.names or ()}
    return Reduction(
        rows={},
        gap_ns=np.empty(0),
        first_start_ns=own["first_start_ns"],
        last_end_ns=own["last_end_ns"],
        operators=own["operators"],
        unended=np.zeros(len(of_blocks), dtype=np.int64),
        work_ns=own["work_ns"],
        communication_ns=own["communication_ns"],
        offsets=Ragged(own["offsets"], {"offset": np.frombuffer(offsets, np.int64)}),
        classes=Ragged(
            own["classes"],
            {
                "communicator": communicator,
                "operator": operator,
                "peer": peer,
                "count": np.ascontiguousarray(of_classes["count"]),
                "shortest_ns": rounded_down(of_classes["shortest_ns"]),
            },
        ),
    )
