"""What people's words on verdicts teach the detectors of a job.

A word comes minutes or days after the iterations that it is about. So of each verdict some rows are kept as its
detectors saw them then; when the word comes, these rows are a lesson:

===========  ===================================================================================================
right        rows of the first suspect's ranks are abnormal, and those of other ranks, innocent ones, are regular
wrong        rows of the first suspect's ranks are regular; of others nothing is said
withdrawn    it is no lesson any more: all others are taught anew, since a model can't unlearn
===========  ===================================================================================================

A verdict that opens when its job has ended, above all on a hang, has no rows and teaches nothing; one that ends then
teaches as its last revision says. Verdicts on NICs, links and switches teach nothing: how long a rank works, which is
what detectors of ranks see, does not show them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from irregulars.dtypes import Flags, Floats
from irregulars.messages.judgements import Verdict

KEPT_VERDICTS: Final = 32
"""Newest verdicts of a job that wait for a word; chosen: a noisy job's of some days."""

KEPT_LESSONS: Final = 32
"""Newest verdicts on which there is one; chosen: at most 3,000 rows, of which `MOST_TAUGHT` are taught."""

MOST_TAUGHT: Final = 240
"""Rows of all lessons together that are taught: one lesson has up to 96, and a model that learns thousands keeps
everybody's alerts waiting. Chosen: at least three rows of each lesson and label."""

_GOLDEN: Final = 0.6180339887498949
"""Multiples of it fall evenly between 0 and 1, however many they are, and in no step with ranks that take turns."""

KEPT_ITERATIONS: Final = 6
"""Of a verdict: the first ones in which it was seen, and as many of the newest; chosen."""

KEPT_RANKS: Final = 4
"""Ranks of suspects in an iteration whose rows are kept, and as many others; chosen."""

MOST_INVOLVED: Final = 64
"""Ranks of all suspects of a verdict; where there are more, nobody is known to be innocent. Chosen: eight hosts."""

_TEACHES: Final = frozenset({"gpu", "host", "stage"})
"""Devices of first suspects that a row of a rank can show."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Rows of one iteration as one detector saw them.

    Parameters
    ----------
    iteration
        The iteration.
    ranks, rows
        Whose they are, and what the detector's ``examples`` gave, a row each.
    columns
        Of which columns, as `detectors.plugins.protocol.columns_of` says: after an upgrade they may be others.
    """

    iteration: int
    ranks: NDArray[np.int64]
    rows: NDArray[np.float32]
    columns: int = 0


Lesson = tuple[Floats, Floats]
"""Rows, and 1.0 (abnormal) or 0.0 (regular) for each."""

GiveExamples = Callable[[Sequence[int], Sequence[int] | None], Mapping[str, Examples]]
"""Gives, by detector, the rows of some ranks, and of those others that stand out most and are not among the second
ones; None: of no others."""


