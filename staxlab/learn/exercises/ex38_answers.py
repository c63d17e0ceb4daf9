"""Answers to Exercise 38: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex38 import Variant


def jacobian_by_columns(jvp, n, m):
    columns = []
    for k in range(n):
        unit = [0] * n
        unit[k] = 1
        columns.append(jvp(unit))
    return [list(row) for row in zip(*columns, strict=True)]


def jacobian_by_rows(vjp, n, m):
    rows = []
    for k in range(m):
        unit = [0] * m
        unit[k] = 1
        rows.append(vjp(unit))
    return rows


def hessian_vector(f, v):
    from staxlab.autodiff.sweeps import gradient_program, weighted

    return gradient_program(weighted(gradient_program(f), v))


SECOND_ORDER = """The backward pass of a compiled region is a compiled program itself. While it runs nothing records
which operators it applies, so the gradient comes out as a plain tensor, without a graph that leads back to the inputs.
To differentiate it, the backward pass would have to be treated as a forward pass: trace the joint graph, with the
tangents among its inputs, once more under a second backward pass, and get a graph that holds forward, backward and the
backward of the backward. That graph has to be parted again: values of the forward and of the first backward pass are
read by the second, so for each of them there is a decision between saving and computing again. Compilation takes a
multiple of the time, and the graph grows by a constant factor with every order, also for all who never ask for it; so
it would be done on demand, when a gradient is asked for with create_graph=True. Until then the honest thing is an error
at that place, which says so, and eager execution for the rest."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex38_runs import FORWARD, REVERSE, differentiated_twice, sweeps

    forward, reverse = (sweeps(variant.n, variant.m, mode) for mode in (FORWARD, REVERSE))
    return {
        "forward_sweeps_cost": "n*W",
        "reverse_sweeps_cost": "m*W",
        "cheaper_mode": FORWARD if forward < reverse else REVERSE,
        "jacobian_by_columns": jacobian_by_columns,
        "jacobian_by_rows": jacobian_by_rows,
        "both_products_cost": "2*W",
        "second_derivative": differentiated_twice()[0],
        "hessian_vector": hessian_vector,
        "second_order": SECOND_ORDER,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def _columns_as_rows(jvp, n, m):
    return [jvp([int(j == k) for j in range(n)]) for k in range(n)]


def _entry_by_entry(jvp, n, m):
    return [[jvp([int(j == k) for j in range(n)])[i] for k in range(n)] for i in range(m)]


def _all_ones(jvp, n, m):
    column = jvp([1] * n)
    return [[column[i]] * n for i in range(m)]


def _not_a_matrix(jvp, n, m):
    return n * m


def _rows_as_columns(vjp, n, m):
    rows = [vjp([int(j == k) for j in range(m)]) for k in range(m)]
    return [list(column) for column in zip(*rows, strict=True)]


def _rows_twice(vjp, n, m):
    return [[vjp([int(j == k) for j in range(m)])[i] for i in range(n)] for k in range(m)]


def _wrong_vectors(vjp, n, m):
    return [vjp([int(j == k) for j in range(n)]) for k in range(n)]


def _gradient_only(f, v):
    from staxlab.autodiff.sweeps import gradient_program

    return gradient_program(f)


def _not_differentiated(f, v):
    from staxlab.autodiff.sweeps import gradient_program, weighted

    return weighted(gradient_program(f), v)


def _value_as_well(f, v):
    from staxlab.autodiff.sweeps import gradient_program, joint, weighted

    return joint(weighted(gradient_program(f), v))


def _ones(f, v):
    from staxlab.autodiff.sweeps import gradient_program, weighted

    return gradient_program(weighted(gradient_program(f), [1] * len(v)))


def _numbers(f, v):
    return v


def _row_by_row(f, v):
    from staxlab.autodiff.straightline import straight_line
    from staxlab.autodiff.sweeps import gradient_program, weighted

    def product(*x):
        found = []
        for i in range(len(v)):
            unit = [int(j == i) for j in range(len(v))]
            row = gradient_program(weighted(gradient_program(f), unit))(*x)
            row = row if isinstance(row, tuple) else (row,)
            found.append(sum(a * b for a, b in zip(row, v, strict=True)))
        return found

    return straight_line(product, len(v))


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    own = reference(variant)
    from .ex38_runs import EAGER, FORWARD, REVERSE, ZERO

    other = {FORWARD: REVERSE, REVERSE: FORWARD}[own["cheaper_mode"]]

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        slip("rows-for-columns", forward_sweeps_cost="m*W"),
        slip("every-entry", forward_sweeps_cost="n*m*W"),
        slip("columns-for-rows", reverse_sweeps_cost="n*W"),
        slip("every-entry", reverse_sweeps_cost="n*m*W"),
        slip(f"chose-{other.replace(' ', '-')}", cheaper_mode=other),
        slip("transposed", jacobian_by_columns=_columns_as_rows),
        slip("too-many-calls", jacobian_by_columns=_entry_by_entry),
        slip("wrong-matrix", jacobian_by_columns=_all_ones),
        slip("wrong-form", jacobian_by_columns=_not_a_matrix),
        slip("transposed", jacobian_by_rows=_rows_as_columns),
        slip("too-many-calls", jacobian_by_rows=_rows_twice),
        slip("failed-call", jacobian_by_rows=_wrong_vectors),
        slip("whole-jacobian", both_products_cost="(n + m)*W"),
        slip("one-of-the-two", both_products_cost="W"),
        slip(f"chose-{EAGER.replace(' ', '-')}", second_derivative=EAGER),
        slip(f"chose-{ZERO}", second_derivative=ZERO),
        slip("gradient", hessian_vector=_gradient_only),
        slip("wrong-form", hessian_vector=_numbers),
        slip("not-differentiated", hessian_vector=_not_differentiated),
        slip("value-as-well", hessian_vector=_value_as_well),
        slip("ignores-v", hessian_vector=_ones),
        slip("too-large", hessian_vector=_row_by_row),
    )
