"""Exercise 25 (Section 9.8): the tile of a matrix product, its traffic, and what an epilogue saves.

The truth is counted: by trying every tile, and by running the loops of a tiled product and counting what they read.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...measure.epilogue_saving import epilogue_saving
from ...measure.matrix_traffic import largest_tile
from ..answers import FormulaIn, Function, Number, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex25_answers import HARMLESS, reference, wrong_answers
from .ex25_runs import different, judge_largest_tile, reads, saving_of, side_slips, traffic_of

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
TITLE = "The traffic of a tiled product"
DIFFICULTY = 1

statement = r"""
Two matrices of order $n$ are multiplied, float32. An instance makes a tile of $T \times T$ results: it goes along $k$
in steps of $B_K$, reads a $T \times B_K$ slice of $A$ and a $B_K \times T$ slice of $B$, and adds their product to
$T^2$ accumulators. Slices and accumulators have to fit in the $S$ elements that an instance has on the chip. Positions
beyond the edge of a matrix are masked, and not read.

(`staxlab.measure.matrix_traffic` has records of this that draw themselves. Use them to look, after you have answered.)
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The order of the matrices, the room on the chip in units of 1024 elements, and the depth of a step. The defaults
    are the chapter's."""

    n: int = 4096
    room: int = 48
    depth: int = 32
    itemsize: int = 4

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(rng.choice((2048, 4096, 8192)), rng.randint(10, 120), rng.choice((8, 16, 32, 64)))

    @property
    def capacity(self) -> int:
        return 1024 * self.room

    @property
    def side(self) -> int:
        return largest_tile(self.capacity, self.depth).choice

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("n", str(self.n)),
            ("S", f"{self.room} · 1024 elements"),
            ("B_K", str(self.depth)),
            ("bytes of an element", str(self.itemsize)),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. The largest power of two $T$ that fits.
2. `largest_tile(S, B_K)` returns it for any $S$ and $B_K$ for which $T = 1$ fits.
"""

PART_2 = r"""
1. How many elements of $A$ and $B$ do all instances together read? A formula in `n` and `T`. Here $T$ need not divide
   $n$: the last row and column of tiles may be smaller.
2. For your values, with the $T$ of Part 1: how many bytes are read and written? Every result is written once.
3. How many operations are that per byte? (A multiplication and an addition are two.)
4. How many would it be if every element of $A$, $B$ and $C$ passed once: what is $I_{\max}$?
"""

PART_3 = r"""
Now $\mathrm{relu}(AB + b)$ is to be computed, with $A$ of $m \times k$, $B$ of $k \times n$ and tiles that divide $m$
and $n$. As a kernel of its own the pointwise part reads the product and the bias and writes the result. As an epilogue
it is applied to the accumulators, and reads the bias.

1. What does the epilogue save, in elements, over what the product alone moves (reads and writes)? A formula in `T` and
   `k`.
