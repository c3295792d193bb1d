"""Faust is extended as its authors meant it: by the abstract methods of its base classes, and by nothing private.

Faust's next release may change a private member without a word. The product's source is read for such members: for
names that begin with an underscore, and that neither we define nor a driver must give.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import faust
import pytest
from faust.transport import base

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("irregulars", "streams")  # those that a contract of import-linter lets know Faust, or what it is given
FOREIGN = ("aiokafka", "faust", "mode")
OTHERS = {"_exit", "_getframe", "_fields", "_replace", "_asdict", "_make"}
"""Of os, sys and of named tuples, which document them; those of confluent-kafka's errors are in capitals."""


def sources() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if not path.is_symlink()]
    return [path for path in found if not any(one.is_symlink() for one in path.parents if one != ROOT)]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OTHERS


def roots(tree: ast.AST) -> set[str]:
    plain = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    found = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in plain | found}


def defined(tree: ast.AST) -> set[str]:
    """Private names that the classes of a source define, or set on themselves."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            targets = [one.target if isinstance(one, ast.AnnAssign) else one for one in node.body]
            found |= {one.id for one in targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_of_self(node):
            found.add(node.attr)
    return set(filter(is_private, found))


def is_of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def touched(source: str, ours: frozenset[str], module: ModuleType | None = None) -> Iterator[str]:
    """Yield the private members of others that a source reads, sets, overrides or names."""
    tree = ast.parse(source)
    knows_faust = not roots(tree).isdisjoint(FOREIGN)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not node.attr.isupper():
            is_unknown = knows_faust if is_of_super(node) else knows_faust or node.attr not in ours
            if is_unknown and not is_of_self(node):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and knows_faust:
            if re.fullmatch(r"_[a-z]\w*", node.value):  # for `getattr` and `setattr`
                yield f"{node.lineno}: {node.value!r}"
        elif isinstance(node, ast.ClassDef) and module is not None:
            yield from overridden(node, getattr(module, node.name))


def is_of_super(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super"


def overridden(node: ast.ClassDef, cls: type) -> Iterator[str]:
    """Yield the private members of Faust's classes that a class of ours uses as its own."""
    foreign = [one for one in cls.__mro__ if one.__module__.partition(".")[0] in FOREIGN]
    theirs = set().union(*map(members, foreign)) - set().union(*(abstract(one) for one in foreign))
    names = {one.name: one.lineno for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and is_of_self(one):
            names[one.attr] = one.lineno
    yield from (f"{at}: {name} of {node.name}" for name, at in names.items() if is_private(name) and name in theirs)


def members(cls: type) -> set[str]:
    found = {*vars(cls), *getattr(cls, "__annotations__", {})}
    return found | set(re.findall(r"\bself\.(_\w+)", inspect.getsource(cls)))


def abstract(cls: type) -> frozenset[str]:
    return frozenset(getattr(cls, "__abstractmethods__", ()))


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sources()}


@cache
def ours() -> frozenset[str]:
    return frozenset().union(*map(defined, trees().values()))


def test_the_product_touches_no_private_member_of_faust() -> None:
    found = []
    for path, tree in trees().items():
        knows_faust = not roots(tree).isdisjoint(FOREIGN)
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        module = importlib.import_module(f"irregulars.{name.removeprefix('irregulars.')}") if knows_faust else None
        found += [f"{path.relative_to(ROOT)}:{one}" for one in touched(path.read_text(), ours(), module)]
    assert found == []


def test_nothing_of_ours_uses_aiokafka() -> None:
    assert [str(path.relative_to(ROOT)) for path, tree in trees().items() if "aiokafka" in roots(tree)] == []


class Patched(base.Consumer):
    """Sets, overrides and reads what it must not, and gives what a driver must."""

    def _getmany(self) -> None:
        """A driver must give it."""

    def _new_offset(self) -> None:
        self._read_offset = {}  # type: ignore[assignment]


class OwnApp(faust.App):
    def own(self) -> None:
        self._fetcher.stop()
        self._ours = 1


@pytest.mark.parametrize(("source", "found"), [
    ("app._fetcher.stop()", ["1: app._fetcher"]),
    ("import faust\ndef f(app): app._ours = 1", ["2: app._ours"]),
    ("import faust\nsetattr(app, '_fetcher', None)", ["2: '_fetcher'"]),
    ("from faust.types import TP\nclass A(B):\n    def f(self): super()._commit()", ["3: super()._commit"]),
    ("monitor._ours", []),
    ("KafkaError._TIMED_OUT", []),
])  # fmt: skip
def test_a_private_member_of_another_is_found(source: str, found: list[str]) -> None:
    assert list(touched(source, {"_ours"})) == found


def test_a_private_member_that_a_class_of_ours_inherits_is_found() -> None:
    own = inspect.getmodule(Patched)
    source = "\n".join(inspect.getsource(one) for one in (Patched, OwnApp))
    assert own is not None
    names = [one.partition(": ")[2] for one in touched(source, set(), own)]
    assert names == ["_new_offset of Patched", "_read_offset of Patched", "_fetcher of OwnApp"]
