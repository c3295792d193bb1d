from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from irregulars.infra.commands.sql import lay_out, plain_value, show_answer
from irregulars.sinks.investigations import Answer, shipped_investigations
from tests.infra.conftest import Run, refused


def test_the_list_has_every_question_under_its_theme_and_is_there_for_scripts(run: Run) -> None:
    status, out, _ = run("sql", "--list")
    assert status == 0
    assert all(f"\n{name}: " in out for name in shipped_investigations())
    assert "Is the pipeline healthy? For" in out
    assert "?." not in out
    # No line of a file or pipe is broken
    assert all(f": {one.title}" in out and one.description in out for one in shipped_investigations().values())
    themes = ["NOW", "A VERDICT", "AN ITERATION", "DEVICES AND HOSTS", "JOBS AND COST", "THE PIPELINE"]
    assert [line for line in out.splitlines() if line.isupper()] == themes
    assert out.index("NOW") < out.index("open_now:") < out.index("A VERDICT") < out.index("hang_positions:")
    shipped = {one["name"]: one for one in json.loads(run("sql", "--list", "--json")[1])}
    assert {p["name"] for p in shipped["rank_operators"]["parameters"]} >= {"job", "rank", "iteration"}


@pytest.mark.parametrize(("arguments", "message"), [
    # Before any connection
    (("rank_operators", "job=a", "iteration=0", "--clickhouse-url", "http://127.0.0.1:1"),
     "must be given rank"),
    (("job_now",), "irregulars: question must be one that ships; got 'job_now'. Did you mean jobs_now? "
                   "See: irregulars sql --list\n"),
    (("blamed", "limti=3"), "Did you mean limit?"),
    (("blamed", "--json", "--vertical"), "form must be one of"),
])  # fmt: skip
def test_what_can_not_be_asked_is_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(run, "sql", *arguments)


def test_values_print_as_json_has_them() -> None:
    assert plain_value(datetime(2026, 11, 21, 3, 4, 5)) == "2026-11-21T03:04:05Z"  # noqa: DTZ001
    assert plain_value(datetime(2026, 11, 21, tzinfo=UTC)) == "2026-11-21T00:00:00+00:00"
    assert plain_value(float("nan")) is None
    assert plain_value((1, "a", None, 2.5)) == [1, "a", None, 2.5]


def test_a_shell_completes_names_of_questions() -> None:
    from irregulars.infra.commands.sql import _question_names

    assert [name for name, _ in _question_names("cost_")] == ["cost_by_job", "cost_by_switch", "cost_by_week"]


ANSWER = Answer(
    ("device", "gpu", "lost_s", "is_open", "ranks"),
    (("NIC eth0 on node-1", None, 12.5, True, [1, 3]), ("GPU 0 on node-12", 0, 3, False, [])),
)


def lines(answer: Answer, width: int | None, height: int | None = None, **options: object) -> list[str]:
    return [line for line, _ in lay_out(answer, width, height, **options)]  # type: ignore[arg-type]


def test_what_fits_is_a_table_and_what_does_not_one_record_after_the_other() -> None:
    assert lines(ANSWER, 80) == [
        "device              gpu  lost_s  is_open  ranks",
        "NIC eth0 on node-1    -    12.5  true     [1, 3]",
        "GPU 0 on node-12      0       3  false    []",
    ]
    assert lines(ANSWER, 47) == [
        "1 of 2",
        "device   NIC eth0 on node-1",
        "gpu      -",
        "lost_s   12.5",
        "is_open  true",
        "ranks    [1, 3]",
        "2 of 2",
        "device   GPU 0 on node-12",
        "gpu      0",
        "lost_s   3",
        "is_open  false",
        "ranks    []",
    ]


@pytest.mark.parametrize("width", [48, 200])
def test_the_width_decides_to_the_letter(width: int) -> None:
    assert len(lines(ANSWER, width)) == 3
    assert len(lines(ANSWER, width, shape="vertical")) == 12
    assert len(lines(ANSWER, 20, shape="table")) == 3


