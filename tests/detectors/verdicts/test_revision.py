"""What one revision of a verdict says."""

from __future__ import annotations

import math

from irregulars.detectors.hang.find_hang import Hang
from irregulars.detectors.job.topology import Device
from irregulars.detectors.verdicts.revision import hang_verdict, revision_of, suspect_of
from irregulars.messages.judgements import Verdict
from tests.detectors.observed_iterations import TOPOLOGY, observation
from tests.detectors.verdicts.test_open_verdict import recurring


def hung(*, is_shared: bool = False, since_ns: int | None = None, until_ns: int | None = None) -> Verdict:
    """The verdict on a hang after an iteration of 100 ms."""
    hang = Hang((2,), 3, 0, 0, since_ns, has_arrived=False, is_shared=is_shared)
    return hang_verdict("v", hang, observation(7), until_ns, "silent", "j", 1, TOPOLOGY)


def test_who_did_not_arrive_is_nearly_certain_and_of_a_hang_inside_all_may_be_victims() -> None:
    assert hung().suspects[0].probability == 0.9
    assert hung(is_shared=True).suspects[0].probability == 0.5


def test_a_hang_lost_the_time_since_the_first_rank_was_stuck_if_that_is_known() -> None:
    known, unknown = hung(since_ns=1_000_000_000, until_ns=3_000_000_000), hung(until_ns=3_000_000_000)
    assert (known.lost_s, known.delta) == (2.0, 21.0)
    assert (unknown.lost_s, math.isnan(unknown.delta)) == (0.0, True)


def test_a_revision_says_what_was_lost_where_and_how_surely() -> None:
    verdict = recurring()  # iterations 4, 6 and 7 took 150 instead of 100 ms
    verdict.mark_published("ticket")
    said = revision_of(verdict, "opened", "j", 1, TOPOLOGY)
    assert (said.revision, said.state, said.event, said.severity) == (1, "open", "opened", "ticket")
    assert (said.iterations, said.delta, said.lost_s, said.communicator) == ((4, 8), 1.5, 0.15, None)
    (suspect,) = said.suspects
    assert (suspect.device, suspect.rank, suspect.host, suspect.nic) == ("gpu", 1, "h1", "eth0")


def test_a_closed_revision_says_why() -> None:
    said = revision_of(recurring(), "closed", "j", 1, TOPOLOGY, "recovered")
    assert (said.state, said.close_reason) == ("closed", "recovered")


def test_no_suspect_is_said_to_be_certain() -> None:
    assert suspect_of(Device("gpu", (1,)), 0.99998, TOPOLOGY).probability == 0.99
    assert suspect_of(Device("gpu", (1,)), 0.91, TOPOLOGY).probability == 0.91


def test_of_ranks_that_log_nothing_it_is_said_so_and_of_many_nobody_is_named() -> None:
    few, many = (
        Hang(ranks, 3, 0, 0, None, has_arrived=False, silent=silent) for ranks, silent in (((2,), 1), ((), 9))
    )
    told = [hang_verdict("v", one, observation(7), None, "silent", "j", 1, TOPOLOGY) for one in (few, many)]
    assert told[0].suspects[0].probability == 0.7
    assert "rank 2 belongs to" in told[0].evidence
    assert "nothing was logged there" in told[0].evidence
    assert told[1].suspects == ()
    assert "9 ranks that belong to" in told[1].evidence
