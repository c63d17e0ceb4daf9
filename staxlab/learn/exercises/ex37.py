"""Exercise 37 (Section 9.10): which blocks a sliding window leaves to be computed.

What is right is counted: a block mask is made of the window, and its lists are as long as they are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...measure.block_counts import visited_blocks
from ..answers import FormulaIn, Function, Number, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex25_runs import different
from .ex37_answers import HARMLESS, reference, wrong_answers
from .ex37_runs import causal_mask, judge_window_counts, multiple, saved, window

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
TITLE = "Blocks of a sliding window"
DIFFICULTY = 1

statement = r"""
With a sliding window a query $q$ sees the keys $k$ with $|q - k| \le w$, on both sides of it. The $N \times N$
positions are divided into blocks of $B \times B$, and $B$ divides $N$. A block is *full* if all its positions are
visible, *empty* if none is, and else *partial*. Full and partial blocks are computed; call them visited.

(`staxlab.create_block_mask` and `staxlab.measure.block_counts` count them, for when you have answered.)
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """N = blocks * block positions; a window of ``wide`` whole blocks, and one that is ``extra`` positions wider."""

    blocks: int = 32
    block: int = 128
    wide: int = 8
    extra: int = 76

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        blocks, block = rng.randint(20, 48), rng.choice((16, 32, 64))
        wide = rng.randint(2, blocks // 5)
        return cls(blocks, block, wide, rng.randint(1, block - 2))

    @property
    def length(self) -> int:
        return self.blocks * self.block

    @property
    def width(self) -> int:
        return self.wide * self.block

    @property
    def ragged_width(self) -> int:
        return self.width + self.extra

    @property
    def last_width(self) -> int:
        return self.width + self.block - 1

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("N", f"{self.length:,}"),
            ("B", str(self.block)),
            ("w of Parts 1 and 2", f"{self.width:,}"),
            ("the two w of Part 3", f"{self.ragged_width:,} and {self.last_width:,}"),
        )

    def constants(self) -> dict[str, Fraction]:
        return {}


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
Let $n = N/B$ be the number of blocks along a side, and let the window be a whole number of blocks, $w = kB$ with
$1 \le k < n$ (and $B > 1$). How many blocks are

1. full,
2. partial,
3. empty?

Formulas in `n` and `k`.
"""

PART_2 = r"""
For your $N$ and $B$, and the first of your $w$:

1. How many blocks does the window visit?
2. How many does a causal mask ($q \ge k$) visit?
3. Which share of the blocks that the causal mask visits is saved by the window? A number between 0 and 1.
"""

PART_3 = r"""
Now $B$ need not divide $w$.

1. `window_counts(N, B, w)` returns how many blocks are full, partial and empty, in this order, for any multiple $N$ of
   $B \ge 1$ and any $w \ge 0$, also one that is wider than everything.
2. How many blocks are partial for the first of your two other $w$?
3. And for the second, which is one less than a multiple of $B$?
4. In words: how does the number of partial blocks depend on what $w$ leaves when divided by $B$, and why? Which $w$ is
   a good choice?
"""

COUNTS_EXAMPLE = """\
def window_counts(N, B, w):
    return N // B, 0, 0"""

REMAINDER = Rubric(
    (
        Criterion(
            "Distances in a block",
            1,
            "Blocks at distance d hold positions that are (d-1)B+1 to (d+1)B-1 apart; both ends decide the class.",
            none="No argument from the positions of a block.",
        ),
        Criterion(
            "One diagonal or two",
            2,
            "A remainder puts a second diagonal on each side between full and empty: nearly twice as many partial "
            "blocks; with remainder B-1 it is one again.",
            "Two diagonals, without the remainder B-1.",
            "Says only that there are more.",
        ),
        Criterion(
            "What follows",
            1,
            "Choose w as a multiple of B (or one less): partial blocks evaluate the mask and compute what is hidden.",
            none="Draws no conclusion.",
        ),
    ),
    "What the remainder does",
)

PARTS = (
    Part(
        "1",
        "A whole number of blocks",
        PART_1,
        (
            FormulaIn("full_blocks", "full blocks", 1, example='"n**2 - k"', variables=("n", "k")),
            FormulaIn("partial_blocks", "partial blocks", 1, example='"n**2 - k"', variables=("n", "k")),
            FormulaIn("empty_blocks", "empty blocks", 1, example='"n**2 - k"', variables=("n", "k")),
        ),
        (
            "All blocks with the same d = |i - j| look alike. How many are there of each d?",
            "How far apart can two positions of such a block be, and how close?",
            "Of the blocks with d = k only a corner is hidden on each side, or visible: is d = k + 1 reached at all?",
        ),
    ),
    Part(
        "2",
        "Beside the causal mask",
        PART_2,
        (
            Number("window_visited", "blocks that the window visits", 1, example="777", whole=True, unit="blocks"),
            Number("causal_visited", "blocks that the causal mask visits", 1, example="777", whole=True, unit="blocks"),
            Number("saved_computation", "the share that is saved", 1, example="0.25"),
        ),
        (
            "Partial blocks are computed as well.",
            "The window looks to both sides, the causal mask to one.",
            "The share of what the causal mask visits: it is what is compared with.",
        ),
    ),
    Part(
        "3",
        "A remainder",
        PART_3,
        (
            Function("window_counts", "full, partial and empty blocks", 3, example=COUNTS_EXAMPLE,
                     parameters=("N", "B", "w"), returns="three whole numbers"),
            Number("ragged_partial", "partial blocks of the first window", 1, example="777", whole=True, unit="blocks"),
            Number("last_partial", "partial blocks of the second window", 1, example="777", whole=True, unit="blocks"),
            Prose("why_partial", "what the remainder does", REMAINDER.points, rubric=REMAINDER),
        ),
        (
            "Go through the distances d, and compare w with the smallest and the largest distance of two positions.",
            "With d = 0 the smallest distance is 0. With B = 1 the smallest and the largest are the same.",
            "For w = kB + r: is the diagonal d = k full? Is d = k + 1 reached?",
        ),
    ),
)  # fmt: skip


