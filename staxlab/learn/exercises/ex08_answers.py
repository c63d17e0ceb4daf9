"""Answers to Exercise 8: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex08 import Variant


def select(b, dim, i):
    if dim == 0:
        return list(b[i])
    return [row[i] for row in b]


def select_scatter(b, v, dim, i):
    new = [list(row) for row in b]
    for j, value in enumerate(v):
        if dim == 0:
            new[i][j] = value
        else:
            new[j][i] = value
    return new


def graph(k, a):
    nodes = [
        ("t1", "t", "y"),
        ("r1", "select", "t1", 0, k),
        ("s1", "add", "r1", a),
        ("t2", "select_scatter", "t1", "s1", 0, k),
        ("y2", "t", "t2"),
        ("f2", "select", "y2", 0, 0),
    ]
    return nodes, {"y": "y2", "v": "t2", "row": "s1", "first": "f2"}


def stale(y):
    before = y.sum()
    y[0].add_(1)
    return before - y.sum()


WHY = """Value numbering needs that equal arguments always give equal values. While there are writes, a name stands for
different contents at different times: y.sum() before the write and y.sum() after it have the same target and the same
argument, hence the same key, and are merged although their values differ. A write whose result nobody reads would also
look dead, and two equal writes would be merged into one. After functionalization the contents after the write have a
name of their own, so the two sums have different arguments and different keys: equal keys mean equal values again. And
the write need not even name y: in my example it goes through the view y[0], of which y.sum() knows nothing."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex08_runs import elements_changed_in_first, elements_of_row

    return {
        "select": select,
        "select_scatter": select_scatter,
        "row_elements": elements_of_row(variant.rows, variant.columns, variant.k),
        "first_changes": elements_changed_in_first(variant.rows, variant.columns, variant.k),
        "graph": graph,
        "stale": stale,
        "why_before": WHY,
    }


# Changes to the function above that leave it right: any row may be written, and the difference shown in other ways.
HARMLESS = {
    "stale": (
        "return before - y.sum() -> return y.sum()",
        "return before - y.sum() -> return before + y.sum()",
        "return before - y.sum() -> return y - y.sum()",
        "y[0].add_(1) -> y[0].add_(2)",
        "y[0].add_(1) -> y[1].add_(1)",
        "y[0].add_(1) -> y[-1].add_(1)",
    ),
}


def _rows_only(b, dim, i):
    return list(b[i])


def _other_dimension(b, dim, i):
    return [row[i] for row in b] if dim == 0 else list(b[i])


def _writes_into_b(b, v, dim, i):
    for j, value in enumerate(v):
        if dim == 0:
            b[i][j] = value
        else:
            b[j][i] = value
    return b


def _zeros_elsewhere(b, v, dim, i):
    new = [[0] * len(row) for row in b]
    for j, value in enumerate(v):
        if dim == 0:
            new[i][j] = value
        else:
            new[j][i] = value
    return new


def _view_not_put_in(b, v, dim, i):
    return [list(row) for row in b]


def _shallow_copy(b, v, dim, i):
    new = list(b)
    if dim == 0:
        new[i] = list(v)
    else:
        for j, value in enumerate(v):
            new[j][i] = value
    return new


def _in_place(k, a):
    nodes = [("t1", "t", "y"), ("r1", "select", "t1", 0, k), ("s1", "add_", "r1", a)]
    return nodes, {"y": "y", "v": "t1", "row": "s1", "first": "y"}


def _row_only(k, a):
    nodes = [("t1", "t", "y"), ("r1", "select", "t1", 0, k), ("s1", "add", "r1", a), ("f1", "select", "y", 0, 0)]
    return nodes, {"y": "y", "v": "t1", "row": "s1", "first": "f1"}


def _not_transposed_back(k, a):
    nodes = [
        ("t1", "t", "y"),
        ("r1", "select", "t1", 0, k),
        ("s1", "add", "r1", a),
        ("t2", "select_scatter", "t1", "s1", 0, k),
        ("f2", "select", "t2", 0, 0),
    ]
    return nodes, {"y": "t2", "v": "t2", "row": "s1", "first": "f2"}


def _row_of_y(k, a):
    nodes = [
        ("t1", "t", "y"),
        ("r1", "select", "y", 0, 0),
        ("s1", "add", "r1", a),
        ("y2", "select_scatter", "y", "s1", 0, 0),
        ("t2", "t", "y2"),
        ("f2", "select", "y2", 0, 0),
    ]
    return nodes, {"y": "y2", "v": "t2", "row": "s1", "first": "f2"}


def _first_is_stale(k, a):
    nodes, final = graph(k, a)
    return [*nodes, ("f1", "select", "y", 0, 0)], {**final, "first": "f1"}


def _one_result(k, a):
    return [("s1", "add", "y", a)], {"y": "s1"}


def _fixed_numbers(k, a):
    return graph(0, 1)


def _no_node(k, a):
    return [("s1", "add", "missing", a)], {"y": "s1", "v": "s1", "row": "s1", "first": "s1"}


def _no_write(y):
    return y.sum() - y.sum()


def _nothing_repeated(y):
    y[0].add_(1)
    return y.sum()


def _written_by_its_name(y):
    before = y.sum()
    y.add_(1)
    return before - y.sum()


def _harmless_write(y):
    before = y.sum()
    z = y + 1
    z.mul_(2)
    return before - y.sum()


def _cannot_run(y):
    y.add_(1)
    return y @ y


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex08_runs import elements_of_row

    rows, columns, k = variant.rows, variant.columns, variant.k
    right = elements_of_row(rows, columns, k)

    def slip(mistake: str, *loses: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, loses or tuple(answers))

    return (
        slip("other-dimension", select=_rows_only),
        slip("other-dimension", select=_other_dimension),
        slip("changes-b", select_scatter=_writes_into_b),
        slip("changes-b", select_scatter=_shallow_copy),
        slip("loses-b", select_scatter=_zeros_elsewhere),
        slip("view-not-put-in", select_scatter=_view_not_put_in),
        slip("row-of-y", row_elements=list(range(k * columns, k * columns + rows))),
        slip("bytes", row_elements=[4 * place for place in right]),
        slip("wrong-elements", row_elements=[place + 1 for place in right]),
        slip("sees-nothing", first_changes=0),
        slip("sees-all", first_changes=columns),
        slip("in-place-operator", graph=_in_place),
        slip("stale-alias", graph=_row_only),
        slip("stale-alias", graph=_first_is_stale),
        slip("wrong-shape", graph=_not_transposed_back),
        slip("wrong-value", graph=_row_of_y),
        slip("missing-result", graph=_one_result),
        slip("fixed-numbers", graph=_fixed_numbers),
        slip("cannot-run", graph=_no_node),
        slip("no-write", stale=_no_write),
        slip("nothing-merged", stale=_nothing_repeated),
        slip("nothing-merged", stale=_written_by_its_name),
        slip("right-value", stale=_harmless_write),
        slip("failed-call", stale=_cannot_run),
    )
