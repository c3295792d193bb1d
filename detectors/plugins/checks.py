"""The checks that every detector passes, ours and a stranger's: plain functions, fixed seeds, no test framework.

The monitors rely on these promises. A check raises `PluginError` whose text names the promise and, in numbers, the
finding.
"""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np

from irregulars.detectors.plugins.protocol import (
    COLUMNS,
    Detector,
    Frame,
    MakeDetector,
    Scores,
    name_of,
    strange_from,
)
from irregulars.detectors.plugins.sample_frames import blank, columns_match, copy_frame, rename, sample_frame, take
from irregulars.detectors.plugins.stored_state import decode_detector, encode_detector
from irregulars.dtypes import Column
from irregulars.errors import PluginError
from irregulars.messages.evidence import DETECTOR_NAME

WARM_FRAMES: Final = 60  # frames after which a detector must have an opinion


def require(holds: bool, text: str) -> None:
    """Raise `PluginError` with a text unless something holds."""
    if not holds:
        raise PluginError(text)


def scores_of(detector: Detector, frame: Frame) -> Scores:
    """Score a frame; raise `PluginError` unless that gives a usable number for each row."""
    scores: Any = detector.score(frame)
    rows = len(next(iter(frame.values())))
    is_right = isinstance(scores, np.ndarray) and scores.dtype == np.float64 and scores.shape == (rows,)
    found = f"{scores.dtype} of shape {scores.shape}" if isinstance(scores, np.ndarray) else type(scores).__name__
    require(is_right, f"score must give one float64 per row; got {found} for {rows} rows")
    infinite = int(np.isinf(scores).sum())
    require(infinite == 0, f"scores must be finite or NaN; got {infinite} infinite ones of {rows}")
    checked: Scores = scores
    return checked


def frames_for(detector: Detector, count: int, first: int = 0) -> Iterator[dict[str, Column]]:
    """Yield healthy frames of a detector's level."""
    return (sample_frame(detector.level, first + number) for number in range(count))


def warm_detector(make: MakeDetector) -> Detector:
    """Make a detector that has learned enough to have an opinion."""
    detector = make()
    for frame in frames_for(detector, WARM_FRAMES):
        detector.learn(frame)
    return detector


def require_same(first: Detector, second: Detector, when: str) -> None:
    """Raise `PluginError` unless two detectors score alike."""
    for frame in frames_for(first, 5, first=2000):
        require_close(scores_of(first, frame), scores_of(second, frame), when)


def require_close(wanted: Scores, found: Scores, when: str) -> None:
    """Raise `PluginError` unless scores are equal, but for rounding."""
    is_other = ~np.isclose(wanted, found, rtol=1e-6, atol=1e-9, equal_nan=True)
    if is_other.any():
        row = int(np.flatnonzero(is_other)[0])
        require(False, f"scores must stay the same {when}; got {found[row]:.6g} for {wanted[row]:.6g} in row {row}, "
                 f"{int(is_other.sum())} of {len(found)} rows differ")  # fmt: skip


def require_separates(detector: Detector, when: str) -> None:
    """At most one of 100 healthy frames may hold a score as high as the middle one of ten faulty frames."""
    faulty = [highest(detector, sample_frame(detector.level, 3000 + n, is_faulty=True)) for n in range(10)]
    healthy = [highest(detector, frame) for frame in frames_for(detector, 100, first=4000)]
    level = float(np.median(faulty))
    require(np.isfinite(level), f"a row three times as slow must have a score {when}; got {level}")
    loud = sum(score >= level for score in healthy)
    require(loud <= 1, f"healthy frames must score below a row three times as slow ({level:.3g}) {when}; "
             f"got {loud} of {len(healthy)} at or above it, the highest {max(healthy):.3g}")  # fmt: skip


def highest(detector: Detector, frame: Frame) -> float:
    """Return the highest score of a frame; NaN: there is none."""
    scores = scores_of(detector, frame)
    return float(np.max(scores, initial=-np.inf, where=np.isfinite(scores))) if np.isfinite(scores).any() else np.nan


def state_bytes(detector: Detector) -> int:
    """Return how long a detector is, pickled."""
    return len(pickle.dumps(detector))


def time_of(detector: Detector, frame: Frame) -> float:
    """Return how long a frame takes to score and learn, seconds of processor time."""
    started_s = time.thread_time()
    detector.score(frame)
    detector.learn(frame)
    return time.thread_time() - started_s


