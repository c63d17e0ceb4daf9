"""Greedy fusion of real programs, held against the best partition by the compiler's own rules."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.errors import OptionError
from staxlab.measure.fusion_gap import fusion_history, gap
from staxlab.schedule.dependencies import escaping, single_nodes
from staxlab.schedule.fusion import Fusion
from staxlab.schedule.fusion_problem import FusionProblem
from staxlab.schedule.integer_program import by_integer_program
from staxlab.schedule.optimum import brute_force, optimum
from staxlab.schedule.row_classes import problem_of

X = torch.rand(256, 384, generator=torch.Generator().manual_seed(0)) + 0.5
S = torch.rand(256, 256, generator=torch.Generator().manual_seed(1)) + 0.5


def five_operators(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


PROGRAMS = {
    "Example 7.1": (lambda x: x / x.sum(-1, keepdim=True), (X,)),
    "Example 7.2": (lambda x: (x.exp().sum(-1), x.exp().amax(-1)), (X,)),
    "softmax": (five_operators, (X,)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (384,), w, b), (X, torch.rand(384), torch.rand(384))),
    "rows and columns of a square": (lambda x: (x / x.sum(0), x / x.sum(1, keepdim=True), x.t() + x), (S,)),
    "a product between": (lambda x, y: torch.softmax(five_operators(x) @ y, -1), (X, torch.rand(384, 256))),
    "halves": (lambda x: (x[:, :192].sum(-1), x[:, 192:].sum(-1), x[:, :192].amax(-1)), (X,)),
    "a scatter": (lambda x, i: torch.zeros(256).index_add(0, i, x.sum(-1)) * 2, (X, torch.randint(0, 256, (256,)))),
    "losses": (lambda x, t: (F.cross_entropy(x, t), x.softmax(-1)), (X, torch.randint(0, 384, (256,)))),
}


def problem_of_schedule(planned) -> tuple[FusionProblem, Fusion]:
    nodes = single_nodes(planned.program)
    run = Fusion(nodes, planned.layouts, escaping(nodes, planned.program))
    return problem_of(run, nodes), run


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_schedule_is_a_legal_partition_and_no_better_than_the_optimum(name):
    function, inputs = PROGRAMS[name]
    compilation = staxlab.explain(function, *inputs)
    found = gap(compilation)
    problem = found.best.problem
    assert found.best.is_proved
    assert found.greedy_bytes >= found.best.nbytes
    for partition in (found.greedy, found.best.partition):
        assert problem.violation(partition) is None
    assert problem.cost(found.best.partition) == found.best.nbytes
    assert (found.relative > 0) == bool(found.reasons)
    # The bytes of the model are those the schedule counts.
    planned = compilation.schedule
    moved = sum(planned.bytes_read(node) + planned.bytes_written(node) for node in planned.nodes)
    assert found.greedy_bytes == moved


@pytest.mark.parametrize("name", PROGRAMS)
def test_brute_force_finds_nothing_better(name):
    function, inputs = PROGRAMS[name]
    problem, _ = problem_of_schedule(staxlab.explain(function, *inputs).schedule)
    if problem.size > 8:
        pytest.skip("more than 4,140 partitions")
    assert optimum(problem, start=[[n] for n in problem.names]).nbytes == brute_force(problem)[0]


@pytest.mark.parametrize("name", ["Example 7.1", "Example 7.2", "softmax", "layer norm", "a product between"])
def test_the_integer_program_agrees(name):
    function, inputs = PROGRAMS[name]
    problem, _ = problem_of_schedule(staxlab.explain(function, *inputs).schedule)
    assert by_integer_program(problem).nbytes == optimum(problem).nbytes


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_pair_that_the_greedy_merged_may_share_a_class(name):
    function, inputs = PROGRAMS[name]
    compilation = staxlab.explain(function, *inputs)
    problem, _ = problem_of_schedule(compilation.schedule)
    for node in compilation.schedule.nodes:
        for one, other in itertools.combinations(node.members, 2):
            first, second = sorted((problem.place[one.name], problem.place[other.name]))
            assert not problem.apart[first] >> second & 1


def test_what_stays_in_its_row_costs_nothing():
    found = gap(staxlab.explain(PROGRAMS["softmax"][0], X))
    assert found.best.partition == found.greedy
    assert len(found.greedy) == 1
    assert found.best.nbytes == 2 * X.nbytes
    assert "relative gap 0.00%" in str(found)
    assert found.to_json()["optimum"]["proof"] == "optimal"


def test_a_program_that_was_not_fused_has_a_gap():
    found = gap(staxlab.explain(PROGRAMS["softmax"][0], X, options={"fuse": False}))
    assert found.relative > 1
    assert len(found.greedy) > len(found.best.partition) == 1


def test_another_score_is_another_history():
    compilation = staxlab.explain(PROGRAMS["layer norm"][0], *PROGRAMS["layer norm"][1])
    history = fusion_history(compilation, best=True)
    assert {frozenset(group) for group in history.groups} == {
        frozenset(m.name for m in node.members) or frozenset([node.name]) for node in compilation.schedule.nodes
    }
    backwards = fusion_history(compilation, score=lambda pair: (pair.kind == "horizontal", -pair.bytes_saved))
    assert [s.merged for s in history.steps] != [s.merged for s in backwards.steps]
    merges = [step.merged for step in history.steps]
    assert merges[-1] is None
    for step in history.steps[:-1]:
        assert step.merged.is_legal
        assert step.merged in step.pairs or not step.merged.bytes_saved  # little to do, and nothing shared
    assert "merge 1: " in str(history) and "the optimum is the same" in str(history)


def test_a_pair_that_is_forbidden_keeps_the_rule():
    function, inputs = PROGRAMS["rows and columns of a square"]
    last = fusion_history(staxlab.explain(function, *inputs)).steps[-1]
    assert last.merged is None
    assert {pair.rule for pair in last.pairs} >= {"space"}
    assert all(pair.reason for pair in last.pairs)


def test_what_has_no_kernels_is_refused():
    with pytest.raises(OptionError, match="nothing was fused"):
        gap(staxlab.explain(lambda x: x + 1, X, backend="eager"))
    with pytest.raises(OptionError, match="rules of a GPU"):
        gap(staxlab.explain(lambda x: x.exp().sum(-1), X, target="sm_90"))


def test_a_run_for_a_gpu_goes_by_its_own_rules():
    compilation = staxlab.explain(PROGRAMS["softmax"][0], X, target="sm_90")
    history = fusion_history(compilation)
    assert {frozenset(group) for group in history.groups} == {
        frozenset(m.name for m in node.members) or frozenset([node.name]) for node in compilation.schedule.nodes
    }
    with pytest.raises(OptionError, match="rules of a GPU"):
        fusion_history(compilation, best=True)


def test_what_was_left_out_is_no_proof(monkeypatch):
    monkeypatch.setattr("staxlab.schedule.row_classes.MOST_WAYS", 0)
    found = gap(staxlab.explain(PROGRAMS["softmax"][0], X, options={"fuse": False}))
    assert not found.best.is_proved
    assert "kept" in found.proof
    assert found.best.bound == 2 * X.nbytes
    assert "not proved" in str(found)
