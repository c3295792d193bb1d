from __future__ import annotations

import json
from pathlib import Path

import pytest

from irregulars.infra.checking.changed import Changed, Given
from irregulars.infra.checking.changes import CHANGES, Change
from irregulars.infra.checking.recording import Recording
from tests.infra.test_cli import Run, run

__all__ = ["run"]  # the fixture

RECORDINGS = Path(__file__).resolve().parents[3] / "recordings"
SLOW_LINK = str(RECORDINGS / "gloo-slow-link")


@pytest.fixture
def a_change_that_loses_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(recording: Recording, given: Given) -> Changed:
        recording = recording.with_rows("commops", recording.tables["commops"]["iteration"] < 55)
        return Changed(recording.with_rows("iterations", recording.tables["iterations"]["iteration"] < 55))

    monkeypatch.setitem(CHANGES, "row-loss", Change("the fault is lost", lose))  # type: ignore[arg-type]


def test_status_0_and_a_line_for_each_change_where_no_verdict_changes(run: Run) -> None:
    status, out, err = run("check", SLOW_LINK, "--change", "shift", "--change", "replica")
    assert (status, err) == (0, "")
    first, shift, replica, last = out.splitlines()
    assert first == "gloo-slow-link: slow_link, link of rank 1, 3, iterations 60 to 79"
    assert shift.split() == ["shift", "same"]
    assert "does not apply: it needs a replica" in replica
    assert last == "Verdicts changed under 0 of 1 changes."


@pytest.mark.usefixtures("a_change_that_loses_the_fault")
def test_status_1_and_what_became_of_the_verdict_where_one_changes(run: Run) -> None:
    status, out, _ = run("check", SLOW_LINK, "--change", "row-loss")
    assert status == 1
    assert "slow_link, link of rank 1, 3, iterations 60 to 79 → no verdict" in out
    assert "Verdicts changed under 1 of 1 changes." in out


@pytest.mark.usefixtures("a_change_that_loses_the_fault")
def test_json_says_before_and_after(run: Run) -> None:
    status, out, err = run("check", SLOW_LINK, "--change", "row-loss", "--change", "shift", "--seed", "3", "--json")
    assert (status, err) == (1, "")
    found = json.loads(out)
    assert (found["job"], found["seed"]) == ("gloo-slow-link", 3)
    assert found["verdicts"] == found["changes"][0]["before"]
    assert [one["change"] for one in found["changes"]] == ["row-loss", "shift"]
    assert [one["after"] for one in found["changes"]] == [[], []]


def test_the_changes_are_listed_without_a_recording(run: Run) -> None:
    status, out, _ = run("check", "--list")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == list(CHANGES)
    assert list(json.loads(run("check", "--list", "--json")[1])) == list(CHANGES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check"], "DIR must be a trace directory; got none"),
        (["check", "/nowhere"], "/nowhere: must be a trace directory; got nothing"),
        (["check", SLOW_LINK, "--change", "x"], "change must be one of round-1ns"),
    ],
)
def test_an_unusable_call_is_one_line_and_status_2(run: Run, arguments: list[str], message: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
