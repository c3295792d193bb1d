"""Users, bounds and quotas of ClickHouse, made by its configuration: our engine takes no ``CREATE USER``.

What an administrator's SQL says is carried over statement by statement; of what is read here nothing is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from irregulars.sinks.migrate import Migration

_PROFILE = re.compile(r"CREATE SETTINGS PROFILE IF NOT EXISTS (\w+) SETTINGS (.*)")
_QUOTA = re.compile(r"CREATE QUOTA IF NOT EXISTS (\w+) (.*)")
_PASSWORD = re.compile(r"ALTER USER (\w+) IDENTIFIED WITH sha256_hash BY '([0-9a-f]{64})' HOST ANY")


def statements_of(sql: str) -> list[str]:
    """Split SQL; each statement in one line."""
    return [" ".join(one.split()) for one in Migration(1, "access", sql).statements()]


def profiles_of(statements: Sequence[str]) -> dict[str, dict[str, str]]:
    """Settings of each profile, with their largest values: ``{"max_threads": "4 MAX 8"}``."""
    found = [match.groups() for one in statements if (match := _PROFILE.match(one))]
    return {name: dict(re.findall(r"(\w+) = (\d+(?: MAX \d+)?)", rest)) for name, rest in found}


def quotas_of(statements: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Interval and limits of each quota."""
    found = [match.groups() for one in statements if (match := _QUOTA.match(one))]
    return {name: re.findall(r"INTERVAL 1 (minute|hour) MAX ([^F]*?)(?=,? FOR | TO )", rest) for name, rest in found}


def hashes_of(statements: Sequence[str]) -> dict[str, str]:
    """SHA-256 of the passwords that users were given."""
    return dict(match.groups() for one in statements if (match := _PASSWORD.match(one)))  # type: ignore[misc]


def with_access(xml: str, statements: Sequence[str], hashes: Mapping[str, str]) -> str:
    """Return a server's ``users.xml`` with what the statements make; users without a password are left out."""
    xml = re.sub(r"<irregulars_reader>.*?</irregulars_reader>", "", xml, flags=re.DOTALL)
    quotas = quotas_of(statements)
    users = "".join(_user(name, one, statements, quotas) for name, one in sorted(hashes.items()))
    xml = xml.replace("</profiles>", f"{''.join(map(_profile, profiles_of(statements).items()))}</profiles>")
    xml = xml.replace("</quotas>", f"{''.join(map(_quota, quotas.items()))}</quotas>")
    return xml.replace("</users>", f"{users}</users>")


def _profile(profile: tuple[str, dict[str, str]]) -> str:
    name, settings = profile
    values = {key: value.partition(" MAX ") for key, value in settings.items()}
    bounds = "".join(f"<{key}><max>{most}</max></{key}>" for key, (_, _, most) in values.items() if most)
    own = "".join(f"<{key}>{value}</{key}>" for key, (value, _, _) in values.items())
    return f"<{name}>{own}<constraints>{bounds}</constraints></{name}>"


def _quota(quota: tuple[str, list[tuple[str, str]]]) -> str:
    name, intervals = quota
    seconds = {"minute": 60, "hour": 3600}
    limits = "".join(
        f"<interval><duration>{seconds[unit]}</duration>"
        + "".join(f"<{key}>{value}</{key}>" for key, value in re.findall(r"(\w+) = (\d+)", bounds))
        + "</interval>"
        for unit, bounds in intervals
    )
    return f"<{name}>{limits}</{name}>"


def _user(name: str, password_sha256: str, statements: Sequence[str], quotas: Mapping[str, object]) -> str:
    grants = [one.removesuffix(f" TO {name}") for one in statements if re.fullmatch(rf"GRANT .* TO {name}", one)]
    queries = "".join(f"<query>{escape(grant)}</query>" for grant in grants)
    return (f"<{name}><password_sha256_hex>{password_sha256}</password_sha256_hex>"
            f"<networks><ip>127.0.0.1</ip></networks><profile>{name}</profile>"
            f"<quota>{name if name in quotas else 'default'}</quota><grants>{queries}</grants></{name}>")  # fmt: skip
