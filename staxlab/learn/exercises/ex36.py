"""Exercise 36 (Section 9.10, Theorem 9.2): what attention moves and what it keeps, operator by operator and in tiles.

The orders of growth are the theorem's; the constants behind them are counted by the package, which runs the loops of
both ways on small sizes to see that its formulas count right.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...measure.attention_traffic import attention_traffic, operator_order, order_ratio, tiled_order
from ..answers import FormulaIn, Number, Prose
from ..claims import choices, integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex36_answers import reference, wrong_answers

__all__ = [
    "DIFFICULTY",
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
TITLE = "What attention moves and keeps"
DIFFICULTY = 1
ITEM, LSE_ITEM = 2, 4  # bytes of a float16 and of a float32

statement = r"""
One head of attention: $N$ queries, $N$ keys and $N$ values, rows of $d$ elements each, float16. On-chip storage holds
$C$ elements (the chapter's $M$). *Operator by operator* there are three kernels: $S = QK^{\mathsf T}$ (already scaled),
$P = \mathrm{softmax}(S)$ by rows, and $O = PV$; each reads its operands from main memory and writes its result there.
*In tiles*, $B$ queries at a time stay on the chip together with their state, and all keys and values are read for them;
the output and LSE are written once. Count elements unless bytes are asked for.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Length, size of a head, storage in units of 1024 elements, and the rows of a tile."""

    length: int = 8192
    head_size: int = 128
    units: int = 100
    rows: int = 128

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        length, head_size = 1024 * rng.choice((2, 4, 8, 12, 16)), rng.choice((64, 80, 96, 128))
        return cls(length, head_size, rng.choice((80, 88, 96, 112, 128)), rng.choice((64, 128, 256)))

    @property
    def capacity(self) -> int:
        return 1024 * self.units

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("N", str(self.length)),
            ("d", str(self.head_size)),
            ("C", f"{self.units} × 1024 elements"),
            ("B, in Part 2", str(self.rows)),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
By Theorem 9.2, as orders of growth (all constants 1, as the theorem writes them):

1. accesses operator by operator, a formula in `N` and `d`;
2. accesses in tiles, a formula in `N`, `d` and `C`.
3. For your $d$ and $C$: how many times fewer accesses, to leading order? (That is, with $N^2$ alone operator by
   operator.)
"""

PART_2 = r"""
Now exactly, with the kernels above.

1. Elements read and written operator by operator, a formula in `N` and `d`.
2. Elements read and written in tiles, for $N = kB$: a formula in `k`, `B` and `d`.
3. The ratio of the two for your $N$, $d$ and $B$.
"""

PART_3 = r"""
With a backward pass, $Q$, $K$, $V$ and $O$ are kept either way. Operator by operator $P$ is kept as well, in float16;
in tiles LSE is, in float32.

1. How many *bytes* is $P$, and how many is LSE, for your $N$?
2. The ratio of the two, as a formula in `N`.
3. In words: a minimum cut of the joint graph decides what is saved. Why does it never choose LSE by itself, and what is
   paid for keeping LSE instead of $P$?
"""

CUT = Rubric(
    (
        Criterion(
            "Not among the nodes",
            2,
            "The cut chooses among values that the program computes; written by operators, the graph has no node LSE, "
            "and no path that leads from it to P.",
            "Says that the cut only sees the graph, without what is missing in it.",
            "Says that the cut would be too slow, or that LSE is too small.",
        ),
        Criterion(
            "The price",
            1,
            "S = Q K^T is computed once more in the backward pass (and its exponential): arithmetic for memory.",
            none="Names no price.",
        ),
    ),
    "Why the template decides",
)

PARTS = (
    Part(
        "1",
        "Orders of growth",
        PART_1,
        (
            FormulaIn("operator_order", "operator by operator", 1, example='"N*d**3"', variables=("N", "d")),
            FormulaIn("tiled_order", "in tiles", 1, example='"N*d**3/C"', variables=("N", "d", "C")),
            Number("leading_ratio", "how many times fewer", 1, example="12.5"),
        ),
        (
            "Q has N d elements, S has N^2.",
            "C / d rows fit on the chip, so N d / C blocks of queries read all of K and V.",
        ),
    ),
    Part(
        "2",
        "Constants",
        PART_2,
        (
            FormulaIn("operator_elements", "operator by operator", 1, example='"N*d + 7"', variables=("N", "d")),
            FormulaIn("tiled_elements", "in tiles", 2, example='"k*B*d + 7"', variables=("k", "B", "d")),
            Number("counted_ratio", "the ratio", 1, example="12.5"),
        ),
        (
            "Three kernels: write down what each reads and writes. How often does an N x N matrix appear?",
            "Each of the k tiles reads K and V whole. What is read or written once only?",
        ),
    ),
    Part(
        "3",
        "Kept for the backward pass",
        PART_3,
        (
            Number("p_bytes", "bytes of P", 1, example="12", whole=True, unit="bytes"),
            Number("lse_bytes", "bytes of LSE", 1, example="12", whole=True, unit="bytes"),
            FormulaIn("kept_ratio", "the ratio", 1, example='"7*N"', variables=("N",)),
            Prose("why_the_template", "why the template decides", CUT.points, rubric=CUT),
        ),
        (
            "P has an element for every pair of positions, LSE one for every query.",
            "A float16 has two bytes, a float32 four.",
        ),
    ),
)  # fmt: skip


def operators(N: Any, d: Any) -> int:
    return attention_traffic(int(N), int(N), int(d)).operator_elements


def tiles(k: Any, B: Any, d: Any) -> int:
    return attention_traffic(int(k * B), int(k * B), int(d), tile=(int(B), 16)).elements


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    n, d, rows = variant.length, variant.head_size, variant.rows
    sizes = {"N": integers(1, 400), "d": integers(1, 64)}
    # The theorem is about d <= C <= N d; all of these are inside.
    inside = {"N": integers(64, 400), "d": integers(2, 30), "C": integers(30, 128)}
    tiled = {"k": integers(1, 30), "B": choices((1, 2, 8, 16, 32, 128)), "d": integers(1, 64)}
    own = attention_traffic(n, n, d, tile=(rows, 16), itemsize=ITEM)
    p, lse = own.saved_bytes
    ratio = Fraction(own.operator_elements, own.elements)
    leading = order_ratio(d, variant.capacity)
    return {
        "operator_order": same_quantity(
            lambda N, d: operator_order(int(N), int(d)), sizes, seed=seed, counted="the theorem has",
            slips=(
                Slip("matrices-forgotten", lambda N, d: N * d, "S and P are in main memory, too."),
                Slip("constants-kept", operators, "That is the exact count; the theorem leaves constants out.",
                     credit=Fraction(1, 2)),
                Slip("operands-forgotten", lambda N, d: N * N, "The term N d is missing: it matters where N is small.",
                     credit=Fraction(1, 2)),
            ),
        ),
        "tiled_order": same_quantity(
            lambda N, d, C: tiled_order(int(N), int(d), int(C)), inside, seed=seed, counted="the theorem has",
            slips=(
                Slip("one-d-forgotten", lambda N, d, C: N * N * d / Fraction(C),
                     "Each of the N d / C blocks reads N d elements."),
                Slip("storage-forgotten", lambda N, d, C: N * N * d, "More storage, fewer blocks of queries."),
            ),
        ),
        "leading_ratio": close_to(
            leading,
            slips=(
                Slip("upside-down", 1 / leading, "That is the traffic in tiles over that of the operators."),
                Slip("d-not-squared", leading * d, "The order in tiles has d twice."),
                Slip("storage-in-bytes", leading * ITEM, "C counts elements, not bytes."),
                Slip("with-operands", operator_order(n, d) / tiled_order(n, d, variant.capacity),
                     "N d is counted as well; to leading order only N^2 is.", credit=Fraction(1, 2)),
            ),
        ),
        "operator_elements": same_quantity(
            operators, sizes, seed=seed, counted="counted for the three kernels",
            slips=(
                Slip("written-once", lambda N, d: 2 * N * N + 4 * N * d, "What a kernel writes, the next one reads."),
                Slip("softmax-forgotten", lambda N, d: 3 * N * N + 4 * N * d,
                     "S is written and read, P is written and read."),
                Slip("order", lambda N, d: operator_order(int(N), int(d)), "Now the constants count."),
            ),
        ),
        "tiled_elements": same_quantity(
            tiles, tiled, seed=seed, counted="counted for the loops",
            slips=(
                Slip("lse-forgotten", lambda k, B, d: tiles(k, B, d) - k * B, "LSE is written, too.",
                     credit=Fraction(1, 2)),
                Slip("values-forgotten", lambda k, B, d: tiles(k, B, d) - k * k * B * d,
                     "Keys and values are read for every tile."),
                Slip("read-once", lambda k, B, d: 4 * k * B * d + k * B,
                     "What is on the chip is gone when the next tile comes: keys are read again."),
                Slip("queries-again", lambda k, B, d: tiles(k, B, d) + (k * k - k) * B * d,
                     "The queries of a tile stay on the chip: they are read once."),
            ),
        ),
        "counted_ratio": close_to(
            ratio, relative=Fraction(1, 10**6),
            slips=(
                Slip("leading-order", leading, "That is the theorem's: now with constants, and for your B."),
                Slip("upside-down", 1 / ratio, "Operators over tiles."),
                Slip("operands-forgotten", Fraction(4 * n * n, own.elements), "Q, K, V and O are moved as well."),
            ),
        ),
        "p_bytes": close_to(
            Fraction(p),
            slips=(
                Slip("elements-not-bytes", Fraction(p, ITEM), "Those are elements."),
                Slip("in-float32", Fraction(p, ITEM) * LSE_ITEM, "P is kept in float16."),
                Slip("rows-of-values", Fraction(ITEM * n * d), "P has a column for every key."),
            ),
        ),
        "lse_bytes": close_to(
            Fraction(lse),
            slips=(
                Slip("elements-not-bytes", Fraction(lse, LSE_ITEM), "Those are elements."),
                Slip("in-float16", Fraction(lse, LSE_ITEM) * ITEM, "LSE is kept in float32: it is an exponent."),
                Slip("one-for-each-element", Fraction(LSE_ITEM * n * d), "A query has one, whatever d is."),
            ),
        ),
        "kept_ratio": same_quantity(
            lambda N: Fraction(*attention_traffic(int(N), int(N), 1, itemsize=ITEM).saved_bytes),
            {"N": integers(1, 5000)}, seed=seed, counted="counted",
            slips=(
                Slip("elements-not-bytes", lambda N: N, "An element of LSE takes twice as many bytes as one of P."),
                Slip("upside-down", lambda N: 1 / (Fraction(N) / 2), "P over LSE."),
                Slip("bytes-the-wrong-way", lambda N: 2 * N, "It is LSE whose elements are larger."),
            ),
        ),
        "why_the_template": read_by_a_person(CUT),
    }  # fmt: skip
