"""What people say of verdicts teaches the detectors of a job, through both hops: what follows, and nothing before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import pytest

from irregulars.detectors.judging import lessons
from irregulars.detectors.judging.iteration_judge import IterationJudge
from irregulars.detectors.judging.lessons import Examples, LessonBook
from irregulars.detectors.plugins.forest import taught_forest
from irregulars.detectors.plugins.forest.rank_features import FEATURES
from irregulars.detectors.plugins.forest.taught_forest import TaughtForest
from irregulars.detectors.plugins.loading import load_detectors
from irregulars.detectors.plugins.protocol import Against, Frame, Level, Scores
from irregulars.dtypes import Floats
from irregulars.messages.judgements import Suspect, Verdict
from irregulars.messages.opinions import Opinion
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.monitor_settings import MonitorSettings
from tests.stored_states import stored
from tests.streams.eight_ranks import EightRanks
from tests.streams.evidence_rows import came, went
from tests.streams.judged_streams import Message, MonitoredJob, in_order
from tests.streams.lockstep_job import MS

FOREST = "irregulars.detectors.plugins.forest.taught_forest:TaughtForest"
LATE = ((21, 28), (41, 48), (61, 68))
"""Iterations in which rank 2 is late: three verdicts on the same pattern."""
SETTINGS = MonitorSettings(rank_detectors=load_detectors([FOREST])["rank"])


def stream() -> list[Message]:
    made = EightRanks()
    made.late_ns = lambda number, rank: 20 * MS * (rank == 2 and any(a <= number < b for a, b in LATE))
    return in_order(made.trace(72), max_span_s=0.1)


def word(verdict_id: str, is_right: bool | None, time_ns: int = 0, who: str = "ann") -> Opinion:
    return Opinion(verdict_id, "lockstep", "slow_rank", (21, 28), is_right, who, time_ns)


class TaughtJob(MonitoredJob):
    """Both hops of a job; people say something once some iteration was judged.

    Parameters
    ----------
    words
        By iteration: all that was said so far.
    """

    def __init__(
        self, words: Mapping[int, Sequence[Opinion]], settings: MonitorSettings = SETTINGS, **options: Any
    ) -> None:
        super().__init__("lockstep", settings, **options)
        self.words = words

    def advance(self) -> None:
        judged = max((one.iteration for one in self.outcome.iterations), default=0)
        for revision, (since, words) in enumerate(self.words.items(), start=1):
            if judged >= since:
                self._last = tuple(words), revision
        if hasattr(self, "_last"):
            self.monitor.hear(*self._last)
        super().advance()

    def scores(self) -> dict[int, float]:
        """Scores of rank 2 in late iterations, as they are stored."""
        columns = self.outcome.columns("detector_scores")
        rows = zip(*(columns[name] for name in ("iteration", "rank", "detector", "score")), strict=True)
        return {n: score for n, rank, name, score in rows if rank == 2 and name == "taught_forest"}


MESSAGES = stream()


def judged(words: Mapping[int, Sequence[Opinion]], restore_at: Iterable[int] = ()) -> TaughtJob:
    return _judged(tuple((since, tuple(said)) for since, said in words.items()), restore_at)


@lru_cache
def _judged(words: tuple[tuple[int, tuple[Opinion, ...]], ...], restore_at: Iterable[int]) -> TaughtJob:
    job = TaughtJob(dict(words), restore_at=restore_at)
    job.feed(MESSAGES)
    return job


@pytest.fixture(scope="module")
def plain() -> TaughtJob:
    return judged({})


@pytest.fixture(scope="module")
def verdicts(plain: TaughtJob) -> list[str]:
    return [one for one, verdict in plain.outcome.verdicts.items() if verdict.kind == "slow_rank"]


def medians(scores: Mapping[int, float]) -> list[float]:
    return [float(np.median([scores.get(number, 0.0) for number in range(first, past)])) for first, past in LATE]


def test_wrong_makes_the_pattern_usual_and_right_keeps_it_strange(plain: TaughtJob, verdicts: list[str]) -> None:
    assert len(verdicts) == 3
    assert min(medians(plain.scores())) > 1, "strange by the rule"
    wrong = medians(judged({32: [word(verdicts[0], False)]}).scores())
    assert wrong[0] > 1 > max(wrong[1:])
    right = judged({32: [word(verdicts[0], True)]})
    assert min(medians(right.scores())) > 1


def test_a_word_changes_what_follows_and_nothing_before(plain: TaughtJob, verdicts: list[str]) -> None:
    found = judged({32: [word(verdicts[0], False)]})
    before = {number: score for number, score in plain.scores().items() if number <= 32}
    assert {number: score for number, score in found.scores().items() if number <= 32} == before
    assert found.scores() != plain.scores()
    assert [one.verdict_id for one in found.outcome.revisions] == [one.verdict_id for one in plain.outcome.revisions]
    assert [one.suspects for one in found.outcome.revisions] == [one.suspects for one in plain.outcome.revisions]


def test_what_is_withdrawn_was_never_taught(plain: TaughtJob, verdicts: list[str]) -> None:
    first, second = (word(one, False) for one in verdicts[:2])
    taken_back = judged({32: [first], 52: [first, word(verdicts[0], None, 1)]})
    late = {number: score for number, score in plain.scores().items() if number > 58}
    assert {number: score for number, score in taken_back.scores().items() if number > 58} == late
    one = judged({32: [first], 52: [first, second, word(verdicts[0], None, 1)]}).scores()
    other = judged({52: [second]}).scores()
    assert {n: score for n, score in one.items() if n > 58} == {n: score for n, score in other.items() if n > 58}


@pytest.mark.parametrize("restore_at", [range(0, 5000, 131)])
def test_restoring_the_monitors_at_any_moment_changes_nothing(verdicts: list[str], restore_at: Iterable[int]) -> None:
    words = {32: [word(verdicts[0], False)], 52: [word(verdicts[0], True, 1), word(verdicts[1], False, 2)]}
    wanted, found = judged(words), judged(words, restore_at=restore_at)
    assert found.outcome.columns("detector_scores") == wanted.outcome.columns("detector_scores")
    assert found.outcome.revisions == wanted.outcome.revisions


def test_a_job_that_restarts_remembers_what_people_said(verdicts: list[str]) -> None:
    job = judged({70: [word(verdicts[0], False), word(verdicts[1], False)]})
    job.monitor.add([went(rank) for rank in range(8)])
    job.monitor.add([came(rank, attempt=2) for rank in range(2)])
    job.advance()
    (_, detector), *_ = job.monitor._judge._panel._own
    assert detector.detector._labels.tolist() == [0.0] * len(detector.detector._labels) != []


def test_a_restart_makes_no_forest_before_a_row_is_put_to_it(verdicts: list[str]) -> None:
    job = judged({70: [word(verdicts[0], False)]})
    again = JobMonitor.from_state(stored(job.monitor.state()), SETTINGS)
    (_, detector), *_ = again._judge._panel._own
    assert len(detector.detector._labels)
    assert detector.detector._forest is None


def test_without_a_detector_that_is_taught_nothing_is_kept() -> None:
    job = MonitoredJob("lockstep", MonitorSettings(rank_detectors=load_detectors(["peers"])["rank"]))
    job.feed(MESSAGES)
    assert job.outcome.revisions
    assert job.monitor.state().lessons is None


class Moody:
    """A stranger's detector that does not do what it promised."""

    level: ClassVar[Level] = "rank"
    against: ClassVar[Against] = "peers"
    reads: ClassVar[tuple[str, ...]] = ("rank",)

    def __init__(self, fails_at: str = "") -> None:
        self.fails_at = fails_at
        self.taught = 0

    def score(self, frame: Frame) -> Scores:
        return np.full(len(frame["rank"]), float(self.taught))

    def learn(self, frame: Frame) -> None:
        pass

    def examples(self, frame: Frame) -> Floats:
        if self.fails_at == "examples":
            raise RuntimeError("no")
        return np.ones((len(frame["rank"]), 2))

    def teach(self, examples: Floats, labels: Floats) -> None:
        self.taught = len(labels)
        if self.fails_at == "teach" and len(labels):
            raise RuntimeError("no")


