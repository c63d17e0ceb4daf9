"""Exercise 45: fusion without forbidden pairs, words as graphs, and methods held against brute force."""

from __future__ import annotations

import itertools

import pytest

from staxlab import learn
from staxlab.learn.answers import Malformed
from staxlab.learn.exercises import ex45, ex45_answers, ex45_runs
from staxlab.learn.fusion_graphs import graph_dictionary, graph_of
from staxlab.learn.variants import generator, variant_for
from staxlab.schedule.integer_program import by_integer_program
from staxlab.schedule.optimum import brute_force, optimum


def check(part, seed=None, **answers):
    return learn.check(f"ex45.{part}", answers, seed=seed, record=False)


def is_subsequence(word, longer):
    letters = iter(longer)
    return all(letter in letters for letter in word)


@pytest.mark.parametrize("words", [*ex45_runs.WORDS[:10], ("abab", "bbaa"), ("aba", "bab")])
def test_shortest_supersequences_are_shortest(words):
    length = ex45_runs.shortest_supersequence(words)

    def some(n):
        tried = ("".join(letters) for letters in itertools.product("ab", repeat=n))
        return any(all(is_subsequence(word, longer) for word in words) for longer in tried)

    assert some(length) and not some(length - 1)


@pytest.mark.parametrize("words", [w for w in ex45_runs.WORDS if sum(map(len, w)) <= 6])
def test_words_become_graphs_whose_optimum_three_ways_find(words):
    problem = ex45_runs.typed_graph(ex45_answers.fusion_instance(words)).problem
    length = ex45_runs.shortest_supersequence(words)
    assert optimum(problem).nbytes == brute_force(problem)[0] == by_integer_program(problem).nbytes == length


def test_spaces_are_not_even_needed():
    def one_space(words):
        instance = ex45_answers.fusion_instance(words)
        return {**instance, "spaces": dict.fromkeys(instance["spaces"], "all")}

    assert check("2", fusion_instance=one_space)["fusion_instance"].credit == 1


def test_distances_between_equal_letters_are_enough():
    def fewer(words):
        instance = ex45_answers.fusion_instance(words)
        space = instance["spaces"]
        return {**instance, "distances": [(a, b) for a, b in instance["distances"] if space[a] == space[b]]}

    assert check("2", fusion_instance=fewer)["fusion_instance"].credit == 1


def test_a_graph_that_grows_too_fast_is_noticed():
    def padded(words):
        instance = ex45_answers.fusion_instance(words)
        more = [(f"more{k}", ["a"], [f"m{k}"]) for k in range(40)]
        sizes = {**instance["bytes"], **{f"m{k}": 0 for k in range(40)}}
        spaces = {**instance["spaces"], **{name: "a" for name, _, _ in more}}
        return {**instance, "nodes": [*instance["nodes"], *more], "bytes": sizes, "spaces": spaces}

    assert check("2", fusion_instance=padded)["fusion_instance"].mistake == "too-large"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"spaces": None}, "iteration space"),
        ({"spaces": {}}, "iteration space"),
        ({"distances": [("0", "0")]}, "no dependence"),
        ({"distances": [("0", "q")]}, "no pair"),
        ({"forbidden": [("0", "1")]}, "only by spaces"),
        ({"nodes": 3}, "not a list"),
    ],
)
def test_what_is_no_typed_graph(change, words):
    with pytest.raises(Malformed, match=words):
        ex45_runs.typed_graph({**ex45_answers.fusion_instance(["ab", "ba"]), **change})
    with pytest.raises(Malformed, match="no dictionary"):
        ex45_runs.typed_graph([])


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_without_forbidden_pairs_the_best_moves_inputs_and_results(seed):
    problem = ex45_runs.free_graph(variant_for(ex45.Variant, seed).graph)
    least = ex45_runs.free_costs(problem)[0]
    assert brute_force(problem)[0] == least == ex45_runs._inputs_and_results(problem)


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_words_of_a_variant_share_letters(seed):
    variant = variant_for(ex45.Variant, seed)
    assert max(map(len, variant.words)) < variant.length < sum(map(len, variant.words))


@pytest.mark.parametrize("seed", [None, 3])
def test_instances_of_the_restricted_class(seed):
    for problem, least, merged in ex45_runs.instances(seed):
        assert least <= merged
        assert set(problem.forbidden.values()) <= {"forbidden", "distance"}
        if problem.size <= 7:
            assert brute_force(problem)[0] == least


def test_a_method_is_told_how_near_it_comes():
    def exact(graph):
        return optimum(graph_of(graph)).partition

    verdict = check("3", seed=4, typed_fusion=exact)["typed_fusion"]
    facts = dict(verdict.facts)
    assert verdict.credit == 1 and facts["optimal"].startswith("24,") and facts["above the best"].startswith("0.00%")


def test_a_graph_is_handed_over_with_its_forbidden_pairs():
    problem = ex45_runs.restricted_graph(generator(1, "graphs"), 8, 2)
    assert len(graph_dictionary(problem)["forbidden"]) == len(problem.forbidden) > 0


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda graph: 7, "wrong-form"),
        (lambda graph: [["nobody"]], "wrong-form"),
        (lambda graph: graph["nope"], "failed-call"),
    ],
)
def test_what_is_no_partition(answer, mistake):
    assert check("3", typed_fusion=answer)["typed_fusion"].mistake == mistake
    assert check("1", cheapest=answer)["cheapest"].mistake == mistake
