from __future__ import annotations

import json

from irregulars.infra.commands.sql import plain_value
from tests.infra.conftest import Run


def test_the_list_shows_every_investigation_with_its_parameters(run: Run) -> None:
    status, out, _ = run("sql", "--list")
    assert status == 0
    for name in ("jobs_now", "irregular_iterations", "blamed", "time_lost_by_device", "rank_operators"):
        assert name in out


def test_questions_with_a_question_mark_have_no_full_stop_behind_it(run: Run) -> None:
    out = run("sql", "--list")[1]
    assert "Is the pipeline healthy? For" in out
    assert "?." not in out


def test_the_list_is_there_for_scripts(run: Run) -> None:
    shipped = {one["name"]: one for one in json.loads(run("sql", "--list", "--json")[1])}
    assert {p["name"] for p in shipped["rank_operators"]["parameters"]} >= {"job", "rank", "iteration"}


def test_a_missing_parameter_shows_before_any_connection(run: Run) -> None:
    status, _, err = run(
        "sql", "--clickhouse-url", "http://127.0.0.1:1", "rank_operators", "job=a", "-p", "iteration=0"
    )
    assert status == 2
    assert "must be given rank" in err


def test_values_print_as_json_has_them() -> None:
    from datetime import UTC, datetime

    assert plain_value(datetime(2026, 11, 21, 3, 4, 5)) == "2026-11-21T03:04:05Z"  # noqa: DTZ001
    assert plain_value(datetime(2026, 11, 21, tzinfo=UTC)) == "2026-11-21T00:00:00+00:00"
    assert plain_value(float("nan")) is None
    assert plain_value((1, "a", None, 2.5)) == [1, "a", None, 2.5]


def test_the_list_is_grouped_by_theme(run: Run) -> None:
    out = run("sql", "--list")[1]
    themes = ["NOW", "A VERDICT", "AN ITERATION", "DEVICES AND HOSTS", "JOBS AND COST", "THE PIPELINE"]
    assert [line for line in out.splitlines() if line.isupper()] == themes
    assert out.index("NOW") < out.index("open_now:") < out.index("A VERDICT") < out.index("hang_positions:")


def test_a_wrong_name_is_answered_with_the_nearest(run: Run) -> None:
    status, _, err = run("sql", "job_now")
    wanted = "irregulars: question must be one that ships; got 'job_now'. Did you mean jobs_now? "
    assert (status, err) == (2, f"{wanted}See: irregulars sql --list\n")
    status, _, err = run("sql", "blamed", "limti=3")
    assert (status, "Did you mean limit?" in err) == (2, True)


def test_two_forms_at_once_are_refused(run: Run) -> None:
    status, _, err = run("sql", "blamed", "--json", "--vertical")
    assert (status, "form must be one of" in err) == (2, True)


def test_a_shell_completes_names_of_questions() -> None:
    from irregulars.infra.commands.sql import _question_names

    assert [name for name, _ in _question_names("cost_")] == ["cost_by_job", "cost_by_switch", "cost_by_week"]