@pytest.mark.parametrize("fails_at", ["teach", "examples"])
def test_a_detector_that_raises_at_words_goes_on_untaught_and_so_does_a_restart(
    plain: TaughtJob, verdicts: list[str], fails_at: str
) -> None:
    settings = MonitorSettings(rank_detectors=(partial(Moody, fails_at),))
    job = TaughtJob({32: [word(verdicts[0], False)]}, settings)
    job.feed(MESSAGES)
    assert [one.iteration for one in job.outcome.iterations] == [one.iteration for one in plain.outcome.iterations]
    again = JobMonitor.from_state(stored(job.monitor.state()), settings)
    for monitor in (job.monitor, again) if fails_at == "teach" else (job.monitor,):
        assert monitor.untaught_detectors == {"moody": f"its {fails_at} raised RuntimeError: no"}
        assert [one.taught for _, one in monitor._judge._panel._own] == [0]
    working = JobMonitor.from_state(stored(job.monitor.state()), MonitorSettings(rank_detectors=(Moody,)))
    assert working.untaught_detectors == {}
    assert [one.taught > 0 for _, one in working._judge._panel._own] == [fails_at == "teach"], "a restart tries again"


# --- the book -------------------------------------------------------------------------------------------------------

CPU = Suspect("gpu", 3, (3,), 0.9)


