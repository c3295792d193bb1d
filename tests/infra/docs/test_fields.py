"""A field of a verdict is one entry of its class, a kind of device one of its table: what reads them follows."""

from __future__ import annotations

import json
import re
from dataclasses import field, fields, make_dataclass

import pytest

from irregulars.infra.console.rendering import device_path
from irregulars.infra.docs_site.made_parts import ROOT
from irregulars.messages.judgements import Suspect, Verdict
from irregulars.messages.kinds import DEVICE_KINDS, DeviceKind
from irregulars.sinks.advice import name_device
from irregulars.sinks.migrate import Migration, shipped_migrations
from irregulars.sinks.notices.incidents import device_of
from irregulars.sinks.tables import tables_in
from irregulars.validation import Count, Name, about
from tests.infra.docs.fields import MIGRATIONS, made_files

# No field's own names, which may be any: these are added to the classes as they are
RETRIES = ("made_up_retries", Count, field(default=0, metadata=about("How often it was tried again")))
BOARD = ("made_up_board", Name | None, field(default=None, metadata=about("Its board; null: not known")))


def wider(record: type, *added: tuple[str, object, object]) -> type:
    return make_dataclass(record.__name__, added, bases=(record,), frozen=True, slots=True)  # type: ignore[arg-type]


def migration_for_added() -> Migration:
    """The migration that is made where these two fields are added."""
    made = made_files(wider(Verdict, RETRIES), wider(Suspect, BOARD))
    [(path, sql)] = [(path, text) for path, text in made.items() if path.suffix == ".sql"]
    return Migration(len(shipped_migrations()) + 1, path.name, sql)


def test_a_field_that_is_added_reaches_schemas_and_tables() -> None:
    texts = {path.name: text for path, text in made_files(wider(Verdict, RETRIES), wider(Suspect, BOARD)).items()}
    for name in ("verdicts.json", "alerts.json"):
        schema = json.loads(texts[name])
        assert schema["properties"]["made_up_retries"] == {
            "description": "How often it was tried again", "type": "integer", "minimum": 0,
        }  # fmt: skip
        assert "made_up_retries" not in schema["required"]
    added = migration_for_added()
    assert "made_up_retries Int64 DEFAULT 0 COMMENT 'How often it was tried again';" in added.sql
    assert "made_up_board LowCardinality(Nullable(String)) COMMENT 'Its board; NULL: not known';" in added.sql
    before, after = dict(tables_in(shipped_migrations())), dict(tables_in((*shipped_migrations(), added)))
    assert after["verdicts"].schema.names == [*before["verdicts"].schema.names, "made_up_retries"]
    assert after["suspects"].schema.field("made_up_board").nullable
    assert list(added.statements())[-1].count("known.made_up_retries AS made_up_retries,\n") == 1


def test_a_field_without_a_default_is_refused() -> None:
    with pytest.raises(ValueError, match="made_up_retries must have a default"):
        made_files(wider(Verdict, ("made_up_retries", Count, field(kw_only=True, metadata=about("x")))))


def test_a_kind_of_device_that_is_added_has_its_name_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEVICE_KINDS, "bridge", DeviceKind("PCIe bridge", "joins a NIC and GPUs", ("host", "nic")))  # type: ignore[arg-type]
    suspect = Suspect("bridge", 0, (0, 1), 0.9, host="node-3", nic="mlx5_0")
    place = {"device": "bridge", "host": "node-3", "nic": "mlx5_0"}
    assert name_device(suspect) == "PCIe bridge mlx5_0 on node-3 (ranks 0-1)"
    assert device_of({"job": "j", "suspects": [place]}) == "bridge:node-3/mlx5_0"
    assert device_path(place) == "/devices/history?host=node-3&nic=mlx5_0"
    [(path, sql)] = [(path, text) for path, text in made_files().items() if path.suffix == ".sql"]
    [view] = Migration(len(shipped_migrations()) + 1, path.name, sql).statements()
    assert view.startswith("CREATE OR REPLACE VIEW named_suspects AS")
    assert "'bridge']" in view
    assert "'PCIe bridge']" in view


def test_no_second_list_of_the_fields_is_kept_by_hand() -> None:
    """Files that name nearly all: the class, the judge that fills it, and those that are made or were released."""
    names = {one.name for one in fields(Verdict)}
    made = {"messages/schemas/verdicts.json", "messages/schemas/alerts.json", "docs/examples/verdicts.json",
            "docs/examples/alerts.json"}  # fmt: skip
    found = set()
    for folder in ("irregulars", "detectors", "sinks", "streams", "producers", "infra", "tests"):
        for path in (ROOT / folder).rglob("*.*"):  # does not follow the links in irregulars/
            is_source = path.suffix in (".py", ".sql", ".json", ".md", ".js", ".html", ".toml")
            if not is_source or path.parent == MIGRATIONS or path.as_posix().endswith(tuple(made)):
                continue
            if len(names & set(re.findall(r"\w+", path.read_text()))) > 0.9 * len(names):
                found.add(path.relative_to(ROOT).as_posix())
    assert found == {"irregulars/messages/judgements.py", "detectors/verdicts/revision.py"}
