"""Many ranks reduced at once give what each alone gives."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.plugins.baseline import RobustBaseline
from irregulars.detectors.plugins.sample_frames import sample_frame
from irregulars.messages.evidence import (
    CLASS_COLUMNS,
    COLUMNS,
    Evidence,
    Membership,
    concatenate,
    decode_evidence,
    encode_evidence,
)
from irregulars.messages.records import PHASE_UNKNOWN, RECV, UNKNOWN
from irregulars.streams.rank_hop.evidence_reduction import Closing, reduce_closings
from irregulars.streams.rank_hop.message_rows import Cut, MessageRows
from irregulars.streams.rank_hop.operator_reduction import OPERATOR_COLUMNS
from irregulars.streams.rank_hop.taught_detectors import TaughtDetectors, UsualTime
from tests.stored_states import stored

FLOATS = ("elapsed_ns", "size_bytes")


@st.composite
def any_closing(draw: st.DrawFn, rank: int) -> Closing:
    numbers = sorted(draw(st.sets(st.integers(0, 4), min_size=1)))
    rows = [
        {
            "communicator": draw(st.integers(0, 1)),
            "operator": draw(st.sampled_from([0, 1, RECV])),
            "sequence": at,
            "peer": UNKNOWN,
            "start_ns": draw(st.just(UNKNOWN) | st.integers(0, 20)),
            "elapsed_ns": draw(st.just(np.nan) | st.integers(0, 9)),
            "size_bytes": 8.0,
            "iteration": draw(st.sampled_from(numbers)),
            "offset": draw(st.integers(0, 3)),
        }
        for at in range(draw(st.integers(0, 8)))
    ]
    columns = {name: np.array([row[name] for row in rows], dtype=dtype_of(name)) for name in OPERATOR_COLUMNS}
    return closing(rank, numbers, columns, free_ns=draw(st.just(UNKNOWN) | st.integers(0, 5)))


def dtype_of(name: str) -> Any:
    return np.float64 if name in FLOATS else np.int64


def closing(rank: int, numbers: list[int], rows: dict[str, np.ndarray], **changes: Any) -> Closing:
    size = len(numbers)
    free_ns = [changes.pop("free_ns", UNKNOWN), *[UNKNOWN] * (size - 1)]
    values: dict[str, Any] = {
        "attempt": 1, "rank": rank, "partition": 2, "wide": frozenset({"all"}),
        "numbers": numbers, "cuts": [cut_of(rows, (f"own {rank}", "all"))], "free_ns": free_ns, "entry_ns": UNKNOWN,
        "start_ns": [UNKNOWN] * size, "elapsed_ns": [UNKNOWN] * size,
        "phase": [PHASE_UNKNOWN] * size, "tokens": [np.nan] * size,
        "numerics": [None] * size, "audits": [()] * size, "pauses": [()] * size, "late_rows": rank,
        "lost_rows": 0,
    }  # fmt: skip
    return Closing(**values | changes)


def cut_of(rows: dict[str, np.ndarray], names: tuple[str, ...]) -> Cut:
    """All rows of a message, of which each says its own offset."""
    return Cut(MessageRows(rows, names, None), 0, len(rows["offset"]))


def joined(rows: list[Evidence | Membership]) -> Evidence:
    return concatenate([row for row in rows if isinstance(row, Evidence)])


@given(closings=st.tuples(*(any_closing(rank) for rank in range(4))))
def test_ranks_reduced_together_are_the_same_as_apart(closings: tuple[Closing, ...]) -> None:
    together = joined(reduce_closings("j", closings))
    apart = joined([row for one in closings for row in reduce_closings("j", [one])])
    for name in COLUMNS:
        np.testing.assert_array_equal(together.columns[name], apart.columns[name], err_msg=name)
    assert together.names == apart.names
    assert sorted(classes(together)) == sorted(classes(apart))
    np.testing.assert_array_equal(together.classes.counts, apart.classes.counts)
    assert list(together.offsets.lists("offset")) == list(apart.offsets.lists("offset"))


def classes(evidence: Evidence) -> list[tuple[Any, ...]]:
    owner = evidence.classes.of_entries(np.arange(len(evidence))).tolist()
    columns = [np.nan_to_num(evidence.classes[name], nan=-1.0).tolist() for name in CLASS_COLUMNS]
    return list(zip(owner, *columns, strict=True))


def rows_of(*numbers: int, elapsed: float = 5.0) -> dict[str, np.ndarray]:
    size = len(numbers)
    values: dict[str, Any] = {
        "communicator": 0, "operator": 0, "sequence": np.arange(size), "peer": UNKNOWN,
        "start_ns": np.arange(size) * 10, "elapsed_ns": elapsed + np.arange(size) % 3, "size_bytes": 8.0,
        "iteration": numbers, "offset": 0,
    }  # fmt: skip
    return {name: np.broadcast_to(np.array(values[name], dtype=dtype_of(name)), size) for name in OPERATOR_COLUMNS}


def test_classes_are_kept_of_recvs_and_of_collectives_of_many() -> None:
    rows = {**rows_of(0, 0, 0), "communicator": np.array([0, 1, 0]), "operator": np.array([0, 0, RECV])}
    found = joined(reduce_closings("j", [closing(0, [0], {**rows, "peer": np.array([UNKNOWN, UNKNOWN, 3])})]))
    assert sorted(zip(found.classes["communicator"].tolist(), found.classes["peer"].tolist(), strict=True)) == [
        (0, 3),
        (1, -1),
    ]


def test_classes_are_kept_of_what_one_rank_of_several_announced_as_wide() -> None:
    """The ranks of a bundle share its names, and each announces its own communicators."""
    source = MessageRows(rows_of(0, 0), ("many",), None)
    wide = (frozenset({"many"}), frozenset[str]())
    closings = [
        closing(n, [0], {"offset": np.empty(0)}, cuts=[Cut(source, n, n + 1)], wide=wide[n]) for n in range(2)
    ]
    assert joined(reduce_closings("j", closings)).classes.counts.tolist() == [1, 1]


def test_arrivals_come_before_evidence_and_departures_after_it() -> None:
    went = Membership("j", 1, 0, reason="finished")
    rows = reduce_closings("j", [closing(0, [0], rows_of(0)), went, closing(1, [0], rows_of(0))])
    assert [type(row) for row in rows] == [Evidence, Membership]
    assert joined(rows).columns["rank"].tolist() == [0, 1]


def test_a_rank_that_ended_and_began_again_keeps_its_order() -> None:
    first, second = closing(0, [0], rows_of(0)), closing(0, [0], rows_of(0), attempt=2)
    went, came = Membership("j", 1, 0, reason="restarted"), Membership("j", 2, 0)
    rows = reduce_closings("j", [first, went, came, second])
    assert [type(row) for row in rows] == [Evidence, Membership, Membership, Evidence]
    assert rows[1:3] == [went, came]


def test_no_border_of_a_drain_shows_in_the_scores() -> None:
    numbers = list(range(12))
    rows = rows_of(*[number for number in numbers for _ in range(20)])
    together = joined(reduce_closings("j", [closing(0, numbers, rows, detectors=taught())]))
    detectors = taught()
    apart = [
        closing(0, [n], {name: column[rows["iteration"] == n] for name, column in rows.items()}, detectors=detectors)
        for n in numbers
    ]
    one_by_one = joined([row for one in apart for row in reduce_closings("j", [one])])
    assert np.isfinite(together.columns["score"]).any()
    for name in ("score", "score:robust_baseline"):
        np.testing.assert_array_equal(together.columns[name], one_by_one.columns[name])


def taught() -> TaughtDetectors:
    return TaughtDetectors([RobustBaseline], 1.1, 50)


class Unbounded:
    """A detector whose scores are no numbers that the second hop takes, but for the last."""

    level, against, reads = "operator", "past", ("elapsed_ns",)

    def score(self, frame: dict[str, np.ndarray]) -> np.ndarray:
        return np.resize([np.inf, -np.inf, 1e300, 2.0], len(frame["elapsed_ns"]))

    def learn(self, frame: dict[str, np.ndarray]) -> None: ...


def test_infinity_is_no_score_and_costs_no_other_rank_its_evidence() -> None:
    """The second hop refuses a message with an infinite score, and so the rows of all ranks drained with it."""
    given = [
        closing(rank, [0], rows_of(0, 0, 0, 0), detectors=TaughtDetectors(own, 1.1, 50))
        for rank, own in enumerate(([Unbounded], [RobustBaseline]))
    ]
    (message,) = encode_evidence(reduce_closings("j", given), "j")
    (found,) = decode_evidence(message)
    assert isinstance(found, Evidence)
    assert found.columns["score"].tolist()[0] == found.columns["score:unbounded"].tolist()[0] == 2.0


def taught_by(elapsed_ms: list[float]) -> list[bool]:
    """Say of each iteration of a rank whether it is learned."""
    usual, learned = UsualTime(), []
    for one in elapsed_ms:
        learned.append(usual.is_usual(one, 1.1, 50))
        usual = usual.next(one, 1.1, 50)
    return learned


def test_iterations_above_delta_times_the_mean_are_not_learned() -> None:
    assert taught_by([100.0] * 20 + [120.0] * 15 + [105.0]) == [True] * 20 + [False] * 15 + [True]


def test_a_long_first_iteration_does_not_make_the_mean() -> None:
    assert taught_by([3000.0] + [100.0] * 20 + [120.0])[-1] is False


def test_what_stays_long_is_usual_in_the_end() -> None:
    learned = taught_by([100.0] * 20 + [200.0] * 120)
    assert not any(learned[20:120])
    assert all(learned[120:])


def test_a_fault_is_not_taught_and_a_restart_forgets_nothing() -> None:
    whole, broken = (TaughtDetectors([RobustBaseline], 1.1, 50) for _ in range(2))
    for iteration in range(80):
        is_faulty = iteration >= 40
        frame = sample_frame("operator", iteration, is_faulty=is_faulty)
        elapsed_ns = 3_000_000 if is_faulty else 1_000_000
        found = whole.take(frame, elapsed_ns)
        assert broken.take(frame, elapsed_ns) == found or np.isnan(found["score"])
        state = stored(broken.state())
        broken = TaughtDetectors([RobustBaseline], 1.1, 50)
        broken.restore(state)
    assert found["score:robust_baseline"] == found["score"] > 20  # after forty of them it is as strange as the first
