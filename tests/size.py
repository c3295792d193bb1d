"""Count how large the project is, beside what it was before the house was made smaller: ``python -m tests.size``."""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("irregulars", "detectors", "infra", "producers", "sinks", "streams")

# "What" that names a thing ("what it holds"), as opposed to one that asks ("what share"). A heuristic, by the words
# that most often follow it in such a clause: it shows a trend, and misses rarer turns ("what ranks sent").
WHAT = re.compile(
    r"\bwhat (?:is|are|was|were|has|it|they|its|the|a|an|one|each|that|may|stands?|comes?|goes)\b", re.IGNORECASE
)


class Row(NamedTuple):
    """One line of the table: the same count before (commit f6c8c334, by this script), now, and the goal."""

    name: str
    before: float
    now: float
    goal: str


@dataclass(frozen=True)
class Module:
    """One source file, parsed."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def docstrings(self) -> Iterator[ast.Constant]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
                yield from _strings(node.body[:1])
            # A string below an attribute documents it.
            if isinstance(node, ast.Module | ast.ClassDef):
                yield from _strings(node.body[1:])

    @property
    def statements(self) -> int:
        docstrings = sum(1 for _ in self.docstrings)
        return sum(isinstance(node, ast.stmt) for node in ast.walk(self.tree)) - docstrings

    def lines(self) -> tuple[int, int, int]:
        """Return its lines of code, of comment alone, and those that are not blank."""
        filled = {number for number, line in enumerate(self.text.splitlines(), 1) if line.strip()}
        comments, code = set[int](), set[int]()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT:
                comments.add(token.start[0])
            elif token.string.strip() and token.type not in (tokenize.NEWLINE, tokenize.NL):
                code.update(range(token.start[0], token.end[0] + 1))
        for text in self.docstrings:
            code.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
        return len(code & filled), len(comments - code), len(filled)

    def private_functions(self) -> dict[str, int]:
        """Return each private function and method with how often the module names it beside its definition."""
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        names = {node.name for node in ast.walk(self.tree) if isinstance(node, functions)}
        used = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        return {name: used[name] for name in filter(_is_private, names)}

    def private_attributes(self) -> tuple[set[str], set[str]]:
        """Return the private attributes that it names, by dot or as a string, and those that it defines itself."""
        named, own = set[str](), set[str]()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and _is_private(node.attr):
                named.add(node.attr)
                is_set = isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)
                if is_set and node.value.id in ("self", "cls"):  # type: ignore[attr-defined]
                    own.add(node.attr)
            elif isinstance(node, ast.Name) and _is_private(node.id):
                own.add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and "attr" in node.func.id:
                named.update(one.value for one in _strings_among(node.args) if _is_private(str(one.value)))
        return named, own

    @property
    def is_about_faust(self) -> bool:
        return re.search(r"^\s*(?:from|import) (?:faust|aiokafka|mode)\b", self.text, re.MULTILINE) is not None


def _strings(statements: list[ast.stmt]) -> Iterator[ast.Constant]:
    yield from _strings_among([one.value for one in statements if isinstance(one, ast.Expr)])


def _strings_among(nodes: list[ast.expr]) -> Iterator[ast.Constant]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.strip("_") != ""


def tracked(root: Path, *folders: str) -> list[Path]:
    """Return the files below `folders` that git tracks and that are there, without links."""
    listed = subprocess.run(["git", "ls-files", "--", *folders], cwd=root, capture_output=True, text=True, check=True)
    files = [root / line for line in listed.stdout.splitlines()]
    return [file for file in files if file.is_file() and not file.is_symlink()]


def read(root: Path, *folders: str) -> list[Module]:
    """Parse the Python files below `folders`."""
    files = [file for file in tracked(root, *folders) if file.suffix == ".py"]
    return [Module(file, text := file.read_text(), ast.parse(text)) for file in files]


def back_arrows_and_circles(root: Path) -> tuple[float, float]:
    """Count pairs of packages that import upwards by the first contract, and the imports that close circles."""
    tool = tomllib.loads((root / "pyproject.toml").read_text())["tool"].get("importlinter")
    if tool is None or root != ROOT:  # the graph is of the package that is installed
        return float("nan"), float("nan")
    graph = grimp.build_graph("irregulars", cache_dir=None)
    contract = next(one for one in tool["contracts"] if one["type"] == "layers")
    layers = [grimp.Layer(*re.findall(r"\w+", layer), independent="|" in layer) for layer in contract["layers"]]
    back = graph.find_illegal_dependencies_for_layers(layers, containers=set(contract["containers"]))
    packages = ["irregulars", *(f"irregulars.{name}" for name in PRODUCT[1:])]
    return len(back), sum(len(graph.nominate_cycle_breakers(package)) for package in packages)


def count(root: Path) -> list[Row]:
    """Count everything of the table."""
    product = read(root, *PRODUCT)
    tests = [module.text for module in read(root, "tests") if root / "tests/recordings" not in module.path.parents]
    lines = [module.lines() for module in product]
    code, comments, filled = (sum(column) for column in zip(*lines, strict=True))
    docstrings = " ".join(str(text.value) for module in product for text in module.docstrings)
    whats = 1000 * len(WHAT.findall(docstrings)) / len(docstrings.split())
    calls = [times for module in product for times in module.private_functions().values()]
    faust = [module.private_attributes() for module in product if module.is_about_faust]
    own = set[str]().union(*(module.private_attributes()[1] for module in product))
    pages = [file.read_text() for file in tracked(root, "infra/docs") if file.suffix == ".md"]
    rooms = {module.path.parent for module in product if module.path.stem != "__init__"} - {root / "irregulars"}
    back, circles = back_arrows_and_circles(root)
    return [
        Row("product: lines", 91_882, sum(len(module.text.splitlines()) for module in product), "<= 68,000"),
        Row("product: lines of code", 57_011, code, "<= 43,000"),
        Row("product: statements", 46_996, sum(module.statements for module in product), "down alike"),
        Row("product: files", 682, len(product), "<= 430"),
        Row("product: rooms", 74, len(rooms), "<= 42"),
        Row("tests: lines, without recordings", 90_867, sum(len(text.splitlines()) for text in tests), "<= 68,000"),
        Row("words in infra/docs", 70_616, sum(len(page.split()) for page in pages), "<= 45,000"),
        Row("lines of README", 184, len((root / "README.md").read_text().splitlines()), "<= 120"),
        Row("packages that import upwards", 5, back, "0"),
        Row("imports that close a circle", 1, circles, "0"),
        Row("private names of faust, aiokafka", 10, len({n for named, _ in faust for n in named} - own), "0"),
        Row("private functions used once, %", 68.0, 100 * calls.count(1) / len(calls), "<= 50"),
        Row('"what" as a noun in 1,000 words', 8.1, whats, "<= 1"),
        Row("lines of comment, % of not blank", 0.5, 100 * comments / filled, ">= 3"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.size", description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="a checkout (this one)")
    print(f"{'':<34} {'f6c8c334':>10} {'now':>10}  goal")
    for name, before, now, goal in count(parser.parse_args().root.resolve()):
        digits = int(isinstance(before, float))
        print(f"{name:<34} {before:>10,.{digits}f} {now:>10,.{digits}f}  {goal}")


if __name__ == "__main__":
    main()
