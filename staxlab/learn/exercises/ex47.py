"""Exercise 47 (Section 9.8, Theorem 9.1): the bound in numbers, a schedule that comes near it, and its proof for many.

The schedule is played as a game with pebbles that counts its transfers. The proof is taken apart into claims that are
checked: what a processor has to do, what a segment can do, and the steps from one to the other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...measure.matrix_traffic import largest_tile, recursive_transfers, transfer_bound
from ..answers import Choice, FormulaIn, Function, Number, Numbers, Prose, Steps
from ..claims import choices, integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, derivation, one_of, read_by_a_person, same_numbers, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex47_answers import HARMLESS, reference, wrong_answers
from .ex47_runs import bound_slips, gap_factors, schedule_verdict, traffic_of

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

SECTION = 9
TITLE = "The bound on transfers"
DIFFICULTY = 2
POINTS = "products are no points"
FAILS = (POINTS, "the lemma is false", "it needs more memory")

statement = r"""
A fast memory holds $S$ words, a slow one the matrices. Every word read into the fast memory or written out of it is a
transfer. A standard product makes every $a_{il} b_{lj}$ once and adds it to a partial sum of $c_{ij}$. Theorem 9.1: it
makes at least $mnk / (2\sqrt 3 \sqrt S) - S$ transfers.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Order of the matrices, words of fast memory in units of 1024, depth of a step. The defaults are the chapter's."""

    n: int = 4096
    room: int = 48
    depth: int = 32

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        while True:
            variant = cls(rng.choice((2048, 4096, 8192)), rng.randint(10, 120), rng.choice((8, 16, 32)))
            whole = largest_tile(variant.capacity, variant.depth, power_of_two=False).choice
            if whole & (whole - 1):  # a factor of the gap that is 1 would be no question
                return variant

    @property
    def capacity(self) -> int:
        return 1024 * self.room

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("m, n and k", str(self.n)),
            ("S", f"{self.room} · 1024 words"),
            ("B_K", str(self.depth)),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. The bound for your values, in words.
2. What the tiled product of Exercise 25 moves with the same values: the largest power of two $T$ with
   $2 T B_K + T^2 \le S$, reads and writes, in words.
3. The gap. Three factors explain nearly all of it: the largest whole $T$ that fits over the power of two; $\sqrt S$
   over that largest $T$; and what $2mnk/\sqrt S$ is over $mnk/(2\sqrt 3\sqrt S)$, which the proof gives away.
4. `schedule(m, n, k, S)` yields the moves of a product with few transfers, for $S \ge 3$. Moves are
   `("read", word)`, `("write", word)`, `("drop", word)` and `("multiply", i, j, l)`; words are `("a", i, l)`,
   `("b", l, j)` and `("c", i, j)`. A product needs both operands in the fast memory and adds to `("c", i, j)` there,
   where the sum takes a word from its first product on. A sum may be dropped once it was written. All of $C$ has to be
   written. It may move what $T \times T$ tiles do, where $T$ is the largest with $T^2 + 2T \le S$.
   (`staxlab.measure.pebbles.replay` plays it.)
"""

PART_2 = r"""
Now there are $P$ processors, each with a fast memory of $S$ words of its own, and the products are divided among them.
Show that one of them makes at least $mnk / (2\sqrt 3\, P \sqrt S) - S$ transfers.

1. However the products are divided: how many does some processor make at least? The best whole number, in `m`, `n`, `k`
   and `P`.
2. Take that processor, and cut its execution into segments of $S$ of its own transfers. How large can $|T|^2$ be, for
   the set $T$ of products of one segment, by Lemma 9.1? A formula in `S`.
3. With $Q$ transfers there are at most $Q/S + 1$ segments. Lead the number of products they can make,
   $(Q/S + 1)\, 2\sqrt 3\, S \sqrt S$, step by step to $2\sqrt 3\,(Q + S)\sqrt S$, in `Q` and `S`.
4. Put together: how many transfers does that processor make at least? A formula in `m`, `n`, `k`, `P` and `S`, where
   $mnk/P$ is taken as it is.
5. Write the proof down, with the reason why the limits of a segment hold although other processors write, too.
"""

PART_3 = r"""
Strassen's algorithm multiplies matrices of order $n$ with $n^{\log_2 7}$ multiplications.

1. Why does Theorem 9.1 not apply to it?
2. Its own bound is of the order of $(n/\sqrt S)^{\log_2 7}\, S$ transfers (Ballard, Demmel, Holtz & Schwartz, 2012). By
   what factor does that grow when $n$ is doubled, and by what factor does it change when $S$ is multiplied by 4? As a
   list of two numbers.
