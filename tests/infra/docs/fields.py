"""Files made of the fields of `Verdict` and of kinds of devices: JSON schemas, columns and a view of the database.

`python -m tests.infra.docs.made_parts` writes them. A column of a new field is a migration of its own, since a
migration that was released is never edited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from msgspec import inspect

from irregulars.infra.docs_site.made_parts import ROOT, SCHEMAS
from irregulars.messages.judgements import Suspect, Verdict
from irregulars.messages.kinds import DEVICE_KINDS, DeviceKind
from irregulars.messages.reasons import Reported
from irregulars.sinks.migrate import Migration, shipped_migrations
from irregulars.sinks.tables import tables_in
from irregulars.validation import MAX_NAME_CHARACTERS, MAX_RANK

MIGRATIONS = ROOT / "sinks" / "sql" / "migrations"
# Fields without a column of their name: two columns, `last_seen_at`, a table of their own, the topic alone
ELSEWHERE = {"verdicts": ("iterations", "time_ns", "suspects", "thresholds"), "suspects": ()}


def made_files(
    verdict: type = Verdict, suspect: type = Suspect, devices: Mapping[str, DeviceKind] = DEVICE_KINDS
) -> dict[Path, str]:
    """Text of each file that is made; a migration that lacks is among them."""
    schema = verdicts_schema(verdict)
    made = {SCHEMAS / "verdicts.json": schema, SCHEMAS / "alerts.json": _alerts_schema(schema)}
    files = {path: json.dumps(one, indent=2, ensure_ascii=False) + "\n" for path, one in made.items()}
    shipped = shipped_migrations()
    sql = "".join(
        [*_added_columns(shipped, {"verdicts": verdict, "suspects": suspect}), *_new_kinds(shipped, devices)]
    )
    return files | ({MIGRATIONS / f"{len(shipped) + 1:04}_fields.sql": sql} if sql else {})


WRITTEN_FROM_THE_FIRST = {
    Suspect: ("peer", "peer_host", "host", "gpu", "nic", "switch"), Reported: ("code", "detail", "times"),
}  # fmt: skip
"""Fields that each message has, although their classes have a default. A field that is added is none: older messages
lack it."""


def verdicts_schema(verdict: type = Verdict) -> dict[str, Any]:
    """The schema of the topic verdicts."""
    schema = _object(inspect.type_info(verdict))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:irregulars:verdicts:1",
        "title": "A revision of a verdict",
        "description": "Message of the topic verdicts, keyed by verdict id: every revision of every verdict.",
        "type": "object",
        "properties": {
            "schema": {"description": "Name of the schema", "const": "verdicts"},
            "version": {"description": "Version of the schema; a reader refuses newer ones", "const": 1},
            **schema["properties"],
        },
        "required": ["schema", "version", *schema["required"]],
    }


def _object(info: Any) -> dict[str, Any]:
    own = {one.name: one for one in fields(info.cls)}
    always = WRITTEN_FROM_THE_FIRST.get(info.cls, ())
    return {
        "description": info.cls.__doc__.splitlines()[0].removesuffix("."),
        "type": "object",
        "properties": {one.name: _described(own[one.name], one.type) for one in info.fields},
        "required": [one.name for one in info.fields if one.required or one.name in always],
    }


def _described(one: Field[Any], info: Any) -> dict[str, Any]:
    rule, is_nullable = _rule(one, info)
    is_null = is_nullable and not one.metadata["is_left_out"]
    if words := one.metadata["words"]:
        return {"description": one.metadata["about"], "enum": [*words, *([None] if is_null else [])]}
    made = _plain(rule) | {"description": one.metadata["about"]}
    if is_null:
        made["type"] = [made["type"], "null"]
        made.pop("minLength", None)
    return {"description": made.pop("description"), **made}


def _rule(one: Field[Any], info: Any) -> tuple[Any, bool]:
    """What msgspec knows of a field, without null, and whether it may be null."""
    if one.metadata["known"]:
        return inspect.type_info(one.metadata["known"]), True
    if not isinstance(info, inspect.UnionType):
        return info, False
    (rule,) = (part for part in info.types if not isinstance(part, inspect.NoneType))
    return rule, True


def _plain(info: Any) -> dict[str, Any]:
    """The schema of a value that is not null; bounds that only keep it within our memory are left out."""
    match info:
        case inspect.Metadata():
            return _plain(info.type)
        case inspect.DataclassType():
            return _object(info)
        case inspect.VarTupleType():
            least = {"minItems": info.min_length} if info.min_length else {}
            return {"type": "array", "items": _plain(info.item_type), **least}
        case inspect.TupleType():
            count = len(info.item_types)
            parts = [_plain(one) for one in info.item_types]
            return {"type": "array", "prefixItems": parts, "minItems": count, "maxItems": count}
        case inspect.DictType():
            return {"type": "object", "additionalProperties": _plain(info.value_type)}
        case inspect.StrType():
            return {"type": "string", **({"minLength": info.min_length} if info.min_length else {})}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return {"type": "integer", **({"minimum": 0} if info.ge == 0 else {})}
        case inspect.FloatType():
            bounds = {"minimum": info.ge, "maximum": info.le}
            return {"type": "number", **{k: v for k, v in bounds.items() if v is not None and abs(v) < 1e18}}
    raise TypeError(f"field must be of a kind that this module knows; got {info}")


def _alerts_schema(verdicts: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of verdicts, with an alert's own fields: a verdict's are written down once."""
    properties = dict(verdicts["properties"])
    properties["schema"] = {**properties["schema"], "const": "alerts"}
    properties["event"] = {
        "description": "What this revision is; continued ones make no alert",
        "enum": [one for one in properties["event"]["enum"] if one != "continued"],
    }
    return {
        **verdicts,
        "$id": "urn:irregulars:alerts:1",
        "title": "An alert",
        "description": "Message of the topic alerts, keyed by verdict id: a verdict that costs enough opened, "
        "changed, became more urgent or closed. The verdict's own fields are those of the topic verdicts.",
        "properties": {
            "summary": {
                "description": "One line for a person: what happened, how urgent it is, which device, how much "
                "slower, what it cost, what to do next",
                "type": "string",
                "pattern": "^[^\\r\\n]+$",
            },
            **properties,
            **_COST_AND_STEP,
        },
        "required": ["summary", *verdicts["required"], "event", *_COST_AND_STEP],
    }


