"""Who may read and write which topics on the broker: roles of least privilege, as Kafka's ACLs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has them, and names them in no __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from irregulars.errors import InputError
from irregulars.kafka.broker import answering, open_admin, wait_for_none
from irregulars.kafka.topics import TOPICS, TopicSettings

# Group ids of our readers (`log_reader`, and those of ``alerts``): rights go by them, though they commit nothing.
_READ_BACK: Final = "irregulars-read-back"
_ALERTS: Final = "irregulars-alerts"


class Role(NamedTuple):
    """One role, beside its topics, which stand in `kafka.topics.TOPICS`."""

    who: str  # has it: for pages
    groups: tuple[str, ...] = ()  # consumer groups that it is a member of
    known_groups: tuple[str, ...] = ()  # whose coordinator librdkafka asks for, though nothing is committed to them


ROLES: Final[Mapping[str, Role]] = {
    # It reads nothing, not even its own messages.
    "producer": Role("a training process that publishes for itself, `irregulars replay`"),
    "agent": Role("the agent of a GPU node"),
    # It can't speak for a rank: it writes to no topic of the first hop but its own snapshots.
    "worker": Role("workers", ("{group}",), (_READ_BACK,)),
    "reader": Role("`irregulars alerts`, `irregulars node-check`, a pager", (), (_ALERTS,)),
    # It can say nothing of a job: it writes to no topic that a worker reads.
    "notify": Role("`irregulars notify`", ("{prefix}notify",), (_READ_BACK,)),
    "operator": Role(
        "who may silence alerts, judge verdicts and change thresholds, and look at dead letters: `irregulars mutes`, "
        "`irregulars feedback`, `irregulars thresholds`, `irregulars deadletter list` and `show`",
        (), (_ALERTS, _READ_BACK),
    ),
    "console": Role(
        "`irregulars console`; with `--feedback` the role `operator` too", (), (_ALERTS, _READ_BACK)
    ),
    # Each consumer is in a group of its own.
    "actor": Role(
        "`irregulars act`", ("{prefix}act-kubernetes", "{prefix}act-slurm", "{prefix}act-nvsentinel"),
    ),
    # It makes and describes all topics, and reads no message.
    "admin": Role("`irregulars topics create`"),
}  # fmt: skip


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
    found = []
    for operation, names in (("read", ROLES[role].groups), ("describe", ROLES[role].known_groups)):
        found += [Right("group", name.format(group=group, prefix=topics.prefix), operation) for name in names]
    for topic in TOPICS.values():
        may = {
            "read": topic.readers,
            "write": topic.writers,
            "describe": f"{topic.watchers} admin",
            "create": "admin",
        }
        name = topics.name(topic.name)
        found += [Right("topic", name, operation) for operation, roles in may.items() if role in roles.split()]
    return tuple(sorted(found))


def grant(
    bootstrap: str,
    security: Mapping[str, Any],
    principal: str,
    rights: Sequence[Right],
    timeout_s: float = 30.0,
) -> None:
    """Allow a principal these rights, from any host; rights that it has already stay. On return they hold.

    `principal`: as the broker knows it: ``User:worker``.

    Raises `ServiceUnavailable` or `ServiceRefused` if the broker does not answer, or does not let us change its ACLs;
    `InputError` if the principal is not one.
    """
    _require_principal(principal)
    admin, _ = open_admin(bootstrap, security, timeout_s)
    for future in admin.create_acls([AclBinding(*_parts(principal, one)) for one in rights]).values():
        _answer(future, bootstrap, timeout_s)

    def lacking() -> set[AclBinding]:
        return {AclBinding(*_parts(principal, one)) for one in rights}.difference(_known(admin, principal, timeout_s))

    wait_for_none(lacking, bootstrap, timeout_s, "heed new rights")


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
    had = tuple(sorted(asked[one] for one, future in deleted if _answer(future, bootstrap, timeout_s)))

    def left() -> set[AclBinding]:
        return {AclBinding(*_parts(principal, one)) for one in had}.intersection(_known(admin, principal, timeout_s))

    wait_for_none(left, bootstrap, timeout_s, "forget revoked rights")
    return had


def _known(admin: AdminClient, principal: str, timeout_s: float) -> list[AclBinding]:
    """Read a principal's rights from a broker, which acknowledges changes before it heeds them."""
    any_name: Any = None  # types allow texts alone
    own = AclBindingFilter(
        ResourceType.ANY,
        any_name,
        ResourcePatternType.ANY,
        principal,
        any_name,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    known: list[AclBinding] = admin.describe_acls(own).result(timeout=timeout_s)
    return known


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
