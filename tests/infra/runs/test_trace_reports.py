"""Who kept others waiting, counted where nothing can be judged."""

from __future__ import annotations

from irregulars.infra.runs.trace_reports import LateRank


def late(last_in: int, waited_s: float, waited_for_all_s: float) -> LateRank:
    return LateRank("dp0", "all_reduce", None, 60, 2, last_in, waited_s, waited_for_all_s, took_s=0.15)


def test_a_rank_tells_that_nearly_all_waiting_was_for_in_most_collectives() -> None:
    assert late(60, 0.7, 0.7).is_telling
    assert late(37, 0.36, 0.37).is_telling  # slow in the second half: by chance it is last in some of the first
    assert not late(9, 0.36, 0.37).is_telling  # one pause
    assert not late(40, 0.2, 0.37).is_telling  # another one is late as well
    assert not late(60, 0.01, 0.01).is_telling  # as much as ends of one collective lie apart
