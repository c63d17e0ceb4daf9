"""Answers to Exercise 48: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex48 import Variant


def vertex_order(n, edges):
    from itertools import permutations

    def largest(order):
        waiting = []
        for i in range(n):
            rest = order[i:]
            waiting.append(sum(any((u, v) in edges or (v, u) in edges for v in rest) for u in order[:i]))
        return max(waiting)

    return min(permutations(range(n)), key=largest)


def dependence_graph(n, edges):
    large = len(edges) + 1
    kernels = [(f"v{k}", [], large, False) for k in range(n)]
    for a, b in edges:
        kernels.append((f"e{a}-{b}", [f"v{a}", f"v{b}"], 1, True))
    return kernels


def order_of_tree(operands):
    need = []
    for own in operands:
        needs = sorted((need[k] for k in own), reverse=True)
        need.append(max([len(own) + 1] + [before + one for before, one in enumerate(needs)]))
    order = []

    def visit(k):
        for operand in sorted(operands[k], key=lambda j: -need[j]):
            visit(operand)
        order.append(k)

    visit(len(operands) - 1)
    return order


READING_OFF = """The interval for vs(H) = s is [M(s + 1), M(s + 1) + |E|], and M = |E| + 1 is larger than |E|: for
different s the intervals do not meet, so the lowest peak divided by M, rounded down, is s + 1. Making D takes
polynomial time. So whoever can find the lowest peak (or decide whether one of at most a given size exists) efficiently
can decide vertex separation, which is NP-complete; the problem of orders is at least as hard. An order can be checked
quickly, so the decision problem is in NP, and with that NP-complete. Exact search remains for small graphs, and rules
of thumb for the others."""

WHY_TREES = """In a tree a finished subtree leaves one unit, whatever it needed on the way, and an unfinished one
leaves at least one. Leaving a subtree in the middle therefore never makes room for another: computed one after the
other, in the order in which they end, subtrees need no more. For the order of the operands of a kernel: while the i-th
is computed, the i - 1 before it are alive with one unit each, so the peak is the largest of need_i + i - 1, and of the
number of operands plus one while the kernel itself runs. If a neighbour needs more than the one before it, exchanging
the two lowers the larger of the two terms: need_(i+1) + i becomes need_(i+1) + i - 1, and the other becomes need_i + i,
which is at most need_(i+1) + i - 1. So decreasing needs are best, as Sethi and Ullman found. The needs are computed
from the leaves up with one sort per kernel, O(n log n) in all."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex48_runs import lowest_peak, separation

    first, second = variant.graphs
    return {
        "first_separation": separation(first),
        "second_separation": separation(second),
        "vertex_order": vertex_order,
        "dependence_graph": dependence_graph,
        "first_peak": lowest_peak(first),
        "second_peak": lowest_peak(second),
        "reading_off": READING_OFF,
        "order_of_tree": order_of_tree,
        "why_trees": WHY_TREES,
    }


def _renamed(*names: str) -> tuple[str, ...]:
    """What the tests call the reference with other names for edges."""
    line = "kernels.append((f'{name}', [f'v{{a}}', f'v{{b}}'], 1, True))".format
    return tuple(f"{line(name='e{a}-{b}')} -> {line(name=name)}" for name in names)


def _counted(*starts: str) -> tuple[str, ...]:
    """What the tests call the reference with another need of the kernel itself."""
    line = "need.append(max([{start}] + [before + one for before, one in enumerate(needs)]))".format
    return tuple(f"{line(start='len(own) + 1')} -> {line(start=start)}" for start in starts)


# Edges may have any names that differ; numbers that are too large by one everywhere sort alike.
HARMLESS = {
    "dependence_graph": _renamed(
        "-{a}-{b}", "v{a}-{b}", "e{a}e{b}", "e{a}v{b}", "e{kernels}-{b}", "e{a}-{kernels}",
    ),
    "order_of_tree": (
        "visit(len(operands) - 1) -> visit(len(need) - 1)",
        *_counted(
            "len(own)", "1", "len(own) - 1", "len(own) * 1", "len(own) + 2", "len(own) + 0", "len(needs) + 1",
            "len(operands) + 1",
        ),
    ),
}  # fmt: skip


def _as_numbered(n, edges):
    return list(range(n))


def _one_vertex(n, edges):
    return [0]


def _no_reads(n, edges):
    large = len(edges) + 1
    return [(f"v{k}", [], large, False) for k in range(n)] + [(f"e{a}-{b}", [], 1, True) for a, b in edges]


def _small(n, edges):
    kernels = [(f"v{k}", [], 1, False) for k in range(n)]
    return kernels + [(f"e{a}-{b}", [f"v{a}", f"v{b}"], 1, True) for a, b in edges]


def _no_edges(n, edges):
    return [(f"v{k}", [], len(edges) + 1, False) for k in range(n)]


def _edges_first(n, edges):
    return [(f"e{a}-{b}", [f"v{a}", f"v{b}"], 1, True) for a, b in edges] + [(f"v{k}", [], 2, False) for k in range(n)]


def _as_listed(operands):
    return list(range(len(operands)))


def _left_to_right(operands):
    order = []

    def visit(k):
        for operand in operands[k]:
            visit(operand)
        order.append(k)

    visit(len(operands) - 1)
    return order


def _root_first(operands):
    return list(range(len(operands)))[::-1]


def _root_alone(operands):
    return [len(operands) - 1]


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex48_runs import separation, unit_of

    first, second = variant.graphs
    own = reference(variant)

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        slip("one-too-many", first_separation=own["first_separation"] + 1),
        slip("all-vertices", first_separation=first[0]),
        slip("one-too-many", second_separation=own["second_separation"] + 1),
        slip("not-the-least", vertex_order=_as_numbered),
        slip("wrong-form", vertex_order=_one_vertex),
        slip("nothing-is-read", dependence_graph=_no_reads),
        slip("other-peak", dependence_graph=_small),
        slip("other-kernels", dependence_graph=_no_edges),
        slip("wrong-form", dependence_graph=_edges_first),
        slip("separation-alone", first_peak=unit_of(first) * separation(first)),
        slip("above-the-interval", first_peak=unit_of(first) * (separation(first) + 2)),
        slip("separation-alone", second_peak=unit_of(second) * separation(second)),
        slip("as-listed", order_of_tree=_as_listed),
        slip("not-the-lowest", order_of_tree=_left_to_right),
        slip("no-topological-order", order_of_tree=_root_first),
        slip("wrong-form", order_of_tree=_root_alone),
    )
