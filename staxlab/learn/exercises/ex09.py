"""Exercise 9 (Sections 5.4 and 5.5, Definition 5.2): an activation whose backward pass reads its result.

The student writes the rematerialization network of a program out, edge by edge. It is compared with the one the
compiler made of that program, and the package's maximum flow runs on it. What is saved, computed again and written
follows from real partitions and schedules. At the end a function builds such networks for any program.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, Function, Number, Prose
from ..exercise import Part
from ..feedback import Verdict, right
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person
from ..networks import Edges, NetworkAnswer, RealGraph, cut_text, difference
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex09_answers import HARMLESS, reference, wrong_answers
from .ex09_runs import ACTIVATIONS, OPTIONS, bytes_written, chosen, cut_of, divided, judge_networks, recomputed

__all__ = [
    "DIFFICULTY",
    "HARMLESS",
    "PARTS",
    "SECTION",
    "TITLE",
    "Variant",
    "check",
    "reference",
    "statement",
    "wrong_answers",
]

SECTION = 5
TITLE = "An activation whose result is read backwards"
DIFFICULTY = 2

statement = r"""
In Example 5.1 the derivative of `gelu` is computed from what `gelu` reads. Take an activation whose derivative is
computed from its **result** instead, as PyTorch does for relu, tanh and sigmoid:

```python
def f(x, w):          # x: float32, m x k, without gradient; w: float32, k x n, requires grad
    h = x @ w
    r = activation(h)
    l = r.sum()
    return l
```

Capacities are $c(v) = b(v)\,\beta(v)\,1.1^{d(v)}$ with $b$ in bytes; $d(v)$ is the number of forward steps from $v$ to
its first backward reader, at least 1 and at most 100 (100 where there is none); $\beta(v)$ is 1 if $v$ is in memory
after the forward pass anyway and 2 otherwise. The matrix product is PyTorch's routine, activation and sum are fused.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The activation, and the shapes of x (m x k) and w (k x n)."""

    activation: str = "relu"
    m: int = 32
    k: int = 64
    n: int = 64

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        m, k, n = (8 * rng.randint(2, 12) for _ in range(3))
        return cls(rng.choice(tuple(ACTIVATIONS)), m, k, n)

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (("activation", self.activation), ("m", str(self.m)), ("k", str(self.k)), ("n", str(self.n)))

    def graph(self, returns_r: bool = False) -> RealGraph:
        return divided(self.activation, self.m, self.k, self.n, returns_r)

    def example_5_1(self) -> RealGraph:
        return divided("gelu", self.m, self.k, self.n)


ROUNDED = Fraction(51, 100)  # capacities may be rounded to whole numbers

# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. **The network** of Definition 5.2 for your program: all its edges, as a list of `(tail, head, capacity)`. Vertices
   are `"s"`, `"t"`, and for the values `"h_in"`, `"h_out"`, `"r_in"`, `"r_out"`, `"l_in"`, `"l_out"`; infinite
   capacities are `"inf"`. All three values have their edge, also those on no way from s to t.
2. The **capacity** of its minimum cut (it may be rounded to a whole number).
3. **Which values** are saved then?
"""

PART_2 = r"""
Now compare with Example 5.1 for the same shapes.