def verdict(name: str, *suspects: Suspect) -> Verdict:
    return Verdict(name, 1, "open", "j", "slow_rank", (0, 5), 1.2, 1.0, None, suspects, "slow")


def rows_of(suspects: Sequence[int], involved: Sequence[int] | None) -> dict[str, Examples]:
    """A row of each suspect, and of those of ranks 8 and 9 that nobody suspects."""
    own = np.array([*suspects, *(rank for rank in (8, 9) if involved is not None and rank not in involved)])
    return {"d": Examples(0, own, own[:, None].astype(np.float32))}


def taught(book: LessonBook) -> dict[float, float]:
    rows, labels = book.lessons("d")
    return dict(zip(rows[:, 0].tolist() if rows.size else [], labels.tolist(), strict=True))


def test_right_accuses_the_first_suspect_and_clears_the_others_and_wrong_clears_it() -> None:
    book = LessonBook()
    book.keep([verdict("v", CPU, Suspect("gpu", 4, (4,), 0.1))], [], rows_of)
    assert taught(book) == {}
    assert book.hear({"v": True})
    assert taught(book) == {3.0: 1.0, 4.0: 0.0, 8.0: 0.0, 9.0: 0.0}
    assert not book.hear({"v": True})
    assert book.hear({"v": False})
    assert taught(book) == {3.0: 0.0}
    assert book.hear({})
    assert taught(book) == {}


def test_who_is_suspected_by_another_verdict_is_no_innocent_one() -> None:
    book = LessonBook()
    book.keep([verdict("v", CPU), verdict("w", Suspect("nic", 8, (8,), 0.9))], [], rows_of)
    book.hear({"v": True})
    assert taught(book) == {3.0: 1.0, 9.0: 0.0}


def test_of_a_large_suspect_some_ranks_are_kept_and_none_of_them_is_innocent() -> None:
    for ranks in (tuple(range(1, 9)), tuple(range(1, 200))):
        book = LessonBook()
        book.keep([verdict("v", Suspect("host", 1, ranks, 0.9))], [], rows_of)
        book.hear({"v": True})
        assert taught(book) == {1.0: 1.0, 2.0: 1.0, 3.0: 1.0, 4.0: 1.0} | ({9.0: 0.0} if len(ranks) < 9 else {})


def test_ranks_that_a_later_revision_accuses_are_no_innocent_ones() -> None:
    for ranks in (tuple(range(2, 10)), tuple(range(2, 200))):
        book = LessonBook()
        book.keep([verdict("v", CPU)], [], rows_of)  # 8 and 9 stand out, and are on nobody's list
        book.keep([verdict("v", Suspect("host", 1, ranks, 0.9))], [], rows_of)
        book.hear({"v": True})
        assert taught(book) == {2.0: 1.0, 3.0: 1.0, 4.0: 1.0, 5.0: 1.0}


