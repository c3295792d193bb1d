"""One wording for each rule, and the innermost part that breaks it."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta

from irregulars.errors import InputError, RecordError
from irregulars.messages.records import read_header
from irregulars.validation import (
    LARGEST,
    Count,
    Number,
    Positive,
    Rank,
    Share,
    Text,
    checked,
    json_object,
    one_of,
    require_known,
)
from tests.integration.worker_runs import ROOT

Port = Annotated[int, Meta(ge=0, le=65_535)]
Host = Annotated[str, Meta(min_length=1, max_length=9)]


@dataclass(frozen=True, slots=True)
class Group:
    kind: Annotated[str, one_of("dp", "tp")]
    ranks: Annotated[tuple[Rank, ...], Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Job:
    job: Text
    groups: dict[str, Group]
    listed: tuple[Group, ...] = ()
    gpu: Count | None = None
    place: Path = Path("/")
    runs: tuple[tuple[Rank, Rank, Rank], ...] = field(default_factory=tuple)


LIST = "a list of integers that is not empty"
RANK = "an integer from 0 to 4194303"
GROUP = {"kind": "dp", "ranks": [0, 3]}
JOB: dict[str, Any] = {"job": "j", "groups": {"a": GROUP}, "unknown": 3}


def test_a_sound_value_becomes_what_its_annotation_says() -> None:
    assert checked(JOB | {"gpu": None, "place": "/tmp"}, Job, "") == Job(
        "j", {"a": Group("dp", (0, 3))}, place=Path("/tmp")
    )
    assert (checked(3, Number, "x"), type(checked(3, Number, "x"))) == (3.0, float)
    assert checked(Path("a"), Path, "x") == Path("a")


@pytest.mark.parametrize(("value", "kind", "rule"), [
    (65_536, Port, "an integer from 0 to 65535; got 65536"),
    (-1, Port, "an integer from 0 to 65535; got -1"),
    (True, Port, "an integer from 0 to 65535; got True"),
    (3.0, Port, "an integer from 0 to 65535; got 3.0"),
    ("3", Count, "an integer of at least 0; got '3'"),
    (LARGEST + 1, Count, f"an integer from 0 to {LARGEST}; got {LARGEST + 1}"),
    (None, Count, "an integer of at least 0; got None"),
    ("x", int, "an integer; got 'x'"),
    (0, Positive, "a number above 0; got 0"),
    (math.nan, Positive, "a number above 0; got nan"),
    (math.inf, Positive, "a number below 1e308; got inf"),
    (10**400, Number, "a number below 1e308; got 1"),
    (1.5, Share, "a number from 0 to 1; got 1.5"),
    (10**400, Share, "a number from 0 to 1; got 1"),
    ("", Text, "text that is not empty; got ''"),
    (3, Text | None, "text that is not empty; got 3"),
    (3, str, "text; got 3"),
    ("x" * 10, Host, "text of 1 to 9 characters; got 'xxxxxxxxxx'"),
    (1, bool, "true or false; got 1"),
    ("c", Annotated[str, one_of("a", "b.")], "one of a, b.; got 'c'"),
    ("b,", Annotated[str, one_of("a", "b.")], "one of a, b.; got 'b,'"),
    ("a\n", Annotated[str, one_of("a", "b.")], "one of a, b.; got 'a\\n'"),
    ("a", tuple[str, ...], "a list of texts; got 'a'"),
    (3, Path, "a path; got 3"),
    ("a\0", Path, "a path without a null; got 'a\\x00'"),
    (3, Job, "an object; got 3"),
])  # fmt: skip
def test_each_rule_has_one_wording(value: Any, kind: Any, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        checked(value, kind, "x", "file, key x")
    assert str(caught.value).startswith(f"x must be {rule}")
    assert str(caught.value).endswith("(file, key x)")


@pytest.mark.parametrize(("change", "said"), [
    ({"groups": {"a": GROUP | {"kind": "xp"}}}, "groups['a'].kind must be one of dp, tp; got 'xp'"),
    ({"groups": {"a": {"kind": "dp"}}}, f"groups['a'].ranks must be {LIST}; got none"),
    ({"groups": {"a": GROUP | {"ranks": []}}}, f"groups['a'].ranks must be {LIST}; got []"),
    ({"groups": {"a": GROUP, "b": 3}}, "groups['b'] must be an object; got 3"),
    ({"groups": []}, "groups must be an object; got []"),
    ({"listed": [GROUP, GROUP | {"ranks": [1, -1]}]}, f"listed[1].ranks[1] must be {RANK}; got -1"),
    ({"gpu": -1}, "gpu must be an integer of at least 0; got -1"),
    ({"runs": [[0, 1, 1], [0, 1]]}, "runs[1] must be a list of 3 values; got [0, 1]"),
    ({"runs": [[0, 1, "1"]]}, f"runs[0][2] must be {RANK}; got '1'"),
])  # fmt: skip
def test_the_innermost_part_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(RecordError) as caught:
        checked(JOB | change, Job, "", "message", RecordError)
    assert str(caught.value) == f"{said} (message)"


def test_what_is_long_or_secret_is_not_printed() -> None:
    for value, said in (("x" * 1000, "..."), ("http://user:word@host", "//…@host")):
        with pytest.raises(InputError) as caught:
            checked(value, Port, "x")
        assert said in str(caught.value)
        assert len(str(caught.value)) < 150


def test_a_name_that_is_nearly_known_is_named() -> None:
    require_known("period", ("period", "port"), "key", "f", "else")
    with pytest.raises(InputError, match=r"key must be a known one; got 'peroid' \(f\); did you mean period\?"):
        require_known("peroid", ("period", "port"), "key", "f", "else")
    with pytest.raises(InputError, match=r"got 'x' \(f\); else"):
        require_known("x", ("period", "port"), "key", "f", "else")


HALF = '{"a":"\ud83d"}'  # no text: UTF-8, and so each table and topic, can hold whole pairs only


@pytest.mark.parametrize(
    "value",
    [HALF.encode("utf-8", "surrogatepass"), HALF.encode("utf-16", "surrogatepass"), b'{"a":"\\ud83d"}'],
    ids=["utf-8", "utf-16", "escape"],
)
def test_half_a_surrogate_pair_is_no_json_in_whichever_form_it_comes(value: bytes) -> None:
    with pytest.raises(RecordError, match="message must be JSON; got Unicode"):
        json_object(value, "message")
    assert json_object('{"a":"😀"}'.encode(), "message") == json_object(b'{"a":"\\ud83d\\ude00"}', "message")


@pytest.mark.parametrize("order", ['"schema":"events","version":1', '"version":1,"schema":"events"'])
def test_a_header_with_half_a_surrogate_pair_is_refused(order: str) -> None:
    header = f'{{{order},"job":"j","attempt":0,"rank":0,"rows_before":0,"names":["HALF"]}}'.encode()
    assert read_header(header, "events").names == ("HALF",)
    with pytest.raises(RecordError, match="must be JSON; got UnicodeDecodeError"):
        read_header(header.replace(b"HALF", b"\xed\xa0\xbd"), "events")


PROGRAM = """
    import sys
    import threading
    from dataclasses import make_dataclass

    from irregulars.state_codec import decode_state, encode_state
    from irregulars.validation import checked

    USES = {
        "checked": lambda value, kind: checked(value, kind, ""),
        "decode_state": lambda value, kind: decode_state(encode_state(value, 1), kind, 1),
    }
    use = USES[sys.argv[1]]
    sys.setswitchinterval(1e-6)
    for number in range(60):
        inner = make_dataclass(f"Inner{number}", [(f"a{one}", int) for one in range(12)])
        outer = make_dataclass(f"Outer{number}", [(f"b{one}", inner) for one in range(6)])
        value = {f"b{one}": {f"a{other}": 1 for other in range(12)} for one in range(6)}
        begin = threading.Barrier(4)

        def run() -> None:
            begin.wait()
            assert use(value, outer).b5.a11 == 1

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
"""


@pytest.mark.parametrize("use", ["checked", "decode_state"])
def test_threads_may_use_a_type_for_the_first_time_at_once(use: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), use], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
