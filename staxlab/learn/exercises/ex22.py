"""Exercise 22 (Section 9.1): how many reads a thread must have on their way, and what that asks of a block.

The numbers come from the package's own Little's law and occupancy rules. The student writes the count as a formula and
as a function, and then follows it into a kernel: registers limit the resident warps, fewer warps need more reads each,
and reads are elements of a block.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...measure.little import littles_law
from ..answers import FormulaIn, Function, Number, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex22_answers import HARMLESS, reference, wrong_answers
from .ex22_runs import (
    block_slips,
    judge_reads_needed,
    least_block,
    reads,
    reads_now_slips,
    reads_then_slips,
    resident_slips,
    resident_warps,
)

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
TITLE = "Reads in flight"
DIFFICULTY = 1

statement = r"""
A read of global memory takes a *latency* $t$ until its data is there, and the memory delivers up to $B$ bytes per
second. $S$ multiprocessors hold $w$ warps of 32 threads each, and one load instruction of a thread reads $b$ bytes. All
of them are to keep as many reads on their way as the bandwidth needs. A nanosecond times a gigabyte per second is a
byte.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Latency in ns, bandwidth in GB/s, multiprocessors, resident warps of each, bytes of a read; for Part 3 registers
    per thread and warps per block. The defaults are the chapter's."""

    latency: int = 600
    bandwidth: int = 3350
    multiprocessors: int = 132
    warps: int = 32
    read_bytes: int = 16
    registers: int = 96
    block_warps: int = 8

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        while True:
            variant = cls(
                rng.randrange(400, 901, 50), rng.choice((1555, 2039, 3350, 4800)), rng.choice((108, 114, 132)),
                rng.choice((4, 8, 16, 32)), rng.choice((4, 8, 16)), rng.choice((56, 72, 88, 96, 120, 144, 160)),
                rng.choice((4, 8)),
            )  # fmt: skip
            if resident_slips(variant) and reads_now_slips(variant) and reads_then_slips(variant):
                return variant

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("t", f"{self.latency} ns"),
            ("B", f"{self.bandwidth} GB/s"),
            ("S", str(self.multiprocessors)),
            ("w", str(self.warps)),
            ("b", f"{self.read_bytes} bytes"),
            ("in Part 3", f"{self.registers} registers per thread, blocks of {self.block_warps} warps"),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. How many bytes must be on their way in the whole device, and how many on each multiprocessor?
2. How many reads must each thread have on their way? A formula in `t`, `B`, `S`, `w` and `b`, without rounding.
3. With your values: the least whole number of reads.
"""

PART_2 = r"""
`reads_needed(latency, bandwidth, multiprocessors, warps, read_bytes)` returns the least whole number of reads that
every thread must have on their way. All arguments are positive whole numbers: nanoseconds, gigabytes per second, counts
and bytes.
"""

PART_3 = r"""
A compiled kernel takes the registers per thread, and has the warps per block, that are among your values; it takes no
shared memory. It runs on sm_90, whose multiprocessor has 65,536 registers in four equal parts, each part for the warps
of one scheduler. A warp gets registers in units of 256, all of them from one part. A multiprocessor holds at most 64
warps and 32 blocks, and only whole blocks.

1. How many warps are resident on one multiprocessor?
2. With so many: the least whole number of reads that every thread must have on their way (your $t$, $B$, $S$, $b$).
3. The kernel reads one float32 tensor. What is the smallest block, in elements and a power of two, that gives every
   thread so many reads?