def test_a_verdict_that_ends_with_its_job_teaches_as_its_last_revision_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge, book = IterationJudge("j", 1, SETTINGS), LessonBook()
    judge._lessons = book
    book.keep([verdict("v", CPU)], [], rows_of)
    last = [verdict("v", Suspect("gpu", 9, (9,), 0.9)), verdict("hang", CPU)]
    monkeypatch.setattr(judge._tracker, "close", lambda *_: last)
    judge.close("finished", {}, lambda _: [])
    book.hear({"v": True, "hang": True})
    assert taught(book) == {3.0: 0.0, 8.0: 0.0, 9.0: 1.0}


def test_words_on_nics_and_links_and_on_unknown_verdicts_teach_nothing_of_the_accused() -> None:
    book = LessonBook()
    book.keep([verdict("v", Suspect("nic", 3, (3,), 0.9))], [], rows_of)
    for is_right in (False, True):
        book.hear({"v": is_right, "unknown": True})
        assert taught(book) == {}


def test_what_is_kept_is_bounded_and_the_newest_stays() -> None:
    book = LessonBook()
    for number in range(3 * lessons.KEPT_VERDICTS):
        for _ in range(3 * lessons.KEPT_ITERATIONS):
            book.keep([verdict(f"v{number}", CPU)], [f"v{number}"], rows_of)
        if number % 2:
            book.hear({f"v{n}": True for n in range(1, number + 1, 2)})
    state = book.state()
    assert state is not None
    assert lessons.KEPT_VERDICTS - 1 <= len(state.waiting) <= lessons.KEPT_VERDICTS
    assert len(state.judged) == lessons.KEPT_LESSONS
    assert state.judged[-1].verdict_id == f"v{number}"
    assert {len(one.examples["d"]) for one in state.judged} == {2 * lessons.KEPT_ITERATIONS}
    assert stored(LessonBook(stored(state)).state()) is not None


def test_what_is_taught_is_bounded_and_each_verdict_teaches_as_much_as_the_others() -> None:
    book = LessonBook()
    for number in range(lessons.KEPT_LESSONS):
        ranks = tuple(range(100 + 8 * number, 104 + 8 * number))
        for _ in range(2 * lessons.KEPT_ITERATIONS):
            book.keep([verdict(f"v{number}", Suspect("host", number, ranks, 0.9))], [f"v{number}"], rows_of)
        book.hear({f"v{n}": True for n in range(number + 1)})
    rows, labels = book.lessons("d")
    assert len(rows) == len(labels) == lessons.MOST_TAUGHT
    of = np.where(labels > 0.5, (rows[:, 0] - 100) // 8, -1)
    counts = np.unique(of, return_counts=True)[1].tolist()
    assert len(counts) == 1 + lessons.KEPT_LESSONS
    assert set(counts[1:]) <= {3, 4}
    assert len(set(rows[of == 7, 0].tolist())) >= 3, "rows of several ranks"


def two_columns(suspects: Sequence[int], involved: Sequence[int] | None) -> dict[str, Examples]:
    return {"d": Examples(0, np.array(suspects), np.zeros((len(suspects), 2), np.float32))}


def test_a_detector_whose_rows_have_other_columns_now_is_taught_the_new_ones_alone() -> None:
    book = LessonBook()
    book.keep([verdict("v", CPU)], [], two_columns)
    book.keep([verdict("w", CPU)], [], rows_of)
    book.hear({"v": True, "w": True})
    assert book.lessons("d")[0].shape == (3, 1)


def test_lessons_of_a_forest_with_other_columns_are_left_out_and_the_job_goes_on(
    verdicts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = judged({70: [word(verdicts[0], False)]})
    state = stored(job.monitor.state())
    for others in ((*FEATURES, "new"), FEATURES[::-1]):
        monkeypatch.setattr(TaughtForest, "example_names", others)
        monkeypatch.setattr(taught_forest, "FEATURES", others)
        again = JobMonitor.from_state(state, SETTINGS)
        (_, detector), *_ = again._judge._panel._own
        assert (len(detector.detector._labels), again.untaught_detectors) == (0, {})


def test_a_forest_that_is_not_asked_for_costs_no_import() -> None:
    assert TaughtForest()._forest is None
    assert JobMonitor("j", SETTINGS).state().lessons is None
