"""Where the reading of a large job's iteration begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from irregulars.detectors.judging.iteration_rows import IterationRows
from irregulars.detectors.judging.operator_reader import _seeds
from irregulars.detectors.judging.usual_operators import UsualOperators
from irregulars.messages.evidence import no_patterns
from tests.streams.evidence_rows import no_entries


def iteration(
    number: int, elapsed_ns: Sequence[int], work_ns: Sequence[float], operators: Sequence[int]
) -> IterationRows:
    count = len(elapsed_ns)
    columns = {
        "rank": np.arange(count),
        "iteration": np.full(count, number),
        "elapsed_ns": np.array(elapsed_ns),
        "work_ns": np.array(work_ns),
        "operators": np.array(operators),
    }
    return IterationRows((), columns, no_entries(count, "offset"), no_entries(count), no_patterns(count))


def seeds(rows: IterationRows, usual: UsualOperators) -> set[int]:
    return _seeds(rows, usual.work_excess_ns(rows), usual.complete_ranks(rows))


USUAL = UsualOperators([iteration(n, [100] * 6, [10.0] * 6, [50] * 6) for n in range(3)], is_whole=False)


def test_ranks_that_are_read_first() -> None:
    # Who took longest and who worked longest over their usual are read first
    assert seeds(iteration(3, [100, 100, 100, 101, 100, 100], [10, 90, 10, 10, 80, 10], [50] * 6), USUAL) == {1, 3, 4}
    # Who lost rows and seems to have worked does not displace who worked: ranks 1 and 4 lost the operators in which
    # they waited for rank 2.
    rows = iteration(3, [100, 100, 100, 101, 100, 100], [10, 90, 85, 10, 95, 12], [50, 49, 50, 50, 49, 50])
    assert 2 in seeds(rows, USUAL)
    assert not {1, 4} & seeds(rows, USUAL)
    # Where all run fewer operators than ever those who worked longest are read
    assert seeds(iteration(3, [101] + [100] * 5, [10, 90, 10, 10, 80, 10], [40] * 6), USUAL) == {0, 1, 4}