3. In words: where does the proof of Theorem 9.1 break, and how is a bound to be stated then?
"""

SCHEDULE_EXAMPLE = """\
def schedule(m, n, k, S):
    yield ("read", ("a", 0, 0))"""

MANY = Rubric(
    (
        Criterion(
            "One processor",
            1,
            "Takes one that makes at least mnk/P products, and looks at its transfers alone.",
            none="Adds up the transfers of all.",
        ),
        Criterion(
            "Its segments",
            2,
            "At most 2S, 2S and 3S operands and sums in a segment, since all it uses is in its own memory or came by "
            "its own transfers; whoever else wrote it.",
            "States the limits without the reason.",
            "Says that the theorem holds for each.",
        ),
        Criterion(
            "To the end",
            1,
            "Products of a segment by the lemma, number of segments, solved for Q.",
            "One step is missing.",
        ),
    ),
    "The bound for P processors",
)

OTHER = Rubric(
    (
        Criterion(
            "Where it breaks",
            1,
            "Its products are of sums of elements: fewer than mnk, and none is a point with three projections.",
            "Says that it has fewer products.",
        ),
        Criterion(
            "How it is stated",
            1,
            "By the graph of the computation (its expansion): (n / sqrt(S))^(log2 7) S, up to a constant.",
            "Gives the exponent only.",
        ),
        Criterion(
            "The relation",
            1,
            "With 3 in place of log2 7 it is n^3 / sqrt(S), the bound of the standard product.",
            none="Not mentioned.",
        ),
    ),
    "Strassen's algorithm",
)

PARTS = (
    Part(
        "1",
        "In numbers",
        PART_1,
        (
            Number("bound_47", "the bound", 1, example="1234567.8", unit="words"),
            Number("moved_47", "what tiles move", 1, example="1234567", whole=True, unit="words"),
            Numbers("gap_47", "three factors", 1, example="[1.2, 3.4, 5.6]", shape=(3,)),
            Function("schedule", "a schedule of few transfers", 3, example=SCHEDULE_EXAMPLE,
                     parameters=("m", "n", "k", "S"), returns="moves"),
        ),
        (
            "sqrt(S) is a whole number times a root if S is: 48 · 1024 = 3 · 2^14.",
            "2 mnk / sqrt(S) would be the reads of a tile that fills the memory.",
            "Keep a tile of C, and read a column of A and a row of B for each l: that takes T^2 + 2T words.",
        ),
    ),
    Part(
        "2",
        "Many processors",
        PART_2,
        (
            FormulaIn("products_each", "products of some processor, at least", 1, example='"m*n + k/P"',
                      variables=("m", "n", "k", "P")),
            FormulaIn("squared_products", "the square of the products of a segment, at most", 1, example='"7*S**2"',
                      variables=("S",)),
            Steps("segments_to_transfers", "products of all segments, in steps", 2,
                  example='["(Q/S + 1)*2*sqrt(3)*S*sqrt(S)", "= 2*sqrt(3)*(Q + S)*sqrt(S)"]',
                  variables=("Q", "S"), minimum=3),
            FormulaIn("least_each", "transfers of that processor, at least", 1, example='"m*n*k - P*S"',
                      variables=("m", "n", "k", "P", "S")),
            Prose("proof_47", "the proof", MANY.points, rubric=MANY),
        ),
        (
            "If everybody made fewer than the average, all would make fewer than all.",
            "What can it use in a segment? What was there, what came in, and for sums also what is begun.",
            "Q/S + 1 is (Q + S)/S.",
        ),
    ),
    Part(
        "3",
        "Fewer products",
        PART_3,
        (
            Choice("fails_where", "why the theorem does not apply", 1, example=f'"{FAILS[2]}"', options=FAILS),
            Numbers("growth_47", "when n doubles, and when S is multiplied by 4", 1, example='[3, "1/3"]', shape=(2,)),
            Prose("strassen_47", "where the proof breaks", OTHER.points, rubric=OTHER),
        ),
        (
            "What are the two factors of a multiplication in Strassen's algorithm?",
            "2 to the power log2 7 is 7. And (4S)^(1 - log2(7)/2)?",
        ),
    ),
)  # fmt: skip


def growth(multiplications: int) -> tuple[Fraction, Fraction]:
    """How the transfers grow when n is doubled, and when S is multiplied by 4; whole numbers over whole ones."""
    n, capacity = 1 << 12, 1 << 10
    before = recursive_transfers(n, capacity, multiplications)
    after = (
        recursive_transfers(2 * n, capacity, multiplications),
        recursive_transfers(n, 4 * capacity, multiplications),
    )
    first, second = (Fraction(value / before).limit_denominator(100) for value in after)
    return first, second


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    n, capacity = variant.n, variant.capacity
    traffic = traffic_of(variant)
    rounding, operands, proof = gap_factors(variant)
    half = Fraction(1, 2)
    sizes = {name: integers(1, 60) for name in ("m", "n", "k")}
    squares = {"Q": integers(0, 500), "S": choices((1, 4, 9, 16, 49, 100))}

    def largest_share(m: int, n: int, k: int, P: int) -> int:
        """Divided as evenly as can be, product by product."""
        shares = [0] * P
        for number in range(m * n * k % P or P):
            shares[number] += 1
        return max(shares) + (m * n * k - sum(shares)) // P

    def projected(S: int) -> int:
        return (2 * S) * (2 * S) * (3 * S)

    def least(m: int, n: int, k: int, P: int, S: int) -> float:
        return transfer_bound(m, n, k, S, P)

    return {
        "bound_47": close_to(transfer_bound(n, n, n, capacity), slips=bound_slips(variant)),
        "moved_47": close_to(
            Fraction(traffic.elements), relative=Fraction(0),
            slips=(
                Slip("writes-forgotten", Fraction(traffic.read), "The results are written, too.", half),
                Slip("bytes", Fraction(traffic.nbytes), "These are bytes; a transfer moves a word."),
            ),
        ),
        "gap_47": same_numbers(
            (rounding, operands, proof),
            slips=(
                Slip("constant-of-the-bound", (rounding, operands, 2 * math.sqrt(3)),
                     "The proof's constant is one factor of it; the tiles' own 2 is the other."),
            ),
        ),
        "schedule": schedule_verdict,
        "products_each": same_quantity(
            largest_share, sizes | {"P": integers(1, 40)}, seed=seed, counted="dealt out",
            slips=(
                Slip("not-whole", lambda m, n, k, P: Fraction(m * n * k, P), "Products are not divided.", half),
                Slip("rounded-down", lambda m, n, k, P: m * n * k // P, "If nobody made more, some would be left."),
                Slip("all-products", lambda m, n, k, P: m * n * k, "All of them together make so many."),
            ),
        ),
        "squared_products": same_quantity(
            projected, {"S": integers(1, 500)}, seed=seed, counted="the product of the projections",
            slips=(
                Slip("what-is-there", lambda S: S**3, "In a segment S words come in besides those that were there."),
                Slip("sums-like-operands", lambda S: 8 * S**3, "Sums may also be begun in it."),
                Slip("not-squared", lambda S: math.sqrt(projected(S)), "That is |T|.", half),
            ),
        ),
        "segments_to_transfers": derivation(
            lambda Q, S: (Q + S) * 2 * math.sqrt(3) * math.sqrt(S),
            "2*sqrt(3)*(Q + S)*sqrt(S)",
            squares,
            constants={},
            seed=seed,
            start_is="what all segments can make",
            end_is="what is to be shown",
        ),
        "least_each": same_quantity(
            least, sizes | {"P": integers(1, 40), "S": integers(1, 500)}, seed=seed, counted="Theorem 9.1",
            slips=(
                Slip("divided-at-the-end", lambda m, n, k, P, S: transfer_bound(m, n, k, S) / P,
                     "Each of them has a last segment of its own, so S is not divided."),
                Slip("shared-memory", lambda m, n, k, P, S: m * n * k / (2 * P * math.sqrt(3 * P * S)) - P * S,
                     "Each has S words of its own: nobody can use all P S."),
                Slip("one-processor", lambda m, n, k, P, S: transfer_bound(m, n, k, S), "It makes a part of them."),
                Slip("last-segment", lambda m, n, k, P, S: least(m, n, k, P, S) + S,
                     "The last segment may be a short one: S is taken off.", half),
            ),
        ),
        "proof_47": read_by_a_person(MANY),
        "fails_where": one_of(
            POINTS,
            {
                "the lemma is false": "It is about any set of points. Are there points?",
                "it needs more memory": "The theorem is about transfers, whatever the fast memory holds.",
            },
        ),
        "growth_47": same_numbers(
            growth(7),
            slips=(
                Slip("standard-product", growth(8), "That is the standard product."),
                Slip("traffic-with-capacity", (7, Fraction(7, 4)), "With more room there are fewer transfers."),
            ),
        ),
        "strassen_47": read_by_a_person(OTHER),
    }  # fmt: skip
