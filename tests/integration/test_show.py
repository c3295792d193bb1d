"""`irregulars show` on a real ClickHouse: the screen is that of the recording, and says when rows are gone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from irregulars.infra.showing.found import Found, Screen, gather
from irregulars.infra.showing.from_database import find_verdict, found_in_database
from irregulars.infra.showing.numerics import bands_of
from irregulars.infra.showing.text_page import lines_of
from irregulars.messages.judgements import Judgements
from irregulars.sinks.connection import DatabaseSettings, connected
from irregulars.sinks.tables import table_of_samples, tables_of
from tests.conftest import ClickHouseAddress
from tests.infra.conftest import Run, run
from tests.infra.showing.made_up_verdicts import found_in
from tests.integration.pipelines import own_database, store
from tests.sinks import made_up_job
from tests.sinks.recorded_jobs import rows_of_recording

__all__ = ["run"]  # the fixture
pytestmark = pytest.mark.integration

NAMES = ("gloo-slow-nic", "gloo-slow-rank")
NOW_NS = 1_795_300_000 * 10**9


@pytest.fixture(scope="module")
def stored(clickhouse: ClickHouseAddress) -> Iterator[DatabaseSettings]:
    """A database with two recordings, judged as the worker does."""
    with own_database(clickhouse, *map(rows_of_recording, NAMES)) as own:
        yield own


def read(settings: DatabaseSettings, which: str) -> Found:
    with connected(settings) as client:
        verdict = find_verdict(client, which)
        assert verdict is not None
        return found_in_database(client, verdict, "here", NOW_NS)


def told(screen: Screen) -> Sequence[object]:
    """Return what both ways of reading must agree on."""
    verdict = replace(screen.verdict, lost_s=round(screen.verdict.lost_s, 9))
    return (verdict, screen.device, screen.since_ns, screen.cost, screen.iterations, screen.before_ns,
            screen.during_ns, screen.nic)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_database_shows_what_the_recording_shows(stored: DatabaseSettings, name: str) -> None:
    of_database, of_recording = read(stored, name), found_in(name)
    one, other = gather(of_database), gather(of_recording)
    assert told(one) == told(other)
    for mine, its in zip(one.rates, other.rates, strict=True):
        assert mine[:2] == its[:2]
        np.testing.assert_allclose(mine[2:], its[2:])
    assert sorted(one.cells) == sorted(other.cells)


def test_numbers_are_read_as_they_are_judged(clickhouse: ClickHouseAddress) -> None:
    doubtful = [replace(made_up_job.verdict(revision), kind="corruption") for revision in (1, 2)]
    columns = made_up_job.rank_iterations()
    with own_database(clickhouse, tables_of(replace(made_up_job.judgements(), verdicts=doubtful))) as own:
        found = read(own, made_up_job.JOB)
    wanted = bands_of(columns, range(made_up_job.ITERATIONS))
    assert len(found.numerics) == len(wanted) == 3 * made_up_job.ITERATIONS
    for mine, its in zip(found.numerics, wanted, strict=True):
        assert (mine[:2], mine.rank) == (its[:2], its.rank)
        np.testing.assert_allclose([*mine[2:6], mine.value], [*its[2:6], its.value])
    assert found.cells == []


def test_a_verdict_is_found_by_its_id_by_its_job_and_as_the_newest(stored: DatabaseSettings) -> None:
    assert read(stored, "gloo-slow-rank:0:60:0").verdict.job == "gloo-slow-rank"
    assert read(stored, "gloo-slow-rank").verdict.verdict_id == "gloo-slow-rank:0:60:0"
    assert read(stored, "").verdict.job == "gloo-slow-nic"  # it was seen last


def test_rows_that_expired_are_told_as_missing(stored: DatabaseSettings) -> None:
    found = read(stored, "gloo-slow-nic")
    with connected(stored) as client:
        verdict = replace(found.verdict, job="gone")
        empty = found_in_database(client, verdict, "here", NOW_NS)
    assert "none of the verdict's range are stored" in " ".join(gather(empty).missing)


def test_earlier_verdicts_on_the_device_are_read_from_all_jobs(stored: DatabaseSettings) -> None:
    verdict = read(stored, "gloo-slow-nic").verdict
    day_ns = 86_400 * 10**9
    assert verdict.time_ns is not None
    for job, days in (("older", 3), ("oldest", 5), ("forgotten", 100)):
        before = replace(verdict, job=job, verdict_id=f"{job}:0:60:0", time_ns=verdict.time_ns - days * day_ns)
        store(stored, tables_of(Judgements(job, verdicts=[before])))
    assert [one.job for one in read(stored, "gloo-slow-nic").earlier] == ["older", "oldest"]
    assert read(stored, "gloo-slow-rank").earlier == []  # another device


def test_other_open_verdicts_of_the_job_are_read(stored: DatabaseSettings) -> None:
    verdict = read(stored, "gloo-slow-rank").verdict
    also = replace(verdict, verdict_id="gloo-slow-rank:0:70:1", state="open", close_reason=None)
    store(stored, tables_of(Judgements(verdict.job, verdicts=[also])))
    assert [one.verdict_id for one in read(stored, verdict.verdict_id).others] == [also.verdict_id]
    assert read(stored, "").verdict.verdict_id == also.verdict_id, (
        "an open one comes before a newer one that is closed"
    )


def test_gpu_states_are_read(database: DatabaseSettings) -> None:
    states = table_of_samples([made_up_job.gpu_health(rank=one, samples=30) for one in range(4)])
    store(database, tables_of(made_up_job.judgements()), {"gpu_health": states})
    with connected(database) as client:
        for verdict_id in sorted({one.verdict_id for one in made_up_job.judgements().verdicts}):
            verdict = find_verdict(client, verdict_id)
            assert verdict is not None
            lines = lines_of(gather(found_in_database(client, verdict, "here", NOW_NS)))
            assert any(line.startswith("GPU       gpu") for line in lines)


def test_the_command_prints_the_screen_json_and_a_page(
    stored: DatabaseSettings, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRREGULARS_CLICKHOUSE_PASSWORD", stored.password)
    access = [
        f"--set=clickhouse_user={stored.user}",
        f"--set=clickhouse_url={stored.url}", f"--set=clickhouse_database={stored.database}",
    ]  # fmt: skip
    status, out, err = run(*access, "show", "gloo-slow-nic")
    assert (status, err) == (0, "")
    assert "NIC eth0 on node-1" in out
    assert json.loads(run(*access, "show", "gloo-slow-nic", "--json")[1])["range"]["past_last"] == 81
    assert run(*access, "show", "--html", "page.html")[0] == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    status, out, err = run(*access, "show", "no-such-verdict")
    assert (status, out) == (2, "")
    assert "got 'no-such-verdict'" in err
