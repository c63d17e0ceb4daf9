"""What a decision says is what the kernel does: the choice is among its candidates, its facts and its reason agree with
the code beside it."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab.codegen.cpp import plan

FUNCTIONS = {
    "row sum": (lambda x: x.sum(-1), (70, 900)),
    "column sum": (lambda x: x.sum(0), (300, 5)),
    "small column sum": (lambda x: x.sum(0), (40, 300)),
    "large column sum": (lambda x: x.sum(0), (700, 800)),
    "narrow column sum": (lambda x: x.sum(0), (90_000, 20)),
    "few vectors": (lambda x: x.sum(-1), (70, 50)),
    "scalars": (lambda x: x.sum(-1), (70, 3)),
    "everything": (lambda x: x.sum(), (600, 700)),
    "one element": (lambda x: x + 1, (1,)),
    "pointwise": (lambda x: x.exp() + 1, (64, 100)),
    "large pointwise": (lambda x: x * 2 + 1, (1300, 1000)),
    "large sum": (lambda x: (x * 2).sum(-1), (1300, 1000)),
    "transposed": (lambda x: x.t() * 2 + 1, (600, 700)),
    "large transposed": (lambda x: x + x.t(), (1100, 1100)),
    "argmax": (lambda x: x.argmax(-1), (9, 2000)),
    "tiny": (lambda x: x.sum(-1), (8, 8)),
    "gather": (lambda x: x[torch.tensor([1, 0, 2])], (5, 6)),
}
KERNELS = [(name, target) for name in FUNCTIONS for target in ("cpu", "sm_90")]


def kernels(name, target):
    fn, shape = FUNCTIONS[name]
    return [k for k in staxlab.explain(fn, torch.ones(shape), target=target).kernels if k.language != "extern"]


def by_topic(kernel):
    return {decision.topic: decision for decision in kernel.decisions}


@pytest.mark.parametrize(("name", "target"), KERNELS)
def test_every_choice_is_one_of_its_candidates_and_has_a_reason(name, target):
    for kernel in kernels(name, target):
        assert kernel.decisions
        for decision in kernel.decisions:
            assert decision.reason
            if decision.candidates:
                same = [c for c in decision.candidates if c == decision.choice and type(c) is type(decision.choice)]
                assert same, f"{decision} is none of {decision.candidates}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_choices_for_a_processor_are_what_the_source_does(name):
    for kernel in kernels(name, "cpu"):
        found = by_topic(kernel)
        assert found["vector-loop"].choice is not None or kernel.launch["vector_lanes"] == 1
        assert bool(found["prefetch"].choice) == ("prefetch(" in kernel.source)
        assert bool(found["streaming-stores"].choice) == ("stream<resident" in kernel.source)
        if "accumulators" in found:
            assert found["accumulators"].choice == kernel.launch["accumulators"]
        if "parallel-depth" in found:
            assert bool(found["parallel-depth"].choice) == ("omp" in kernel.source)
            assert dict(found["parallel-depth"].inputs)["estimated vector operations"] == kernel.launch["work"]
        if "column-strips" in found:
            facts, decision = dict(found["column-strips"].inputs), found["column-strips"]
            large = facts["bytes read"] >= facts["threshold"]
            vectors = max(facts["extent"] // facts["lanes"], 1)
            assert decision.choice == (large and vectors > facts["vectors in registers"])
            assert ("a large matrix" in decision.reason) == decision.choice
            assert not ("small matrix" in decision.reason and large)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("small column sum", "a small matrix, cached whole"),
        ("narrow column sum", "all stay in registers meanwhile"),
        ("large column sum", "a large matrix"),
    ],
)
def test_why_running_results_are_in_registers_or_in_strips(name, why):
    (kernel, *_) = kernels(name, "cpu")
    assert why in by_topic(kernel)["column-strips"].reason


@pytest.mark.parametrize(("length", "choice", "why"), [(3 * 16, 3, "too short for 4"), (900, 4, "hide that latency")])
def test_accumulators_a_short_row_cannot_fill(length, choice, why):
    compilation = staxlab.explain(lambda x: x.sum(-1), torch.ones(70, length))
    found = by_topic(compilation.kernels[0])["accumulators"]
    if dict(found.inputs)["lanes"] != 16:
        pytest.skip("counted in vectors of 16 lanes")
    assert (found.choice, why in found.reason) == (choice, True)
    assert choice in found.candidates and max(found.candidates) == plan.DEFAULT_ACCUMULATORS


def test_a_table_spells_choice_and_alternatives_alike():
    from staxlab import view
    from staxlab.options import Decision
    from tests.view.reading import read

    decisions = Decision("a", "x", False, "why", (False, True)), Decision("b", "y", None, "why", (None, "i0"))
    page = read(view.html(decisions))
    rows = [[cell.text for cell in row.find("td")] or [cell.text for cell in row.find("th")] for row in page.find("tr")]
    texts = [" ".join(row) for row in rows]
    assert any("False True" in text for text in texts), texts
    assert any("none i0" in text for text in texts), texts
    assert not any("no True" in text for text in texts)
