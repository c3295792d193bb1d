from __future__ import annotations

import dataclasses
import pickle
import re
import time
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.infra import agent_settings
from irregulars.infra.docs_site.made_parts import MAKERS
from irregulars.infra.settings import FIELDS, SEVERITIES, Settings, load_settings, parse_assignment
from irregulars.infra.wiring import monitor_settings, worker_settings
from irregulars.messages import judgements
from irregulars.messages.threshold_changes import LIVE
from irregulars.settings import SeverityLimits
from irregulars.sinks.alerts import LEAST_SEVERITY
from irregulars.sinks.notices import settings as notices
from irregulars.validation import MAX_SECONDS, checked

PAGE = Path(__file__).resolve().parents[3] / "infra" / "docs" / "settings.md"


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "our.toml"
    path.write_text(
        'delta = 2\nwindow = 20\ntopic_prefix = "file."\ndetectors = ["baseline", "peers(seed=1, k=2)"]\n'
    )
    return path


def test_each_source_is_stronger_than_the_one_before(toml: Path) -> None:
    environment = {"IRREGULARS_WINDOW": "30", "IRREGULARS_TOPIC_PREFIX": "env."}
    settings = load_settings({"topic_prefix": "flag.", "delta": None}, toml, environment)
    assert (settings.delta, settings.window, settings.topic_prefix) == (2.0, 30, "flag.")
    assert isinstance(settings.delta, float)
    assert settings.detectors == ("baseline", "peers(seed=1, k=2)")
    assert settings.grace_s == Settings().grace_s


def test_files_are_named_by_variable_flag_or_folder(
    toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.toml"
    other.write_text("delta = 3.0\n")
    assert load_settings(environment={"IRREGULARS_CONFIG": str(toml)}).delta == 2.0
    assert load_settings(config=other, environment={"IRREGULARS_CONFIG": str(toml)}).delta == 3.0
    (tmp_path / "irregulars.toml").write_text("window = 77\n")
    monkeypatch.chdir(tmp_path)
    assert load_settings(environment={}).window == 77


def test_lists_keep_commas_inside_brackets() -> None:
    settings = load_settings(environment={"IRREGULARS_DETECTORS": "peers, a.b:C(x=1, y=2) ,baseline"})
    assert settings.detectors == ("peers", "a.b:C(x=1, y=2)", "baseline")


@pytest.mark.parametrize(("line", "message"), [
    ("detla = 1.2", r"setting must be a known one; got 'detla' \(.*our.toml, key detla\); did you mean delta\?"),
    ("zzz = 1", r"got 'zzz' .*infra/docs/settings.md lists them"),
    ('delta = "much"', r"delta must be a number above 1; got 'much' \(.*our.toml, key delta\)"),
    ("delta = 1.0", r"delta must be a number above 1; got 1.0 \(.*our.toml, key delta\)"),
    ("delta = nan", r"delta must be a number above 1; got nan"),
    ("delta = true", r"delta must be a number above 1; got True"),
    ("window = 20.5", r"window must be an integer of at least 10; got 20.5"),
    ("window = 3", r"window must be an integer of at least 10; got 3"),
    ("grace_s = inf", r"grace_s must be a number from 0 to 1e9; got inf"),
    ("kafka_tls = 1", r"kafka_tls must be true or false; got 1"),
    ("detectors = [1]", r"detectors\[0\] must be text; got 1"),
    ('kafka_bootstrap = "broker"', r"kafka_bootstrap must be host:port.*; got 'broker'"),
    ('clickhouse_database = "a b"', r"clickhouse_database must be a name"),
    ('log_level = "loud"', r"log_level must be one of debug, info, .*; got 'loud'"),
    ("detectors = 1", r"detectors must be a list of texts; got 1"),
    ("kafka_password = 7", r"kafka_password must be text; got a hidden value"),
    ("[kafka]\nbootstrap = 1", r"setting must be a known one; got 'kafka'"),
    ("delta = ", r"settings file must be TOML; got .*our.toml"),
])  # fmt: skip
def test_a_bad_file_is_one_line_that_names_file_and_key(toml: Path, line: str, message: str) -> None:
    toml.write_text(line)
    with pytest.raises(InputError, match=message) as caught:
        load_settings(config=toml, environment={})
    assert "\n" not in str(caught.value)


def test_what_names_no_readable_text_or_setting_is_named(toml: Path) -> None:
    with pytest.raises(InputError, match=r"must be readable; got No such file or directory \(/nowhere/x.toml\)"):
        load_settings(config=Path("/nowhere/x.toml"), environment={})
    toml.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"settings file must be TOML"):
        load_settings(config=toml, environment={})
    with pytest.raises(InputError, match=r"got 'wide' \(environment variable IRREGULARS_WINDOW\)"):
        load_settings(environment={"IRREGULARS_WINDOW": "wide"})
    with pytest.raises(InputError, match=r"environment variable IRREGULARS_WINDWO\); did you mean window\?"):
        load_settings(environment={"IRREGULARS_WINDWO": "50"})
    with pytest.raises(InputError, match=r"delta must be a number above 1; got 0.5"):
        Settings(delta=0.5)


