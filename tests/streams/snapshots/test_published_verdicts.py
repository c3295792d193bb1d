"""Each revision is sent once, and an incident that people know opens once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from irregulars.messages.judgements import JudgedIteration, Judgements, Suspect, Verdict
from irregulars.state_codec import decode_state, encode_state
from irregulars.streams.snapshots.published_verdicts import (
    ALERTS,
    MOST_ENDED,
    VERDICTS,
    PublishedVerdicts,
    Told,
    begun_anew,
    ends_of,
)

ID, OTHER = "j:0:60:0", "j:0:62:0"


def verdict(number: int, verdict_id: str = ID, rank: int = 1, **values: object) -> Verdict:
    """Revision `number` of a verdict that began in iteration 60, and has seen an iteration more each time."""
    suspect = Suspect("gpu", rank, (rank,), 0.9)
    made = Verdict(
        verdict_id, number, "open", "j", "slow_rank", (60, 61 + number), 1.2, 0.1, None, (suspect,), "",
        event="opened" if number == 1 else "continued",
    )  # fmt: skip
    return replace(made, **values)  # type: ignore[arg-type]


def closed(number: int, verdict_id: str = ID, **values: object) -> Verdict:
    return verdict(number, verdict_id, state="closed", event="closed", close_reason="recovered", **values)


def found(*standing: tuple[str, Verdict]) -> PublishedVerdicts:
    """After a restart that found these on the topics."""
    published = PublishedVerdicts(Told())
    for topic, one in standing:
        published.note(topic, one)
    return published


def after_anew(*standing: Verdict) -> PublishedVerdicts:
    """The job began anew; these stood on both topics."""
    told = begun_anew(Told(), {b"j"}, 40, [(topic, one) for one in standing for topic in (VERDICTS, ALERTS)])
    return PublishedVerdicts(told)


def said(published: PublishedVerdicts, *verdicts: Verdict) -> list[Verdict]:
    """What goes out of what a monitor says."""
    known = published.in_known_words(Judgements("j", verdicts=verdicts)).verdicts
    return [one for one in known if VERDICTS in published.unsent(one)]


def test_a_revision_that_stands_on_a_topic_is_not_sent_to_it_again() -> None:
    published = found((VERDICTS, verdict(1)), (VERDICTS, verdict(2)), (ALERTS, verdict(1)))
    assert list(published.unsent(verdict(1))) == []
    assert list(published.unsent(verdict(2))) == [ALERTS]
    assert list(published.unsent(verdict(3))) == [VERDICTS, ALERTS]
    assert len(published) == 0


def test_revisions_found_in_any_order_of_topics_leave_the_newest() -> None:
    published = found((ALERTS, verdict(3)), (VERDICTS, verdict(2)), (VERDICTS, verdict(3)))
    (one,) = published.told().published
    assert one.revisions == {ALERTS: 3, VERDICTS: 3}
    assert one.iterations == verdict(3).iterations


def test_what_is_kept_survives_a_snapshot() -> None:
    published = after_anew(verdict(3))
    said(published, verdict(1, OTHER))
    told = published.told()
    assert told.aliases.keys() == {OTHER}
    assert decode_state(encode_state(told, 1), Told, 1) == told


def test_jobs_that_are_gone_are_forgotten() -> None:
    published = found((VERDICTS, verdict(1)))
    published.forget(lambda job: job == "j")
    assert len(published) == 1
    published.forget(lambda job: False)
    assert len(published) == 0
    waiting, over = after_anew(), after_anew()
    over.is_first(b"j")
    for one in (waiting, over):
        one.forget(lambda job: False)
    assert (waiting.told().anew, over.told().anew) == ((b"j",), ())


# --- jobs that begin anew -------------------------------------------------------------------------------------------


def test_the_same_judgement_says_nothing_twice_and_then_goes_on() -> None:
    published = after_anew(verdict(1), verdict(2))
    assert said(published, verdict(1), verdict(2), verdict(3), closed(4)) == [verdict(3), closed(4)]


def test_an_incident_that_is_open_under_another_id_goes_on_under_that() -> None:
    published = after_anew(verdict(3))  # told of up to iteration 63
    again = [verdict(1, OTHER), verdict(2, OTHER), verdict(3, OTHER), verdict(4, OTHER), closed(5, OTHER)]
    going_out = said(published, *again)
    assert {one.verdict_id for one in going_out} == {ID}
    assert [one.event for one in going_out] == ["continued", "closed"]
    assert [one.revision for one in going_out] == [3 + 4, 3 + 5]


def test_an_incident_that_is_over_is_not_told_again() -> None:
    published = after_anew(closed(5))
    assert said(published, verdict(1, OTHER), verdict(2, OTHER), closed(3, OTHER)) == []


def test_what_was_told_under_the_known_id_is_not_told_again_after_a_crash() -> None:
    published = after_anew(verdict(3))
    said(published, verdict(1, OTHER))
    restarted = PublishedVerdicts(published.told())
    (sent,) = said(published, verdict(4, OTHER))
    restarted.note(VERDICTS, sent)
    assert said(restarted, verdict(4, OTHER)) == []
    assert [one.revision for one in said(restarted, verdict(5, OTHER))] == [3 + 5]


def test_a_restored_job_needs_no_announcements_and_keeps_the_known_id() -> None:
    published = after_anew(verdict(3))
    restored = PublishedVerdicts(published.told(), {b"j"})
    assert not restored.is_first(b"j")
    assert said(restored, verdict(1, OTHER)) == []
    restored.forget(lambda job: job == "j")
    assert [one.verdict_id for one in said(restored, verdict(4, OTHER))] == [ID]


def test_another_device_or_a_later_incident_opens_a_verdict() -> None:
    published = after_anew(verdict(3), closed(5, "j:0:10:0", iterations=(10, 16)))
    other = verdict(1, OTHER, rank=2)
    later = verdict(1, "j:0:20:0", rank=1, iterations=(20, 30))
    assert said(published, other) == [other]
    assert said(after_anew(closed(5, iterations=(10, 16))), later) == [later]


def test_a_hang_under_another_id_is_told_to_be_over_under_the_known_one_and_the_next_one_is_told() -> None:
    hung = {"kind": "hang", "state": "open", "event": "opened", "iterations": (60, 61)}
    again = verdict(1, OTHER, **hung)
    over = replace(again, revision=2, state="closed", event="closed", close_reason="recovered")
    later = verdict(1, "j:0:70:0", **{**hung, "iterations": (70, 71)})
    going_out = said(after_anew(verdict(1, **hung)), again, later, over)
    assert [(one.verdict_id, one.revision) for one in going_out] == [("j:0:70:0", 1), (ID, 3)]


def test_iterations_name_the_verdict_that_people_know() -> None:
    published = after_anew(verdict(3))
    iteration = JudgedIteration("j", 0, 62, 0, 10, 9.0, "train", True, 4, (OTHER, "j:0:1:0"))
    judgements = published.in_known_words(Judgements("j", iterations=[iteration], verdicts=[verdict(1, OTHER)]))
    assert judgements.iterations[0].verdict_ids == (ID, "j:0:1:0")


def test_without_a_beginning_anew_ids_stay_as_they_are() -> None:
    published = found((VERDICTS, verdict(3)))
    assert said(published, verdict(1, OTHER)) == [verdict(1, OTHER)]


def test_jobs_that_ended_before_another_began_anew_are_not_judged_again() -> None:
    published = after_anew()
    assert published.is_over(b"ended", 39)
    assert not published.is_over(b"ended", 40)
    assert not published.is_over(b"j", 39)
    assert [published.is_first(b"j"), published.is_first(b"j"), published.is_first(b"ended")] == [True, False, False]


# --- jobs that have ended -------------------------------------------------------------------------------------------


def test_the_newest_starts_of_jobs_that_ended_are_known_in_bounds() -> None:
    published = PublishedVerdicts(Told())
    for number in range(MOST_ENDED + 1):
        published.note_end(f"j{number}", (-number - 1, number))
    published.note_end("without an id", None)
    published.forget(lambda job: False)
    again = PublishedVerdicts(decode_state(encode_state(published.told(), 1), Told, 1))
    assert again.start_before(b"j0") is None, "the oldest gives way"
    assert (again.start_before(b"j1"), again.start_before(b"without an id")) == ((-2, 1), None)
    again.begin_anew(b"j1", ())
    assert again.start_before(b"j1") is None, "all its starts are read again, in their order"
    assert again.start_before(b"j1", is_new=True) == (-2, 1), "it ended, and is run again"


def test_an_end_after_fewer_revisions_than_were_published_is_sent_as_the_newest() -> None:
    standing = [(topic, verdict(6)) for topic in (VERDICTS, ALERTS)]
    assert said(found(*standing), verdict(3), closed(4)) == [closed(7, iterations=(60, 65))]
    # The process died before its snapshot: the same end again is on its topic.
    repeated = found(*standing, (VERDICTS, closed(7)), (ALERTS, closed(7)))
    assert said(repeated, verdict(3), closed(4)) == []


def test_a_verdict_is_ended_that_is_open_by_its_newest_revision_wherever_that_stands() -> None:
    late = [(VERDICTS, one) for one in (closed(4), verdict(1), verdict(2))]  # of a worker that stood still, and woke
    assert ends_of(late, {ID}, "finished") == []
    left = [(VERDICTS, verdict(3, OTHER)), (ALERTS, closed(9, OTHER)), (VERDICTS, verdict(2, OTHER))]
    (end,) = ends_of([*late, *left], {ID, OTHER}, "finished")
    assert end == verdict(3, OTHER, revision=4, state="closed", event="closed", close_reason="finished")
    assert ends_of(left, {ID}, "finished") == []


def test_an_incident_that_closed_and_went_on_is_closed_again() -> None:
    published = after_anew(closed(3))  # up to iteration 63
    again = [verdict(1, OTHER), verdict(4, OTHER), closed(5, OTHER)]
    assert [(one.state, one.revision) for one in said(published, *again)] == [("open", 7), ("closed", 8)]


@pytest.mark.parametrize("own", [ID, OTHER])
def test_an_end_is_as_severe_as_what_was_published_so_that_it_gives_an_alert_too(own: str) -> None:
    published = after_anew(verdict(2, severity="ticket"), verdict(3, severity="ticket"))
    said(published, verdict(1, own, severity="note"))
    published = PublishedVerdicts(decode_state(encode_state(published.told(), 1), Told, 1))
    going_out = said(published, verdict(4, own, severity="note"), closed(5, own, severity="note"))
    assert [one.severity for one in going_out][-1] == "ticket"
