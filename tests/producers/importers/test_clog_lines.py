"""One log of clog: versions, pairs of starts and ends, everything that makes no sense."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.messages.records import OPERATORS, UNKNOWN
from irregulars.producers.importers import clog_lines as lines_of_clog
from irregulars.producers.importers.clog_lines import (
    CALL,
    START,
    UNCLEAR,
    Call,
    LogParser,
    TimeCounts,
    read_signature,
)
from tests.producers.importers.clog_lines import BASE_MS, event, header, new_comm, signature, split, steady

BEGIN = [header(), new_comm(0, 2), signature(1)]
# The example of the published page, line by line.
PUBLISHED = """V|1|base_timestamp=1714234567.890
new_comm|comm=world|rank=0|world_size=8
C1|sig|all_reduce|in_count=1024|out_count=1024|dtype=f32|red_op=sum|async_op=f|comm=world
C1|Q|work_id=1|+0.001
C1|S|+0.002
C1|E|+0.005
C2|sig|all_reduce|in_count=2048|out_count=2048|dtype=bf16|red_op=sum|async_op=t|comm=world
C2|Q|work_id=2|+0.010
C2|S|+0.011
C1|Q|work_id=3|+0.012
C2|E|+0.015
C1|S|+0.013
C1|E|+0.016
C2|W|+0.017
G42|C1|Q|work_id=4|+1.000
G42|C1|S|+1.002
G42|C1|E|+1.005
G42|R1|C1|S|+2.001
G42|R1|C1|E|+2.004"""


def parsed(*lines: str) -> tuple[LogParser, list[Call]]:
    parser = LogParser()
    return parser, [call for line in lines if (call := parser.parse(line.encode() + b"\n")) is not None]


def test_the_published_example_gives_its_three_calls() -> None:
    parser, calls = parsed(*PUBLISHED.splitlines())
    times = [(call.called_ms, call.start_ms, call.end_ms) for call in calls]
    after = [tuple(None if ms is None else ms - BASE_MS for ms in one) for one in times]
    assert after == [(1, 2, 5), (10, 11, 15), (12, 13, 16)]
    assert [(call.number, call.size_bytes, call.is_async) for call in calls] == [
        (0, 4096, False), (1, 4096, True), (2, 4096, False),
    ]  # fmt: skip
    assert {OPERATORS[call.operator] for call in calls} == {"all_reduce"}
    assert parser.skipped == {"events of CUDA graphs, which have no order": 5}
    assert (parser.lost, list(parser.open_calls())) == (0, [])


def test_starts_and_ends_of_one_signature_are_paired_in_their_order() -> None:
    """They name no call: of two that run at once the first to start is the first to end."""
    lines = [event(1, "Q", 1, 1), event(1, "Q", 2, 2), event(1, "S", 3), event(1, "S", 4), event(1, "E", 5)]
    parser, calls = parsed(*BEGIN, *lines)
    assert [(call.number, call.start_ms, call.end_ms) for call in calls] == [(0, BASE_MS + 3, BASE_MS + 5)]
    assert [(call.number, call.start_ms) for call in parser.open_calls()] == [(1, BASE_MS + 4)]


def test_collectives_count_by_communicator_and_pairs_by_peer_and_direction() -> None:
    kinds = [("all_reduce", "a"), ("barrier", "a"), ("all_reduce", "b"), ("send", "a"), ("recv", "a"), ("send", "a")]
    lines = [header()]
    for n, (operator, comm) in enumerate(kinds, 1):
        lines.append(signature(n, operator, comm, count=n, peer=1 if operator in ("send", "recv") else None))
        lines += [event(n, "Q", n, n), event(n, "E", n)]
    assert [call.number for call in parsed(*lines)[1]] == [0, 1, 0, 0, 0, 1]


def test_an_operator_that_we_do_not_know_is_counted_and_keeps_its_place() -> None:
    sig = "C9|sig|my_all_reduce|in_count=1|dtype=f32|async_op=f|comm=world"  # it only contains a name of ours
    batch = "C8|sig|batch_op_issue|num_ops=2|async_op=f|comm=world"
    lines = [event(9, "Q", 1, 1), event(9, "S", 1), event(9, "E", 1), event(8, "Q", 2, 2), event(8, "E", 2)]
    parser, calls = parsed(*BEGIN, sig, batch, *lines, event(1, "Q", 3, 3), event(1, "E", 4))
    assert [call.number for call in calls] == [1]  # a batch of sends and recvs is no collective
    assert parser.skipped == {
        "calls of operators that we don't know": 1,
        "batches of sends and recvs, of which the log names no peers": 1,
    }


@pytest.mark.parametrize(("first", "got"), [
    ("V|2|base_timestamp=1.000", "V|2"), ("{}", "{}"), ("", "''"), ("V|1|base_timestamp=x", "V|1"),
    ("\0\xff", "x00"),
])  # fmt: skip
def test_another_version_and_what_is_no_log_is_refused_with_its_line(first: str, got: str) -> None:
    with pytest.raises(InputError, match=r"line 1 must be V\|1\|base_timestamp=SECONDS\.MILLISECONDS") as caught:
        parsed(first)
    assert got in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("again", [header(), new_comm(1, 2)])
def test_a_file_into_which_two_ranks_write_is_refused(again: str) -> None:
    with pytest.raises(InputError, match=r"line 4 must be .*; got .*: each rank needs a file of its own"):
        parsed(*BEGIN, again)


@pytest.mark.parametrize(
    "line",
    ["C1|Q", "C1|Q|work_id=1|5", "C1|Q|work_id=1|+5", "C1|X|+0.001", "C1|S|extra|+0.001", "C|S|+0.001", "Cx|S|+0.001",
     "C1|sig|all_reduce", "new_comm|comm=w|rank=2|world_size=2", "new_comm|comm=w|rank=x|world_size=2", "new_comm|",
     "split|parent=w|child=c|ranks=1,x", "split|child=c|ranks=1", "loss 0.5", "C1|E|+9999999999999.000", "|||",
     "C" + "9" * 500 + "|S|+0.001", "C1|S|+0.0011", "C1|S|+1e3", "C1|S|+nan",
     # signatures without communicator or peer
     "C1|sig|all_reduce|in_count=1", "C1|sig|all_reduce|comm=", "C1|sig|send|dtype=f32|comm=w",
     "C1|sig|send|peer=-1|comm=w", "C1|sig|recv|peer=x|comm=w", "C1|sig|send|peer=99999999|comm=w"],
)  # fmt: skip
def test_a_line_that_makes_no_sense_is_counted(line: str) -> None:
    assert parsed(*BEGIN, line)[0].skipped["lines that can't be read"] == 1


def test_ends_without_calls_and_communicators_too_many_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser, calls = parsed(
        *BEGIN, event(1, "S", 1), event(1, "E", 1), event(7, "Q", 1, 1), event(7, "E", 1), "WARN|x"
    )
    assert not calls
    assert parser.skipped == {
        "starts and ends without a call": 3, "calls without a signature": 1,
        "warnings that TorchComms wrote itself": 1,
    }  # fmt: skip
    monkeypatch.setattr(lines_of_clog, "MOST_MEMBERSHIPS", 4)
    parser, _ = parsed(header(), *(split(f"c{n}", (0, 1)) for n in range(6)), new_comm(0, 2))
    assert (len(parser.splits), parser.skipped) == (4, {"lines that can't be read": 3})


def test_a_cut_last_line_is_one_line_and_the_rest_is_read() -> None:
    lines = steady(0)
    parser, calls = parsed(*lines[:-1], lines[-1][:-4])
    assert len(calls) == 59
    assert parser.skipped == {"lines that can't be read": 1}


@pytest.mark.parametrize("damage", ["C1|E|", "gone"])
def test_a_lost_end_shifts_no_later_one(damage: str) -> None:
    """Ends name no call: without care each later call would end with the one after it."""
    lines = steady(0, calls=100)
    lines[3 + 3 * 70 + 2] = damage
    parser, calls = parsed(*lines)
    assert {call.end_ms - call.called_ms for call in calls if call.end_ms is not None} == {3}
    assert len(calls) == 99
    assert parser.skipped["lines that can't be read"] == 1


def test_calls_whose_lines_are_missing_are_counted_whatever_the_order_of_threads() -> None:
    works = [1, 3, 2, 4, 8, 9, 10**9, 7]  # 5 and 6 never come
    lines = [line for n, work in enumerate(works) for line in (event(1, "Q", n, work), event(1, "E", n))]
    assert parsed(*BEGIN, *lines[:12])[0].lost == 3
    assert parsed(*BEGIN, *lines)[0].lost == 3 + 10**9 - 10 - 1


def test_times_before_the_header_and_a_clock_that_is_put_back_are_times() -> None:
    lines = [event(1, "Q", 500, 1), event(1, "E", 600), "C1|Q|work_id=2|+-0.250", "C1|E|+-0.200"]
    parser, calls = parsed(*BEGIN, *lines)
    assert calls[1].called_ms == BASE_MS - 250
    assert parser.backwards == 1


def test_what_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_OPEN", "MOST_SIGNATURES", "MOST_LISTED"):
        monkeypatch.setattr(lines_of_clog, name, 1000)
    calls = [event(1, "Q", 1, n) for n in range(1001)]
    with pytest.raises(InputError, match=r"line 1004 must come when at most 1000 calls have not ended; .*LIFECYCLE"):
        parsed(*BEGIN, *calls)
    with pytest.raises(InputError, match=r"must be among the first 1000 signatures.*leave verbose= empty"):
        parsed(header(), *(signature(n) for n in range(1001)))
    with pytest.raises(InputError, match=r"line 12 must list at most 1000 ranks"):
        parsed(header(), *(split(f"c{n}", range(n, 100 + n)) for n in range(11)))


def test_thousands_of_signatures_without_an_end_are_read_in_time() -> None:
    """Each call that blocks drops those before it, and looks only where one is open: else this would take hours."""
    whole = [one for n in range(600) for one in (event(1, "Q", n, n), event(1, "E", n))]
    others = range(10, 10_010)
    parser, _ = parsed(*BEGIN, *whole, *(signature(n) for n in others), *(event(n, "Q", n, n) for n in others))
    assert parser.calls == 10_600


pieces = st.sampled_from(
    ["C1", "C2", "G1", "R1", "Q", "S", "E", "W", "sig", "all_reduce", "send", "peer=1", "comm=world", "work_id=1",
     "work_id=-1", "+0.001", "+0.002", "+-9.000", "V", "1", "WARN", "split", "new_comm", "rank=0", "rank=1",
     "world_size=2", "parent=world", "child=x", "ranks=0,1", "ranks=", "async_op=t", "\ud7ff", ""]
)  # fmt: skip
lines_of_pieces = st.lists(pieces, max_size=6).map("|".join) | st.text(max_size=30) | st.sampled_from(steady(0)[1:])


@settings(max_examples=200)
@given(drawn=st.lists(lines_of_pieces, max_size=60))
def test_any_lines_are_counted_or_refused(drawn: list[str]) -> None:
    parser, refused = LogParser(), ""
    for line in [header(), signature(1), *drawn]:
        try:
            parser.parse(line.encode("utf-8", "surrogatepass"))
        except InputError as error:
            refused = str(error)
            break
    assert refused.startswith("line " if refused else "")
    assert len(refused) < 300


def looks_of(lines: list[str]) -> TimeCounts:
    parser, _ = parsed(*lines)
    assert not parser.skipped
    return parser.times


def test_where_calls_return_at_the_end_or_a_thread_writes_both_times_are_true() -> None:
    for has_starts in (True, False):  # older versions write no start of such calls
        assert looks_of(steady(0, has_starts=has_starts)).trusted() == CALL
    lines = [header(), new_comm(0, 2), signature(1, is_async=True)]
    for n in range(60):
        lines += [event(1, "Q", 10 * n, n + 1), event(1, "S", 10 * n + 1), event(1, "E", 10 * n + 8)]
    assert looks_of(lines).trusted() == START


@pytest.mark.parametrize("is_async", [False, True])
def test_where_somebody_looks_at_each_call_no_start_is_known(is_async: bool) -> None:
    """On a GPU the caller is ahead: what was called before is seen to have run when the next call comes."""
    lines = [header(), new_comm(0, 2), signature(1, is_async=is_async)]
    for n in range(60):
        lines.append(event(1, "Q", 10 * n, n + 1))
        lines += [event(1, kind, 10 * n) for kind in "SE"] if n else []
    assert looks_of(lines).trusted() == UNCLEAR


def test_one_rank_does_not_decide_for_the_job_and_short_operators_say_nothing() -> None:
    """A rank that made one call which blocks, and no other, says nothing of whether calls block."""
    few = TimeCounts(followed=1, ended_apart=140, hollow_apart=20, at_calls=92)
    many = TimeCounts(71, 50, 72, 20, 70, 0, 95)
    assert few.trusted() == UNCLEAR
    assert TimeCounts.of_all([few, many]).trusted() == UNCLEAR
    assert TimeCounts().trusted() == START
    looks = looks_of(
        [header(), new_comm(0, 2), signature(1), *(event(1, kind, 1) for _ in range(50) for kind in "QSE")]
    )
    assert (looks.ended, looks.hollow, looks.at_calls) == (0, 0, 0)


# As the published page lists them: the operator, its parameters, ours, and the payload in bytes.
SIGNATURES = [
    ("all_reduce|in_count=8|out_count=8|dtype=f32|red_op=sum|async_op=f", "all_reduce", 32),
    ("broadcast|in_count=8|out_count=8|dtype=f64|root=0|async_op=f", "broadcast", 64),
    ("reduce|in_count=8|out_count=8|dtype=bf16|red_op=premul_sum|root=1|async_op=f", "reduce", 16),
    ("all_gather_single|in_count=2|out_count=8|dtype=u8|async_op=t", "all_gather", 2),
    ("all_gather|in_count=2|out_counts=2,2|dtype=f16|async_op=t", "all_gather", 4),
    ("all_gather_v|in_count=2|out_counts=2,9|dtype=f16|async_op=t", "all_gather", 4),
    ("reduce_scatter_single|in_count=8|out_count=2|dtype=i64|red_op=avg|async_op=t", "reduce_scatter", 64),
    ("reduce_scatter|in_counts=3,3|out_count=3|dtype=i32|red_op=sum|async_op=t", "reduce_scatter", 24),
    ("reduce_scatter_v|in_counts=3,5|out_count=3|dtype=i8|red_op=sum|async_op=t", "reduce_scatter", 8),
    ("all_to_all_single|in_count=4|out_count=4|dtype=i16|async_op=f", "all_to_all", 8),
    ("all_to_all_v_single|in_splits=1,3|out_splits=2,2|dtype=f32|async_op=f", "all_to_all", math.nan),
    ("all_to_all|in_counts=1,3|out_counts=2,2|dtype=fp8e4m3|async_op=f", "all_to_all", 4),
    ("scatter|in_counts=|out_count=5|dtype=bool|root=3|async_op=f", "scatter", 5),
    ("gather|in_count=5|out_counts=|dtype=fp8e5m2|root=3|async_op=f", "gather", 5),
    ("gather_single|in_count=5|out_count=20|dtype=other|root=3|async_op=f", "gather", math.nan),
    ("barrier|async_op=f", "barrier", math.nan),
    ("send|in_count=4|out_count=0|dtype=f32|peer=3|async_op=f", "send", 16),
    ("recv|in_count=0|out_count=4|dtype=f32|peer=3|async_op=f", "recv", 16),
    ("all_reduce|in_count=8|out_count=8|dtype=f32|red_op=sum|async_op=f|buf=0x7f00", "all_reduce", 32),
    # counts that make no sense
    *((f"all_reduce|in_count={count}|dtype=f32", "all_reduce", math.nan)
      for count in ("-1", "1e9", "x", "1,,2", "9" * 40, "٣")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "operator", "size_bytes"), SIGNATURES)
def test_every_published_operator_has_its_name_and_size(text: str, operator: str, size_bytes: float) -> None:
    found = read_signature([*text.split("|"), "comm=world"])
    assert found is not None
    assert found.operator is not None
    assert (found.communicator, OPERATORS[found.operator]) == ("world", operator)
    assert found.size_bytes == pytest.approx(size_bytes, nan_ok=True)
    assert found.is_async == ("async_op=t" in text)
    assert found.peer == (3 if operator in ("send", "recv") else UNKNOWN)