@contextmanager
def random_state(seed: int) -> Iterator[None]:
    """Set the global random states, which a detector must not use, and put them back."""
    kept, kept_numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(kept)
        np.random.set_state(kept_numpy)


Check = Callable[[MakeDetector], None]

BUDGET_S: Final = 0.05  # most time to score and learn a frame of 1,024 rows, seconds of one core
_KEPT_BYTES: Final = 256 * 1024  # of state that may stay after many sets of names: some thousand classes
_GROWTH_BYTES: Final = 4096  # by which state may grow with iterations beside a tenth: counters get more digits
_MOST_STATE_BYTES: Final = 16 * 1024  # of a state that has seen 48 rows an iteration: what a rank may take
_MOST_LOUD: Final = 5  # healthy frames of 100 that may hold a strange row


def check_detector(make: MakeDetector, *, budget_s: float = BUDGET_S) -> None:
    """Raise `PluginError` unless the detectors that `make` makes keep the promises of `Detector`.

    Takes about half a second for a fast detector. The first promise that does not hold ends the check.

    Parameters
    ----------
    make
        Makes a fresh detector; called about twenty times.
    budget_s
        Most time to score and learn a frame of 1,024 rows, seconds.

    >>> from irregulars.detectors.plugins.peers import PeerDeviation
    >>> check_detector(PeerDeviation)
    """
    checks: dict[str, Check] = {**CHECKS, "time_budget": partial(check_time_budget, budget_s=budget_s)}
    for name, check in checks.items():
        try:
            check(make)
        except PluginError as error:
            raise PluginError(f"{error} (check {name})") from error
        except (Exception, SystemExit) as error:  # a stranger's code: whatever it raises is the finding
            text = str(error).splitlines()[0] if str(error) else "no text"
            raise PluginError(
                f"detector must not raise; got {type(error).__name__}: {text} (check {name})"
            ) from error


def check_declaration(make: MakeDetector) -> None:
    """Level, comparison and columns are declared, and exist; a name is one that a column can have."""
    detector = make()
    for name, allowed in (("level", tuple(COLUMNS)), ("against", ("past", "peers"))):
        found = getattr(detector, name, None)
        require(found in allowed, f"{name} must be one of {', '.join(allowed)}; got {found!r}")
    for name in ("score", "learn"):
        require(callable(getattr(detector, name, None)), f"detector must have a method {name}; got none")
    reads = getattr(detector, "reads", None)
    is_list = isinstance(reads, Sequence) and not isinstance(reads, str) and len(reads) > 0
    require(is_list, f"reads must be a tuple of column names; got {reads!r}")
    name = name_of(detector)
    require(bool(DETECTOR_NAME.fullmatch(name)), f"name must match {DETECTOR_NAME.pattern}; got {name!r}")
    known = COLUMNS[detector.level]
    unknown = [name for name in detector.reads if name not in known]
    require(not unknown, f"reads must be columns of level {detector.level} ({', '.join(known)}); got {unknown}")


def check_one_float64_per_row(make: MakeDetector) -> None:
    """Whatever the number of rows; infinity is no score."""
    detector = make()
    for iteration, rows in enumerate((48, 0, 1, 7, *[48] * WARM_FRAMES, 0, 1, 7)):
        frame = sample_frame(detector.level, iteration, rows)
        scores_of(detector, frame)
        detector.learn(frame)


def check_cold(make: MakeDetector) -> None:
    """A detector that has learned nothing, or next to nothing, answers NaN or a finite number."""
    detector = make()
    for rows in (48, 1, 0):
        frame = sample_frame(detector.level, 0, rows)
        scores_of(make(), frame)
        scores_of(make(), blank(frame, np.arange(rows)))
        detector.learn(frame)
        scores_of(detector, frame)


def check_same_seed_same_scores(make: MakeDetector) -> None:
    """Two detectors made alike agree, whatever the global random state."""
    with random_state(1):
        first = warm_detector(make)
        scores = [scores_of(first, frame) for frame in frames_for(first, 5, first=800)]
    with random_state(2):
        second = warm_detector(make)
        for frame, wanted in zip(frames_for(second, 5, first=800), scores, strict=True):
            require_close(wanted, scores_of(second, frame), "from two detectors made and taught alike")


def check_score_changes_nothing(make: MakeDetector) -> None:
    """Neither later scores of the detector nor the frame."""
    quiet, asked = make(), make()
    for frame in frames_for(quiet, WARM_FRAMES):
        before = copy_frame(frame)
        for _ in range(3):
            scores_of(asked, sample_frame(asked.level, 999, is_faulty=True))
            scores_of(asked, frame)
        quiet.learn(frame)
        asked.learn(frame)
        require(columns_match(frame, before), "score and learn must not write to the frame; a column has changed")
    require_same(quiet, asked, "after another 6 calls of score per frame")


