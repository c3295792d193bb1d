"""Findings in the numbers of one iteration: ranks that differ from replicas, and losses and norms that jump."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.numerics.agreement import Agreement, compare, count_votes, refine
from irregulars.detectors.numerics.job_trend import JobTrend, TrendState
from irregulars.detectors.numerics.peer_outliers import PeerOutliers, PeerState
from irregulars.detectors.numerics.resolution import decimal_step
from irregulars.detectors.numerics.thresholds import NUMERIC
from irregulars.dtypes import Column, Flags, Floats, Ints
from irregulars.grouping import grouped
from irregulars.messages.ragged import Ragged
from irregulars.messages.records import UNKNOWN
from irregulars.words import name_ranks

MOST_NAMED: Final = 8
"""Ranks of one finding at most: of more that differ nobody could say which one is broken."""

EQUAL: Final = ("parameters_checksum", "grad_norm")
"""Columns that may be equal by nature: of replicas, after a reduction. Rounded losses are so by chance."""

OWN: Final = (
    "local_grad_norm",
    "loss",
    "attention_logit",
)  # columns that show a rank's own work, before any reduction
_OF_GRADIENT: Final = ("local_grad_norm", "not_finite")
_FLOATS: Final = ("loss", "grad_norm", "local_grad_norm", "update_rms", "attention_logit")
_SKIPPED: Final = 5
"""Gradients of all ranks may be infinite in fewer iterations in a row: loss scaling skips such steps by design.
Megatron and DeepSpeed skip two before they halve the scale, and one more for each further halving."""

_KNOWN: Final = 3  # finite values in a row after which a rank has values in a column

_OVER, _BACK = 1 / 2, 1 / 3
"""Shares of a jump, in logarithms, that are left when it is over, and when it is known to be back."""
_LARGEST_SHORT: Final = 65504.0  # of float16
_LARGER: Final = 2.0  # times: beyond what norms of 16 bits are rounded by

_LEAST_OTHERS: Final = 2  # of one other rank alone nobody can tell that it is the rule

_OF_JOB: Final = " of the job"  # ends the sensor of a jump on all ranks, behind its column
_NAMES: Final = {
    "loss": "loss", "grad_norm": "gradient norm", "local_grad_norm": "own gradient norm",
    "attention_logit": "largest attention logit", "update_rms": "update",
}  # fmt: skip
_TRENDS: Final = {"loss": NUMERIC.loss_times} | dict.fromkeys(
    ("grad_norm", "attention_logit", "update_rms"), NUMERIC.norm_times
)
"""Columns whose course over time is followed, with the multiple of the level below which a value is no spike."""
_STEP: Final = ("grad_norm", "update_rms")
"""Columns that show harm an iteration before the loss does: a step that went wrong alters the next loss."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong in an iteration."""

    kind: str  # ``corruption`` or ``loss_spike``
    sensor: str  # by which it was found: ``checksum``, ``audit``, ``grad_norm``, ``loss``, ``local_grad_norm``, ..
    ranks: tuple[int, ...]  # alternatives: one of them; empty: no rank stands out
    text: str
    is_grave: bool = False  # whether the run is wrong from here on: it computes with other parameters, or with NaN
    among: tuple[int, ...] = ()  # ranks of which one is wrong, where that is all that is known
    since: int | None = None  # iteration in which it began; None: this one


@dataclass(slots=True)
class EqualState:
    """Ranks whose values in one column were equal so far."""

    ranks: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # ascending
    sets: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    seen: int = 0  # iterations in which the sets were learned


