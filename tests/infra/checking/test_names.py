from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.infra.checking.names import ITERATIONS_LATER
from irregulars.infra.checking.recording import Recording
from irregulars.messages.records import SCHEMAS, UNKNOWN
from tests.infra.checking.recordings import apply, recorded, simulated, texts, touched

FEW = settings(max_examples=5)
SEEDS = st.integers(0, 2**32 - 1)
RANKS = {f"{schema}.rank" for schema in SCHEMAS} | {"commops.peer", "communicators", "places"}


def with_old_ranks(recording: Recording, names: dict[int, int]) -> Recording:
    for schema in SCHEMAS:
        rank = recording.tables[schema]["rank"]
        recording = recording.with_columns(schema, rank=np.array([names[one] for one in rank.tolist()]))
    peer = [names.get(one, UNKNOWN) for one in recording.tables["commops"]["peer"].tolist()]
    return recording.with_columns("commops", peer=np.array(peer))


@pytest.mark.parametrize("change", ["ranks-permuted", "ranks-dealt"])
@FEW
@given(seed=SEEDS)
def test_other_numbers_of_ranks_and_nothing_else(change: str, seed: int) -> None:
    before = simulated("three")
    changed = apply(change, before, seed)
    names, after = dict(changed.naming.ranks), changed.recording
    assert sorted(names) == sorted(names.values()) == list(range(before.job.world_size))
    assert (names[0], names != {rank: rank for rank in names}) == (0, True)
    assert touched(before, after) <= RANKS
    assert touched(before, with_old_ranks(after, names)) <= {"communicators", "places"}
    assert {names[rank]: place for rank, place in after.job.places.items()} == before.job.places
    old = [tuple(names[rank] for rank in communicator.ranks) for communicator in after.job.communicators]
    assert old == [communicator.ranks for communicator in before.job.communicators]


def test_dealt_numbers_part_neighbours() -> None:
    names = apply("ranks-dealt", simulated("three")).naming.ranks
    numbers = {old: new for new, old in names.items()}
    assert [numbers[rank] for rank in range(6)] == [0, 4, 8, 1, 5, 9]


def test_ranks_that_are_said_to_log_are_renamed() -> None:
    changed = apply("ranks-permuted", recorded("torch-slow-rank"))
    assert changed.recording.job.logged_ranks == (0, 1, 2, 3)
    assert changed.recording.to_trace().rejected.count == 0


@FEW
@given(seed=SEEDS)
def test_devices_are_renamed_one_to_one(seed: int) -> None:
    before = simulated("three")
    after = apply("devices-renamed", before, seed).recording
    assert touched(before, after) == {"places", "devices"}
    for kind in ("host", "nic", "switch"):
        pairs = {
            (getattr(old, kind), getattr(after.job.places[rank], kind)) for rank, old in before.job.places.items()
        }
        assert len(pairs) == len({one for one, _ in pairs}) == len({two for _, two in pairs})
        assert not {one for one, _ in pairs} & {two for _, two in pairs}
    nics = {before.job.places[rank].nic: place.nic for rank, place in after.job.places.items()}
    assert after.devices == tuple(nics[name] for name in before.devices)


@FEW
@given(seed=SEEDS)
def test_communicators_are_renamed_one_to_one(seed: int) -> None:
    before = simulated("three")
    changed = apply("communicators-renamed", before, seed)
    after, names = changed.recording, changed.naming.communicators
    assert touched(before, after) <= {"communicators", "commops.communicator"}
    assert [one.id for one in after.job.communicators] == sorted(names)
    old = {one.id: one for one in before.job.communicators}
    assert all(old[names[one.id]].ranks == one.ranks for one in after.job.communicators)
    ids = [[one.id for one in recording.job.communicators] for recording in (before, after)]
    codes = [recording.tables["commops"]["communicator"] for recording in (before, after)]
    assert [names[ids[1][code]] for code in codes[1].tolist()] == [ids[0][code] for code in codes[0].tolist()]


def test_iterations_are_numbered_later_where_they_are_marked() -> None:
    before = recorded("gloo-slow-nic")
    changed = apply("iterations-later", before)
    assert touched(before, changed.recording) == {"commops.iteration", "iterations.iteration"}
    old, new = (one.tables["commops"]["iteration"] for one in (before, changed.recording))
    assert (old == UNKNOWN).any()
    np.testing.assert_array_equal(new, np.where(old == UNKNOWN, UNKNOWN, old + ITERATIONS_LATER))
    assert changed.naming.old_window((1060, 1080)) == (60, 80)


def test_iterations_that_nobody_marked_have_no_other_numbers() -> None:
    from irregulars.infra.checking.changed import Given
    from irregulars.infra.checking.names import number_iterations_later

    bare = recorded("gloo-slow-nic").with_rows("iterations", np.empty(0, dtype=np.int64))
    bare = bare.with_columns("commops", iteration=np.full(1948, UNKNOWN))
    assert number_iterations_later(bare, Given(np.random.default_rng(0))) is None


@FEW
@given(seed=SEEDS)
def test_sequences_of_a_communicator_move_together(seed: int) -> None:
    before = simulated("three")
    after = apply("sequences-later", before, seed).recording
    assert touched(before, after) == {"commops.sequence"}
    assert texts(before, "commops", "sequence") == texts(after, "commops", "sequence")
    later = after.tables["commops"]["sequence"] - before.tables["commops"]["sequence"]
    code = before.tables["commops"]["communicator"]
    assert all(len(np.unique(later[code == one])) == 1 for one in np.unique(code))
    assert len(np.unique(later)) > 1
    assert (later % 16 == 0).all()