4. In words: what does this say about the choice of a block size? Why is larger not always better?
"""

NAMES = ("t", "B", "S", "w", "b")

READS_EXAMPLE = """\
def reads_needed(latency, bandwidth, multiprocessors, warps, read_bytes):
    return latency * bandwidth"""

CHOICE = Rubric(
    (
        Criterion(
            "Warps times reads",
            1,
            "What counts is the product of resident warps and reads in flight per thread; either factor can make up "
            "for the other.",
            none="Looks at one of the two factors only.",
        ),
        Criterion(
            "Too small",
            1,
            "A small block gives each thread less than one full-width read, or too few; with small blocks the limit of "
            "blocks per multiprocessor may also keep warps out.",
            "Says that small blocks are slow, without the reads.",
            "Does not consider small blocks.",
        ),
        Criterion(
            "Too large",
            1,
            "More elements per thread take more registers, so fewer warps are resident (or registers spill); and a "
            "grid of few blocks leaves multiprocessors idle. Beyond saturation nothing is gained.",
            "Names one cost.",
            "Sees no drawback.",
        ),
    ),
    "The block size",
)

PARTS = (
    Part(
        "1",
        "Bytes and reads",
        PART_1,
        (
            Number("in_flight", "on their way in the device", 1, example="1500000", unit="bytes"),
            Number("per_multiprocessor", "on one multiprocessor", 1, example='"1500000/100"', unit="bytes"),
            FormulaIn("reads_formula", "reads of each thread", 2, example='"t*B/S"', variables=NAMES),
            Number("reads_now", "reads, a whole number", 1, example="12", whole=True, unit="reads"),
        ),
        (
            "Little's law: what is in a queue is the rate times the time that each spends in it.",
            "How many threads are there in all? Each has a part of these bytes.",
        ),
    ),
    Part(
        "2",
        "As a function",
        PART_2,
        (
            Function("reads_needed", "reads of each thread", 3, example=READS_EXAMPLE,
                     parameters=("latency", "bandwidth", "multiprocessors", "warps", "read_bytes"),
                     returns="a whole number"),
        ),
        (
            "Rounding down is too few, unless it comes out even.",
            "Whole numbers can be divided without floats: -(-a // b) rounds up.",
        ),
    ),
    Part(
        "3",
        "Down to the block",
        PART_3,
        (
            Number("resident", "resident warps", 1, example="12", whole=True, unit="warps"),
            Number("reads_then", "reads of each thread", 1, example="12", whole=True, unit="reads"),
            Number("block", "the smallest block", 1, example="128", whole=True, unit="elements"),
            Prose("block_size", "the choice of a block size", CHOICE.points, rubric=CHOICE),
        ),
        (
            "How many registers does a warp get, and how many such warps find room in a quarter of the file?",
            "A thread's reads are b bytes each, an element is 4 bytes, and a block has so many threads.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    total = Fraction(variant.latency * variant.bandwidth)

    def each(t: Any, B: Any, S: Any, w: Any, b: Any) -> float:
        law = littles_law("sm_90", latency=float(t), bandwidth=float(B), multiprocessors=int(S), warps=int(w))
        return law.per_thread / float(b)

    positive = {
        "t": integers(1, 50),
        "B": integers(1, 50),
        "S": integers(1, 20),
        "w": integers(1, 20),
        "b": integers(1, 16),
    }
    return {
        "in_flight": close_to(
            total,
            slips=(
                Slip("divided", Fraction(variant.bandwidth, variant.latency), "The longer it takes, the more wait."),
                Slip("seconds", total / 10**9, "A gigabyte per second is one byte in a nanosecond."),
            ),
        ),
        "per_multiprocessor": close_to(
            total / variant.multiprocessors,
            slips=(
                Slip("per-warp", total / variant.multiprocessors / variant.warps, "That is for one warp."),
                Slip("whole-device", total, "All multiprocessors together keep these on their way."),
            ),
        ),
        "reads_formula": same_quantity(
            each, positive, seed=seed, counted="by Little's law",
            slips=(
                Slip("lanes-forgotten", lambda t, B, S, w, b: 32 * each(t, B, S, w, b), "A warp is 32 threads."),
                Slip("warps-forgotten", lambda t, B, S, w, b: w * each(t, B, S, w, b),
                     "Every multiprocessor holds w warps, and all of them read."),
                Slip("one-multiprocessor", lambda t, B, S, w, b: S * each(t, B, S, w, b),
                     "The bandwidth is that of the device, and S multiprocessors share it."),
                Slip("bytes-not-reads", lambda t, B, S, w, b: b * each(t, B, S, w, b),
                     "Those are bytes; one read fetches b of them."),
                Slip("upside-down", lambda t, B, S, w, b: 1 / each(t, B, S, w, b), "That is the inverse."),
            ),
        ),
        "reads_now": close_to(Fraction(reads(variant, variant.warps)), slips=reads_now_slips(variant)),
        "reads_needed": lambda callee: judge_reads_needed(callee, seed),
        "resident": close_to(Fraction(resident_warps(variant)), slips=resident_slips(variant)),
        "reads_then": close_to(Fraction(reads(variant, resident_warps(variant))), slips=reads_then_slips(variant)),
        "block": close_to(Fraction(least_block(variant)), slips=block_slips(variant)),
        "block_size": read_by_a_person(CHOICE),
    }  # fmt: skip
