"""docs/coverage.md says what the registry and the record of the survey say, and the record says what happens."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from benchmarks import coverage
from staxlab.loops.lowering import LIBRARY, RULES
from staxlab.measure import survey

ROOT = Path(__file__).resolve().parent.parent
RECORD = coverage.load(coverage.RESULT)


def builder():
    specification = importlib.util.spec_from_file_location("build_coverage", ROOT / "docs" / "build_coverage.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules["build_coverage"] = module
    specification.loader.exec_module(module)
    return module


def test_the_page_is_fresh():
    page = (ROOT / "docs" / "coverage.md").read_text()
    assert page == builder().page(), "docs/coverage.md is stale: run `make docs`"


def test_the_page_counts_rules_and_samples():
    built = builder()
    rules = built.rules()
    assert len(rules) >= 300 and set(rules) <= set(RULES) and all(o.namespace == "aten" for o in rules)
    assert set(built.library()) <= LIBRARY
    page = built.page(RECORD)
    assert f"**{len(rules)}** overloads" in page
    for kind, count in Counter(kind for kind, _ in rules.values()).items():
        assert kind in built.KINDS, f"docs/build_coverage.py has no words for the class {kind!r}"
        assert f"| {kind} | {built.KINDS[kind]} | {count} |" in page
    counts = Counter(way for row in RECORD["operators"].values() for cell in row.values() for way in cell)
    assert set(counts) <= set(survey.WAYS) == set(built.WAYS)
    assert len({letter for letter, _ in built.WAYS.values()}) == len(built.WAYS)


def test_cells():
    built = builder()
    record = {**RECORD, "failures": ["made float32 sample 0: wrong"],
              "operators": {"made": {"float32": {"native": 4}, "int64": {"native": 1, "refused": 3}}}}  # fmt: skip
    page = built.page(record)
    assert "| `made` | N | - | N1 R3 | - | - | - | - | - |" in page
    assert "**1** of them had another value" in page and "made float32 sample 0: wrong" in page
    assert "| native, share | 100.0% | 0.0% | 25.0% |" in page and "62.5% became nothing but generated" in page


def test_the_record_is_complete_and_no_value_in_it_is_wrong():
    pytest.importorskip("torch.testing._internal.common_methods_invocations")
    if RECORD["versions"]["torch"] != torch.__version__:
        pytest.skip(f"the record was made with PyTorch {RECORD['versions']['torch']}")
    assert RECORD["failures"] == []
    assert set(RECORD["operators"]) == {op.full_name for op in survey.database()}


def reproduced(cells: list[tuple[str, str]]) -> None:
    pytest.importorskip("torch.testing._internal.common_methods_invocations")
    if RECORD["versions"]["torch"] != torch.__version__:
        pytest.skip(f"the record was made with PyTorch {RECORD['versions']['torch']}")
    operators = {op.full_name: op for op in survey.database()}
    for name, dtype in cells:
        found = coverage.cell(operators[name], dtype, RECORD["samples"] or None)
        assert (dict(found.counts), found.failures) == (RECORD["operators"][name][dtype], []), (name, dtype)


def test_two_cells_of_the_record_are_reproduced():
    reproduced([("add", "int64"), ("softmax", "float32")])


@pytest.mark.slow
def test_a_handful_of_cells_of_the_record_is_reproduced():
    cells = [(name, dtype) for name, row in RECORD["operators"].items() for dtype in row]
    reproduced(random.Random(6).sample(cells, 40))
