"""Exercise 40 (Section 9.8): where float8 products meet the ridge point, and how many stages their pipeline can have.

The order is the smallest that the package's own ridge point allows, the budget that of a device; the time of a step is
what a pipeline comes to that was run, long enough.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ...measure.pipeline_stages import pipeline, stage_bytes
from ...measure.tensor_cores import least_order
from ..answers import Choice, FormulaIn, Function, Number, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex40_answers import HARMLESS, reference, wrong_answers
from .ex40_runs import judge_most_stages, order_slips, stage_slips, stages_slips

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
TITLE = "Eight bits: ridge point and stages"
DIFFICULTY = 1
ORDERS = ("half as large", "the same", "twice as large")

statement = r"""
Tensor cores multiply float8 numbers at about twice the rate of bfloat16. A device does $P$ operations per second with
them and moves $B$ bytes per second from main memory; an element has $b$ bytes. A square product of order $n$ whose
three matrices pass once does $2n^3$ operations on $3n^2$ elements.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """A rate in units of 10^12 operations per second, a bandwidth in units of 10^10 bytes per second, and a tile with
    the shared memory of a multiprocessor in KiB. The defaults are an H100's."""

    tera: int = 1978
    ten_giga: int = 335
    tile: tuple[int, int, int] = (128, 128, 128)
    kib: int = 228
    itemsize: int = 1

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        tile = (rng.choice((64, 128)), rng.choice((64, 128, 256)), rng.choice((64, 128)))
        return cls(rng.randint(500, 4500), rng.randint(150, 800), tile, rng.choice((164, 200, 228)))

    @property
    def rate(self) -> int:
        """Operations per second."""
        return self.tera * 10**12

    @property
    def bandwidth(self) -> int:
        """Bytes per second."""
        return self.ten_giga * 10**10

    @property
    def shared(self) -> int:
        """Bytes."""
        return self.kib << 10

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("P", f"{self.tera} · 10^12 operations per second (float8)"),
            ("B", f"{self.ten_giga / 100:g} · 10^12 bytes per second"),
            ("B_M, B_N, B_K", ", ".join(map(str, self.tile))),
            ("shared memory", f"{self.kib} KiB"),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. From which order on is a square product bound by arithmetic? A formula in `P`, `B` and `b`, not rounded.
2. For your device and float8: the smallest such $n$.
3. Compared with bfloat16 on the same device, at half the rate and two bytes: is that order half as large, the same, or
   twice as large?
"""

PART_2 = r"""
1. How many bytes does a stage take with your tile and float8?
2. How many stages fit in your shared memory, if nothing else takes any?
3. `most_stages(B_M, B_N, B_K, b, shared, epilogue, instances)` returns how many stages fit when `instances` instances
   divide `shared` bytes, in whole bytes each, and each keeps `epilogue` bytes for its result. One at least fits.
"""

PART_3 = r"""
Memory answers a load after a latency $L$ and then delivers a slice in time $x$, one after the other. A step is computed
in time $c$, one after the other. There are $s$ buffers; a load is asked for when its buffer is free.