1. How many **more bytes** do the kernels of the forward pass write than they do there?
2. What does the backward pass **compute again**?
3. Suppose `r` is saved and `h` is not. How many more bytes than now does the forward pass write?
4. Suppose the program returns `r` as well: `return l, r`. **What is saved** then?
5. In words: why is it not the value that is read which is saved, and what do $\beta$ and $d$ have to do with it?
"""

PART_3 = r"""
`remat_network(values)` makes the network of any program, as a list of edges like yours above. `values` is a list of
dictionaries, one for each forward value, in the order they are computed: `"name"`; `"reads"`, the names of the forward
values it is computed from; `"b"`, `"beta"` and `"d"`; `"savable"`, which is False for a view, whose edge cannot be cut;
and `"U"` and `"B"`, whether it is in those sets. It runs on graphs of compiled programs, and so does the flow on what
it returns.
"""

EDGES_EXAMPLE = """\
[
    ("h_in", "h_out", 100.5),
    ("h_out", "r_in", "inf"),
]"""

FUNCTION_EXAMPLE = """\
def remat_network(values):
    return [(v["name"] + "_in", v["name"] + "_out", v["b"]) for v in values]"""

WHY = Rubric(
    (
        Criterion(
            "Both get the backward pass what it needs",
            1,
            "r can be computed again from h by one cheap operation, so {h} is feasible as well as {r}.",
            none="Does not say that h suffices.",
        ),
        Criterion(
            "What decides",
            2,
            "h is written in any case (beta = 1), r would be written for the backward pass alone (beta = 2); the one "
            "step more that h is away costs a factor 1.1 only.",
            "Names one of the two factors.",
            "Says that h is smaller, or that relu is cheap.",
        ),
        Criterion(
            "When it is the other way round",
            1,
            "If r is in memory anyway, because it is returned or because a routine reads it, its beta is 1 and the "
            "shorter distance decides for r.",
            none="Does not say when r is saved.",
        ),
    ),
    "Why the value that is read is not the one that is saved",
)

_CHOICE = {"example": '"h"', "options": OPTIONS}

PARTS = (
    Part(
        "1",
        "The network and its cut",
        PART_1,
        (
            NetworkAnswer("remat_edges", "the edges of the network", 4, example=EDGES_EXAMPLE),
            Number("cut_capacity", "the capacity of the minimum cut", 1, example="9011.2"),
            Choice("cut_values", "what is saved at the minimum cut", 1, **_CHOICE),
        ),
        (
            "Draw the forward graph first, h to r to l. Which of the three does the backward pass read? Not the one of "
            "Table 5.1.",
            "U has what is no cheap operation's result, and what is the result of a reduction that is much smaller "
            "than what it reads.",
            "The first backward reader of h is reached through r: two steps. There is one way from s to t; which of "
            "the edges on it is the cheapest that may be cut?",
        ),
    ),
    Part(
        "2",
        "What that changes",
        PART_2,
        (
            Number("extra_bytes", "bytes written more than in Example 5.1", 1, example="1024", unit="bytes",
                   whole=True),
            Choice("computed_again", "what the backward pass computes again", 1, **_CHOICE),
            Number("extra_bytes_for_r", "bytes written more if r is saved", 1, example="1024", unit="bytes",
                   whole=True),
            Choice("saved_if_returned", "what is saved if r is returned", 1, **_CHOICE),
            Prose("why_not_r", "why the value that is read is not saved", WHY.points, rubric=WHY),
        ),
        (
            "What does the forward pass have to write in any case? A matrix product that a library computes is in "
            "memory afterwards.",
            "What is the beta of a value that the program returns?",
        ),
    ),
    Part(
        "3",
        "Networks of any program",
        PART_3,
        (
            Function("remat_network", "the network of Definition 5.2", 3, example=FUNCTION_EXAMPLE,
                     parameters=("values",), returns="a list of edges"),
        ),
        (
            "Four kinds of edges: one for each value, one for each dependence, one for each member of U, one for each "
            "member of B. Only the first kind is finite.",
            "Towards t it goes from the out vertex, from s to the in vertex: what is saved is cut on both.",
        ),
    ),
)  # fmt: skip


def _judge_edges(graph: RealGraph, edges: Edges) -> Verdict:
    verdict = difference(edges, graph)
    if verdict is not None:
        return verdict
    return right("Edge by edge the compiler's network.", ("the flow on it", cut_text(edges)))


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    graph, plain = variant.graph(), variant.example_5_1()
    price = {value["name"]: Fraction(value["b"] * value["beta"] * 1.1 ** value["d"]) for value in graph.values}
    size = {value["name"]: value["b"] for value in graph.values}
    written = bytes_written(graph)
    with_r = bytes_written(graph, {"r"}) - written
    capacities = (
        Slip("price-of-r", price["r"], "That is what saving r costs. Does every way from s to t have to be cut there?"),
        Slip("as-in-table-5.1", price["h"] / Fraction(11, 10),
             "That would be h at distance 1, as in Table 5.1. Its first backward reader is further away here."),
        Slip("bytes-only", Fraction(size["h"]), "These are bytes; capacities weigh them."),
        Slip("sum-of-both", price["h"] + price["r"], "One edge on the way is enough."),
    )  # fmt: skip
    more = (Slip("result-written", Fraction(size["r"]), "r is not written: the backward loop computes it from h."),)
    more_for_r = (
        Slip("h-not-written", Fraction(0), "h is written whether it is kept or not: a routine computes it."),
        Slip("beta-for-bytes", Fraction(2 * size["r"]), "β weighs bytes in the model; each is written once."),
    )
    return {
        "remat_edges": lambda edges: _judge_edges(graph, edges),
        "cut_capacity": close_to(Fraction(graph.partition.flow.value), absolute=ROUNDED, slips=capacities),
        "cut_values": one_of(chosen(cut_of(graph)), {
            "r": "r is read, but every way from s to it leads through h, whose edge is cheaper.",
            "h and r": "One of them is enough for every way from s to t.",
            "l": "The backward pass does not need l.",
            "nothing": "Then the backward pass would have to repeat the matrix product, which is in U.",
        }),
        "extra_bytes": close_to(Fraction(written - bytes_written(plain)), slips=more),
        "computed_again": one_of(chosen(recomputed(graph)), {
            "h": "h is a matrix product, and saved.",
            "h and r": "h is a matrix product, and saved.",
            "l": "The backward pass does not need l.",
            "nothing": "It reads r, which is not saved.",
        }),
        "extra_bytes_for_r": close_to(Fraction(with_r), slips=more_for_r),
        "saved_if_returned": one_of(chosen(cut_of(variant.graph(returns_r=True))), {
            "h": "Both are in memory now. Which is nearer to its backward reader?",
            "h and r": "One of them is enough for every way from s to t.",
            "l": "The backward pass does not need l.",
            "nothing": "The caller's results are in memory, but that the backward pass reads one makes it saved.",
        }),
        "why_not_r": read_by_a_person(WHY),
        "remat_network": judge_networks,
    }  # fmt: skip
