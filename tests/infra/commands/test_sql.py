from __future__ import annotations

import json

import pytest

from irregulars.infra.commands.sql import plain_value
from irregulars.sinks.investigations import shipped_investigations
from tests.infra.conftest import Run, refused


def test_the_list_has_every_question_under_its_theme(run: Run) -> None:
    status, out, _ = run("sql", "--list")
    assert status == 0
    assert all(f"\n{name}: " in out for name in shipped_investigations())
    assert "Is the pipeline healthy? For" in out
    assert "?." not in out
    themes = ["NOW", "A VERDICT", "AN ITERATION", "DEVICES AND HOSTS", "JOBS AND COST", "THE PIPELINE"]
    assert [line for line in out.splitlines() if line.isupper()] == themes
    assert out.index("NOW") < out.index("open_now:") < out.index("A VERDICT") < out.index("hang_positions:")


@pytest.mark.parametrize(("arguments", "message"), [
    # Before any connection
    (("rank_operators", "job=a", "-p", "iteration=0", "--clickhouse-url", "http://127.0.0.1:1"),
     "must be given rank"),
    (("job_now",), "irregulars: question must be one that ships; got 'job_now'. Did you mean jobs_now? "
                   "See: irregulars sql --list\n"),
    (("blamed", "limti=3"), "Did you mean limit?"),
    (("blamed", "--json", "--vertical"), "form must be one of"),
])  # fmt: skip
def test_what_can_not_be_asked_is_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(run, "sql", *arguments)


def test_the_list_is_there_for_scripts(run: Run) -> None:
    shipped = {one["name"]: one for one in json.loads(run("sql", "--list", "--json")[1])}
    assert {p["name"] for p in shipped["rank_operators"]["parameters"]} >= {"job", "rank", "iteration"}


def test_values_print_as_json_has_them() -> None:
    from datetime import UTC, datetime

    assert plain_value(datetime(2026, 11, 21, 3, 4, 5)) == "2026-11-21T03:04:05Z"  # noqa: DTZ001
    assert plain_value(datetime(2026, 11, 21, tzinfo=UTC)) == "2026-11-21T00:00:00+00:00"
    assert plain_value(float("nan")) is None
    assert plain_value((1, "a", None, 2.5)) == [1, "a", None, 2.5]


def test_a_shell_completes_names_of_questions() -> None:
    from irregulars.infra.commands.sql import _question_names

    assert [name for name, _ in _question_names("cost_")] == ["cost_by_job", "cost_by_switch", "cost_by_week"]