@dataclass(frozen=True, slots=True)
class KeptVerdict:
    """A verdict on which somebody may say a word, or has.

    Parameters
    ----------
    accused
        Ranks of the first suspect, as far as their rows are kept; empty: rows of ranks can't show what it did.
    suspects
        The same of all suspects, the first one's first.
    involved
        Ranks of all suspects; None: more than `MOST_INVOLVED`.
    examples
        By detector.
    is_right
        What was said; None: nothing.
    """

    verdict_id: str
    accused: tuple[int, ...]
    suspects: tuple[int, ...]
    involved: tuple[int, ...] | None = ()
    examples: Mapping[str, tuple[Examples, ...]] = field(default_factory=dict)
    is_right: bool | None = None

    def told(self, verdict: Verdict) -> KeptVerdict:
        """Return it as a newer revision says."""
        first = verdict.suspects[0]
        everybody = tuple(dict.fromkeys(rank for one in verdict.suspects for rank in one.ranks))
        return replace(
            self,
            accused=first.ranks[:KEPT_RANKS] if first.device in _TEACHES else (),
            suspects=everybody[:KEPT_RANKS],
            involved=everybody if len(everybody) <= MOST_INVOLVED else None,
        )

    def seen(self, found: Mapping[str, Examples]) -> KeptVerdict:
        """Return it with the rows of one more iteration."""
        kept = dict(self.examples)
        for name, one in found.items():
            rows = [*kept.get(name, ()), one]
            if len(rows) > 2 * KEPT_ITERATIONS:
                del rows[KEPT_ITERATIONS]
            kept[name] = tuple(rows)
        return replace(self, examples=kept)

    def lesson(self, detector: str, columns: int = 0) -> Lesson:
        """Return rows of some columns, and labels; none where nobody said a word, or a rank's row can't show it."""
        has_word = self.is_right is not None and bool(self.accused)
        parts = [one for one in self.examples.get(detector, ()) if has_word and one.columns == columns]
        if not parts:
            return np.empty((0, 0)), np.empty(0)
        ranks = np.concatenate([one.ranks for one in parts])
        rows = np.concatenate([one.rows for one in parts]).astype(np.float64)
        is_accused: Flags = np.isin(ranks, self.accused)
        is_kept = (is_accused | self._are_innocent(ranks)) if self.is_right else is_accused
        return rows[is_kept], (is_accused[is_kept] & bool(self.is_right)).astype(np.float64)

    def _are_innocent(self, ranks: NDArray[np.int64]) -> Flags:
        """Say of ranks whose rows are kept whether the newest revision clears them: suspects may have grown since."""
        if self.involved is None:
            return np.zeros(len(ranks), np.bool_)
        return np.isin(ranks, self.suspects) | ~np.isin(ranks, self.involved)


@dataclass(frozen=True, slots=True)
class LessonState:
    """What a `LessonBook` keeps; names and meanings are those of its attributes."""

    revision: int
    waiting: tuple[KeptVerdict, ...]
    judged: tuple[KeptVerdict, ...]


class LessonBook:
    """Keeps rows of a job's verdicts, and which of them are lessons; a job keeps it when it restarts.

    Attributes
    ----------
    revision
        How much of what people say was heard.
    """

    def __init__(self, state: LessonState | None = None) -> None:
        state = state or LessonState(0, (), ())
        self.revision = state.revision
        self._waiting = {one.verdict_id: one for one in state.waiting}  # the oldest first
        self._judged = {one.verdict_id: one for one in state.judged}  # in the order in which words came

    def keep(self, told: Sequence[Verdict], seen: Sequence[str], examples: GiveExamples) -> None:
        """Keep rows of an iteration for the verdicts that were seen or told of in it.

        Parameters
        ----------
        told
            Revisions of verdicts that were told in this iteration.
        seen
            Ids of the verdicts whose cause was seen.
        examples
            Gives the rows.
        """
        for verdict in told:
            if verdict.verdict_id not in self._judged and verdict.suspects:
                kept = self._waiting.get(verdict.verdict_id) or KeptVerdict(verdict.verdict_id, (), ())
                self._waiting[verdict.verdict_id] = kept.told(verdict)
        names = dict.fromkeys([*seen, *(one.verdict_id for one in told)])
        known = [self._waiting.get(name) or self._judged.get(name) for name in names]
        self._keep([one for one in known if one is not None], examples)
        _trim(self._waiting, KEPT_VERDICTS)

    def told(self, verdicts: Sequence[Verdict]) -> None:
        """Take in revisions of verdicts that were told without an iteration, for those of which rows are kept."""
        for verdict in verdicts:
            if verdict.verdict_id in self._waiting and verdict.suspects:
                self._waiting[verdict.verdict_id] = self._waiting[verdict.verdict_id].told(verdict)

    def _keep(self, here: Sequence[KeptVerdict], examples: GiveExamples) -> None:
        """Keep rows for those of an iteration's verdicts that wait for a word and can teach."""
        about = [one for one in here if one.verdict_id in self._waiting and one.accused]
        if not about:
            return
        suspects = sorted({rank for one in about for rank in one.suspects})
        is_narrow = all(one.involved is not None for one in here)
        involved = sorted({rank for one in here for rank in one.involved or ()}) if is_narrow else None
        found = examples(suspects, involved)
        for one in about:
            self._waiting[one.verdict_id] = one.seen(_without(found, set(suspects) - set(one.suspects)))

    def hear(self, words: Mapping[str, bool]) -> bool:
        """Take in what people say now; return whether the lessons are others than before.

        Parameters
        ----------
        words
            Whether verdicts were right, by their ids, in the order in which that was said.
        """
        before = [(one.verdict_id, one.is_right) for one in self._judged.values()]
        for name in [name for name in self._judged if name not in words]:
            self._waiting[name] = replace(self._judged.pop(name), is_right=None)
        for name, is_right in words.items():
            kept = self._judged.get(name) or self._waiting.get(name)
            if kept is not None and kept.is_right is not is_right:
                self._judged.pop(name, None)
                self._waiting.pop(name, None)
                self._judged[name] = replace(kept, is_right=is_right)
        _trim(self._waiting, KEPT_VERDICTS)
        _trim(self._judged, KEPT_LESSONS)
        return before != [(one.verdict_id, one.is_right) for one in self._judged.values()]

    def lessons(self, detector: str, columns: int = 0) -> Lesson:
        """Return all that a detector of these columns is to be taught: rows and labels, in the order of the words."""
        found = [one.lesson(detector, columns) for one in self._judged.values()]
        found = [(rows, labels) for rows, labels in found if len(rows)]
        width = found[-1][0].shape[1] if found else 0  # older rows may have others where columns have no names
        return join_lessons([(rows, labels) for rows, labels in found if rows.shape[1] == width])

    def state(self) -> LessonState | None:
        """Everything that a new object needs to go on; None: nothing."""
        if not (self.revision or self._waiting or self._judged):
            return None
        return LessonState(self.revision, tuple(self._waiting.values()), tuple(self._judged.values()))


