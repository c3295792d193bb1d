from __future__ import annotations

from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.infra.settings import load_leniently


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "irregulars.toml"
    path.write_text('delta = 0.5\nwindwo = 60\nwindow = 70\nkafka_user = "ann"\n')
    return path


def test_what_is_wrong_is_told_and_the_rest_counts(file: Path) -> None:
    found = load_leniently({"grace_s": 9.0}, file, {"IRREGULARS_DETLA": "2", "IRREGULARS_KAFKA_PASSWORD": "hush"})
    assert found.settings is not None
    assert (found.settings.delta, found.settings.window, found.settings.grace_s) == (1.1, 70, 9.0)
    assert [text.partition(" must")[0] for text in found.refused] == ["delta", "setting", "setting"]
    assert "did you mean window?" in found.refused[1]
    assert "environment variable IRREGULARS_DETLA" in found.refused[2]
    assert "hush" not in repr(found)


def test_values_that_do_not_fit_together_leave_no_settings(file: Path) -> None:
    found = load_leniently({}, file, {})
    assert found.settings is None
    assert "kafka_password" in found.refused[-1]


def test_a_file_that_is_no_toml_is_told_and_one_of_the_call_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("delta = \n")
    found = load_leniently({}, None, {"IRREGULARS_CONFIG": str(path)})
    assert found.settings is not None
    assert "must be TOML" in found.refused[0]
    with pytest.raises(InputError, match="must be TOML"):
        load_leniently({}, path, {})


def test_a_flag_is_of_the_call() -> None:
    with pytest.raises(InputError, match="flag for detla"):
        load_leniently({"detla": "2"}, None, {})


def test_names_that_somebody_else_reads_are_not_wrong(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('topic_prefix = "a."\n[nics]\nperiod_ms = 10\n[[sources]]\nkind = "torch"\n')
    found = load_leniently({}, path, {}, others=("nics", "sources"))
    assert found.settings is not None
    assert (found.refused, found.settings.topic_prefix) == ((), "a.")
    assert len(load_leniently({}, path, {}).refused) == 2
