"""Exercise 35 (Section 9.8, Proposition 9.4): what the numbering of blocks has to do with the cache.

What is right is counted: the blocks of a window are gone through, in the order that kernels use.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...measure.pipeline_stages import stage_bytes
from ...options import GPU_SPECS
from ..answers import FormulaIn, Function, Number, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex25_runs import different
from .ex35_answers import HARMLESS, reference, wrong_answers
from .ex35_runs import best_height, judge_blocks_read, read_by

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
TITLE = "The numbering of blocks"
DIFFICULTY = 1

statement = r"""
The result of a matrix product is divided into $g_m \times g_n$ blocks. A block reads one block row of $A$ and one block
column of $B$. $W$ blocks with consecutive numbers, the first of them number 0, run at the same time.

Numbered in groups, blocks go down $G$ rows before they go one column to the right; when a group of $G$ rows is done,
the next begins below it, and the last group has as many rows as are left (Proposition 9.4). With $G = 1$ that is row by
row.

(`staxlab.measure.grouped_numbering.numbering(g_m, g_n, G, W)` shows it, for when you have answered.)
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """A square grid, the window, two heights of groups that divide it, and what an instance takes: a tile, the bytes of
    an element and the stages of its pipeline. The defaults are the chapter's where it has any."""

    grid: int = 16
    window: int = 24
    groups: tuple[int, int] = (4, 8)
    tile: tuple[int, int, int] = (128, 64, 64)
    itemsize: int = 2
    stages: int = 3

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        while True:
            grid, window = rng.randint(10, 24), rng.choice((12, 18, 20, 24, 30, 36, 40, 48, 60))
            heights = [g for g in range(2, grid + 1) if window % g == 0 and window // g <= grid]
            if len(heights) >= 2 and window != grid:
                tile = (rng.choice((64, 128)), rng.choice((64, 128)), rng.choice((32, 64)))
                low, high = sorted(rng.sample(heights, 2))
                return cls(grid, window, (low, high), tile, 2, rng.randint(2, 4))

    @property
    def shared(self) -> int:
        """Bytes that an instance takes."""
        return self.stages * stage_bytes(self.tile, self.itemsize)

    @property
    def running(self) -> int:
        device = GPU_SPECS["sm_90"]
        return device.multiprocessors * (device.shared_memory_per_multiprocessor // self.shared)

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("g_m and g_n", str(self.grid)),
            ("W", str(self.window)),
            ("the two heights G", " and ".join(map(str, self.groups))),
            ("B_M, B_N, B_K", ", ".join(map(str, self.tile))),
            ("bytes of an element", str(self.itemsize)),
            ("stages", str(self.stages)),
        )

    def constants(self) -> dict[str, Fraction]:
        return {}


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
How many block rows of $A$ and block columns of $B$, taken together, do the $W$ blocks read for your grid

1. numbered row by row,
2. in groups of the smaller height,
3. in groups of the larger height?
"""

PART_2 = r"""
Now $G$ need not divide $W$. Suppose first that $W \le G\,g_n$ and $G \le g_m$, so that only one group is begun.

1. How many block rows of $A$ are read? A formula in `W` and `G`.
2. How many block columns of $B$?
3. `blocks_read(W, G, g_m, g_n)` returns both as a pair, for any $1 \le W \le g_m g_n$ and $1 \le G \le g_m$: also where
   the window reaches into further groups, or into the last and smaller one.
4. Which height reads fewest for your grid and your $W$? Of several, the smallest.
"""

PART_3 = r"""
1. An H100 has 132 multiprocessors with 228 KiB of shared memory each. An instance takes a stage's two slices for each
   of its stages, and nothing else runs out: how many instances run at the same time?
2. In words: what decides how many instances run at the same time, and which parameters of a launch configuration
   (Section 9.6) does that depend on?
"""

BLOCKS_EXAMPLE = """\
def blocks_read(W, G, g_m, g_n):
    return 1, W"""

WINDOW = Rubric(
    (
        Criterion(
            "What it is",
            1,
            "The instances resident on one multiprocessor times the number of multiprocessors (and no more than there "
            "are).",
            "One of the two factors.",
        ),
        Criterion(
            "What runs out",
            2,
            "Registers, shared memory, and the most warps or blocks a multiprocessor holds: the first that is used up.",
            "One or two of them.",
            "Says only that it depends on the device.",
        ),
        Criterion(
            "Which parameters",
            1,
            "Block sizes and num_stages (shared memory, registers of the accumulators) and num_warps.",
            none="Names no parameter.",
        ),
    ),
    "What decides W",
)

PARTS = (
    Part(
        "1",
        "Your grid",
        PART_1,
        (
            Number("row_major_35", "row by row", 1, example="77", whole=True, unit="block rows and columns"),
            Number("low_groups", "groups of the smaller height", 1, example="77", whole=True,
                   unit="block rows and columns"),
            Number("high_groups", "groups of the larger height", 1, example="77", whole=True,
                   unit="block rows and columns"),
        ),
        (
            "Draw the grid and mark the first W blocks. How many rows and how many columns are touched?",
            "In groups whose height divides W they form a rectangle, G high.",
        ),
    ),
    Part(
        "2",
        "Any window",
        PART_2,
        (
            FormulaIn("rows_read", "block rows of A", 1, example='"W + 7*G"', variables=("W", "G")),
            FormulaIn("columns_read", "block columns of B", 1, example='"W + 7*G"', variables=("W", "G")),
            Function("blocks_read", "both, for any window", 3, example=BLOCKS_EXAMPLE,
                     parameters=("W", "G", "g_m", "g_n"), returns="a pair of whole numbers"),
            Number("best_height", "the best height for your grid", 1, example="77", whole=True, unit="rows"),
        ),
        (
            "Fewer blocks than G fill only a part of the first column.",
            "A whole group has G g_n blocks and touches every column. What is left over begins the next group.",
            "How high is the last group, if G does not divide g_m?",
        ),
    ),
    Part(
        "3",
        "What runs at the same time",
        PART_3,
        (
            Number("running_35", "instances that run at the same time", 1, example="777", whole=True, unit="instances"),
            Prose("why_window", "what decides W", WINDOW.points, rubric=WINDOW),
        ),
        (
            "A stage holds a slice of A, B_M x B_K, and one of B, B_K x B_N.",
            "How often does that go into 228 KiB? Instances cannot be divided.",
        ),
    ),
)  # fmt: skip


def row_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other counts for row-major order."""
    grid, window = variant.grid, variant.window
    rows, columns = read_by(grid, grid, 1, window)
    return different(
        Fraction(rows + columns),
        (
            Slip("each-block", Fraction(2 * window), "Blocks in the same row read the same block row of A."),
            Slip("rows-forgotten", Fraction(columns), "And how many block rows of A?"),
            Slip("one-row", Fraction(1 + window), "A row has g_n blocks; the next begins after that."),
            Slip("begun-row", Fraction(window // grid + columns), "A row that is begun is read, too."),
        ),
    )


def reads_slips(variant: Variant, group: int) -> tuple[Slip, ...]:
    """Other counts for groups."""
    grid, window = variant.grid, variant.window
    rows, columns = read_by(grid, grid, group, window)
    return different(
        Fraction(rows + columns),
        (
            Slip(
                "multiplied", Fraction(rows * columns), "So many blocks run. How many rows and columns do they touch?"
            ),
            Slip("each-block", Fraction(2 * window), "Blocks in the same row read the same block row of A."),
            Slip("rows-forgotten", Fraction(columns), "And how many block rows of A?"),
            Slip("columns-forgotten", Fraction(rows), "And how many block columns of B?"),
            Slip(
                "whole-rows", Fraction(rows + grid), "Groups stop before the end of the row when W blocks are reached."
            ),
        ),
    )


def height_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other heights: the root, and those that come close."""
    grid, window = variant.grid, variant.window
    best = best_height(grid, grid, window)
    least = sum(read_by(grid, grid, best, window))
    root = math.isqrt(window)
    equal = [g for g in range(best + 1, grid + 1) if sum(read_by(grid, grid, g, window)) == least]
    slips = [Slip("not-the-smallest", Fraction(g), "A smaller height reads as few.", Fraction(1, 2)) for g in equal]
    slips += [
        Slip("root", Fraction(g), "The root of W is the best real number. Try the whole ones, smallest first.")
        for g in (root, root + 1)
    ]  # fmt: skip
    slips += [Slip("default", Fraction(8), "That is what the template takes, whatever W is.")]
    return different(Fraction(best), slips)


def running_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other numbers of instances."""
    device, shared = GPU_SPECS["sm_90"], variant.shared
    room, sms = device.shared_memory_per_multiprocessor, device.multiprocessors
    one = shared // variant.stages
    return different(
        Fraction(variant.running),
        (
            Slip("one-each", Fraction(sms), "More than one fits on a multiprocessor."),
            Slip("one-multiprocessor", Fraction(room // shared), "So many run on one of the multiprocessors."),
            Slip("not-whole", Fraction(room * sms // shared), "Instances are not divided among multiprocessors."),
            Slip("one-stage", Fraction(sms * (room // one)), "There is a buffer for every stage."),
        ),
    )


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    grid, window = variant.grid, variant.window
    low, high = variant.groups

    def total(group: int) -> Fraction:
        return Fraction(sum(read_by(grid, grid, group, window)))

    def one_group(W: int, G: int) -> tuple[int, int]:
        return read_by(G + 2, W, G, W)

    sizes = {"W": integers(1, 40), "G": integers(1, 14)}
    by_row = "That is row by row, whatever G is."
    return {
        "row_major_35": close_to(total(1), slips=row_slips(variant)),
        "low_groups": close_to(total(low), slips=reads_slips(variant, low)),
        "high_groups": close_to(total(high), slips=reads_slips(variant, high)),
        "rows_read": same_quantity(
            lambda W, G: one_group(W, G)[0], sizes, seed=seed, counted="counted in a grid",
            slips=(
                Slip("small-window", lambda W, G: G, "Not if there are fewer blocks than that.", Fraction(1, 2)),
                Slip("row-major", lambda W, G: 1, by_row),
            ),
        ),
        "columns_read": same_quantity(
            lambda W, G: one_group(W, G)[1], sizes, seed=seed, counted="counted in a grid",
            slips=(
                Slip("not-whole", lambda W, G: Fraction(W, G), "Right where G divides W.", Fraction(1, 2)),
                Slip("begun-column", lambda W, G: W // G, "A column that is begun is read, too."),
                Slip("begun-column", lambda W, G: max(W // G, 1), "A column that is begun is read, too."),
                Slip("row-major", lambda W, G: W, by_row),
            ),
        ),
        "blocks_read": lambda callee: judge_blocks_read(callee, seed),
        "best_height": close_to(Fraction(best_height(grid, grid, window)), slips=height_slips(variant)),
        "running_35": close_to(Fraction(variant.running), slips=running_slips(variant)),
        "why_window": read_by_a_person(WINDOW),
    }  # fmt: skip