def visited_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other counts for the window."""
    counts, n, k = window(variant.length, variant.block, variant.width), variant.blocks, variant.wide
    return different(
        Fraction(visited_blocks(counts)),
        (
            Slip("full-only", Fraction(counts.full), "Partial blocks are computed, too."),
            Slip("one-sided", Fraction(n * (k + 1) - k * (k + 1) // 2), "The window looks to both sides."),
            Slip("ends-forgotten", Fraction(n * (2 * k + 1)), "Near both ends the window reaches beyond the sequence."),
        ),
    )


def causal_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other counts for the causal mask."""
    n = variant.blocks
    return different(
        Fraction(visited_blocks(causal_mask(variant.length, variant.block))),
        (
            Slip("full-only", Fraction(n * (n - 1), 2), "The blocks on the diagonal are visited, too."),
            Slip("half", Fraction(n * n // 2), "About half; but the diagonal is visited as a whole."),
            Slip("all-blocks", Fraction(n * n), "What lies above the diagonal is not visited."),
        ),
    )


def saving_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other shares."""
    visited = visited_blocks(window(variant.length, variant.block, variant.width))
    behind = visited_blocks(causal_mask(variant.length, variant.block))
    return different(
        saved(variant.length, variant.block, variant.width),
        (
            Slip("remains", Fraction(visited, behind), "That share remains. How much is saved?"),
            Slip("of-all-blocks", 1 - Fraction(visited, variant.blocks**2), "Of what the causal mask visits."),
            Slip("in-percent", 100 * saved(variant.length, variant.block, variant.width), "A share, not percent.",
                 Fraction(1, 2)),
        ),
    )  # fmt: skip


def ragged_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other counts where B does not divide w."""
    n, k = variant.blocks, variant.wide
    return different(
        Fraction(window(variant.length, variant.block, variant.ragged_width).partial),
        (
            Slip("one-diagonal", Fraction(2 * (n - k)), "So many would it be for w = kB. Here w reaches further."),
            Slip("outer-only", Fraction(2 * (n - k - 1)), "Is the diagonal before that one full?"),
            Slip("twice", Fraction(4 * (n - k)), "Two diagonals on each side, but they are not of the same length."),
            Slip("one-sided", Fraction(2 * (n - k) - 1), "The window looks to both sides."),
        ),
    )


def last_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other counts where w is one less than a multiple of B."""
    n, k = variant.blocks, variant.wide
    return different(
        Fraction(window(variant.length, variant.block, variant.last_width).partial),
        (
            Slip("two-diagonals", Fraction(2 * (n - k) + 2 * (n - k - 1)),
                 "How far apart can two positions of a block with d = k be at most? Is that within the window?"),
            Slip("one-diagonal-early", Fraction(2 * (n - k)), "That diagonal is full by now. Which one is partial?"),
            Slip("one-sided", Fraction(n - k - 1), "The window looks to both sides."),
        ),
    )  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    length, block = variant.length, variant.block
    grids = {"n": integers(7, 16), "k": integers(1, 6)}  # so that k < n
    one_sided = "The window looks to both sides."
    ends = "A diagonal at distance d has fewer blocks than the main one, on each side n - d."

    def judged(truth: Callable[[int, int], int], *slips: Slip) -> Judge:
        return same_quantity(truth, grids, seed=seed, counted="counted by a block mask", slips=slips)

    return {
        "full_blocks": judged(
            lambda n, k: multiple(n, k).full,
            Slip("diagonal-twice", lambda n, k: 2 * n * k - k * (k - 1), "The main diagonal has only one side."),
            Slip("one-sided", lambda n, k: n * k - k * (k - 1) // 2, one_sided),
            Slip("partial-as-well", lambda n, k: visited_blocks(multiple(n, k)),
                 "Are the blocks at distance k full? Their farthest positions are more than w apart."),
            Slip("ends-forgotten", lambda n, k: n * (2 * k - 1), ends),
        ),
        "partial_blocks": judged(
            lambda n, k: multiple(n, k).partial,
            Slip("one-sided", lambda n, k: n - k, one_sided),
            Slip("ends-forgotten", lambda n, k: 2 * n, ends),
            Slip("diagonal-is-full", lambda n, k: n + 2 * (n - k),
                 "Positions in a block on the main diagonal are less than B apart, and the window has at least B."),
        ),
        "empty_blocks": judged(
            lambda n, k: multiple(n, k).empty,
            Slip("one-sided", lambda n, k: (n - k) * (n - k - 1) // 2, "There are empty blocks on both sides."),
            Slip("partial-as-well", lambda n, k: (n - k) * (n - k + 1), "Partial blocks are not empty."),
        ),
        "window_visited": close_to(
            Fraction(visited_blocks(window(length, block, variant.width))), slips=visited_slips(variant)
        ),
        "causal_visited": close_to(Fraction(visited_blocks(causal_mask(length, block))), slips=causal_slips(variant)),
        "saved_computation": close_to(saved(length, block, variant.width), slips=saving_slips(variant)),
        "window_counts": lambda callee: judge_window_counts(callee, seed),
        "ragged_partial": close_to(
            Fraction(window(length, block, variant.ragged_width).partial), slips=ragged_slips(variant)
        ),
        "last_partial": close_to(
            Fraction(window(length, block, variant.last_width).partial), slips=last_slips(variant)
        ),
        "why_partial": read_by_a_person(REMAINDER),
    }  # fmt: skip
