"""Exercise 17: cycles by merging, graphs that fool the greedy, and what is no graph at all."""

from __future__ import annotations

import itertools

import pytest

from staxlab import learn
from staxlab.learn.answers import Malformed
from staxlab.learn.exercises import ex17, ex17_answers, ex17_runs
from staxlab.learn.fusion_graphs import graph_dictionary, graph_of, partition_of, random_graph
from staxlab.learn.variants import generator, variant_for
from staxlab.schedule.greedy import greedy
from staxlab.schedule.optimum import brute_force, optimum


def check(part, seed=None, **answers):
    return learn.check(f"ex17.{part}", answers, seed=seed, record=False)


def paths_through_a_third(edges):
    """Proposition 7.1 by walking."""
    names = {name for edge in edges for name in edge}

    def reaches(start, goal, length):
        return length > 0 and any(a == start and (b == goal or reaches(b, goal, length - 1)) for a, b in edges)

    found = set()
    for one, other in itertools.permutations(names, 2):
        for third in names - {one, other}:
            if reaches(one, third, len(names)) and reaches(third, other, len(names)):
                found.add(frozenset((one, other)))
    return found


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_a_pair_makes_a_cycle_where_a_path_leads_through_a_third(seed):
    variant = variant_for(ex17.Variant, seed)
    assert ex17_runs.cyclic_pairs(variant.edges) == paths_through_a_third(variant.edges)


def test_the_chapters_graph():
    answers = ex17_answers.reference(ex17.Variant())
    assert answers["cyclic_pairs"] == [("a", "b")] and answers["legal_partitions"] == 4
    assert check("1", cyclic_pairs=[["b", "a"]])["cyclic_pairs"].credit == 1


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_the_graph_of_part_3_is_one_that_greedy_merging_misses(seed):
    variant = variant_for(ex17.Variant, seed)
    problem = ex17_runs.given_graph(variant.graph)
    run, least, _ = ex17_runs.costs(variant.graph)
    assert brute_force(problem)[0] == least < run == greedy(problem).nbytes
    assert not ex17_runs.has_ties(greedy(problem))


def test_orders_of_the_gain_differ_on_the_fooling_graph_and_agree_on_the_stubborn_one():
    fooling, stubborn = graph_of(ex17_answers.FOOLING), graph_of(ex17_answers.STUBBORN)
    assert len({greedy(fooling, score).nbytes for score in ex17_runs.GAINS.values()}) > 1
    assert all(greedy(stubborn, score).nbytes > optimum(stubborn).nbytes for score in ex17_runs.GAINS.values())


def test_another_best_partition_is_right_as_well():
    graph = {**ex17_answers.FOOLING, "bytes": {"x": 100, "u": 0, "v": 1, "w": 1}}
    problem = graph_of(graph)
    assert ex17_runs.judge_partition(problem, [["a", "c"], ["b"]]).credit == 1
    chain = graph_of({**ex17_answers.STUBBORN, "bytes": dict.fromkeys("xuvwz", 1)})
    assert {ex17_runs.judge_partition(chain, p).credit for p in ([["a", "b"], ["c", "d"]],)} == {1}


def test_a_cycle_is_named():
    graph = graph_of({"nodes": [("a", [], ["y"]), ("c", ["y"], ["z"]), ("b", ["y", "z"], ["w"])],
                      "bytes": dict.fromkeys("yzw", 1), "results": ["w"]})  # fmt: skip
    verdict = ex17_runs.judge_partition(graph, [["a", "b"], ["c"]])
    assert verdict.mistake == "cycle" and "wait for each other" in str(verdict.facts)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ({"nodes": []}, "'bytes' is missing"),
        ({"nodes": [], "bytes": {}, "results": []}, "no nodes"),
        ({"nodes": ["a"], "bytes": {}, "results": []}, "no (name, buffers read, buffers written)"),
        ({"nodes": [("a", ["x"], ["y"])], "bytes": {"x": 1}, "results": []}, "y needs a number of bytes"),
        ({"nodes": [("a", ["x"], ["y"])], "bytes": {"x": 1, "y": -1}, "results": []}, "y needs a number of bytes"),
        ({"nodes": [("a", "x", ["y"])], "bytes": {"x": 1, "y": 1}, "results": []}, "no list of names"),
        ({"nodes": [("a", ["x"], ["y"])], "bytes": 3, "results": []}, "not a dictionary"),
        ({"nodes": [("a", ["x"], ["y"])], "bytes": {"x": 1, "y": 1}, "results": [], "forbidden": [("a",)]}, "no pair"),
        ({"nodes": [("a", ["y"], ["x"]), ("b", ["x"], ["y"])], "bytes": {"x": 1, "y": 1}, "results": []}, "before"),
        (7, "got 7"),
    ],
)
def test_what_is_no_graph(graph, words):
    with pytest.raises(Malformed, match="(?s).*" + words.replace("(", r"\(").replace(")", r"\)")):
        graph_of(graph)


def test_a_graph_that_is_too_large_is_refused():
    many = {"nodes": [(f"n{k}", ["x"], [f"y{k}"]) for k in range(13)], "results": [],
            "bytes": {"x": 1, **{f"y{k}": 1 for k in range(13)}}}  # fmt: skip
    assert "12 are allowed" in check("2", fooling_graph=many)["fooling_graph"].message


@pytest.mark.parametrize("answer", [7, ["ab"], [["a", 3]], "abc"])
def test_what_is_no_partition(answer):
    with pytest.raises(Malformed):
        partition_of(answer)


def test_graphs_are_read_as_they_are_written():
    for seed in range(10):
        problem = random_graph(generator(seed, "graphs"), 6)
        again = graph_of(graph_dictionary(problem))
        assert again.names == problem.names and again.forbidden.keys() == problem.forbidden.keys()
        assert brute_force(again)[0] == brute_force(problem)[0]
