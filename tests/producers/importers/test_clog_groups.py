"""Global ranks and communicators, from new_comm and split lines."""

from __future__ import annotations

import pytest

from irregulars.errors import InputError
from irregulars.producers.importers.clog_job import groups_of_log, ranks_of_logs, whole_communicators
from irregulars.producers.importers.clog_lines import LogParser, Membership, Split

WORLD = Membership("world", 2, 4)


def log_of(*members: Membership) -> LogParser:
    parser = LogParser()
    parser.members = list(members)
    return parser


def test_the_largest_communicator_that_holds_all_logs_tells_the_ranks() -> None:
    logs = {f"{rank}.log": log_of(Membership("pair", rank % 2, 2), Membership("w", 3 - rank, 4)) for rank in range(4)}
    ranks = ranks_of_logs(logs, dict.fromkeys(logs))
    assert ranks.of == {"0.log": 3, "1.log": 2, "2.log": 1, "3.log": 0}
    assert (ranks.world_size, ranks.root) == (4, "w")


def test_two_logs_of_one_rank_are_named() -> None:
    logs = {name: log_of(Membership("w", 3, 4)) for name in ("a.log", "b.log")}
    with pytest.raises(InputError, match=r"must be of different ranks; got two of rank 3 of w: a.log and b.log"):
        ranks_of_logs(logs, dict.fromkeys(logs))


def test_without_such_a_communicator_the_files_names_tell_or_nobody_does() -> None:
    logs = {"r0.log": log_of(Membership("a", 0, 1)), "r1.log": log_of(Membership("b", 0, 1))}
    ranks = ranks_of_logs(logs, {"r0.log": 0, "r1.log": 5})
    assert (ranks.of["r1.log"], ranks.world_size, ranks.root) == (5, 6, None)
    with pytest.raises(InputError, match=r"must all have a new_comm line of one communicator, or names"):
        ranks_of_logs(logs, {"r0.log": 0, "r1.log": None})
    with pytest.raises(InputError, match=r"two of rank 1 by the files' names: r0.log and r1.log"):
        ranks_of_logs(logs, dict.fromkeys(logs, 1))


def test_the_ranks_of_a_split_are_those_inside_of_its_parent() -> None:
    """The page calls them global; the source checks them against the parent's size."""
    splits = [Split("world", "odd", (3, 2)), Split("odd_2", "one", (1,))]
    groups = groups_of_log([WORLD], splits, 2, 4, {})
    assert groups["odd_2"] is not None
    assert groups["odd_2"].ranks == (3, 2)
    assert groups["one_1"] is not None
    assert groups["one_1"].ranks == (2,)


def test_groups_of_one_name_are_told_apart_by_their_split_lines() -> None:
    first = groups_of_log([Membership("world", 0, 4)], [Split("world", "tp", (0, 1))], 0, 4, {})
    second = groups_of_log([WORLD], [Split("world", "tp", (2, 3))], 2, 4, {})
    assert first["tp"] != second["tp"]


def test_a_name_that_means_two_groups_on_one_rank_means_none() -> None:
    splits = [Split("world", "part", (2, 3)), Split("world", "part", (2, 1)), Split("world", "part", (2, 3))]
    groups = groups_of_log([WORLD], splits, 2, 4, {})
    assert groups["part"] is None
    assert [groups[name] and groups[name].ranks for name in ("part_2", "part_1")] == [(2, 3), (2, 1)]
    same = groups_of_log([WORLD], [Split("world", "p", (0, 2)), Split("world", "p", (0, 2, 3))], 2, 4, {})
    assert same["p_0"] is None


@pytest.mark.parametrize("ranks", [(0, 1), (2, 9), (2, 2)])
def test_a_split_of_others_or_of_ranks_that_are_none_gives_nothing(ranks: tuple[int, ...]) -> None:
    assert groups_of_log([WORLD], [Split("world", "x", ranks), Split("nowhere", "y", (2,))], 2, 4, {}).keys() == {
        "world"
    }


def test_a_communicator_made_apart_is_known_if_all_of_its_members_are_here() -> None:
    logs = {str(rank): log_of(Membership("w", rank, 4), Membership("half", rank % 2, 2)) for rank in (1, 2)}
    logs["0"] = log_of(Membership("w", 0, 4), Membership("third", 0, 3))
    ranks = ranks_of_logs(logs, dict.fromkeys(logs))
    whole = whole_communicators(logs, ranks)
    assert whole == {("half", 2): (2, 1)}
    assert groups_of_log(logs["2"].members, (), 2, 4, whole)["half"] is not None
    assert "third" not in groups_of_log(logs["0"].members, (), 0, 4, whole)
