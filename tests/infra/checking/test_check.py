from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from irregulars.errors import InputError
from irregulars.infra.checking.changed import Changed, Delivery, Given
from irregulars.infra.checking.changes import CHANGES, Change
from irregulars.infra.checking.check import Check
from irregulars.infra.checking.judged import Charge
from irregulars.infra.checking.recording import Recording
from irregulars.streams.monitor_settings import MonitorSettings
from tests.infra.checking.recordings import recorded

SLOW_LINK = Charge("slow_link", (60, 80), "link", (1, 3))
DOCS = Path(__file__).parents[3] / "infra" / "docs"


@pytest.fixture(scope="module")
def check() -> Check:
    return Check(recorded("gloo-slow-link"), MonitorSettings())


def lose_the_fault(recording: Recording, given: Given) -> Changed:
    is_late = recording.tables["commops"]["iteration"] >= 55
    recording = recording.with_rows("commops", ~is_late)
    return Changed(recording.with_rows("iterations", recording.tables["iterations"]["iteration"] < 55))


def test_a_change_that_alters_nothing_is_told_as_such(check: Check) -> None:
    (outcome,) = check.run(["shift"])
    assert (check.charges, outcome.does_apply, outcome.is_changed) == ([SLOW_LINK], True, False)


def test_a_verdict_that_is_gone_is_told(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHANGES, "shift", Change("the fault is lost", lose_the_fault))  # type: ignore[arg-type]
    (outcome,) = check.run(["shift"])
    assert (outcome.is_changed, outcome.gone, outcome.new) == (True, [SLOW_LINK], [])
    assert outcome.to_json()["before"] == [SLOW_LINK.to_json()]


def test_a_change_that_does_not_apply_judges_nothing(check: Check) -> None:
    (outcome,) = check.run(["replica"])
    assert (outcome.does_apply, outcome.is_changed) == (False, False)


def test_what_a_change_draws_depends_on_the_seed_and_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []

    def draw(recording: Recording, given: Given) -> None:
        drawn.append(given.random.random())

    for name in ("shift", "row-loss"):
        monkeypatch.setitem(CHANGES, name, Change("", draw))  # type: ignore[arg-type]
    recording = recorded("gloo-clean").with_rows("commops", np.arange(0))
    for seed, names in ((0, ["shift", "row-loss"]), (0, ["row-loss"]), (1, ["row-loss"])):
        list(Check(recording, MonitorSettings(), seed=seed).run(names))
    assert drawn[1] == drawn[2]
    assert len(set(drawn)) == 3


def test_the_way_of_delivery_is_the_changes_own_or_the_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[Delivery | None] = []

    def note(changed: Changed, settings: MonitorSettings) -> list[object]:
        ways.append(changed.delivery)
        return []

    monkeypatch.setattr("irregulars.infra.checking.check.judge", note)
    list(Check(recorded("gloo-clean"), MonitorSettings(), delivery=Delivery(7)).run(["shift", "batches-of-29"]))
    assert ways == [None, Delivery(7), Delivery(29, 0.05)]


def test_an_unknown_change_is_an_error(check: Check) -> None:
    with pytest.raises(InputError, match=r"change must be one of .*; got 'nothing'"):
        check.run(["nothing"])


def test_every_change_leaves_its_input_alone() -> None:
    recording = recorded("gloo-slow-nic")
    frozen = {
        schema: {name: column.copy() for name, column in table.items()} for schema, table in recording.tables.items()
    }
    for table in recording.tables.values():
        for column in table.values():
            column.flags.writeable = False
    job = replace(recording.job)
    for change in CHANGES.values():
        change.apply(recording, Given(np.random.default_rng(0), frozenset({1})))
    assert recording.job == job
    for schema, table in recording.tables.items():
        for name, column in table.items():
            np.testing.assert_array_equal(column, frozen[schema][name])


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_takes_a_recording_without_rows(name: str) -> None:
    bare = recorded("torch-slow-rank")
    for schema in bare.tables:
        bare = bare.with_rows(schema, np.arange(0))
    changed = CHANGES[name].apply(bare, Given(np.random.default_rng(0)))
    assert changed is None or changed.recording.to_trace().rejected.count == 0


def test_every_change_is_explained_on_its_page() -> None:
    named = re.findall(r"^\| `([\w-]+)` \|", (DOCS / "checking.md").read_text(), re.MULTILINE)
    assert named == list(CHANGES)