def join_lessons(found: Sequence[Lesson], most: int = MOST_TAUGHT) -> Lesson:
    """Return lessons one after the other, in at most `most` rows.

    Each label of each lesson gives as many as the others if it has them, and those that have most what is left over.

    >>> old, new = (np.zeros((9, 1)), np.zeros(9)), (np.ones((9, 1)), np.array([1.0] * 8 + [0.0]))
    >>> rows, labels = join_lessons([old, new], most=8)
    >>> [int(((rows[:, 0] == of) & (labels == label)).sum()) for of, label in ((0, 0), (1, 0), (1, 1))]
    [4, 1, 3]
    """
    if not found:
        return np.empty((0, 0)), np.empty(0)
    rows, labels = (np.concatenate([one[part] for one in found]) for part in (0, 1))
    lessons = np.repeat(np.arange(len(found)), [len(one) for one, _ in found])
    keys = lessons * 2 + (labels > 0.5)
    groups = sorted((np.flatnonzero(keys == key) for key in np.unique(keys)), key=len)
    chosen: list[NDArray[np.intp]] = []
    for number, group in enumerate(groups):
        share = max((most - sum(map(len, chosen))) // (len(groups) - number), 0)
        spread = np.argsort(np.arange(len(group)) * _GOLDEN % 1.0, kind="stable")
        chosen.append(group[spread[:share]])
    kept = np.sort(np.concatenate(chosen))
    return rows[kept], labels[kept]


def _without(found: Mapping[str, Examples], ranks: set[int]) -> dict[str, Examples]:
    """Return examples without some ranks: those that another verdict of the same iteration suspects."""
    if not ranks:
        return dict(found)
    kept = {name: ~np.isin(one.ranks, list(ranks)) for name, one in found.items()}
    return {name: replace(one, ranks=one.ranks[kept[name]], rows=one.rows[kept[name]]) for name, one in found.items()}


def _trim(verdicts: dict[str, KeptVerdict], most: int) -> None:
    for name in list(verdicts)[: max(len(verdicts) - most, 0)]:
        del verdicts[name]