_COST_AND_STEP = {
    "gpu_hours_lost": {
        "description": "lost_s times world_size, in hours; null: the number of GPUs is not known",
        "type": ["number", "null"],
        "minimum": 0,
    },
    "next_step": {"description": "What to do and where to look, for a person", "type": "string", "minLength": 1},
}


def _added_columns(migrations: tuple[Migration, ...], records: Mapping[str, type]) -> Iterator[str]:
    """SQL that adds columns of the fields that migrations lack, and makes the view of verdicts anew with them."""
    known, added = dict(tables_in(migrations)), []
    for table, record in records.items():
        for info, one in zip(inspect.type_info(record).fields, fields(record), strict=True):  # type: ignore[union-attr]
            if one.name not in (*ELSEWHERE[table], *known[table].schema.names):
                comment = one.metadata["about"].replace("'", "''").replace("null", "NULL")
                yield f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {one.name} {_definition(one, info.type)} "
                yield f"COMMENT '{comment}';\n"
                added += [one.name] if table == "verdicts" else []
    if added:
        before, place, behind = _newest_view(migrations, "incidents").partition(
            "    opened.opened_at AS opened_at,\n"
        )
        columns = "".join(f"    known.{name} AS {name},\n" for name in added)
        yield f"\n-- ClickHouse keeps the columns of a view as they were when it was made.\n{before}{columns}{place}"
        yield f"{behind};\n"


def _newest_view(migrations: tuple[Migration, ...], name: str) -> str:
    """The statement that makes a view as it is now, in place of the one that is there."""
    statements = [one for migration in migrations for one in migration.statements()]
    views = [one for one in statements if re.match(rf"CREATE [A-Z ]+ {name} AS\n", one)]
    return views[-1].replace("CREATE VIEW IF NOT EXISTS", "CREATE OR REPLACE VIEW")


def _new_kinds(migrations: tuple[Migration, ...], devices: Mapping[str, DeviceKind]) -> Iterator[str]:
    """SQL that makes the view of suspects anew where kinds of devices have changed."""
    view = _newest_view(migrations, "named_suspects")
    lists = [
        list(devices),
        [one.noun for one in devices.values()],
        [" ".join(one.named_by) for one in devices.values()],
    ]
    kinds, nouns, names = (f"[{', '.join(map(repr, one))}]" for one in lists)
    made = (
        f"WITH\n    transform(suspects.device, {kinds},\n        {nouns}, suspects.device) AS noun,\n"
        f"    transform(suspects.device, {kinds},\n        {names}, concat('host ', suspects.device)) AS names\n"
        "SELECT\n"
    )
    renewed = re.sub(r"WITH\n.*?\nSELECT\n", made, view, count=1, flags=re.DOTALL)
    if renewed != view:
        yield f"{renewed};\n"


def _definition(one: Field[Any], info: Any) -> str:
    """A column's type in ClickHouse, and the value in rows that are older than it.

    A short text, as it repeats, is LowCardinality; a record is JSON, in a text.
    """
    if one.default is MISSING:
        raise ValueError(f"{one.name} must have a default: stored records lack it")
    rule, is_nullable = _rule(one, info)
    is_word = isinstance(rule, inspect.StrType) and rule.max_length == MAX_NAME_CHARACTERS
    kind = f"Nullable({_column(rule)})" if is_nullable else _column(rule)
    kind = f"LowCardinality({kind})" if is_word else kind
    return f"{kind} DEFAULT {one.default!r}" if isinstance(one.default, int | float | str) else kind


def _column(info: Any) -> str:
    match info:
        case inspect.Metadata():
            return _column(info.type)
        case inspect.IntType():
            return "UInt32" if info.le == MAX_RANK else "Int64"
        case inspect.VarTupleType():
            return f"Array({_column(info.item_type)})"
        case inspect.DataclassType():
            return "String"
    kinds: dict[type, str] = {inspect.StrType: "String", inspect.FloatType: "Float64", inspect.BoolType: "Bool"}
    return kinds[type(info)]