def test_secrets_stay_out_of_errors_and_the_repr_and_a_user_needs_a_password() -> None:
    with pytest.raises(InputError) as caught:
        load_settings({"clickhouse_url": "http://me:secret@host:8123"}, environment={})
    assert "secret" not in str(caught.value)
    settings = Settings(kafka_user="u", kafka_password="hush", clickhouse_password="hush")
    assert "hush" not in repr(settings)
    assert settings.kafka_security().client()["sasl.password"] == "hush"
    with pytest.raises(InputError, match="IRREGULARS_KAFKA_PASSWORD"):
        Settings(kafka_user="u")


@pytest.mark.parametrize(("values", "protocol"), [
    ({}, "plaintext"),
    ({"kafka_tls": True}, "ssl"),
    ({"kafka_user": "u", "kafka_password": "p"}, "sasl_plaintext"),
    ({"kafka_user": "u", "kafka_password": "p", "kafka_tls": True}, "sasl_ssl"),
])  # fmt: skip
def test_the_protocol_follows_from_user_and_tls(values: dict[str, object], protocol: str) -> None:
    assert Settings(**values).kafka_security().client()["security.protocol"] == protocol  # type: ignore[arg-type]


def test_settings_are_frozen_and_another_process_gets_the_same() -> None:
    settings = Settings(
        kafka_user="u", kafka_password="p,q", kafka_tls=True, kafka_ca_file=Path("/ca.pem"),
        detectors=("peers", "a:B(x=1, y=2)"), delta=1.5,
    )  # fmt: skip
    assert load_settings(environment=settings.to_environment()) == settings
    assert load_settings(environment=Settings().to_environment()) == Settings()
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.delta = 2.0  # type: ignore[misc]


@given(st.floats(1.0001, 1e9), st.integers(10, 10**9), st.booleans())
def test_text_and_typed_values_read_the_same(delta: float, window: int, is_tls: bool) -> None:
    typed = {"delta": delta, "window": window, "kafka_tls": is_tls}
    text = {f"IRREGULARS_{name.upper()}": str(value) for name, value in typed.items()}
    assert load_settings(typed, environment={}) == load_settings(environment=text)


def test_the_table_of_the_page_is_that_of_the_class() -> None:
    assert "<!-- made: settings -->" in PAGE.read_text()
    assert re.search(r"^\| `delta` \| a number above 1 \| `1.1` \|", MAKERS["settings"](), re.MULTILINE)
    assert set(re.findall(r"^\| `(\w+)`", MAKERS["settings"](), re.MULTILINE)) == set(FIELDS)


@pytest.mark.parametrize("text", ["delta", "=1", ""])
def test_an_assignment_needs_a_key_and_a_sign(text: str) -> None:
    with pytest.raises(InputError, match="must be key=value"):
        parse_assignment(text)


def test_the_limits_of_severity_have_the_defaults_of_the_core_and_reach_both_monitors_and_worker() -> None:
    assert monitor_settings(Settings(), has_detectors=False).severity == SeverityLimits()
    assert (Settings().alert_least_severity, tuple(SEVERITIES)) == (LEAST_SEVERITY, judgements.SEVERITIES)
    names = [one.name for one in fields(SeverityLimits)]
    others = {f"alert_{name}": 2 * getattr(SeverityLimits(), name) for name in names}
    limits = SeverityLimits(**{name: 2 * getattr(SeverityLimits(), name) for name in names})
    assert monitor_settings(Settings(**others)).severity == limits
    worker = worker_settings(Settings(**others, alert_least_severity="page"), "group")
    assert (worker.judge.severity, worker.alert_least_severity) == (limits, "page")


@pytest.mark.parametrize("name", [one.name for one in fields(Settings) if one.name.endswith("_s")])
def test_seconds_that_no_clock_counts_are_refused(name: str) -> None:
    for value in (1e308, 1e10, float("inf"), float("nan"), 10**400):
        with pytest.raises(InputError, match=rf"^{name} must be a number .*1e9; got "):
            Settings(**{name: value})


def test_the_longest_seconds_fit_a_time_of_day_in_nanoseconds() -> None:
    assert time.time_ns() + round(MAX_SECONDS * 1e9) < 2**63
    assert Settings(silence_s=MAX_SECONDS).silence_s == MAX_SECONDS


def test_all_seconds_of_other_files_are_bounded_too() -> None:
    """The files of agents, sources and channels, and what people change while workers run."""
    unbounded = []
    for module in (agent_settings, notices):
        for name, table in vars(module).items():
            if name == "NotifySettings":  # made of `Settings`, which are bounded
                continue
            if getattr(table, "__module__", "") == module.__name__ and dataclasses.is_dataclass(table):
                hints = get_type_hints(table, include_extras=True)
                unbounded += [f"{table.__name__}.{name}" for name in hints if _is_unbounded(name, hints[name])]
    assert unbounded == []
    assert [name for name in LIVE if _is_unbounded(name, LIVE[name])] == []


def _is_unbounded(name: str, kind: object) -> bool:
    if not name.endswith("_s"):
        return False
    try:
        checked(1e10, kind, name)
    except InputError:
        return False
    return True
