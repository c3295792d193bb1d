"""Where a suspect iteration's time went: what is read, what is carried over, what stays unknown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.irregular.window import Limit
from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.judging.investigation import Circumstances, Finding, Investigator, Level, Source, carry_over
from irregulars.detectors.judging.reading_budget import Need, ReadingBudget
from irregulars.detectors.judging.result_log import JudgementLog
from irregulars.detectors.judging.thresholds import JUDGING
from irregulars.detectors.path.critical_path import Attribution
from tests.detectors.judging.read_job import ReadJob
from tests.present import present
from tests.room_thresholds import moved
from tests.stored_states import stored
from tests.streams.lockstep_job import MS, meeting

USUAL_MS = 12.0


def job(late: dict[int, int]) -> ReadJob:
    """In some iterations one rank is late by 30 ms; for each of these, the rank."""

    def work_ns(number: int, rank: int) -> int:
        return 10 * MS + 30 * MS * (late.get(number) == rank) + (number + rank) % 3 * 5000

    return ReadJob(meeting(4, 30, work_ns, 2 * MS, places={rank: {"host": f"h{rank}"} for rank in range(4)}).trace())


def now(judged: int = 10, *, has_open: bool = False, window: int = 50) -> Circumstances:
    return Circumstances(judged, Level(USUAL_MS * MS, Limit(USUAL_MS * MS, 0.0)), 1.1, window, has_open)


class Case:
    """An investigator that has seen the first regular iterations of a job."""

    def __init__(self, late: dict[int, int], regular: int = 10) -> None:
        self.job = job(late)
        self.log = JudgementLog("j", 1)
        self.investigator = Investigator(self.job.reader, ReadingBudget(50), self.log)
        for rows in self.job.rows[:regular]:
            self.investigator.learn(rows, is_regular=True)

    def find(self, number: int, when: Circumstances | None = None, *, is_worth_reading: bool = True) -> Finding:
        rows = self.job.rows[number]
        read_back = self.job.read_back
        return self.investigator.investigate(rows, when or now(), read_back, is_worth_reading=is_worth_reading)


@pytest.fixture
def large() -> Iterator[None]:
    with moved(JUDGING, "whole_ranks", 3):
        yield


def test_the_operators_of_a_suspect_iteration_say_where_its_time_went() -> None:
    case = Case({20: 2})
    found = case.find(20)
    assert found.source is Source.READ
    assert found.attribution is not None
    assert found.attribution.path_excess_ns[Lane("work", 2)] == pytest.approx(30 * MS, rel=0.01)
    assert found.attribution.excess_ns == pytest.approx(30 * MS, rel=0.01)
    assert found.what_if is not None
    assert set(case.log.drain([]).operators["iteration"]) == {20}


@pytest.mark.parametrize(("regular", "source"), [(2, Source.UNKNOWN), (3, Source.READ)])
def test_three_regular_iterations_show_what_is_usual(regular: int, source: Source) -> None:
    found = Case({20: 2}, regular).find(20)
    assert (found.source, found.attribution is None) == (source, source is Source.UNKNOWN)


def test_iterations_that_show_what_is_usual() -> None:
    # The newest ten regular iterations show what is usual
    case = Case({28: 2}, regular=25)
    case.find(28)
    assert [rows.number for rows in case.investigator.usual_rows] == list(range(15, 25))
    # What was longer when a shift began does not show what is usual
    case = Case({8: 2, 9: 2}, regular=10)
    usual_ns = case.job.rows[7].elapsed_ns
    case.investigator.unlearn(usual_ns + 5 * MS, newest=5)
    assert [rows.number for rows in case.investigator.regular] == list(range(8))
    case.investigator.unlearn(usual_ns - 5 * MS, newest=6)
    assert len(case.investigator.regular) == 8, "too few would be left"


@pytest.mark.parametrize(("has_open", "first"), [(False, 10), (True, 0)])
def test_what_is_usual_is_renewed_after_a_window_unless_a_verdict_is_open(has_open: bool, first: int) -> None:
    case = Case({25: 2})
    case.find(25)
    for rows in case.job.rows[10:20]:
        case.investigator.learn(rows, is_regular=True)
    case.find(25, now(window=10, has_open=has_open))
    assert case.investigator.usual_rows[0].number == 0
    case.investigator.learn(case.job.rows[20], is_regular=False)
    case.find(25, now(window=10, has_open=has_open))
    assert case.investigator.usual_rows[0].number == first


@pytest.mark.usefixtures("large")
class TestLargeJobs:
    def seen(self, case: Case, number: int, *, has_open: bool = True, is_in_verdict: bool = True) -> None:
        found = case.find(number)
        case.investigator.note_seen(found, 30 * MS, has_open=has_open, is_in_verdict=is_in_verdict)

    def test_an_iteration_like_one_of_the_open_verdict_is_not_read(self) -> None:
        case = Case(dict.fromkeys(range(20, 30), 2))
        self.seen(case, 20)
        found = case.find(21, now(11, has_open=True))
        assert found.source is Source.CARRIED
        assert found.attribution is not None
        assert found.attribution.iteration == 21
        assert found.attribution.path_excess_ns[Lane("work", 2)] == pytest.approx(30 * MS, rel=0.05)

    def test_one_in_ten_of_them_is_read(self) -> None:
        case = Case(dict.fromkeys(range(20, 30), 2))
        self.seen(case, 20)
        assert case.find(21, now(19, has_open=True)).source is Source.CARRIED
        assert case.find(21, now(20, has_open=True)).source is Source.READ

    @pytest.mark.parametrize(("has_open", "is_in_verdict"), [(False, True), (True, False)])
    def test_what_no_verdict_explains_explains_nothing(self, has_open: bool, is_in_verdict: bool) -> None:
        case = Case(dict.fromkeys(range(20, 30), 2))
        self.seen(case, 20, has_open=has_open, is_in_verdict=is_in_verdict)
        expected = Source.CARRIED if is_in_verdict and has_open else Source.READ
        assert case.find(21, now(11, has_open=has_open)).source is expected

    def test_another_late_rank_is_not_explained(self) -> None:
        case = Case({20: 2, 21: 1})
        self.seen(case, 20)
        found = case.find(21, now(11, has_open=True))
        assert found.source is Source.READ
        assert Lane("work", 1) in present(found.attribution).path_excess_ns

    def test_an_iteration_that_few_ranks_deliver_is_read_as_a_whole(self) -> None:
        case = Case({20: 2})
        case.job.rows[20] = case.job.rows[20].only([1, 2, 3])
        found = case.find(20)
        assert present(found.attribution).path_excess_ns[Lane("work", 2)] == pytest.approx(30 * MS, rel=0.01)

    def test_beyond_the_budget_only_what_is_worth_it_is_read(self) -> None:
        case = Case({20: 2})
        for judged in range(10):
            case.investigator.budget.note(judged, 10**9, Need.PURSUE)
        assert case.find(20, is_worth_reading=False) == Finding()
        assert case.find(20, is_worth_reading=True).source is Source.READ


LANE, OTHER = Lane("pair", 1, 2), Lane("pair", 3, 4)
READ = Attribution(
    10,
    {Lane("work", 5): 100.0},
    {},
    {LANE: LaneExcess(40.0, 10.0, 1.0, 64.0), OTHER: LaneExcess(-2.0, 10.0, 1.0, 64.0)},
    {5: 100.0, 6: 1.0},
)


def test_the_same_fault_is_carried_over_at_its_own_size() -> None:
    carried = present(carry_over(replace(READ, left_first=((0, 5),)), 100.0, 11, 80.0, {5: 79.0, 6: -3.0}))
    assert carried.iteration == 11
    assert carried.path_excess_ns == pytest.approx({Lane("work", 5): 80.0})
    assert carried.excess_ns == 80.0
    assert carried.left_first == ()
    assert carried.lanes[LANE].excess_ns == pytest.approx(32.0)
    assert carried.lanes[OTHER].excess_ns == -2.0
    assert carried.work_excess_ns == {5: 79.0, 6: -3.0}


@pytest.mark.parametrize(
    ("excess", "work"),
    [(20.0, {5: 20.0}), (300.0, {5: 300.0}), (-5.0, {5: 0.0}), (100.0, {5: 2.0}), (100.0, {5: 100.0, 6: 90.0})],
    ids=["smaller", "larger", "none", "another cause", "one more"],
)
def test_what_looks_different_must_be_read(excess: float, work: dict[int, float]) -> None:
    assert carry_over(READ, 100.0, 11, excess, work) is None


@pytest.mark.parametrize(("excess", "is_like"), [(63.0, True), (57.0, False), (160.0, True), (175.0, False)])
def test_excesses_are_alike_up_to_three_fifths(excess: float, is_like: bool) -> None:
    assert (carry_over(READ, 100.0, 11, excess, {5: excess}) is not None) is is_like


@pytest.mark.parametrize(("own", "is_late"), [(45.0, False), (55.0, True)])
def test_a_rank_is_late_with_half_of_the_excess(own: float, is_late: bool) -> None:
    """Rank 6 was not late in the iteration that was read."""
    assert (carry_over(READ, 100.0, 11, 100.0, {5: 100.0, 6: own}) is None) is is_late


WINDOW = 50
MUCH = 10 * JUDGING.free_operators


def spent(operators: int, *, need: Need = Need.PURSUE, count: int = IRREGULAR.recent) -> ReadingBudget:
    """Budget of which the first iterations have used up so much each."""
    budget = ReadingBudget(WINDOW)
    for judged in range(count):
        budget.note(judged, operators, need)
    return budget


def may_read_suspect(budget: ReadingBudget, judged: int = IRREGULAR.recent, flowed: int = 0) -> bool:
    return budget.may_read(judged, flowed, Need.PURSUE)


def test_suspect_iterations_within_the_budget() -> None:
    # The first six suspect iterations are read whatever they cost
    assert may_read_suspect(spent(MUCH, count=5))
    assert not may_read_suspect(spent(MUCH, count=6))
    # Some suspect iterations are read in each window
    budget = spent(MUCH)
    assert not may_read_suspect(budget, judged=WINDOW)
    assert may_read_suspect(budget, judged=WINDOW + 1)


@pytest.mark.parametrize(("flowed", "is_read"), [(110_000_000, False), (140_000_000, True)])
def test_a_share_of_the_log_is_for_suspect_iterations(flowed: int, is_read: bool) -> None:
    """What they have cost, 0.5 million operators, is 0.4 % of 125 million."""
    budget = spent(500_000 // IRREGULAR.recent + 1)
    assert may_read_suspect(budget, flowed=flowed) == is_read


@pytest.mark.parametrize(("operators", "is_read"), [(450_000, True), (550_000, False)])
def test_half_a_million_operators_are_free(operators: int, is_read: bool) -> None:
    assert may_read_suspect(spent(operators // IRREGULAR.recent)) == is_read


def test_needs_of_reading() -> None:
    # An irregular iteration that no verdict explains is always read
    assert spent(MUCH).may_read(IRREGULAR.recent, 0, Need.EXPLAIN)
    # The cost of irregular iterations leaves suspect ones theirs: transfers that hang now and then must not hide a
    # fault whose delay is small.
    assert may_read_suspect(spent(MUCH, need=Need.EXPLAIN, count=100), judged=100)
    # Of iterations that a verdict explains one in ten is read
    budget = spent(1, count=1)
    assert [judged for judged in range(1, 13) if budget.may_read(judged, 0, Need.CONFIRM)] == [10, 11, 12]
    # Iterations that a verdict explains are read within the budget
    budget = spent(MUCH)
    assert not budget.may_read(IRREGULAR.recent + 10, 0, Need.CONFIRM)
    # A restored budget is what it was
    budget = spent(JUDGING.free_operators)
    restored = ReadingBudget.from_state(stored(budget.state()), WINDOW)
    assert restored.state() == budget.state()
    for judged in (IRREGULAR.recent, WINDOW, WINDOW + 1):
        assert may_read_suspect(restored, judged) == may_read_suspect(budget, judged)
