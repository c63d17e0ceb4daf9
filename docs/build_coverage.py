"""Builds docs/coverage.md: which operators the back end covers, and how (Section 6.2, Table 6.1).

Two sources. What the compiler *says* it covers is read from its registries: every ``aten`` overload with a lowering
rule, by the class of Table 6.1, and every overload that is a library call by design. What it *does* is read from
``benchmarks/results/coverage_cpu.json``, where ``python -m benchmarks.coverage`` keeps how samples of every operator of
PyTorch's database were compiled. ``python docs/build_coverage.py`` writes the page, ``--check`` only says whether it is
up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "coverage.md"
RESULT = ROOT / "benchmarks" / "results" / "coverage_cpu.json"
DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool", "bfloat16", "float16")

# How a sample was compiled (staxlab.measure.survey.WAYS), its letter in the table of operators, and what that means.
WAYS = {
    "native": ("N", "generated loops only"),
    "library call": ("L", "PyTorch's own routine for some operator, on purpose (a product, a convolution, a sort)"),
    "fallback kernel": ("F", "PyTorch's own routine for want of a rule, or of a rule for this dtype or case"),
    "captured graph": ("G", "the captured graph, operator by operator: a shape or a decision depends on data"),
    "eager": ("E", "not at all: there was nothing to compile"),
    "refused": ("R", "not at all: a CaptureError says why"),
    "eager refuses": ("X", "not at all: eager execution raises, too"),
}
# The classes a rule can be registered under, in the order and the words of Table 6.1.
KINDS = {
    "pointwise": "one element from the elements at the same place",
    "reduction": "elements merged along dimensions",
    "scan": "elements merged along a dimension, every partial result kept",
    "normalization": "reductions and what is computed from them",
    "view": "a change of subscript",
    "storage view": "a view of a block of memory",
    "joining": "piecewise: concatenation, padding, triangles",
    "indexing": "reads at subscripts that are data",
    "scatter": "writes at subscripts that are data",
    "window": "windows that overlap",
    "template": "a kernel from a template",
    "factory": "values from subscripts alone, or constants",
}


def rules() -> dict[Any, tuple[str, str]]:
    """Every ``aten`` overload with a lowering rule: its class, and the module of the rule."""
    from staxlab.loops.lowering import RULES

    return {
        overload: (rule.kind, rule.function.__module__)
        for overload, rule in RULES.items()
        if overload.namespace == "aten" and rule.function.__module__.startswith("staxlab.")
    }


def library() -> list[Any]:
    """Every overload that is a library call by design. Some have a rule as well, for the cases a loop computes."""
    from staxlab.loops.lowering import LIBRARY

    return [overload for overload in LIBRARY if overload.namespace == "aten"]


def page(record: Mapping[str, Any] | None = None) -> str:
    """The whole of docs/coverage.md, from a record of the survey (default: the one in benchmarks/results)."""
    record = json.loads(RESULT.read_text()) if record is None else record
    return "\n".join([*_head(record), *_by_dtype(record), *_by_class(), *_operators(record), *_overloads()]) + "\n"


def _head(record: Mapping[str, Any]) -> list[str]:
    covered, by_design = rules(), set(library())
    operators = record["operators"]
    counts = _total(operators)
    agreeing = sum(counts.values())
    machine, versions = record["machine"], record["versions"]
    return [
        "# Operator coverage",
        "",
        f"- **{len(covered)}** overloads of {len({o._opname for o in covered})} `aten` operators have a lowering rule:"
        " they become loops.",
        f"- **{len(by_design - set(covered))}** further overloads are library calls by design; {len(by_design)} may be"
        " one, of which some have a rule for the cases that a loop computes.",
        f"- **{len(operators)}** operators of PyTorch's database were compiled on the CPU with {agreeing:,} samples in"
        f" {len(DTYPES)} dtypes, contiguous and with gaps: {_share(counts, 'native')} became nothing but generated"
        f" loops, {_share(counts, 'library call')} contain a library call, {_share(counts, 'fallback kernel')} a"
        " fallback.",
        f"- **{len(record['failures'])}** of them had another value, dtype or stride than in eager execution, or"
        " crashed.",
        "",
        "An operator without a rule is taken apart into operators that have one wherever PyTorch or this package knows"
        " how, so the database has more native operators than there are rules.",
        "",
        f"This page is generated: `make docs` rebuilds it from the registry of rules and from"
        f" [a record](../{RESULT.relative_to(ROOT)}) written by `{record['command']}` on {record['date'][:10]}"
        f" ({machine['processor']}, {machine['instruction_set']}; PyTorch {versions['torch']}, Python"
        f" {versions['python']}; {_limit(record['samples'])} for each operator, dtype and layout). A test keeps it"
        " fresh.",
        "",
        *(f"- not as in eager execution: {line}" for line in record["failures"]),
        *([""] if record["failures"] else []),
    ]


def _limit(samples: int) -> str:
    return f"at most {samples} samples" if samples else "all samples"


def _total(operators: Mapping[str, Mapping[str, Mapping[str, int]]], dtype: str | None = None) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in operators.values():
        for name, cell in row.items():
            if dtype in (None, name):
                counts.update(cell)
    return counts


def _share(counts: Counter[str], way: str) -> str:
    return f"{counts[way] / max(sum(counts.values()), 1):.1%}"


def _table(columns: Iterable[str], rows: Iterable[Iterable[Any]], numeric: bool = False) -> list[str]:
    columns = [*columns]
    rule = ["---"] + ["---:" if numeric else "---"] * (len(columns) - 1)
    return [f"| {' | '.join(map(str, cells))} |" for cells in (columns, rule, *rows)] + [""]


def _by_dtype(record: Mapping[str, Any]) -> list[str]:
    counts = {dtype: _total(record["operators"], dtype) for dtype in DTYPES}
    total = _total(record["operators"])
    seen = [way for way in WAYS if total[way]]
    rows = [(f"{way} ({WAYS[way][0]})", *(counts[dtype][way] for dtype in DTYPES), total[way]) for way in seen]
    rows.append(("samples", *(sum(counts[dtype].values()) for dtype in DTYPES), sum(total.values())))
    rows.append(("native, share", *(_share(counts[dtype], "native") for dtype in DTYPES), _share(total, "native")))
    return [
        "## Samples by dtype",
        "",
        *(f"- **{WAYS[way][0]}**, {way}: {WAYS[way][1]}" for way in seen),
        "",
        *_table(("compiled as", *DTYPES, "all"), rows, numeric=True),
    ]


def _by_class() -> list[str]:
    counts = Counter(kind for kind, _ in rules().values())
    order = [*(kind for kind in KINDS if counts[kind]), *sorted(set(counts) - set(KINDS))]
    rows = [(kind, KINDS.get(kind, ""), counts[kind]) for kind in order]
    rows.append(("all", "", sum(counts.values())))
    return [
        "## Lowering rules by class (Table 6.1)",
        "",
        *_table(("class", "what an element is made of", "overloads"), rows),
    ]


def _operators(record: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, row in sorted(record["operators"].items()):
        if any(row.values()):
            rows.append((f"`{name}`", *(_cell(row.get(dtype)) for dtype in DTYPES)))
    return [
        "## Every operator of the database",
        "",
        "A letter stands for all samples of a dtype, letters with numbers for so many of them; a dash for a dtype the"
        " operator does not take.",
        "",
        *_table(("operator", *DTYPES), rows),
    ]


def _cell(counts: Mapping[str, int] | None) -> str:
    if not counts:
        return "-"
    if len(counts) == 1:
        return WAYS[next(iter(counts))][0]
    return " ".join(f"{WAYS[way][0]}{counts[way]}" for way in WAYS if counts.get(way))


def _overloads() -> list[str]:
    by_place: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for overload, (kind, module) in rules().items():
        by_place[overload._opname, kind, module].append(overload._overloadname)
    rows = []
    for (name, kind, module), overloads in sorted(by_place.items()):
        file = module.replace(".", "/") + ".py"
        rows.append((f"`{name}`", _names(overloads), kind, f"[{module.split('.')[-1]}](../{file})"))
    calls: dict[str, list[str]] = defaultdict(list)
    for overload in library():
        calls[overload._opname].append(overload._overloadname)
    with_rule = {overload._opname for overload in rules()}
    others = [
        (f"`{name}`", _names(overloads), "yes" if name in with_rule else "")
        for name, overloads in sorted(calls.items())
    ]
    return [
        "## Every overload with a lowering rule",
        "",
        *_table(("operator", "overloads", "class", "module"), rows),
        "## Every overload that is a library call by design",
        "",
        *_table(("operator", "overloads", "has a rule for some cases"), others),
    ][:-1]


def _names(overloads: Iterable[str]) -> str:
    return ", ".join(sorted(overloads))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    options = parser.parse_args(arguments)
    text = page()
    if options.check:
        fresh = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print("docs/coverage.md is up to date" if fresh else "docs/coverage.md is stale: run `make docs`")
        return 0 if fresh else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