def check_one_nan_never_poisons(make: MakeDetector) -> None:
    """Unknown values, in one row or in all, take no opinion away in later frames."""
    clean, spoiled = warm_detector(make), warm_detector(make)
    for iteration, rows in enumerate((slice(1, 2), slice(None))):
        frame = blank(sample_frame(spoiled.level, 500 + iteration), np.arange(48)[rows])
        scores_of(spoiled, frame)
        spoiled.learn(frame)
    for frame in frames_for(clean, 5, first=600):
        wanted, found = scores_of(clean, frame), scores_of(spoiled, frame)
        lost = int((np.isfinite(wanted) & ~np.isfinite(found)).sum())
        require(lost == 0, f"scores after a frame with NaN must stay finite; got NaN for {lost} of {len(found)} rows")


def check_renaming(make: MakeDetector) -> None:
    """Other numbers for ranks, peers and communicators, or ranks in another order, change no score."""
    plain, renamed = make(), make()
    rng = np.random.default_rng(3)
    for frame in frames_for(plain, WARM_FRAMES):
        # Rows of operators are in the order of their starts, ranks in any.
        order = rng.permutation(48) if plain.level == "rank" else np.arange(48)
        other = rename(take(frame, order), 1000)
        require_close(scores_of(plain, frame)[order], scores_of(renamed, other), "with ranks renamed")
        plain.learn(frame)
        renamed.learn(other)


def check_ranks_come_and_go(make: MakeDetector) -> None:
    """Frames that lack rows, and rows never seen before, are scored; who stays keeps an opinion."""
    detector = warm_detector(make)
    full = sample_frame(detector.level, 700)
    had = np.isfinite(scores_of(detector, full)).sum()
    for iteration in range(5):
        few = take(sample_frame(detector.level, 701 + iteration), np.arange(0, 48, 2))
        scores_of(detector, few)
        detector.learn(few)
        strangers = rename(full, 5000 + iteration)
        scores_of(detector, strangers)
        detector.learn(strangers)
    has = np.isfinite(scores_of(detector, full)).sum()
    require(has >= had, f"rows seen before must keep their scores while others come and go; got {has} of {had}")


def check_no_aliasing(make: MakeDetector) -> None:
    """The detector keeps no reference to a frame it has learned, nor to scores it has given."""
    safe, reused = make(), make()
    for frame in frames_for(safe, WARM_FRAMES):
        safe.learn(frame)
        lent = copy_frame(frame)
        reused.learn(lent)
        scores_of(reused, lent)[:] = 1e9
        for column in lent.values():
            column[:] = 1
    require_same(safe, reused, "after the arrays of learned frames were used for something else")


def check_pickle_round_trip(make: MakeDetector) -> None:
    """A detector that is made of a pickle goes on as the one that was pickled."""
    for original in (make(), warm_detector(make)):
        restored: Detector = pickle.loads(pickle.dumps(original))
        for frame in frames_for(original, 5, first=900):
            original.learn(frame)
            restored.learn(frame)
        require_same(original, restored, "after a pickle round trip")


def check_bounded_state(make: MakeDetector) -> None:
    """State grows neither with the number of iterations nor, for ever, with the names that have been seen."""
    detector = warm_detector(make)
    early = state_bytes(detector)
    for frame in frames_for(detector, 4 * WARM_FRAMES, first=WARM_FRAMES):
        detector.learn(frame)
    late = state_bytes(detector)
    limit = 1.1 * early + _GROWTH_BYTES
    require(late <= limit, f"state must not grow with iterations; got {early} bytes after 60, {late} after 300")
    sizes = []
    for generation in range(300):
        detector.learn(rename(sample_frame(detector.level, generation), 10_000 + 100 * generation))
        sizes.append(state_bytes(detector) if generation in (149, 299) else 0)
    limit = max(1.2 * sizes[149], _KEPT_BYTES)
    require(sizes[299] <= limit, f"state must forget; got {sizes[149]} bytes after 150 sets of names, "
             f"{sizes[299]} after 300")  # fmt: skip


def check_quiet_on_healthy_noise(make: MakeDetector) -> None:
    """Healthy frames hardly ever score as high as a row that takes three times as long."""
    detector = warm_detector(make)
    require_separates(detector, "after 60 healthy frames")


