"""What was told and what was judged is never an input of judgement: verdicts must not feed on verdicts."""

from __future__ import annotations

from pathlib import Path

from irregulars.kafka.access_roles import rights_of
from irregulars.kafka.topics import RANK_TOPICS, TopicSettings

ROOT = Path(__file__).resolve().parents[3]
TOPICS = TopicSettings("")


def topics_of(role: str, operation: str) -> set[str]:
    rights = rights_of(role, TOPICS, "irregulars")
    return {one.name for one in rights if (one.kind, one.operation) == ("topic", operation)}


def test_no_topic_that_people_are_told_over_is_read_by_either_hop() -> None:
    judged = {*RANK_TOPICS, "evidence"}
    assert judged & {"verdicts", "alerts", "notices", "mutes", "actions", "feedback", "deadletter"} == set()


def test_no_role_reads_what_its_words_became() -> None:
    assert topics_of("worker", "read") & {"notices", "mutes"} == set()
    assert topics_of("worker", "write") & {"notices", "mutes"} == set()
    assert topics_of("notify", "write") & topics_of("worker", "read") == set()
    # Feedback goes into the database, and no monitor sees it; by which limits is judged, people say and nobody else.
    assert topics_of("operator", "write") & topics_of("worker", "read") == {"feedback", "thresholds"}


def test_no_detector_and_no_hop_imports_a_notice() -> None:
    rooms = ("detectors", "streams", "producers")
    sources = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    assert [path for path in sources if "sinks.notices" in path.read_text()] == []
