"""How urgent a verdict is: one fault on each side of each limit, and that an open verdict only gets worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.irregular.late_rank import Latest
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.verdicts.revision import revision_of
from irregulars.detectors.verdicts.severity import Loss, loss_of, severity_of, worse
from irregulars.detectors.verdicts.tracker import VerdictTracker
from irregulars.messages.judgements import SEVERITIES, Verdict
from irregulars.settings import SeverityLimits
from irregulars.state_codec import encode_state
from tests.detectors.observed_iterations import MS, TOPOLOGY, Step, late, observation
from tests.detectors.verdicts.test_open_verdict import recurring, standing
from tests.stored_states import stored

LIMITS = SeverityLimits()
LARGE = Topology(4096, TOPOLOGY.places, {}, TOPOLOGY.names)


def of_share(share: float, lasted_s: float, world_size: int = 4) -> Loss:
    return Loss("slow_nic", True, 1000, share * lasted_s, lasted_s, world_size)


# Faults that a limit, moved by a quarter, would put elsewhere: one 10 % below it and one 10 % above.
SIDES: dict[str, tuple[Loss, Loss]] = {
    "least_seen": (replace(of_share(0.5, 30.0), seen=2), replace(of_share(0.5, 30.0), seen=3)),
    "least_lost_s": (of_share(0.5, 0.18), of_share(0.5, 0.22)),
    "ticket_gpu_hours": (of_share(0.9 / 4600 * 36, 1000.0, 100), of_share(1.1 / 4600 * 36, 1000.0, 100)),
    "ticket_job_s": (of_share(324 / 4600, 1000.0, 1), of_share(396 / 4600, 1000.0, 1)),
    "page_gpu_hours": (of_share(10.8 / 4600 * 56.25, 1000.0, 64), of_share(13.2 / 4600 * 56.25, 1000.0, 64)),
    "page_share": (of_share(0.045, 1000.0, 1024), of_share(0.055, 1000.0, 1024)),
    "page_after_s": (of_share(0.5, 270.0, 1024), of_share(0.5, 330.0, 1024)),
}


@pytest.mark.parametrize("name", SIDES)
def test_a_fault_near_a_limit_is_less_urgent_below_it(name: str) -> None:
    below, above = (severity_of(loss, LIMITS) for loss in SIDES[name])
    assert (below, above) == (("ticket", "page") if name.startswith("page") else ("note", "ticket"))


@pytest.mark.parametrize("name", SIDES)
def test_a_limit_that_moves_by_a_quarter_moves_one_of_them(name: str) -> None:
    below, above = SIDES[name]
    limit = getattr(LIMITS, name)
    higher, lower = (replace(LIMITS, **{name: limit * factor}) for factor in (1.25, 0.75))
    if name == "least_seen":
        higher, lower = replace(LIMITS, least_seen=limit + 1), replace(LIMITS, least_seen=limit - 1)
    assert severity_of(above, higher) == severity_of(below, LIMITS)
    assert severity_of(below, lower) == severity_of(above, LIMITS)


def test_spikes_and_hangs() -> None:
    # A single spike is a note whatever it cost
    assert severity_of(Loss("slow_rank", True, 1, 30.0, 31.0, 100_000), LIMITS) == "note"
    # A hang is a page whatever it cost so far
    assert severity_of(Loss("hang", True, 1, 0.0, 0.0, 4), LIMITS) == "page"


@pytest.mark.parametrize(("has_suspect", "noise_share", "told"), [
    (False, 0.03, "note"), (False, 0.02, "ticket"), (False, 0.0, "ticket"),
    (True, 0.03, "note"), (True, 0.02, "ticket"),
])  # fmt: skip
def test_what_costs_no_more_than_noise_is_a_note(has_suspect: bool, noise_share: float, told: str) -> None:
    uneven = Loss("imbalance", has_suspect, 100, 500.0, 10_000.0, 1000, noise_share=noise_share)
    assert severity_of(uneven, LIMITS) == told


@pytest.mark.parametrize("change", [{"kind": "slow_stage"}, {"kind": "imbalance"}, {"has_suspect": False}])
def test_plans_and_what_accuses_nobody_wake_nobody(change: dict[str, object]) -> None:
    loss = of_share(0.5, 10_000.0, 10_000)
    assert severity_of(loss, LIMITS) == "page"
    assert severity_of(replace(loss, **change), LIMITS) == "ticket"  # type: ignore[arg-type]


def test_severity_without_a_loss_or_gpus() -> None:
    # What is over loses no more
    loss = of_share(0.3, 20.0, 64)
    assert severity_of(loss, LIMITS) == "ticket"
    assert loss.in_an_hour_gpu_hours == pytest.approx((0.3 * 20 + 0.3 * 3600) * 64 / 3600)
    over = replace(loss, is_over=True)
    assert over.in_an_hour_gpu_hours == pytest.approx(0.3 * 20 * 64 / 3600)
    assert severity_of(over, LIMITS) == "note"
    # Without the number of gpus the time of the job decides and nobody is woken
    assert severity_of(of_share(0.5, 10_000.0, 0), LIMITS) == "ticket"
    assert severity_of(of_share(0.05, 400.0, 0), LIMITS) == "note"
    # What took no time at all is no division by zero
    assert Loss("slow_nic", True, 5, 0.0, 0.0, 4).share == 0.0


@given(
    st.sampled_from(["slow_rank", "slow_nic", "imbalance"]), st.booleans(), st.integers(1, 100),
    st.floats(0, 1e4), st.floats(1e-3, 1e5), st.integers(0, 100_000), st.floats(1, 10),
)  # fmt: skip
def test_who_loses_more_is_never_less_urgent(
    kind: str, has_suspect: bool, seen: int, lost_s: float, regular_s: float, world_size: int, factor: float
) -> None:
    loss = Loss(kind, has_suspect, seen, lost_s, lost_s + regular_s, world_size)
    more = Loss(kind, has_suspect, seen, factor * lost_s, factor * lost_s + regular_s, world_size)
    one, other = severity_of(loss, LIMITS), severity_of(more, LIMITS)
    assert worse(one, other) == other


# --- of verdicts ----------------------------------------------------------------------------------------------------


def test_what_a_loss_is_held_against() -> None:
    # A loss is that of the iterations judged since the first: iterations 4, 6 and 7 took 150 instead of 100 ms, 5 did
    # not.
    loss = loss_of(recurring(), 4)
    assert (loss.kind, loss.has_suspect, loss.seen, loss.world_size) == ("slow_rank", True, 3, 4)
    assert (loss.lost_s, loss.lasted_s) == (pytest.approx(0.15), pytest.approx(0.55))
    # The noise of a mean of four is half of that of one, before it: later the fault's own ups and downs are counted
    assert loss_of(recurring(20 * MS), 4).noise_share == pytest.approx(0.2 / 2 * 400 / 550)
    # A hundred times the usual is beyond noise of five times
    worst = recurring(500 * MS)
    worst.lost_ns = 4 * 99 * 100.0 * MS
    assert severity_of(loss_of(worst, 512), LIMITS) == "ticket"
    # A fault without a healthy past is held against what it would take without
    loss = loss_of(standing(), 4)
    assert loss.share == pytest.approx(50 / 150)


def lived(steps: Sequence[Step], tracker: VerdictTracker, topology: Topology = TOPOLOGY) -> list[Verdict]:
    one_by_one = (tracker.observe(observation(n, step), topology)[0] for n, step in enumerate(steps))
    return [verdict for said in one_by_one for verdict in said]


def told(said: Sequence[Verdict]) -> list[tuple[str, str | None]]:
    return [(one.event, one.severity) for one in said if one.event != "continued"]


def test_severity_while_a_verdict_lives() -> None:
    # A verdict that grows says each raise once
    limits = SeverityLimits(least_lost_s=0.4, page_after_s=3.0)
    said = lived([late(1)] * 40 + [None] * 10, VerdictTracker("j", 1, limits), LARGE)
    assert told(said) == [("opened", "note"), ("raised", "ticket"), ("raised", "page"), ("closed", "page")]
    raised = [one for one in said if one.event == "raised"]
    assert raised[0].lost_s >= 0.4
    assert raised[1].iterations == (0, 20)  # 20 iterations of 150 ms
    assert [one.revision for one in said] == list(range(1, len(said) + 1))
    # It sinks neither while it is open nor when it closes: half of the time is lost at first, and then a hundredth:
    # an alert keeps its label until it is resolved.
    steps: list[Step] = [late(1)] * 8 + ([None] * 9 + [late(1, 10.0)]) * 20 + [None] * 18
    said = lived(steps, VerdictTracker("j", 1))
    assert {one.severity for one in said} == {"ticket"}
    assert said[-1].event == "closed"
    # A blip is opened and closed as a note
    said = lived([late(1, 17.0)] * 4 + [None] * 10, VerdictTracker("j", 1), LARGE)
    assert told(said) == [("opened", "note"), ("closed", "note")]
    # The first slow iterations tell what an hour costs: 64 GPUs lose a third of their time: that is said with the
    # fourth slow transfer, not when an hour is over.
    topology = Topology(64, TOPOLOGY.places, {}, TOPOLOGY.names)
    (opened,) = lived([{Lane("pair", 1, 3): 50.0}] * 4, VerdictTracker("j", 1), topology)
    assert (opened.event, opened.severity) == ("opened", "ticket")


def test_severity_is_published_once() -> None:
    # Another cause and a raise at once are one change
    slow: Step = {Lane("pair", 1, other): 50.0 for other in (0, 2, 3)}
    limits = SeverityLimits(least_lost_s=1.0)
    said = lived([{Lane("pair", 1, 3): 50.0}] * 4 + [slow] * 20, VerdictTracker("j", 1, limits))
    assert told(said)[0] == ("opened", "note")
    assert {one.severity for one in said[-1:]} == {"ticket"}
    assert [SEVERITIES.index(one.severity or "") for one in said] == sorted(
        SEVERITIES.index(one.severity or "") for one in said
    )
    # A snapshot forgets neither what was said nor how long it has lasted
    tracker = VerdictTracker("j", 1)
    lived([late(1)] * 8, tracker)
    again = VerdictTracker.from_state(stored(tracker.state()))
    for one in (tracker, again):
        assert [verdict.severity for verdict in one.close("finished", TOPOLOGY)] == ["ticket"]
    assert encode_state(again.state(), 1) == encode_state(tracker.state(), 1)
    # What would come back is said where it is known
    verdict = recurring()  # iterations of 150 instead of 100 ms
    unknown = revision_of(verdict, "opened", "j", 1, TOPOLOGY)
    assert (unknown.recovers_ratio, unknown.severity) == (None, "note")
    verdict.recovered.append(0.9)
    known = revision_of(verdict, "opened", "j", 1, TOPOLOGY)
    assert known.recovers_ratio == 0.9
    assert known.evidence == f"{unknown.evidence}; without it the iteration would have taken 105 ms"


def test_regular_iterations_between_spikes_lost_nothing() -> None:
    tracker = VerdictTracker("j", 1)
    for number, step in enumerate([late(1), None, None, None, late(1), None]):
        latest = Latest(1, 50e6, 20.0) if step else None
        tracker.observe(replace(observation(number, step), sigmas=9.0, latest=latest), TOPOLOGY)
    (verdict,) = tracker._open
    loss = loss_of(verdict, 4)
    assert (loss.seen, loss.lost_s, loss.lasted_s) == (
        2,
        pytest.approx(0.1),
        pytest.approx(0.7),
    )  # six iterations, two of them 50 ms longer
