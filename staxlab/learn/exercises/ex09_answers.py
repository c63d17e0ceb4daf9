"""Answers to Exercise 9: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex09 import Variant


def remat_network(values):
    edges = []
    for v in values:
        first, last = v["name"] + "_in", v["name"] + "_out"
        edges.append((first, last, v["b"] * v["beta"] * 1.1 ** v["d"] if v["savable"] else "inf"))
        for source in v["reads"]:
            edges.append((source + "_out", first, "inf"))
        if v["U"]:
            edges.append(("s", first, "inf"))
        if v["B"]:
            edges.append((last, "t", "inf"))
    return edges


WHY = """The backward pass reads r, and r is one cheap operation away from h, so keeping h is enough: {h} is feasible,
and so is {r}. h has to be written anyway, because a routine of PyTorch's computes it (beta = 1); r is fused into the
sum and would be written for the backward pass alone (beta = 2). That h is one step further away from the reader makes
it dearer by a factor 1.1 only, so the cut goes through h, and relu is computed again where the gradient needs it. If r
is in memory anyway, for instance because the program returns it, beta is 1 for both, and the shorter distance decides:
r is saved."""


def edges_by_hand(variant: Variant) -> list[tuple]:
    """The network, written out."""
    size = 4 * variant.m * variant.n
    return [
        ("h_in", "h_out", size * 1.1**2),
        ("r_in", "r_out", 2 * size * 1.1),
        ("l_in", "l_out", 4 * 1.1**100),
        ("h_out", "r_in", "inf"),
        ("r_out", "l_in", "inf"),
        ("s", "h_in", "inf"),
        ("s", "l_in", "inf"),
        ("r_out", "t", "inf"),
    ]


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    size = 4 * variant.m * variant.n
    return {
        "remat_edges": edges_by_hand(variant),
        "cut_capacity": size * 1.1**2,
        "cut_values": "h",
        "extra_bytes": 0,
        "computed_again": "r",
        "extra_bytes_for_r": size,
        "saved_if_returned": "r",
        "why_not_r": WHY,
        "remat_network": remat_network,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def _bytes_alone(values):
    return [
        (a, b, v["b"] if a[:-3] == b[:-4] and v["savable"] else c)
        for v in values
        for a, b, c in remat_network([v])
    ]  # fmt: skip


def _forgets_views(values):
    return remat_network([{**v, "savable": True} for v in values])


def _no_sources(values):
    return remat_network([{**v, "U": False} for v in values])


def _all_are_read(values):
    return remat_network([{**v, "B": True} for v in values])


def _backwards(values):
    return [(b, a, c) if a.endswith("_out") and b.endswith("_in") else (a, b, c) for a, b, c in remat_network(values)]


def _sink_from_in(values):
    return [(a.replace("_out", "_in"), b, c) if b == "t" else (a, b, c) for a, b, c in remat_network(values)]


def _names_only(values):
    return [v["name"] for v in values]


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    size, edges = 4 * variant.m * variant.n, edges_by_hand(variant)

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    def with_edges(*new: tuple, without: tuple = ()) -> list[tuple]:
        replaced = {edge[:2] for edge in new}
        return [edge for edge in edges if edge[:2] not in replaced and edge[:2] not in without] + list(new)

    return (
        slip("sink-missing", remat_edges=with_edges(("h_out", "t", "inf"), without=(("r_out", "t"),))),
        slip("sink-extra", remat_edges=with_edges(("h_out", "t", "inf"))),
        slip("distance-wrong", remat_edges=with_edges(("h_in", "h_out", size * 1.1))),
        slip("beta-wrong", remat_edges=with_edges(("r_in", "r_out", size * 1.1))),
        slip("beta-wrong", remat_edges=with_edges(("h_in", "h_out", 2 * size * 1.1**2))),
        slip("distance-left-out", remat_edges=with_edges(("r_in", "r_out", 2 * size))),
        slip("distance-left-out", remat_edges=with_edges(("l_in", "l_out", 4))),
        slip("bytes-only", remat_edges=with_edges(("r_in", "r_out", size))),
        slip("infinite-price", remat_edges=with_edges(("h_in", "h_out", "inf"))),
        slip("wrong-capacity", remat_edges=with_edges(("r_in", "r_out", 3.3 * size))),
        slip("value-left-out", remat_edges=with_edges(without=(("l_in", "l_out"),))),
        slip("source-missing", remat_edges=with_edges(without=(("s", "h_in"),))),
        slip("source-extra", remat_edges=with_edges(("s", "r_in", "inf"))),
        slip("ends-mixed-up", remat_edges=with_edges(("s", "h_out", "inf"), without=(("s", "h_in"),))),
        slip("reversed", remat_edges=with_edges(("r_in", "h_out", "inf"), without=(("h_out", "r_in"),))),
        slip("dependence-missing", remat_edges=with_edges(without=(("r_out", "l_in"),))),
        slip("dependence-extra", remat_edges=with_edges(("h_out", "l_in", "inf"))),
        slip("finite-edge", remat_edges=with_edges(("h_out", "r_in", size))),
        slip("unknown-vertex", remat_edges=with_edges(("x_in", "x_out", size))),
        slip("price-of-r", cut_capacity=2 * size * 1.1),
        slip("as-in-table-5.1", cut_capacity=size * 1.1),
        slip("bytes-only", cut_capacity=size),
        slip("sum-of-both", cut_capacity=size * 1.1**2 + 2 * size * 1.1),
        slip("chose-r", cut_values="r"),
        slip("chose-h-and-r", cut_values="h and r"),
        slip("result-written", extra_bytes=size),
        slip("chose-nothing", computed_again="nothing"),
        slip("h-not-written", extra_bytes_for_r=0),
        slip("beta-for-bytes", extra_bytes_for_r=2 * size),
        slip("chose-h", saved_if_returned="h"),
        slip("distance-left-out", remat_network=_bytes_alone),
        slip("view-saved", remat_network=_forgets_views),
        slip("source-missing", remat_network=_no_sources),
        slip("sink-extra", remat_network=_all_are_read),
        slip("reversed", remat_network=_backwards),
        slip("ends-mixed-up", remat_network=_sink_from_in),
        slip("wrong-form", remat_network=_names_only),
    )