2. And for your values, with $m = n = k$?
3. In words: for which products is it worth most, and why more with tensor cores than without?
"""

TILE_EXAMPLE = """\
def largest_tile(S, B_K):
    return 8"""

WORTH = Rubric(
    (
        Criterion(
            "Which products",
            1,
            "Those with small k: what is saved does not depend on k, and what the product moves grows with it.",
            none="Names no dependence on k.",
        ),
        Criterion(
            "Tensor cores",
            1,
            "They shorten the arithmetic only; the pointwise kernel is bound by memory, so its part of the time grows.",
            "Says that products are faster then.",
            "Says that tensor cores do the epilogue.",
        ),
        Criterion(
            "Where the data are",
            1,
            "The accumulators are in registers when the epilogue uses them: no transfer, hardly any time.",
            none="Does not say why the epilogue is cheap.",
        ),
    ),
    "What an epilogue is worth",
)

PARTS = (
    Part(
        "1",
        "The tile",
        PART_1,
        (
            Number("tile_side_25", "the largest T", 1, example="8", whole=True),
            Function("largest_tile", "the largest power of two that fits", 2, example=TILE_EXAMPLE,
                     parameters=("S", "B_K"), returns="a whole number"),
        ),
        (
            "Two slices of T x B_K and T x T accumulators: how many elements are these?",
            "Try powers of two until the next one is too large.",
        ),
    ),
    Part(
        "2",
        "Its traffic",
        PART_2,
        (
            FormulaIn("reads_25", "elements read", 2, example='"n + 7*T"', variables=("n", "T")),
            Number("bytes_25", "bytes read and written", 1, example="1234567", whole=True, unit="bytes"),
            Number("intensity_25", "operations per byte", 1, example='"5/7"'),
            Number("peak_25", "I_max", 1, example='"5/7"'),
        ),
        (
            "Every element of A is read once for each column of tiles. How many columns of tiles are there?",
            "2 n^3 operations, whatever the tile.",
        ),
    ),
    Part(
        "3",
        "The epilogue",
        PART_3,
        (
            FormulaIn("saved_share", "what is saved over what the product moves", 1, example='"7*T/k"',
                      variables=("T", "k")),
            Number("share_here", "for your values", 1, example='"3/1234"'),
            Prose("worth_most", "where it is worth most", WORTH.points, rubric=WORTH),
        ),
        (
            "What does the pointwise kernel move that the epilogue does not? The bias is read by both.",
            "The product reads 2mnk/T elements and writes mn.",
        ),
    ),
)  # fmt: skip


UNWRITTEN = "The product also writes its result."


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    traffic, saving = traffic_of(variant), saving_of(variant)
    half = Fraction(1, 2)
    size = traffic.itemsize
    nbytes, intensity, peak = Fraction(traffic.nbytes), traffic.intensity, traffic.peak_intensity
    one_operation = Slip("one-operation", intensity / 2, "A multiplication and an addition are two operations.")
    return {
        "tile_side_25": close_to(Fraction(variant.side), slips=side_slips(variant)),
        "largest_tile": lambda callee: judge_largest_tile(callee, seed),
        "reads_25": same_quantity(
            lambda n, T: reads(n, T), {"n": integers(1, 18), "T": integers(1, 20)}, seed=seed,
            counted="counted by running the loops",
            slips=(
                Slip("divides-only", lambda n, T: Fraction(2 * n**3, T), "Right where T divides n.", credit=half),
                Slip("one-operand", lambda n, T: reads(n, T) // 2, "That is one of the two operands."),
                Slip("whole-tiles", lambda n, T: 2 * T * n * (-(-n // T)) ** 2,
                     "Positions beyond the edge are masked: they are not read."),
                Slip("every-product", lambda n, T: 2 * n**3, "A slice on the chip serves a whole tile."),
            ),
        ),
        "bytes_25": close_to(
            nbytes,
            relative=Fraction(0),
            slips=different(nbytes, (
                Slip("writes-forgotten", Fraction(traffic.read * size), UNWRITTEN, credit=half),
                Slip("elements", Fraction(traffic.elements), "These are elements. How many bytes has one?"),
            )),
        ),
        "intensity_25": close_to(
            intensity,
            slips=different(intensity, (
                Slip("writes-forgotten", traffic.read_intensity, UNWRITTEN, credit=half),
                one_operation,
                Slip("per-element", intensity * size, "That is per element."),
            )),
        ),
        "peak_25": close_to(
            peak,
            slips=different(peak, (
                Slip("result-forgotten", Fraction(variant.n, size), "There are three matrices: C passes once as well."),
                Slip("one-operation", peak / 2, one_operation.message),
            )),
        ),
        "saved_share": same_quantity(
            lambda T, k: epilogue_saving(2 * T, 3 * T, k, tile=(T, T, 1)).share,
            {"T": integers(1, 200), "k": integers(1, 2000)}, seed=seed,
            slips=(
                Slip("writes-forgotten", lambda T, k: Fraction(T, k), UNWRITTEN, credit=half),
                Slip("one-way", lambda T, k: Fraction(T, 2 * k + T), "The product is not written and not read again."),
            ),
        ),
        "share_here": close_to(
            saving.share,
            slips=different(saving.share, (
                Slip("writes-forgotten", saving.share_of_reads, UNWRITTEN, credit=half),
                Slip("one-way", saving.share / 2, "The product is not written and not read again."),
            )),
        ),
        "worth_most": read_by_a_person(WORTH),
    }  # fmt: skip
