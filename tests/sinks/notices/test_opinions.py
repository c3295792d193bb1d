from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.messages.opinions import Opinion, decode_opinion, encode_opinion, newest_opinions
from irregulars.sinks.notices.mutes import SILENCE_NS, mute_of, silences, track_records

NIC = "nic:node-3/mlx5_1"


def opinion(number: int, *, is_right: bool | None = False, who: str = "ann", **other: object) -> Opinion:
    made = Opinion(f"job:0:{number}:0", "job", "slow_nic", (number, number + 5), is_right, who, number * 10**9,
                   device=NIC, rank=17, probability=0.9)  # fmt: skip
    return replace(made, **other)  # type: ignore[arg-type]


def alert(**other: object) -> dict[str, object]:
    suspect = {"device": "nic", "rank": 17, "host": "node-3", "nic": "mlx5_1"}
    return {"job": "another", "kind": "slow_nic", "suspects": [suspect], **other}


def test_an_opinion_is_read_as_it_was_written() -> None:
    one = opinion(3, note="die Optik war schmutzig\n", is_right=None)
    assert decode_opinion(encode_opinion(one)) == one


def test_three_wrong_verdicts_silence_their_pattern_in_every_job_and_say_so() -> None:
    (mute,) = silences([opinion(1), opinion(2), opinion(3)])
    assert mute_of(alert(), [mute], 3 * 10**9) is mute
    assert mute_of(alert(), [mute], 3 * 10**9 + SILENCE_NS) is None
    assert "called wrong" in mute.describe()
    assert mute_of(alert(kind="slow_rank"), [mute], 3 * 10**9) is None
    other = alert(suspects=[{"device": "nic", "rank": 1, "host": "node-3", "nic": "mlx5_2"}])
    assert mute_of(other, [mute], 3 * 10**9) is None


@pytest.mark.parametrize("opinions", [
    [opinion(1), opinion(2)],
    [opinion(1), opinion(2), opinion(3, is_right=True)],
    [opinion(1), opinion(2), opinion(3), opinion(4, is_right=True)],
    [opinion(1), opinion(2), opinion(3, is_right=None)],
    [opinion(1), opinion(1, who="bob"), opinion(1, who="eve")],  # one verdict, three people
    [opinion(1), opinion(2), opinion(3, device="nic:node-4/mlx5_1")],
])  # fmt: skip
def test_less_than_three_wrong_ones_in_a_row_silence_nothing(opinions: list[Opinion]) -> None:
    assert silences(opinions) == []


def test_it_stays_silent_while_more_are_called_wrong() -> None:
    (mute,) = silences([opinion(1, is_right=True), *(opinion(number) for number in range(2, 7))])
    assert (mute.from_ns, mute.until_ns) == (4 * 10**9, 6 * 10**9 + SILENCE_NS)


def test_a_name_with_the_signs_of_patterns_matches_itself_alone() -> None:
    own = [replace(opinion(number), device="nic:node[3]/*") for number in (1, 2, 3)]
    (mute,) = silences(own)
    suspect = {"device": "nic", "rank": 17, "host": "node[3]", "nic": "*"}
    assert mute_of(alert(suspects=[suspect]), [mute], 3 * 10**9) is mute
    assert mute_of(alert(suspects=[suspect | {"nic": "mlx5_1"}]), [mute], 3 * 10**9) is None


@pytest.mark.parametrize("nic", ["n" * 400, "n" * 280 + "*" * 120])
def test_the_silence_of_a_long_name_holds_for_that_device_alone(nic: str) -> None:
    (mute,) = silences([opinion(number, device=f"nic:node-3/{nic}") for number in (1, 2, 3)])

    def of(name: str) -> dict[str, object]:
        return alert(suspects=[{"device": "nic", "rank": 17, "host": "node-3", "nic": name}])

    assert mute.matches(of(nic))
    # Names that the same pattern, cut somewhere, would match.
    assert not any(mute.matches(of(nic[:length])) for length in range(1, len(nic)))
    assert not any(mute.matches(of(f"{nic[:length]}[other")) for length in range(1, len(nic)))


def test_the_silences_of_two_long_names_have_ids_of_their_own() -> None:
    devices = ["nic:" + "n" * 495 + end for end in "ab"]
    said = [opinion(10 * at + number, device=one) for at, one in enumerate(devices) for number in (1, 2, 3)]
    assert len({one.mute_id for one in silences(said)}) == 2


def test_the_newest_word_of_a_person_counts_and_a_withdrawn_one_gives_way() -> None:
    said = [opinion(1, is_right=True, who="bob"), opinion(1, is_right=None, who="ann", time_ns=2 * 10**9)]
    assert [one.who for one in newest_opinions(said)] == ["bob"]
    first, other = opinion(1, is_right=True, who="ann"), opinion(1, who="bob", time_ns=2 * 10**9)
    assert [one.who for one in newest_opinions([first, other])] == ["bob"]
    again = replace(first, time_ns=3 * 10**9)
    assert newest_opinions([first, other, again]) == [again]


def test_words_make_less_sure_or_surer_up_to_the_share_that_is_right_here() -> None:
    wrong = track_records([opinion(number) for number in range(1, 4)])
    right = track_records([opinion(number, is_right=True) for number in range(1, 40)])
    assert wrong["slow_nic"].probability(0.9) < 0.6
    assert 0.9 < right["slow_nic"].probability(0.9) < 0.99
    assert "slow_rank" not in wrong
    said = [opinion(number, is_right=number % 10 < 6) for number in range(1, 2001)]
    assert track_records(said)["slow_nic"].probability(0.9) == pytest.approx(0.6, abs=0.01)


@given(
    st.lists(
        st.builds(
            opinion, st.integers(0, 6), is_right=st.sampled_from([True, False, None]),
            who=st.sampled_from(["ann", "bob"]), probability=st.sampled_from([None, 0.0, 0.3, 1.0]),
        ),
        max_size=30,
        unique_by=lambda one: one.key,
    ),
    st.randoms(),
)  # fmt: skip
def test_the_order_in_which_they_are_read_changes_nothing(said: list[Opinion], random: object) -> None:
    mixed = list(said)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert silences(mixed) == silences(said)
    for record in track_records(said).values():
        assert math.isfinite(record.shift)
    assert track_records(mixed) == track_records(said)
