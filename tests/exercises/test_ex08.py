"""Exercise 8: its truth against eager execution and the package's own functionalization; feedback on answers."""

from __future__ import annotations

import pytest
import torch

from staxlab import learn
from staxlab.capture.tracer import trace
from staxlab.learn.exercises import ex08, ex08_runs
from staxlab.learn.exercises.ex08_answers import graph, stale
from staxlab.learn.variants import variant_for
from staxlab.operators.record import record

aten = torch.ops.aten


def check(part, seed=None, **answers):
    return learn.check(f"ex08.{part}", answers, seed=seed, record=False)


@pytest.mark.parametrize(("rows", "columns", "k"), [(4, 3, 0), (3, 5, 2), (5, 3, 1)])
def test_the_row_of_the_transpose_is_a_column(rows, columns, k):
    assert ex08_runs.elements_of_row(rows, columns, k) == [k + i * columns for i in range(rows)]
    assert ex08_runs.elements_changed_in_first(rows, columns, k) == 1


def test_the_program_changes_all_its_names():
    y = ex08_runs.numbers(4, 3)
    held = ex08_runs.program(y, 1, 10)
    assert held["y"] is y and y[:, 1].tolist() == [11, 14, 17, 20]
    assert held["v"][1].tolist() == held["row"].tolist() and held["first"].tolist() == [0, 11, 2]


def test_the_reference_has_the_nodes_of_the_packages_own_graph():
    """What the recorder makes of the program: the same operators, apart from a transpose taken twice and the copy
    into the input."""
    y = ex08_runs.numbers(4, 3)
    recorded = record(trace(lambda y: ex08_runs.program(y, 0, 1)["y"] * 1, (y,), {}).module, [y])
    theirs = [node.target._opname for node in recorded.graph.calls]
    mine = [node[1] for node in graph(0, 1)[0]]
    assert set(theirs) == set(mine) | {"copy_", "mul"}
    assert theirs.index("select") < theirs.index("add") < theirs.index("select_scatter")
    values = ex08_runs.run_graph(graph(0, 1)[0], y)
    assert torch.equal(values["y2"], recorded.module(y.clone()))


@pytest.mark.parametrize("seed", [None, *range(10)])
def test_shapes_are_not_square_so_that_a_transpose_shows(seed):
    variant = variant_for(ex08.Variant, seed)
    assert variant.rows != variant.columns and 0 <= variant.k < variant.columns


def other_spelling(k, a):
    """With transpose in place of t, and first through the transpose."""
    nodes = [
        ("v1", "transpose", "y", 0, 1),
        ("r", "select", "y", 1, k),
        ("s", "add", "r", a),
        ("yy", "select_scatter", "y", "s", 1, k),
        ("v2", "transpose", "yy", 1, 0),
        ("f", "select", "v2", 1, 0),
    ]
    return nodes, {"y": "yy", "v": "v2", "row": "s", "first": "f"}


def changed(nodes=None, **final):
    """The reference with another node list or other results."""

    def answer(k, a):
        right, results = graph(k, a)
        return (nodes(right) if nodes else right), {**results, **final}

    return answer


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (graph, None),
        (other_spelling, None),
        (changed(y="y"), "stale-alias"),
        (changed(v="t1"), "stale-alias"),
        (changed(row="r1"), "stale-alias"),
        (changed(first="s1"), "wrong-shape"),
        (changed(v="nowhere"), "cannot-run"),
        (changed(lambda nodes: [*nodes, nodes[0]]), "assigned-twice"),
        (changed(lambda nodes: [*nodes, ("z", "sort", "y")]), "unknown-operator"),
        (changed(lambda nodes: [*nodes, ("z", "add_", "y", 1)]), "in-place-operator"),
        (changed(lambda nodes: [*nodes, ("z", "select", "y", 7, 0)]), "cannot-run"),
        (changed(lambda nodes: nodes[::-1]), "cannot-run"),
        (lambda k, a: ([("x",)], {}), "wrong-form"),
        (lambda k, a: None, "wrong-form"),
        (lambda k, a: 1 / 0, "failed-call"),
    ],
)
def test_graphs_are_executed(answer, mistake):
    verdict = check("2", graph=answer)["graph"]
    assert verdict.mistake == mistake and (verdict.credit == 1) == (mistake is None), verdict


def test_a_stale_alias_is_named_and_shown():
    verdict = check("2", graph=changed(v="t1"))["graph"]
    facts = dict(verdict.facts)
    assert verdict.credit == ex08_runs.HALF and facts["name"] == "v" and verdict.message.startswith("v looks at")
    assert facts["yours"] != facts["after the write"]


def test_a_write_into_the_argument_is_seen():
    def writes(b, v, dim, i):
        copied = [list(row) for row in b]
        b[0][0] = 0
        return [list(v) if dim == 0 and j == i else row for j, row in enumerate(copied)]

    assert check("1", select_scatter=writes)["select_scatter"].mistake == "changes-b"


def test_pytorchs_own_functions_will_do():
    answers = {
        "select": lambda b, dim, i: torch.tensor(b).select(dim, i).tolist(),
        "select_scatter": lambda b, v, dim, i: torch.tensor(b).select_scatter(torch.tensor(v), dim, i).tolist(),
    }
    feedback = check("1", **answers)
    assert feedback.score == 1, feedback


# -- merging too early ---------------------------------------------------------------------------------------------


def test_merging_first_gives_a_wrong_value_and_functionalizing_first_does_not():
    y = ex08_runs.numbers(2, 3)
    captured = trace(stale, (y.clone(),), {})
    early = captured.graph.copy()[0]
    assert ex08_runs.merge_what_looks_equal(early) == 1
    facts = dict(check("3", stale=stale)["stale"].facts)
    assert facts["then it returns"] != facts["your program returns"] == facts["functionalized first"]
    assert stale(y.clone()).item() == -3


def doubled_write(y):
    """The same view is taken twice; merged, they are one, which is harmless; the sums are not."""
    y[0].add_(1)
    first = y.mean()
    y[0].add_(1)
    return first * 2 - y.mean()


def view_outlives_the_write(y):
    total = y * 2
    y.t()[0].zero_()
    return total + y * 2


def branches(y):
    return y + 1 if y.sum() > 100 else y


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (stale, None),
        (doubled_write, None),
        (view_outlives_the_write, None),
        (lambda y: y.sum() * 2, "no-write"),
        (lambda y: (y.add_(1), y.sum())[1], "nothing-merged"),
        (lambda y: 3.0, "wrong-form"),
        (lambda y: y @ y, "failed-call"),
        (branches, "no-write"),
    ],
)
def test_programs_that_merging_breaks(answer, mistake):
    verdict = check("3", stale=answer)["stale"]
    assert verdict.mistake == mistake and (verdict.credit == 1) == (mistake is None), verdict
