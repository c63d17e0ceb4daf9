"""Answers to Exercise 20: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex20 import Variant


def order_peak(order, sizes):
    reads = {"c": "a", "d": "b"}
    alive = highest = 0
    for name in order:
        alive = alive + sizes[name]
        highest = max(highest, alive)
        if name in reads:
            alive = alive - sizes[reads[name]]
    return highest


def best_order(a, b, c, d):
    return "acbd" if a > b else "bdac"


def graph_for_greedy():
    return [
        ("small result", [], 1, True),
        ("p", [], 3, False),
        ("q", [], 2, False),
        ("large", ["p", "q"], 3, False),
    ]


WHY_NOT_MIXED = """One chain after the other, and the one with the larger intermediate first (with the chapter's sizes
both are equal, and either may begin). Then the intermediates are never alive together: while the second chain runs, all
that is left of the first is its result. Mixed, as in a, b, c, d, both intermediates and one result are alive when c
runs. Once the first chain is over only its small result is in the way, so the larger intermediate should not have to
bear it. For graphs in general the best order is NP-hard to find (Proposition 7.4), and no rule of thumb is right on all
of them; each costs little, so a compiler tries several and keeps the order with the lowest peak."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex20_runs import ORDERS, peak_of

    peaks = [peak_of(order, variant.sizes) for order in ORDERS]
    return {
        "order_count": len(ORDERS),
        "order_peak": order_peak,
        "lowest_peak": min(peaks),
        "highest_peak": max(peaks),
        "best_order": best_order,
        "graph_for_greedy": graph_for_greedy,
        "why_not_mixed": WHY_NOT_MIXED,
    }


def _changed(small: int, p: int, q: int, large: int, reads: tuple[str, str] = ("p", "q")) -> str:
    """What the tests call the reference graph with one number, or one name, changed."""
    kernels = [("small result", [], small, True), ("p", [], p, False), ("q", [], q, False)]
    return f"return {graph_for_greedy()} -> return {[*kernels, ('large', list(reads), large, False)]}"


# When the first intermediate is freed, what is alive is the most there has been. And there are many graphs.
HARMLESS = {
    "order_peak": ("alive = alive - sizes[reads[name]] -> alive = highest - sizes[reads[name]]",),
    "graph_for_greedy": (
        _changed(2, 3, 2, 3), _changed(1, 4, 2, 3), _changed(1, 2, 2, 3), _changed(1, 3, 3, 3), _changed(1, 3, 1, 3),
        _changed(1, 3, 2, 4), _changed(1, 3, 2, 2), _changed(1, 3, 2, 3, ("q", "q")), _changed(1, 3, 2, 3, ("p", "p")),
    ),
}  # fmt: skip


def _freed_early(order, sizes):
    reads = {"c": "a", "d": "b"}
    alive = highest = 0
    for name in order:
        if name in reads:
            alive = alive - sizes[reads[name]]
        alive = alive + sizes[name]
        highest = max(highest, alive)
    return highest


def _never_freed(order, sizes):
    return sum(sizes[name] for name in order)


def _a_text(order, sizes):
    return str(sum(sizes.values()))


def _producers_first(a, b, c, d):
    return "abcd"


def _by_result(a, b, c, d):
    return "acbd" if c < d else "bdac"


def _no_order(a, b, c, d):
    return "cadb"


def _two_names(a, b, c, d):
    return "ab"


def _one_chain():
    return [("p", [], 4, False), ("q", ["p"], 1, True)]


def _reads_later():
    return [("q", ["p"], 1, True), ("p", [], 4, False)]


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    own = reference(variant)
    a, b, c, d = (variant.sizes[name] for name in "abcd")

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        slip("all-permutations", order_count=24),
        slip("chains-not-mixed", order_count=2),
        slip("freed-too-early", order_peak=_freed_early),
        slip("never-freed", order_peak=_never_freed),
        slip("wrong-form", order_peak=_a_text),
        slip("freed-too-early", lowest_peak=min(max(a, c + b), max(b, d + a))),
        slip("highest-of-all", lowest_peak=own["highest_peak"]),
        slip("results-forgotten", highest_peak=a + b),
        slip("lowest-of-all", highest_peak=own["lowest_peak"]),
        slip("everything-at-once", highest_peak=a + b + c + d),
        slip("both-at-once", best_order=_producers_first),
        slip("smaller-first", best_order=_by_result),
        slip("no-topological-order", best_order=_no_order),
        slip("wrong-form", best_order=_two_names),
        slip("rule-succeeds", graph_for_greedy=_one_chain),
        slip("wrong-form", graph_for_greedy=_reads_later),
    )