def check_scale(make: MakeDetector) -> None:
    """From ``strange_from`` on, where it is stated, is a row three times as slow, and hardly ever a healthy frame."""
    detector = warm_detector(make)
    if not hasattr(detector, "strange_from"):
        return
    limit = detector.strange_from
    is_right = isinstance(limit, int | float) and bool(np.isfinite(limit)) and limit > 0
    require(is_right, f"strange_from must be a number above 0; got {limit!r}")
    limit = strange_from(detector)
    faulty = [highest(detector, sample_frame(detector.level, 3000 + n, is_faulty=True)) for n in range(10)]
    found = float(np.median(faulty))
    require(found >= limit, f"a row three times as slow must score strange_from = {limit:g} or more; got {found:.3g}")
    loud = sum(highest(detector, frame) >= limit for frame in frames_for(detector, 100, first=4000))
    require(loud <= _MOST_LOUD, f"healthy frames must score below strange_from = {limit:g}; got {loud} of 100 that "
             "do not")  # fmt: skip


def check_recovers_after_a_fault(make: MakeDetector) -> None:
    """A fault of 20 frames that it was made to learn is forgotten within 100 healthy ones."""
    detector = warm_detector(make)
    for iteration in range(20):
        detector.learn(sample_frame(detector.level, 1000 + iteration, is_faulty=True))
    for frame in frames_for(detector, 100, first=1100):
        detector.learn(frame)
    require_separates(detector, "100 healthy frames after a fault of 20")


def check_state(make: MakeDetector) -> None:
    """A detector that hands out a state takes it: a fresh one goes on from it as the one that was stored."""
    parts = [name for name in ("state", "restore") if callable(getattr(make(), name, None))]
    require(len(parts) != 1, f"detector must have state and restore, or neither; got {', '.join(parts)} alone")
    for original in (make(), warm_detector(make)) if parts else ():
        stored = encode_detector(original.state())  # type: ignore[attr-defined]
        require(
            len(stored) <= _MOST_STATE_BYTES,
            f"state of 48 rows must take at most {_MOST_STATE_BYTES} bytes; got more",
        )
        restored = make()
        restored.restore(decode_detector(stored))  # type: ignore[attr-defined]
        for frame in frames_for(original, 5, first=900):
            original.learn(frame)
            restored.learn(frame)
        require_same(original, restored, "after a restart from its state")


def check_explanation(make: MakeDetector) -> None:
    """An explanation is one line of text, and changes nothing."""
    explain: Any = getattr(warm_detector(make), "explain", None)
    if explain is None:
        return
    quiet, asked = warm_detector(make), warm_detector(make)
    frame = sample_frame(asked.level, 999, is_faulty=True)
    before = copy_frame(frame)
    for row in np.flatnonzero(np.isfinite(scores_of(asked, frame))).tolist():
        text = asked.explain(frame, row)  # type: ignore[attr-defined]
        is_line = isinstance(text, str) and "\n" not in text
        require(is_line, f"explanation must be one line of text; got {text!r}")
    require(columns_match(frame, before), "explain must not write to the frame; a column has changed")
    require_same(quiet, asked, "after explanations")


def check_time_budget(make: MakeDetector, budget_s: float = BUDGET_S) -> None:
    """Score and learn 1,024 rows in the budget, of processor time, so that a busy machine does no harm."""
    detector = make()
    frames = [sample_frame(detector.level, iteration, 1024) for iteration in range(5)]
    for frame in frames:
        detector.learn(frame)
    # The quickest of five frames counts, since a busy machine slows single ones.
    took_s = min(time_of(detector, frame) for frame in frames)
    require(took_s <= budget_s, f"1,024 rows must take at most {budget_s * 1e3:g} ms; got {took_s * 1e3:.1f} ms")


_IN_ORDER: Final[tuple[Check, ...]] = (
    check_declaration, check_one_float64_per_row, check_cold, check_same_seed_same_scores,
    check_score_changes_nothing, check_one_nan_never_poisons, check_renaming, check_ranks_come_and_go,
    check_no_aliasing, check_pickle_round_trip, check_bounded_state, check_quiet_on_healthy_noise, check_scale,
    check_recovers_after_a_fault, check_state, check_explanation, check_time_budget,
)  # fmt: skip
CHECKS: Final[Mapping[str, Check]] = {one.__name__.removeprefix("check_"): one for one in _IN_ORDER}
"""All checks by name, in the order in which `check_detector` runs them."""