1. How long does a step take in the long run? A formula in `L`, `x`, `c` and `s`.
2. In words: what does one stage more gain, when does it gain nothing, and what does it cost?
"""

STAGES_EXAMPLE = """\
def most_stages(B_M, B_N, B_K, b, shared, epilogue, instances):
    return 1"""

STAGES = Rubric(
    (
        Criterion(
            "What it gains",
            1,
            "Loads begin earlier; a step waits less for its slices.",
            none="Says only that it is faster.",
        ),
        Criterion(
            "When it ends",
            1,
            "Once computation (or the bandwidth) is the longest, waiting is hidden; more stages hide nothing more.",
            none="No limit is named.",
        ),
        Criterion(
            "What it costs",
            1,
            "Shared memory, so fewer instances on a multiprocessor (or a longer start where k is small).",
            none="No cost is named.",
        ),
    ),
    "One stage more",
)

PARTS = (
    Part(
        "1",
        "The order",
        PART_1,
        (
            FormulaIn("order_formula", "the order, not rounded", 1, example='"7*P + B*b"', variables=("P", "B", "b")),
            Number("least_order_40", "the smallest order", 1, example="77", whole=True),
            Choice("against_16_bits", "compared with bfloat16", 1, example=f'"{ORDERS[2]}"', options=ORDERS),
        ),
        (
            "How many operations per byte does a product of order n do at most?",
            "It is bound by arithmetic from the n on for which that is P/B.",
        ),
    ),
    Part(
        "2",
        "The stages",
        PART_2,
        (
            Number("stage_40", "bytes of a stage", 1, example="777", whole=True, unit="bytes"),
            Number("stages_40", "stages that fit", 1, example="77", whole=True, unit="stages"),
            Function("most_stages", "stages that fit, in general", 2, example=STAGES_EXAMPLE,
                     parameters=("B_M", "B_N", "B_K", "b", "shared", "epilogue", "instances"),
                     returns="a whole number"),
        ),
        (
            "A stage holds what a step reads: B_M x B_K of A and B_K x B_N of B.",
            "What is left for stages, after an instance has its share and has kept room for its result?",
        ),
    ),
    Part(
        "3",
        "What they are good for",
        PART_3,
        (
            FormulaIn("waiting", "time of a step in the long run", 2, example='"L + 7*s"',
                      variables=("L", "x", "c", "s")),
            Prose("more_stages", "one stage more", STAGES.points, rubric=STAGES),
        ),
        (
            "With one buffer: wait, deliver, compute, and again. How long is that?",
            "With s buffers, s steps are in that round at the same time. What else can be the slowest?",
        ),
    ),
)  # fmt: skip


@lru_cache(maxsize=4096)
def long_run(latency: int, transfer: int, compute: int, stages: int) -> Fraction:
    """Time per step, of a pipeline that is run until it repeats itself."""
    run = pipeline(160 + stages, stages, latency=latency, transfer=transfer, compute=compute)
    return (run.steps[-1].computed - run.steps[-1 - stages].computed) / stages


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    rates = {"P": integers(1, 10**6), "B": integers(1, 10**4), "b": integers(1, 4)}
    times = {"L": integers(0, 40), "x": integers(1, 12), "c": integers(1, 12), "s": integers(1, 8)}
    one = stage_bytes(variant.tile, variant.itemsize)
    of_16_bits = least_order(2 * variant.itemsize, variant.rate / 2, variant.bandwidth)
    ratio = Fraction(least_order(variant.itemsize, variant.rate, variant.bandwidth), of_16_bits)
    of_orders = min(
        zip((Fraction(1, 2), Fraction(1), Fraction(2)), ORDERS, strict=True), key=lambda o: abs(o[0] - ratio)
    )
    reasons = {"half as large": "b is halved, but P is doubled.", "twice as large": "P is doubled, but b is halved."}
    return {
        "order_formula": same_quantity(
            lambda P, B, b: Fraction(3 * b * P, 2 * B), rates, seed=seed, counted="from I_max",
            slips=(
                Slip("ridge-for-order", lambda P, B, b: Fraction(P, B), "That is the ridge point. Which n reaches it?"),
                Slip("result-forgotten", lambda P, B, b: Fraction(b * P, B), "A, B and C: three matrices pass."),
                Slip("one-operation", lambda P, B, b: Fraction(3 * b * P, B), "2n^3 operations, not n^3."),
                Slip("upside-down", lambda P, B, b: Fraction(3 * b * B, 2 * P), "A higher rate asks for a larger n."),
            ),
        ),
        "least_order_40": close_to(
            Fraction(least_order(variant.itemsize, variant.rate, variant.bandwidth)), slips=order_slips(variant)
        ),
        "against_16_bits": one_of(of_orders[1], reasons),
        "stage_40": close_to(Fraction(one), slips=stage_slips(variant)),
        "stages_40": close_to(Fraction(variant.shared // one), slips=stages_slips(variant)),
        "most_stages": lambda callee: judge_most_stages(callee, seed),
        "waiting": same_quantity(
            lambda L, x, c, s: long_run(L, x, c, s), times, seed=seed, counted="run",
            slips=(
                Slip("serial", lambda L, x, c, s: L + x + c, "That is with one buffer."),
                Slip("latency-only", lambda L, x, c, s: Fraction(L + x + c, s), "With many stages, nothing?"),
                Slip("hidden-at-once", lambda L, x, c, s: max(c, x), "With few stages a step still waits."),
                Slip("one-resource", lambda L, x, c, s: max(c, Fraction(L + x + c, s)),
                     "The memory delivers one slice after the other, too.", Fraction(1, 2)),
            ),
        ),
        "more_stages": read_by_a_person(STAGES),
    }  # fmt: skip
