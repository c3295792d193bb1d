from __future__ import annotations

import pytest

from irregulars.errors import PluginError
from irregulars.producers.publishing.sources import check_source
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.source import TraceSource
from tests.producers.bad_sources import BAD_SOURCES, Spoiled, opener
from tests.producers.trace_directories import RECORDINGS


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace(RECORDINGS / "gloo-slow-nic")


def test_a_good_source_passes(trace: Trace) -> None:
    check_source(opener(Spoiled, trace))


@pytest.mark.parametrize("recording", sorted(RECORDINGS.glob("gloo-*")), ids=lambda path: path.name)
def test_replaying_a_recording_passes(recording: object) -> None:
    trace = read_trace(str(recording))
    check_source(lambda position: TraceSource(trace, speed=0, position=position))


@pytest.mark.parametrize(("bad", "text"), BAD_SOURCES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_bad_source_is_refused_with_the_numbers(bad: type[Spoiled], text: str, trace: Trace) -> None:
    with pytest.raises(PluginError, match=text):
        check_source(opener(bad, trace))


def test_a_source_of_nothing_is_refused(trace: Trace) -> None:
    class Empty(Spoiled):
        is_exhausted = True

        def poll(self, max_records: int) -> tuple[()]:
            return ()

    with pytest.raises(PluginError, match="must give announcements and rows; got 0 and 0"):
        check_source(opener(Empty, trace))