def test_long_texts_of_a_record_stay_in_their_column_and_within_the_width() -> None:
    text = "recv on rank 3 from rank 1 took 24.9 ms after both had arrived, and that was not all"
    told = lines(Answer(("evidence", "n"), ((text, 1),)), 40)
    assert told[0] == "1 row"
    assert max(map(len, told)) <= 40
    assert " ".join([told[1].removeprefix("evidence"), *told[2:-1]]).split() == text.split()
    assert all(line.startswith(" " * 10) for line in told[2:-1])


def test_letters_lines_and_control_signs_of_cells() -> None:
    assert lines(Answer(("名", "n"), (("節点", 1),)), 80) == ["名    n", "節点  1"]
    assert lines(Answer(("statement",), (("CREATE\nTABLE",),)), 80) == [
        "1 row",
        "statement  CREATE",
        "           TABLE",
    ]
    assert lines(Answer(("a\x1b",), (("b\x9b\r",),)), 80) == ["a\\x1b", "b\\x9b\\r"]
    wide = Answer(("evidence", "n"), (("x" * 900, 1),))
    assert lines(wide, None)[1] == "x" * 900 + "  1"


def test_times_are_told_apart_and_no_more_and_shown_in_utc() -> None:
    first, second, other = (datetime(2026, 11, 21, 3, 4, at, micro, UTC) for at, micro in ((5, 1), (5, 2), (6, 9)))
    assert lines(Answer(("t",), ((first,), (other,), (None,))), 80)[1:] == [
        "2026-11-21 03:04:05Z",
        "2026-11-21 03:04:06Z",
        "-",
    ]
    assert lines(Answer(("t",), ((first,), (second,))), 80)[1] == "2026-11-21 03:04:05.000001Z"
    later = first.replace(microsecond=240_001)
    assert lines(Answer(("t",), ((first,), (later,))), 80)[2] == "2026-11-21 03:04:05.240Z"
    berlin = datetime(2026, 11, 21, 3, 4, 5, tzinfo=timezone(timedelta(hours=1)))
    assert lines(Answer(("at",), ((berlin,),)), 80) == ["at", "2026-11-21 02:04:05Z"]


def test_no_rows_say_what_that_means(capsys: pytest.CaptureFixture[str]) -> None:
    show_answer(Answer(("a",), (), {}, "Nothing is wrong."))
    show_answer(Answer((), ()))
    assert capsys.readouterr().out == "no rows. Nothing is wrong.\nno rows\n"


RANKS = Answer(
    ("rank", "host", "evidence", "work_ms", "score"),
    tuple((rank, f"node-{rank}", "x" * 40, 1.5 * rank, None) for rank in range(50)),
)


def test_many_rows_that_are_too_wide_are_a_table_of_the_columns_for_which_there_is_room() -> None:
    told = lines(RANKS, 60, 24)
    assert told[:2] == [f"rank  host     evidence{' ' * 24}  work_ms", f"   0  node-0   {'x' * 31}…      0.0"]
    assert len(told) == 51 + 2
    assert " ".join(told[51:]) == (
        "Too wide for this terminal: not shown: score; texts are cut (…). Whole: --vertical, --table, --json"
    )
    assert max(map(len, told)) <= 60


def test_records_that_fit_the_screen_stay_records() -> None:
    few = Answer(RANKS.columns, RANKS.rows[:3])
    assert lines(few, 60, 24)[0] == "1 of 3"
    assert lines(few, 60, 18)[0].startswith("rank")
    two = Answer(RANKS.columns, RANKS.rows[:2])
    assert lines(two, 60, 5)[0] == "1 of 2"


def test_a_single_column_is_cut_where_nothing_else_helps() -> None:
    told = lines(Answer(("節",), tuple(("節" * 30,) for _ in range(9))), 20, 5)
    assert told[1] == "節" * 9 + "…"
    assert "texts are cut" in " ".join(told)
