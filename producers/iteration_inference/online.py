"""Iterations of a running job: inferred while its batches pass, in bounded memory and with bounded delay.

A cadence is the learned rhythm of a job: it predicts where the next iterations end, as long as operators agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from irregulars.dtypes import Column
from irregulars.messages.announcements import Announcement
from irregulars.messages.records import UNKNOWN, Batch, decode_batch, encode_batch
from irregulars.producers.iteration_inference.anchors import Anchor, is_settled, rows_of_rank
from irregulars.producers.iteration_inference.inference import COLUMNS, infer_arranged
from irregulars.producers.iteration_inference.operators import (
    REDUCTIONS,
    TRAINING,
    Operators,
    anchor_kinds,
    arrange_operators,
    split,
    split_kinds,
)

Array = np.ndarray
_REGULAR: Final = 3  # iterations of equal length, the last ones, from which a cadence is learned
_LONGEST: Final = 1 << 20  # numbers that a sequence goes on by in one of them: a cadence has a table of them


@dataclass(frozen=True, slots=True)
class Cadence:
    """A regular stretch on an anchor's communicator."""

    communicator: int  # its code
    # border, number: Sequence of the operator that ended some iteration, and that iteration's number
    border: int
    number: int
    length: int  # collectives of one iteration on the communicator
    # operators, sizes: Of each of them, from the first after a border on; -1 where it is none of training, or varies
    operators: Array
    sizes: Array

    def agrees(self, rows: Operators) -> bool:
        """Whether the operators that a rank ran on the communicator are those that the cadence expects."""
        own = (rows.communicator == self.communicator) & rows.is_collective
        place = (rows.sequence[own] - self.border - 1) % self.length
        operator = np.where(np.isin(rows.operator[own], REDUCTIONS), rows.operator[own], -1)
        size = np.where(operator < 0, -1, _whole(rows.size_bytes[own]))
        wanted = self.sizes[place]
        # A size that is unknown contradicts nothing.
        return bool(((operator == self.operators[place]) & ((size == wanted) | (size < 0) | (wanted < 0))).all())

    def expects_as(self, other: Cadence) -> bool:
        """Whether it expects the same operators as another one, wherever their iterations end."""
        is_same = (self.communicator, self.length) == (other.communicator, other.length)
        return is_same and bool((self.operators == other.operators).all() and (self.sizes == other.sizes).all())

    def numbers(self, rows: Operators, reached: int) -> tuple[Array, int]:
        """Return the iteration of each operator of one rank, in order of start.

        `reached`: newest sequence on the communicator that the rank had started before; -1 if none. Returns the
        iterations, and the newest sequence reached now.
        """
        is_own = (rows.communicator == self.communicator) & rows.is_collective
        sequence = np.where(is_own & (rows.start_ns != UNKNOWN), rows.sequence, -1)
        passed = np.maximum.accumulate(np.append(reached, sequence))
        after = (passed[1:] - self.border) // self.length + 1
        # Rounded up: the operator at the border is the last one of its iteration, and not the first of the next.
        within = -((self.border - rows.sequence) // self.length)
        number = np.where(is_own, within, after) + self.number
        return np.where(is_own | (passed[1:] >= 0), number, UNKNOWN), int(passed[-1])


def learn_cadence(operators: Operators, iteration: Array, anchor: Anchor) -> Cadence | None:
    """Learn the cadence with which an anchor's last iterations came; None if they were not regular.

    `iteration`: of each operator. The last whole one is not learned from: trailing operators may be still to come.
    """
    own = (operators.communicator == anchor.communicator) & operators.is_collective & (iteration != UNKNOWN)
    rows, number = operators.only(own), iteration[own]
    is_whole = number < int(number[rows.sequence == anchor.last_sequence[-1]].max(initial=0))
    rows, number = rows.only(is_whole), number[is_whole]
    last = int(number.max(initial=-1))
    borders = np.array([rows.sequence[number == k].max(initial=-1) for k in range(last - _REGULAR, last + 1)])
    lengths = np.diff(borders)
    if (borders < 0).any() or (lengths != lengths[0]).any() or lengths[0] > _LONGEST:
        return None
    length = int(lengths[0])
    recent = rows.only(rows.sequence > borders[0])
    place = (recent.sequence - borders[0] - 1) % length
    is_reduction = np.isin(recent.operator, REDUCTIONS)
    sizes, size = np.full(length, -1), _whole(recent.size_bytes)
    sizes[place[is_reduction]] = size[is_reduction]
    sizes[place[is_reduction & (sizes[place] != size) & (size >= 0)]] = -1  # varies
    expected = np.full(length, -1)
    expected[place[is_reduction]] = recent.operator[is_reduction]
    return Cadence(anchor.communicator, int(borders[-1]), last, length, expected, sizes)


_PROVEN: Final = 64  # iterations after which a single pause or odd size proves nothing: few jobs have more buckets
_PAUSE: Final = 3.0  # times the usual distance of iterations: a forward pass between buckets, or a pause of the job


def may_be_buckets(operators: Operators, iteration: Array, anchor: Anchor, cadence: Cadence) -> bool:
    """Return whether the supposed iterations may be parts of longer ones, of which too few have passed to show.

    Of fewer than three iterations buckets of gradients are all that repeats. They differ in size, and a forward pass
    lies between those of two iterations.
    """
    own = (operators.communicator == anchor.communicator) & np.isin(operators.operator, REDUCTIONS)
    rows, number = operators.only(own & (iteration != UNKNOWN)), iteration[own & (iteration != UNKNOWN)]
    is_recent = rows.sequence > cadence.border - _REGULAR * cadence.length
    # The first of several buckets' iterations may have others: PyTorch sorts them anew after it.
    is_compared = is_recent if cadence.number >= _PROVEN else is_recent | (number > 0) | (cadence.length == 1)
    is_sized = is_compared & ~np.isnan(rows.size_bytes)
    place, size = (rows.sequence[is_sized] - cadence.border - 1) % cadence.length, rows.size_bytes[is_sized]
    if len(set(zip(place.tolist(), size.tolist(), strict=True))) > len(set(place.tolist())):
        return True
    is_timed = rows.start_ns != UNKNOWN
    first_ns = np.full(int(number.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first_ns, number[is_timed], rows.start_ns[is_timed])
    # The first iteration is often slow: it compiles, and fills caches.
    apart_ns = np.diff(first_ns[first_ns < np.iinfo(np.int64).max])[1:]
    is_new = cadence.number < _PROVEN and len(apart_ns) > 0
    return is_new and bool(apart_ns.max() > _PAUSE * np.median(apart_ns))


def _whole(sizes: Array) -> Array:
    return np.where(np.isnan(sizes), -1, sizes).astype(np.int64)


_LEARNED: Final = 5  # iterations that must be found before rows leave with numbers
_KEPT: Final = 6  # iterations of which rows stay in memory, for the next learning
_GROWTH: Final = 1.25  # times the rows of the last try to learn from which the next one is worth its time
_FEWEST_ROWS: Final = 16
_PATIENT: Final = 0.5  # share of the limits up to which learning waits for all ranks and rarer communicators


@dataclass(frozen=True, slots=True)
class InferenceLimits:
    """Limits on the rows that the inference of a running job holds."""

    rows: int = 200_000  # operators of all ranks kept in memory at most
    delay_s: float = 900.0  # event time for which a batch may be held back until its iterations are known


@dataclass(slots=True)
class InferenceState:
    """State of an `OnlineInference`; where it is stored, batches that wait are in it as their messages."""

    is_counted_apart: bool
    kinds: dict[str, str] = field(default_factory=dict)  # of communicators, by name
    codes: dict[str, int] = field(default_factory=dict)  # of communicators
    ranks: set[int] = field(default_factory=set)  # that were announced as logged
    past: list[dict[str, Column]] = field(default_factory=list)  # released rows, for the next learning
    cadences: dict[int, Cadence] = field(default_factory=dict)  # of each rank
    reached: dict[int, int] = field(default_factory=dict)  # by each rank, its newest sequence on the anchor
    newest: dict[int, int] = field(default_factory=dict)  # iteration given to each rank
    tried_rows: int = 0
    held: tuple[bytes, ...] = ()


class OnlineInference:
    """Numbers the iterations of one attempt of a job, for the ranks whose batches pass here.

    Batches leave as they came, in the order of each rank, with the column ``iteration`` filled: at once while the job
    keeps its cadence, later while it is learned, or was lost because the job changed. Rows older than the limits
    leave without a number.

    The first iteration is 0 where the cadence is learned with the job's first operators. Otherwise the number is that
    of the anchor's collectives so far divided by those of an iteration: numbers given before go on.

    `is_counted_apart`: whether sequences count operators of each kind apart
    (`producers.iteration_inference.operators`).
    """

    def __init__(self, limits: InferenceLimits | None = None, *, is_counted_apart: bool = False) -> None:
        self.limits: Final = limits or InferenceLimits()
        self._own = InferenceState(is_counted_apart)
        self._held: list[Batch] = []

    @property
    def is_counted_apart(self) -> bool:
        """Whether sequences count operators of each kind apart."""
        return self._own.is_counted_apart

    @property
    def held(self) -> tuple[Batch, ...]:
        """Batches that wait for their iterations, as they came."""
        return tuple(self._held)

    @property
    def held_rows(self) -> int:
        """Rows that wait for their iteration."""
        return sum(map(len, self._held))

    @property
    def kept_rows(self) -> int:
        """Number of rows in memory, including those that were passed on."""
        return self.held_rows + sum(len(part["rank"]) for part in self._own.past)

    def announce(self, announcement: Announcement) -> None:
        """Add a rank's communicators: by their kind one of them marks iterations."""
        self._own.kinds.update(anchor_kinds(announcement))
        if announcement.is_logged:
            self._own.ranks.add(announcement.rank)

    def push(self, batch: Batch, *, may_learn: bool = True) -> list[Batch]:
        """Add a batch of ``commops``; return the batches whose iterations are known by it, in order.

        Batches of a rank must come in the order in which they were made, each once. Learning takes up to a second per
        20,000 rows where nothing repeats: with `may_learn` false it is put off.
        """
        rank = batch.header.rank
        cadence = None if self._held else self._own.cadences.get(rank)
        if cadence is not None:
            columns = self._columns(batch)
            rows, place = arrange_operators(columns)
            if cadence.agrees(rows):
                number, self._own.reached[rank] = cadence.numbers(rows, self._own.reached.get(rank, -1))
                return [self._leave(batch, number[place], columns)]
        self._held.append(batch)
        # Which share of the limits the held rows use
        share = 2 * self.held_rows / self.limits.rows
        times = [batch.header.watermark_ns for batch in (self._held[0], self._held[-1])]
        if times[0] is not None and times[1] is not None:
            share = max(share, (times[1] - times[0]) / (self.limits.delay_s * 1e9))
        if share < 1:
            # A try costs time for each row: wait until there are clearly more rows than at the last one.
            has_more = self.kept_rows >= max(_FEWEST_ROWS, _GROWTH * self._own.tried_rows)
            return self._learn(is_hasty=share > _PATIENT) if may_learn and has_more else []
        # At the limit rows must leave, by whatever anchors there are by now, or else without numbers.
        learned = self._learn(is_hasty=True) if may_learn else []
        if learned:
            return learned
        left = self._give_up()  # these rows repeat nothing: learn from later ones alone
        self._own.past.clear()
        return left

    def skip_rows(self, rank: int) -> None:
        """Expect a gap in the rows of a rank: its iteration is unknown until its next anchor."""
        self._own.reached.pop(rank, None)

    def withdraw(self) -> list[Batch]:
        """Return all that is held as it came, without learning from it."""
        held, self._held = self._held, []
        return held

    def forget_rows(self) -> None:
        """Forget the rows that were passed on; the cadence learned from them stays."""
        self._own.past.clear()

    def flush(self, *, may_learn: bool = True) -> list[Batch]:
        """Return all that is held: the job has ended, or pauses."""
        released = self._learn(is_hasty=True) if self._held and may_learn else []
        return [*released, *self._give_up()]

    def _leave(self, batch: Batch, iteration: Array, columns: dict[str, Array] | None = None) -> Batch:
        rank = batch.header.rank
        self._own.newest[rank] = max(self._own.newest.get(rank, -1), int(iteration.max(initial=-1)))
        numbered = Batch(batch.header, {**batch.columns, "iteration": iteration})
        self._own.past.append({**(columns or self._columns(batch)), "iteration": iteration})
        # Of the rows that were passed on, keep those of the newest iterations, within the limit.
        room = self.limits.rows // 2
        oldest = min(self._own.newest.values()) - _KEPT if self._own.cadences else UNKNOWN
        rows = sum(len(part["rank"]) for part in self._own.past)
        while self._own.past and (rows > room or int(self._own.past[0]["iteration"].max()) < oldest):
            rows -= len(self._own.past.pop(0)["rank"])
        return numbered

    # --- while it is learned ----------------------------------------------------------------------------------------

    def _give_up(self) -> list[Batch]:
        held, self._held = self._held, []
        self._own.cadences, self._own.reached, self._own.tried_rows = {}, {}, 0
        return [self._leave(batch, batch.columns["iteration"]) for batch in held]

    def _learn(self, *, is_hasty: bool) -> list[Batch]:
        """Infer iterations over all rows in memory; pass the held ones on if they end regularly.

        Without haste it waits until all ranks were heard, and for communicators that are used less: those of a
        pipeline's stage repeat themselves many times before the first iteration has ended.
        """
        self._own.tried_rows = self.kept_rows
        seen = {b.header.rank for b in self._held} | {int(part["rank"][0]) for part in self._own.past}
        if not is_hasty and not self._own.ranks.issubset(seen):
            return []
        parts = [*self._own.past, *map(self._columns, self._held)]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}
        operators, place = arrange_operators(columns)
        kinds = [self._own.kinds.get(name, "unknown") for name in self._own.codes]
        kinds = split_kinds(kinds) if self.is_counted_apart else kinds
        iteration, anchors = infer_arranged(operators, kinds)
        if not anchors or len(anchors[0].last_sequence) < _LEARNED:
            return []
        if not is_hasty and not is_settled(operators, kinds, anchors):
            return []
        cadences = [one for anchor in anchors if (one := learn_cadence(operators, iteration, anchor)) is not None]
        if len(cadences) < len(anchors):
            return []
        unproven = [one for one in zip(anchors, cadences, strict=True) if not self._returns(*one)]
        if not is_hasty and any(may_be_buckets(operators, iteration, *one) for one in unproven):
            return []
        given = np.concatenate([part["iteration"] for part in self._own.past] or [np.empty(0, dtype=np.int64)])
        shift = self._shift(operators, iteration, place, given, cadences[0])
        self._own.cadences = {}
        for anchor, cadence in zip(anchors, cadences, strict=True):
            moved = replace(cadence, number=cadence.number + shift)
            self._own.cadences.update((rank, moved) for rank in anchor.ranks.tolist())
        iteration = np.where(iteration == UNKNOWN, UNKNOWN, iteration + shift)
        return self._release_learned(operators, iteration, place[len(given) :])

    def _returns(self, anchor: Anchor, cadence: Cadence) -> bool:
        """Return whether a cadence is the one that was lost, as behind an evaluation: its iterations are whole ones.

        Where the lost one held for fewer operators than a job may have buckets, a bucket may have been its iteration.
        """
        lost = self._own.cadences.get(int(anchor.ranks[0]))
        if lost is None or not cadence.expects_as(lost):
            return False
        # The rank whose rows disagreed. They may be of the evaluation behind which the cadence was learned, from the
        # rows of another rank: rows older than the cadence prove nothing against it.
        newest = self._own.newest.get(self._held[0].header.rank, -1)
        return newest <= lost.number or (newest - lost.number) * lost.length >= _PROVEN

    def _shift(self, operators: Operators, iteration: Array, place: Array, given: Array, cadence: Cadence) -> int:
        """Return the shift with which new numbers continue those given before."""
        own = iteration[place][: len(given)]
        is_both = (own != UNKNOWN) & (given != UNKNOWN)
        if is_both.any():
            shifts, counts = np.unique(given[is_both] - own[is_both], return_counts=True)
            return int(shifts[counts.argmax()])
        newest = max(self._own.newest.values(), default=-1)
        if newest >= 0:
            return newest + 1
        # Some sequences begin at 0 and some at 1: the job's first operators are here.
        if int(operators.sequence.min()) <= 1:
            return 0
        return cadence.border // cadence.length - cadence.number

    def _release_learned(self, operators: Operators, iteration: Array, place: Array) -> list[Batch]:
        for rank, cadence in self._own.cadences.items():
            rows = rows_of_rank(operators, rank)
            by_cadence, self._own.reached[rank] = cadence.numbers(rows, -1)
            # The newest iteration is not whole: its unusual operators were left out as if the job had ended.
            own = iteration[operators.rank == rank]
            is_newest = (own == UNKNOWN) & (by_cadence > cadence.number) & np.isin(rows.operator, TRAINING)
            iteration[operators.rank == rank] = np.where(is_newest, by_cadence, own)
        numbers = iteration[place]
        held, self._held, self._own.tried_rows = self._held, [], 0
        released, first = [], 0
        for batch in held:
            released.append(self._leave(batch, numbers[first : first + len(batch)]))
            first += len(batch)
        return released

    # --- columns ----------------------------------------------------------------------------------------------------

    def _columns(self, batch: Batch) -> dict[str, Array]:
        names = [self._own.codes.setdefault(name, len(self._own.codes)) for name in batch.header.names]
        columns = {name: batch.columns[name] for name in COLUMNS if name != "rank"}
        columns["communicator"] = np.array(names, dtype=np.int64)[batch.columns["communicator"]]
        columns["rank"] = np.full(len(batch), batch.header.rank, dtype=np.int64)
        return split(columns) if self.is_counted_apart else columns

    # --- snapshots --------------------------------------------------------------------------------------------------

    def state(self, *, is_brief: bool = False) -> InferenceState:
        """Return everything that `from_state` needs; it is to be stored before rows are taken in again.

        Brief, it is some kilobytes, and holds no rows: those that wait are lost, and the numbers still go on.
        """
        if is_brief:
            return replace(self._own, past=[])
        return replace(self._own, held=tuple(map(encode_batch, self._held)))

    @classmethod
    def from_state(cls, state: InferenceState, limits: InferenceLimits | None = None) -> OnlineInference:
        """Return the inference that gave a state."""
        inference = cls(limits, is_counted_apart=state.is_counted_apart)
        inference._own = replace(state, held=())
        inference._held = [decode_batch(value, "commops") for value in state.held]
        return inference
