"""Users of the database: who writes, who reads, who changes tables, as SQL for an administrator."""

from __future__ import annotations

from importlib.resources import files

_SHIPPED = "irregulars."


def access_sql(database: str = "irregulars") -> str:
    """Return the statements of ``sinks/sql/access.sql`` for a database of that name.

    >>> "GRANT SELECT ON other.* TO irregulars_reader" in access_sql("other")
    True
    """
    text = files("irregulars.sinks").joinpath("sql", "access.sql").read_text("utf-8")
    named = text.replace(f"{_SHIPPED}*", f"{database}.*")
    return named.replace("CREATE DATABASE IF NOT EXISTS irregulars;", f"CREATE DATABASE IF NOT EXISTS {database};")