@dataclass(slots=True)
class KnownState:
    """For how many iterations in a row the values of each rank in one column were finite, while it counts."""

    ranks: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # ascending
    runs: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def admit(self, rank: Ints, values: Floats, is_bad: Flags, least: int) -> Floats:
        """Take in one iteration; return the values, unknown where a bad one is of a rank that had no value before.

        NaN may stand for no value at all: in pipeline stages without a loss, in iterations that are not logged, while
        loss scaling still looks for its scale. `least`: good values in a row after which a rank has values.
        """
        if not np.isin(rank, self.ranks).all():
            every = np.union1d(self.ranks, rank)
            grown = np.zeros(len(every), dtype=np.int64)
            grown[np.searchsorted(every, self.ranks)] = self.runs
            self.ranks, self.runs = every, grown
        at = np.searchsorted(self.ranks, rank)
        runs = self.runs[at]
        is_known = runs >= least
        # A value that is missing neither breaks a run nor adds to it.
        self.runs[at] = np.where(is_known, runs, np.where(is_bad, 0, runs + ~np.isnan(values)))
        return np.where(is_bad & ~is_known, np.nan, values)


@dataclass(slots=True)
class JumpState:
    """A jump of the job's values that is not over: they are not back, and have no new level yet."""

    first: int
    name: str  # of the column that jumped first
    level: float  # from which it jumped
    times: float
    text: str
    is_told: bool  # else it is told if values come back soon: a level that stays is of other data, or another rate
    iterations: int = 0


@dataclass(slots=True)
class FindingsState:
    """The state of `Findings`, by column."""

    equal: dict[str, EqualState] = field(default_factory=dict)
    agreed: set[int] = field(default_factory=set)  # announced sets of which a majority's checksums were equal once
    audits_agreed: bool = False  # whether most ranks agreed in an audit once
    peers: dict[str, PeerState] = field(default_factory=dict)
    trends: dict[str, TrendState] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)  # to multiples of which all values so far were rounded
    unsettled: int = 0  # iterations in which ranks find new places: the job's loss or norm jumped, on other data
    jump: JumpState | None = None
    averaged: int = 0  # newest iterations in a row in which the reduced gradient was not larger than ranks' own
    known: dict[str, KnownState] = field(default_factory=dict)
    infinite: int = 0  # newest iterations in a row in which something was not finite
    # Ranks whose own gradient was not finite in the newest one, that of most others was; with how many in a row
    alone: dict[int, int] = field(default_factory=dict)
    # Ranks whose own gradient was not finite with all losses finite, since a loss last was not
    overflowed: set[int] = field(default_factory=set)


