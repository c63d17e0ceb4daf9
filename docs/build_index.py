"""Builds docs/index.md: where each definition, algorithm, proposition and example lives in the source.

The package's docstrings name what they implement ("Algorithm 3.1", "Proposition 6.2"). This script reads them, without
importing anything, and turns the mentions around into a table. ``python docs/build_index.py`` writes the page,
``--check`` only says whether it is up to date.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "index.md"
KINDS = ("Definition", "Algorithm", "Theorem", "Proposition", "Lemma", "Corollary", "Example", "Listing", "Table")
_MENTION = re.compile(
    rf"\b({'|'.join(KINDS)})s?\s+(\d+\.\d+(?:(?:\s*,\s*|\s+(?:and|to|or)\s+|\s*,\s*and\s+)\d+\.\d+)*)"
)
_SECTION = re.compile(r"\bSections?\s+(\d+(?:\.\d+)?(?:(?:\s*,\s*|\s+(?:and|to|or)\s+|\s*,\s*and\s+)\d+(?:\.\d+)?)*)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")

TITLES = {
    1: "What a compiler is for: memory traffic and fusion",
    2: "Specialization and caching",
    3: "Graph capture",
    4: "Graph transformation",
    5: "Differentiation and rematerialization",
    6: "Lowering and the loop level",
    7: "Scheduling and fusion",
    8: "CPU code generation",
    9: "GPU code generation and attention",
    10: "Dynamic shapes",
    11: "Caching, building and falling back",
    12: "Limits and alternatives",
    13: "Models of performance and measurement",
}


@dataclass(frozen=True, order=True)
class Mention:
    """One docstring that names one numbered item."""

    file: str
    line: int
    qualified_name: str


def docstrings(path: Path) -> Iterator[tuple[str, int, str]]:
    """(qualified name, line, text) of every docstring in a file; the module's own has an empty name."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, str]]:
        text = ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None
        if text:
            yield prefix, getattr(node, "lineno", 1), text
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from visit(child, f"{prefix}.{child.name}" if prefix else child.name)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), "")


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def mentions(text: str) -> set[tuple[str, str]]:
    """The numbered items a text names: {("Definition", "2.2"), ...}. "Propositions 6.2 and 6.3" names both."""
    found: set[tuple[str, str]] = set()
    for kind, numbers in _MENTION.findall(text):
        found |= {(kind, number) for number in _NUMBER.findall(numbers)}
    return found


def sections(text: str) -> set[str]:
    """The sections a text names: {"3.2", "6"}."""
    return {number for match in _SECTION.findall(text) for number in _NUMBER.findall(match)}


def collect(root: Path) -> tuple[dict[tuple[str, str], list[Mention]], dict[int, list[str]]]:
    """Items to their mentions, and chapter sections to the modules whose opening docstring names them."""
    items: dict[tuple[str, str], list[Mention]] = defaultdict(list)
    modules: dict[int, list[str]] = defaultdict(list)
    for path in sorted((root / "staxlab").rglob("*.py")):
        file = path.relative_to(root).as_posix()
        for name, line, text in docstrings(path):
            for item in mentions(text):
                items[item].append(Mention(file, line, name))
            if not name:
                for section in sorted({int(number.split(".")[0]) for number in sections(text)}):
                    if section in TITLES:
                        modules[section].append(file)
    return items, modules


def page(root: Path = ROOT) -> str:
    """The whole of docs/index.md."""
    items, modules = collect(root)
    lines = [
        "# Where things are",
        "",
        "Every numbered definition, algorithm, theorem, proposition and example of the course that the code implements",
        "or relies on, and the docstrings that say so. This page is generated: `make docs` rebuilds it, a test keeps",
        "it fresh. Cited literature is in [references](references.md), the layout of the whole in",
        "[ARCHITECTURE](../ARCHITECTURE.md).",
        "",
    ]
    by_section: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for kind, number in items:
        by_section[int(number.split(".")[0])].append((kind, number))
    for section in sorted(set(by_section) | set(modules)):
        lines += [f"## Section {section}: {TITLES.get(section, '')}".rstrip(": "), ""]
        if modules.get(section):
            links = ", ".join(f"[{_short(file)}](../{file})" for file in modules[section])
            lines += [f"Modules: {links}", ""]
        if by_section.get(section):
            lines += ["| item | where |", "|---|---|"]
            for kind, number in sorted(by_section[section], key=_order):
                places = ", ".join(_link(mention) for mention in sorted(items[kind, number]))
                lines.append(f"| {kind} {number} | {places} |")
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _short(file: str) -> str:
    return file.removeprefix("staxlab/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _link(mention: Mention) -> str:
    # No line numbers: they would make the page stale at every edit.
    name = f"{_short(mention.file)}.{mention.qualified_name}" if mention.qualified_name else _short(mention.file)
    return f"[`{name}`](../{mention.file})"


def _order(item: tuple[str, str]) -> tuple[int, int, int]:
    kind, number = item
    major, minor = number.split(".")
    return KINDS.index(kind), int(major), int(minor)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    options = parser.parse_args(arguments)
    text = page()
    if options.check:
        fresh = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print("docs/index.md is up to date" if fresh else "docs/index.md is stale: run `make docs`")
        return 0 if fresh else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
