"""Exercise 9: networks are held against the compiler's, and the numbers come from real partitions and schedules."""

from __future__ import annotations

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex09, ex09_answers, ex09_runs
from staxlab.learn.feedback import Status
from staxlab.learn.networks import cut_text, difference, edges_of, flow_of, real_graphs
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex09.{part}", answers, seed=seed, record=False)


def test_the_chapters_numbers():
    """h costs 8192 x 1.21, r 2 x 8192 x 1.1: h is saved, and nothing more is written than for gelu."""
    graph = ex09.Variant().graph()
    assert graph.partition.flow.value == pytest.approx(9912.32) and graph.saved == {"h"}
    assert ex09_runs.recomputed(graph) == {"r"} and graph.members("B") == {"r"} and graph.members("U") == {"h", "l"}
    assert ex09_runs.bytes_written(graph) == ex09_runs.bytes_written(ex09.Variant().example_5_1()) == 8192 + 4
    assert ex09_runs.bytes_written(graph, {"r"}) == 2 * 8192 + 4
    assert ex09.Variant().graph(returns_r=True).saved == {"r"}


@pytest.mark.parametrize("seed", range(12))
def test_every_students_program_reads_the_result_of_its_activation(seed):
    variant = variant_for(ex09.Variant, seed)
    graph = variant.graph()
    assert graph.members("B") == {"r"} and graph.saved == {"h"}
    assert difference(edges_of(ex09_answers.edges_by_hand(variant)), graph) is None


def test_each_edge_counts():
    """Any edge left out, turned round or given another capacity is noticed, and so is each edge there could be more."""
    graph = ex09.Variant().graph()
    edges = dict(graph.edges)
    assert difference(edges, graph) is None
    vertices = sorted({vertex for edge in edges for vertex in edge})
    for edge, capacity in graph.edges.items():
        assert difference({e: c for e, c in edges.items() if e != edge}, graph) is not None, edge
        turned = {(e[::-1] if e == edge else e): c for e, c in edges.items()}
        assert difference(turned, graph) is not None, edge
        for other in (0.0, 1.0, capacity * 1.05, capacity / 1.1, float("inf")):
            if other != capacity:
                assert difference({**edges, edge: other}, graph) is not None, (edge, other)
    for tail in vertices:
        for head in vertices:
            if tail != head and (tail, head) not in edges:
                assert difference({**edges, (tail, head): float("inf")}, graph) is not None, (tail, head)


def test_capacities_may_be_rounded_and_infinity_be_spelled():
    edges = [
        (a, b, round(c) if c != "inf" and c < 1e6 else c) for a, b, c in ex09_answers.edges_by_hand(ex09.Variant())
    ]
    for spelled in ("inf", float("inf"), "∞"):
        answer = [(a, b, spelled if c == "inf" else c) for a, b, c in edges]
        assert check("1", remat_edges=answer)["remat_edges"].credit == 1
    assert check("1", cut_capacity=9912)["cut_capacity"].credit == 1


@pytest.mark.parametrize(
    "answer",
    [[("a", "b")], [("a", "b", -1)], [(1, "b", 2)], "a -> b", [("a", "b", 1), ("a", "b", 2)], [("a", "b", "many")]],
)
def test_what_is_no_network_is_malformed(answer):
    assert check("1", remat_edges=answer)["remat_edges"].status is Status.MALFORMED


def test_feedback_runs_the_flow_on_the_students_network():
    edges = [edge for edge in ex09_answers.edges_by_hand(ex09.Variant()) if edge[:2] != ("h_in", "h_out")]
    verdict = check("1", remat_edges=[*edges, ("h_in", "h_out", 40_000)])["remat_edges"]
    assert dict(verdict.facts)["the flow on your network"] == "minimum cut 18,022: r_in -> r_out"
    verdict = check("1", remat_edges=[*edges, ("h_in", "h_out", "inf")])["remat_edges"]
    assert (
        verdict.mistake == "infinite-price" and "minimum cut 18,022" in dict(verdict.facts)["the flow on your network"]
    )
    assert cut_text({("s", "t"): float("inf")}) == "no finite cut" and cut_text({}) == "minimum cut 0: no edge"


@pytest.mark.parametrize("graph", real_graphs(), ids=lambda graph: graph.title)
def test_the_flow_on_a_network_of_names_finds_the_compilers_cut(graph):
    flow = flow_of(graph.edges)
    assert flow.value == pytest.approx(graph.partition.flow.value)
    names = {flow.network.name(flow.network.tails[edge]).removesuffix("_in") for edge in flow.cut}
    assert names == {graph.name(node) for node in graph.partition.cut}
    assert edges_of(ex09_answers.remat_network(graph.values)).keys() == graph.edges.keys()


def test_real_graphs_have_views_random_values_and_longer_ways():
    graphs = real_graphs()
    assert any(not value["savable"] for graph in graphs for value in graph.values)
    assert any(
        graph.members("U") and graph.members("B") and not graph.members("U") & graph.members("B") for graph in graphs
    )
    assert len(graphs) == len({graph.title for graph in graphs}) >= 8