class Findings:
    """Searches the numbers of one iteration after the other.

    All methods take ``columns`` as `messages.evidence.NUMERIC_COLUMNS` names them, one row for each rank, and
    ``rank``, ascending.
    """

    def __init__(self, state: FindingsState | None = None) -> None:
        self.state = state or FindingsState()

    def observe(
        self, rank: Ints, columns: Mapping[str, Column], audits: Ragged | None, replicas: Ints, iteration: int = 0,
        *, is_whole: bool = True,
    ) -> list[Finding]:  # fmt: skip
        """Take in one iteration of training; return its findings, the surest first.

        `replicas`: for each rank, the first rank of its set of replicas, as it was announced; -1: none was.
        `is_whole`: whether these are all ranks of the job.
        """
        columns, given = dict(columns), columns
        for name in (*_FLOATS, "not_finite"):
            if name in columns:
                # One count of zero shows that elements are counted.
                is_count = name == "not_finite"
                is_bad = _is_bad(name, columns)
                known = self.state.known.setdefault(name, KnownState())
                columns[name] = known.admit(rank, columns[name], is_bad, 1 if is_count else _KNOWN)
        is_scaled = self._note_overflows(rank, given, columns)
        corrupt = [*self._apart(rank, columns, replicas), *_by_audits(rank, audits, self.state)]
        corrupt += self._reduced(rank, columns, replicas) if is_whole else ()
        infinite = list(self._not_finite(rank, columns, is_scaled=is_scaled))
        standing_out = list(self._peers(rank, columns))
        # Where a value is not finite that is the finding; the others are not judged for jumps beside it.
        jumps = list(self._jumps(columns, iteration)) if not infinite else []
        # A loss that grows slowly leaves ranks their places: only a jump moves them.
        has_jumped = self.state.jump is not None and self.state.jump.name != "update_rms"
        self.state.unsettled = 2 * IRREGULAR.level_iterations if has_jumped else max(self.state.unsettled - 1, 0)
        # Learned after they were judged, so that a value is held against earlier ones alone.
        for name in _TRENDS:
            self._trend(name).learn(_job_value(columns, name))
        return [*corrupt, *infinite, *standing_out, *jumps[:1]]

    # --- values that must be equal ----------------------------------------------------------------------------------

    def _apart(self, rank: Ints, columns: Mapping[str, Column], replicas: Ints) -> Iterator[Finding]:
        for name in EQUAL:
            if name not in columns:
                continue
            values = columns[name]
            # Infinity is a value, and can differ; NaN is none.
            is_known = values != UNKNOWN if values.dtype.kind == "i" else np.isfinite(values) | np.isinf(values)
            if not is_known.any():
                continue
            sets, is_announced = self._sets(name, rank, values, is_known, replicas)
            is_asked = is_known & (sets >= 0)
            ranks, own = rank[is_asked], sets[is_asked]
            found = compare(own, values[is_asked])
            if name == EQUAL[0] and is_announced:
                # Sets without a majority from the first are no replicas, whatever was announced
                self.state.agreed.update(own[found.is_compared & ~found.is_split].tolist())
                found = found._replace(is_split=found.is_split & np.isin(own, list(self.state.agreed)))
            yield from _differing(name, ranks, own, found, values[is_asked])

    def _sets(self, name: str, rank: Ints, values: Column, is_known: Flags, replicas: Ints) -> tuple[Ints, bool]:
        """Return for each rank the set whose values should be equal, -1 for none; and whether it was announced."""
        if name == EQUAL[0] and (replicas >= 0).any():
            return replicas, True
        own = self.state.equal.setdefault(name, EqualState())
        known = rank[is_known]  # some ranks may have no values ever: stages that see no norm
        if not np.isin(known, own.ranks).all():  # others may be missing in this iteration
            own.ranks, own.sets, own.seen = known, np.zeros(len(known), dtype=np.int64), 0
        sets: Ints = np.full(len(rank), -1)
        if own.seen >= (JOB.repeated if name == EQUAL[0] else NUMERIC.memory // 2):
            is_own = np.isin(rank, own.ranks)
            sets[is_own] = own.sets[np.searchsorted(own.ranks, rank[is_own])]
        # A missing value shows nobody to be equal, so only iterations with all of them split the sets.
        elif len(known) == len(own.ranks) and (values.dtype.kind == "i" or np.isfinite(values[is_known]).all()):
            own.sets, own.seen = refine(own.sets, values[is_known]), own.seen + 1
        return sets, False

    def _reduced(self, rank: Ints, columns: Mapping[str, Column], replicas: Ints) -> Iterator[Finding]:
        """Find averages of all replicas' gradients that are larger than any of these: no average is, but sums are."""
        if not {"grad_norm", "local_grad_norm"} <= columns.keys() or len(np.unique(replicas)) > 1 or replicas[0] < 0:
            return
        own, reduced = columns["local_grad_norm"], columns["grad_norm"]
        most = float(own.max())
        # NaN: missing on some rank. What is beyond float16 may have overflowed in the sum.
        if (
            np.isnan(reduced).any()
            or not 0 < most * len(own) <= _LARGEST_SHORT
            or np.isinf(columns.get("loss", own)).any()
        ):
            return
        course = self._trend(OWN[0])
        usual = course.look(most)
        course.learn(most)
        is_larger = reduced > _LARGER * max(most, usual.expected if usual else 0.0)
        # Own norms fell: they are of one micro-batch of more
        is_broken = reduced.max() > _LARGER * most and not is_larger.any()
        if self.state.averaged < NUMERIC.memory // 2 or is_broken:
            # Else they are summed, or not those that are reduced: a sum of few may be hardly larger than one.
            self.state.averaged = self.state.averaged + 1 if reduced.max() <= (1 + JOB.negligible) * most else 0
        elif is_larger.any():
            named = rank[is_larger].tolist()
            text = (
                f"gradient norm of {name_ranks(named)} is {reduced[is_larger].min():.4g} after the reduction, though "
                f"no rank's own is above {most:.4g}: a wrong value came in between, from a receive buffer or a link"
            )
            is_of_all = len(named) > min(len(rank) - 1, MOST_NAMED)  # then nothing else will show it
            yield Finding("corruption", "grad_norm", () if is_of_all else tuple(named), text, is_of_all)

    # --- values that are not finite ---------------------------------------------------------------------------------

    def _note_overflows(self, rank: Ints, given: Mapping[str, Column], columns: Mapping[str, Column]) -> bool:
        """Take in whose gradients are not finite; return whether those of other ranks were not before.

        Then it is loss scaling, which looks for the largest scale and skips the step: the rank with the largest
        gradient is the first to overflow, and no device is broken. At the start, all ranks may be.

        `given`: as they came; `columns`: without values that may stand for none.
        """
        own = [name for name in _OF_GRADIENT if name in given]
        if not own:
            return False
        is_bad = np.logical_or.reduce([_is_bad(name, given) for name in own])
        is_good = ~is_bad & ~np.isnan(np.stack([given[name] for name in own])).all(axis=0)
        if "loss" in columns and np.isinf(columns["loss"]).any():
            # A step with such a gradient was made, so nothing skips them.
            self.state.overflowed.clear()
        else:
            self.state.overflowed.update(rank[is_bad].tolist())
        return bool(self.state.overflowed) and not self.state.overflowed.isdisjoint(rank[is_good].tolist())

    def _not_finite(self, rank: Ints, columns: Mapping[str, Column], *, is_scaled: bool) -> Iterator[Finding]:
        bad = {name: _is_bad(name, columns) for name in (*_FLOATS, "not_finite") if name in columns}
        before, self.state.alone = self.state.alone, {}
        if not any(one.any() for one in bad.values()):
            # Only iterations in a row count (`_SKIPPED`).
            self.state.infinite = 0
            return
        is_grave = "loss" in bad and bool(bad["loss"].any())
        self.state.infinite += 1
        for name in (*OWN, "not_finite", "grad_norm"):  # the column nearest to one rank's own work names the rank
            count = int(bad[name].sum()) if name in bad else 0
            others = int((~bad[name] & ~np.isnan(columns[name])).sum()) if count else 0
            if count and count <= min(others, MOST_NAMED) and others >= _LEAST_OTHERS:
                named = tuple(rank[bad[name]].tolist())
                if name in _OF_GRADIENT:
                    self.state.alone = alone = {one: before.get(one, 0) + 1 for one in named}
                    if is_scaled and not is_grave:  # a scale's search ends with the rank of the largest gradient
                        named = tuple(one for one in named if alone[one] >= _SKIPPED)
                if not named:
                    continue
                what = _NAMES.get(name, "part of loss and gradients")
                text = f"{what} of {name_ranks(named)} is not finite, that of {others} other ranks is"
                yield Finding("loss_spike", name, named, text, is_grave)
                return
        # No rank stands out: loss scaling skips such steps now and then.
        if not is_grave and self.state.infinite < _SKIPPED:
            return
        where = next(name for name in bad if bad[name].any())
        text = f"{_NAMES.get(where, where)} is not finite on {int(bad[where].sum())} of {len(rank)} ranks"
        yield Finding("loss_spike", where, (), f"{text}: data or optimizer, no rank stands out", is_grave)

    # --- values that stand out --------------------------------------------------------------------------------------

    def _peers(self, rank: Ints, columns: Mapping[str, Column]) -> Iterator[Finding]:
        for name in OWN:
            if name not in columns:
                continue
            watch = PeerOutliers(self.state.peers.setdefault(name, PeerState()))
            found = watch.observe(
                rank, columns[name], is_settled=not self.state.unsettled, step=self._step(name, columns)
            )
            # Ranks with the same bits share a batch, whatever is known of their groups: one of them errs.
            of_rank = dict(zip(rank.tolist(), columns[name].tolist(), strict=True))
            alike = grouped((of_rank[one.rank], one) for one in found)
            for one, *others in list(alike.values())[:MOST_NAMED]:
                ranks = [one.rank, *(other.rank for other in others)]
                what = f"{_NAMES[name]} of {name_ranks(ranks)} is {one.times:.3g} times what its peers' say"
                text = f"{what}, {one.sigmas:.0f} of its usual deviations away"
                yield Finding("loss_spike", name, tuple(ranks) if len(ranks) <= MOST_NAMED else (), text)

    def _jumps(self, columns: Mapping[str, Column], iteration: int) -> Iterator[Finding]:
        for name in ("loss", "attention_logit"):
            trend = self._trend(name)
            # Logits grow while a model learns; beyond the limit softmax saturates, and training diverges soon.
            is_usual = name != "loss" and not math.exp(trend.state.mean) > NUMERIC.logit
            if not is_usual and (growth := trend.growth()) is not None:
                text = (
                    f"{_NAMES[name]} has grown for {trend.state.risen} iterations, to {growth:.3g} times its lowest"
                )
                yield Finding("loss_spike", name, (), f"{text}: data or optimizer, not a device")
        values = {name: _job_value(columns, name) for name in _TRENDS}
        known = {name: self._trend(name).look(value, self._step(name, columns)) for name, value in values.items()}
        far = {name: one for name, one in known.items() if one and one.is_far and one.times > _TRENDS[name]}
        own = self.state.jump
        if far and own is None:
            name, jump = next(iter(far.items()))
            course = f"{values[name]:.4g} where its course says {jump.expected:.4g}"
            text = f"{_NAMES[name]} jumped to {course}, on all ranks alike: data or optimizer, not a device"
            # A step that goes wrong shows an iteration before the loss. With nothing there, it may be other data; of
            # the loss alone nobody knows.
            is_led = any(self._trend(one).state.beyond > 0 for one in ("loss", *_STEP))
            may_stay = not is_led and any(known[one] for one in _STEP) if name == "loss" else name == "update_rms"
            own = JumpState(iteration, name, jump.expected, jump.times, text, is_told=not may_stay)
        if own is None:
            return
        own.iterations += 1
        # The trend counts values, and audited iterations have no loss: it may be behind.
        is_old = own.iterations >= IRREGULAR.min_iterations and own.name not in far
        if not values[own.name] > 0:
            is_gone = own.iterations >= 2 * IRREGULAR.min_iterations  # else it would hide all later jumps
            self.state.jump = None if is_gone else own
            return
        left = math.log(values[own.name] / own.level) / math.log(own.times)  # of the jump
        is_over, was_told = left < _OVER, own.is_told
        # What trains back to its level is not back at once; a loss that goes on growing is of no other data.
        own.is_told |= left < _BACK or (own.name == "loss" and left > 1 + _BACK)
        own.is_told |= "loss" in far and own.name in _STEP
        self.state.jump = None if is_over or is_old else own
        if own.is_told and not (was_told and self.state.jump is None):
            yield Finding("loss_spike", f"{own.name}{_OF_JOB}", (), own.text, since=own.first)

    def _step(self, name: str, columns: Mapping[str, Column]) -> float:
        """Return to multiples of which a column is rounded, as far as its values so far show."""
        step = self.state.steps.get(name, math.inf)
        if step and name in columns:
            step = self.state.steps[name] = min(step, decimal_step(columns[name]))
        return step

    def _trend(self, name: str) -> JobTrend:
        return JobTrend(self.state.trends.setdefault(name, TrendState()))


def _is_bad(name: str, columns: Mapping[str, Column]) -> Flags:
    """Mark the values that are not finite, or count elements that are not; NaN is unknown."""
    is_bad: Flags = np.nan_to_num(columns[name]) > 0 if name == "not_finite" else np.isinf(columns[name])
    return is_bad


def _job_value(columns: Mapping[str, Column], name: str) -> float:
    """Return the value of the job: the median of its ranks'; NaN where none is known."""
    values: Floats = columns.get(name, np.empty(0))
    known = values[np.isfinite(values)]
    with np.errstate(over="ignore"):  # the mean of two huge values is infinite, and says nothing here
        return float(np.median(known)) if len(known) else math.nan


def _differing(name: str, rank: Ints, sets: Ints, found: Agreement, values: Column) -> Iterator[Finding]:
    sensor, is_checksum = ("checksum", True) if name == EQUAL[0] else (name, False)
    what = "parameters" if is_checksum else f"values of {_NAMES[name]} after the reduction"
    count = int(found.is_odd.sum())
    if count > MOST_NAMED:
        text = f"{what} of {count} ranks differ from their replicas'"
        yield Finding("corruption", sensor, (), text, is_checksum)
        return
    # Ranks with one wrong value have it of one of them: a ring hands it on, a norm is summed over their parts.
    alike = dict.fromkeys(zip(sets[found.is_odd].tolist(), values[found.is_odd].tolist(), strict=True))
    for own, value in alike:
        named = rank[found.is_odd & (sets == own) & (values == value)].tolist()
        is_right = (sets == own) & ~found.is_odd
        who, right = name_ranks(named), name_ranks(rank[is_right].tolist())
        if is_checksum:
            text = f"parameters of {who} differ from those of {right}, which agree, as all replicas should"
        else:
            other = float(values[is_right][0])
            text = (
                f"{_NAMES[name]} of {who} is {value:.9g} where {right}, whose values were always equal to it, "
                f"have {other:.9g}"
            )
        yield Finding("corruption", sensor, tuple(named), text, is_checksum)
    if found.is_split.any():
        members = rank[found.is_split].tolist()
        text = f"{what} of {name_ranks(members)} differ, which should be equal; no majority says which are right"
        yield Finding("corruption", sensor, (), text, is_checksum, tuple(members))


def _by_audits(rank: Ints, audits: Ragged | None, state: FindingsState) -> Iterator[Finding]:
    if audits is None or not audits.has_entries:
        return
    vote = count_votes(audits.of_entries(rank), audits["of_rank"], audits["checksum"])
    state.audits_agreed |= vote.has_majority
    if not vote.apart:
        return
    unsteady = vote.unsteady.tolist()
    if len(unsteady) > 1 and (2 * len(unsteady) > vote.voters or len(unsteady) > MOST_NAMED):
        text = f"{len(unsteady)} of {vote.voters} ranks computed the same twice, and not alike"
        yield Finding("corruption", "audit", (), f"{text}: kernels that are not deterministic do so")
        return
    for one in unsteady:
        text = f"rank {one} computed the same twice, and not alike"
        yield Finding("corruption", "audit", (one,), text, is_grave=True)
    if unsteady:
        return
    named = tuple(vote.suspects.tolist())
    if not named or 2 * len(named) >= vote.voters:
        if not state.audits_agreed:  # from the first on: then kernels are not deterministic
            return
        text = f"{vote.voters} ranks computed unlike gradients for the same data; no majority says which are right"
        yield Finding("corruption", "audit", (), text, is_grave=True)
        return
    is_few = len(named) <= MOST_NAMED
    who = name_ranks(named) if is_few else f"{len(named)} ranks"
    others = f"{vote.voters} ranks that did it again"
    text = f"{who} computed other gradients than the others for the same data, of {others}"
    yield Finding("corruption", "audit", named if is_few else (), text, is_grave=True)
