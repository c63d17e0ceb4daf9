"""Exercise 10: what is in every feasible set, by brute force, and claims that are tried on compiled programs."""

from __future__ import annotations

import itertools

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex10, ex10_answers, ex10_runs
from staxlab.learn.networks import always_saved, escaping_path, real_graphs
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex10.{part}", answers, seed=seed, record=False)


def is_feasible(graph, chosen):
    """Definition 5.1 to the letter: every path, one after the other."""
    paths = [[name] for name in graph.members("U")]
    while paths:
        path = paths.pop()
        if chosen & set(path):
            continue
        if path[-1] in graph.members("B"):
            return False
        paths += [[*path, name] for name, sources in graph.reads.items() if path[-1] in sources]
    return True


@pytest.mark.parametrize("graph", [ex10_runs.divided(8, 16), *real_graphs()], ids=lambda graph: graph.title)
def test_the_truth_is_that_of_all_sets(graph):
    names = list(graph.reads)
    every = [set(chosen) for k in range(len(names) + 1) for chosen in itertools.combinations(names, k)]
    feasible = [chosen for chosen in every if is_feasible(graph, chosen)]
    assert set.intersection(*feasible) == always_saved(graph) == graph.members("U") & graph.members("B")
    assert graph.saved in feasible and always_saved(graph) <= graph.saved
    for chosen in every:
        path = escaping_path(graph, chosen)
        assert (path is None) == (chosen in feasible)
        if path is not None:
            assert path[0] in graph.members("U") and path[-1] in graph.members("B") and not chosen & set(path)


def test_sets_of_both_kinds_are_tried():
    found = [escaping_path(graph, chosen) for graph in ex10_runs.graphs() for chosen in ex10_runs.trials(graph, 1)]
    lengths = {len(path) for path in found if path}
    assert None in found and {1, 2} <= lengths and max(lengths) > 2


def test_the_chapters_numbers():
    graph = ex10.Variant().graph()
    assert graph.saved == always_saved(graph) == {"total"} and graph.partition.saved_bytes == 64
    assert ex10_runs.smallest_columns() == 5


@pytest.mark.parametrize("seed", range(10))
def test_every_student_has_a_reduction_that_is_kept(seed):
    variant = variant_for(ex10.Variant, seed)
    assert variant.columns >= 8 and always_saved(variant.graph()) == {"total"}


def test_other_paths_are_as_good():
    """Not the shortest: any path will do."""

    def longest(reads, U, B, C):
        found = [None]
        waiting = [[v] for v in U - C]
        while waiting:
            path = waiting.pop()
            found += [path] if path[-1] in B else []
            waiting += [[*path, v] for v in reads if path[-1] in reads[v] and v not in C]
        return max(found, key=lambda path: len(path or ()))

    assert check("1", escape=longest)["escape"].credit == 1
    assert check("1", always_saved=lambda U, B: sorted(U & B))["always_saved"].credit == 1


def test_a_wrong_claim_is_shown_the_program_that_refutes_it():
    verdict = check("1", always_saved=lambda U, B: U)["always_saved"]
    assert "feasible set" in verdict.message and dict(verdict.facts)["program"]
    verdict = check("1", escape=ex10_answers._only_longer_paths)["escape"]
    assert verdict.mistake == "path-of-one-value" and "C" in dict(verdict.facts)


@pytest.mark.parametrize(
    ("program", "mistake"),
    [
        (lambda x: x[:, :4].sum(-1).exp().mul(x[:, :4].sum(-1)).sum(), None),
        (lambda x: (x[:, :5].sum(-1) ** 3).sum(), "is-saved"),
        (lambda x: (x.sum(-1) ** 3).sum(), "is-saved"),
        (lambda x: x[:2].sum(0).pow(3), None),
        (lambda x: x.sum(), "not-read"),
        (lambda x: x * 2, "no-reduction"),
        (lambda x: x.detach().sum(), "wrong-form"),
        (lambda x: 1 / 0, "failed-call"),
        (lambda x: x[:, : int(x.sum())].sum(), "not-read"),
    ],
)
def test_programs_are_divided_as_the_compiler_does(program, mistake):
    verdict = check("3", unsaved_reduction=program)["unsaved_reduction"]
    assert verdict.mistake == mistake and (verdict.credit == 1) == (mistake is None), verdict


def test_the_compiler_says_why_a_reduction_is_saved():
    verdict = check("3", unsaved_reduction=ex10_answers._saved_by_rule)["unsaved_reduction"]
    assert "rule 3" in dict(verdict.facts)["the compiler"]
