from __future__ import annotations

from irregulars.detectors.verdicts.counted_verdicts import MOST_KEPT, next_ordinal


def test_a_job_of_many_verdicts_keeps_the_newest_counts_alone() -> None:
    ordinals = {f"{first}:spike": 1 for first in range(MOST_KEPT)}
    last = f"{MOST_KEPT - 1}:spike"
    assert next_ordinal(ordinals, last) == 1
    for first in range(MOST_KEPT, MOST_KEPT + 50):
        assert next_ordinal(ordinals, f"{first}:spike") == 0
    assert len(ordinals) == MOST_KEPT
    assert next_ordinal(ordinals, last) == 2  # the verdicts that a new one may meet are the newest
