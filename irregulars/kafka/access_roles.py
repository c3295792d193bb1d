"""Who may do what on the broker: roles of least privilege, from ``irregulars/kafka/roles``, as Kafka's ACLs."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has them, and names them in no __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from irregulars.errors import InputError
from irregulars.kafka.broker import answering, open_admin
from irregulars.kafka.topics import TopicSettings

ROLES: Final = ("producer", "agent", "worker", "reader", "notify", "operator", "console", "actor", "admin")
"""Each is a file of ``irregulars/kafka/roles``, which says its purpose."""

_KINDS: Final = {"topics": "topic", "groups": "group"}


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One operation on one topic or group, by its full name."""

    kind: str
    name: str
    operation: str


def rights_of(role: str, topics: TopicSettings, group: str) -> tuple[Right, ...]:
    """Return the rights of a role; to read or write includes to describe, as in Kafka; raises `InputError`.

    >>> rights_of("reader", TopicSettings(), "irregulars")[0]
    Right(kind='group', name='irregulars-alerts', operation='describe')
    """
    if role not in ROLES:
        raise InputError(f"role must be one of {', '.join(ROLES)}; got {role!r}")
    text = files("irregulars.kafka").joinpath("roles", f"{role}.toml").read_text("utf-8")
    found = []
    for section, operations in tomllib.loads(text).items():
        for operation, names in operations.items():
            for name in names:
                is_topic = section == "topics"
                full = topics.name(name) if is_topic else name.format(group=group, prefix=topics.prefix)
                found.append(Right(_KINDS[section], full, operation))
    return tuple(sorted(found))


def grant(
    bootstrap: str,
    security: Mapping[str, Any],
    principal: str,
    rights: Sequence[Right],
    timeout_s: float = 30.0,
) -> None:
    """Allow a principal these rights, from any host; rights that it has already stay.

    `principal`: as the broker knows it: ``User:worker``.

    Raises `ServiceUnavailable` or `ServiceRefused` if the broker does not answer, or does not let us change its ACLs;
    `InputError` if the principal is not one.
    """
    _require_principal(principal)
    admin, _ = open_admin(bootstrap, security, timeout_s)
    for future in admin.create_acls([AclBinding(*_parts(principal, one)) for one in rights]).values():
        _answer(future, bootstrap, timeout_s)


def revoke(
    bootstrap: str,
    security: Mapping[str, Any],
    principal: str,
    rights: Sequence[Right],
    timeout_s: float = 30.0,
) -> tuple[Right, ...]:
    """Take from a principal the rights that `grant` gave it; return those that it had.

    Raises `ServiceUnavailable` or `ServiceRefused` if the broker does not answer, or does not let us change its ACLs;
    `InputError` if the principal is not one.
    """
    _require_principal(principal)
    admin, _ = open_admin(bootstrap, security, timeout_s)
    asked = {AclBindingFilter(*_parts(principal, one)): one for one in rights}
    deleted = admin.delete_acls(list(asked)).items()
    return tuple(sorted(asked[one] for one, future in deleted if _answer(future, bootstrap, timeout_s)))


def _answer(future: Future[Any], bootstrap: str, timeout_s: float) -> Any:
    with answering(bootstrap, timeout_s):
        return future.result(timeout=timeout_s)


def shell_commands(bootstrap: str, principal: str, rights: Sequence[Right]) -> list[str]:
    """Return the same as calls of Kafka's own tool, one for each topic or group, for those who keep such scripts."""
    _require_principal(principal)
    commands = []
    for kind, name in sorted({(one.kind, one.name) for one in rights}):
        operations = [one.operation for one in rights if (one.kind, one.name) == (kind, name)]
        words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--add", "--allow-principal", principal]
        words += [word for operation in operations for word in ("--operation", operation.capitalize())]
        commands.append(shlex.join([*words, f"--{kind}", name]))
    return commands


def _require_principal(principal: str) -> None:
    if not principal.startswith("User:") or len(principal) <= len("User:") or not principal.isprintable():
        raise InputError(f"principal must be User: and a name, as the broker knows it; got {principal!r}")


def _parts(principal: str, right: Right) -> tuple[Any, ...]:
    """Return the fields of one entry, in the order of confluent-kafka's constructors."""
    return (
        ResourceType[right.kind.upper()], right.name, ResourcePatternType.LITERAL, principal, "*",
        AclOperation[right.operation.upper()], AclPermissionType.ALLOW,
    )  # fmt: skip
