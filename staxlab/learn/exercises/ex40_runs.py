"""What Exercise 40 asks the models: ridge points, stages, and the student's own budget."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import TYPE_CHECKING

from ...measure.pipeline_stages import stage_bytes
from ...measure.tensor_cores import least_order
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import Slip, call_failed, result_text, unexpected_result
from ..variants import generator
from . import ex40_answers
from .ex25_runs import different

if TYPE_CHECKING:
    from .ex40 import Variant

Case = tuple[int, int, int, int, int, int]


def order_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other orders one may arrive at."""
    b, rate, bandwidth = variant.itemsize, variant.rate, variant.bandwidth
    truth = least_order(b, rate, bandwidth)
    ridge = Fraction(rate, bandwidth)
    return different(
        Fraction(truth),
        (
            Slip("rounded-down", Fraction(truth - 1), "At that order the intensity is still below the ridge point."),
            Slip("two-bytes", Fraction(least_order(2, rate, bandwidth)), "An element of float8 has one byte."),
            Slip("ridge-for-order", Fraction(-(-rate // bandwidth)), "That is the ridge point. Which n has 2n/(3b)?"),
            Slip("result-forgotten", Fraction(-(-ridge * b // 1)), "A, B and C: three matrices pass."),
            Slip("one-operation", Fraction(-(-3 * b * ridge // 1)), "A multiplication and an addition are two."),
        ),
    )


def stages_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other numbers of stages."""
    rows, columns, depth = variant.tile
    room, one = variant.shared, stage_bytes(variant.tile, variant.itemsize)
    truth = room // one
    with_results = (room - rows * columns * 4) // one
    return different(
        Fraction(truth),
        (
            Slip("rounded-up", Fraction(-(-room // one)), "They do not fit: the last one has no room."),
            Slip("accumulators", Fraction(with_results), "Accumulators are in registers."),
            Slip("one-slice", Fraction(room // (rows * depth * variant.itemsize)), "There are two slices in a stage."),
            Slip("one-less", Fraction(truth - 1), "There is room for one more."),
        ),
    )


def stage_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other sizes of a stage."""
    rows, columns, depth = variant.tile
    one = stage_bytes(variant.tile, variant.itemsize)
    return different(
        Fraction(one),
        (
            Slip(
                "one-slice", Fraction(rows * depth * variant.itemsize), "There are two slices: one of either operand."
            ),
            Slip("two-bytes", Fraction(2 * one), "An element of float8 has one byte."),
            Slip("accumulators", Fraction(one + 4 * rows * columns), "Accumulators are in registers."),
            Slip("multiplied", Fraction(rows * columns * depth), "Two slices lie side by side: add them."),
        ),
    )


#: name of a mistake: the function that makes it, and what to say.
MISTAKES = {
    "epilogue-forgotten": (ex40_answers.no_epilogue, "The epilogue keeps some of the room."),
    "per-stage-epilogue": (ex40_answers.epilogue_per_stage, "The epilogue is kept once, not for every stage."),
    "rounded-up": (ex40_answers.rounded_up, "The last one does not fit."),
    "one-slice": (ex40_answers.one_slice, "There are two slices in a stage."),
    "not-divided": (ex40_answers.not_divided, "Instances on a multiprocessor divide its shared memory."),
}


def cases(seed: int | None) -> list[Case]:
    """(B_M, B_N, B_K, b, room of an instance in bytes, epilogue) with room for one stage at least."""
    rng: random.Random = generator(seed, "budgets")
    found: list[Case] = [(128, 128, 64, 2, 228 << 10, 32 << 10), (128, 128, 128, 1, 228 << 10, 0), (1, 1, 1, 1, 2, 0),
                         (16, 16, 16, 2, 1024, 0), (16, 16, 16, 2, 2047, 0), (16, 64, 32, 4, 40000, 2048)]  # fmt: skip
    while len(found) < 60:
        rows, columns, depth = (rng.choice((16, 32, 64, 128, 256)) for _ in range(3))
        itemsize, room = rng.choice((1, 2, 4)), rng.choice((48, 100, 164, 228)) << 10
        epilogue = rng.choice((0, rows * columns * itemsize))
        if (rows + columns) * depth * itemsize + epilogue <= room:
            found.append((rows, columns, depth, itemsize, room, epilogue))
    return found


def judge_most_stages(callee: Callee, seed: int | None) -> Verdict:
    """The student's function on every case, with one, two and three instances where they fit."""
    tried = []
    for rows, columns, depth, b, room, epilogue in cases(seed):
        for instances in (1, 2, 3):
            one = stage_bytes((rows, columns, depth), b)
            truth = (room // instances - epilogue) // one
            if truth < 1:
                continue
            arguments = (rows, columns, depth, b, room, epilogue, instances)
            outcome = callee.call(*arguments)
            if outcome.failed:
                return call_failed(callee, arguments, outcome)
            value = outcome.value
            if isinstance(value, bool) or not isinstance(value, int):
                return unexpected_result(callee, arguments, f"{result_text(value)} is no whole number")
            tried.append((arguments, value, truth))
    failed = next((case for case in tried if case[1] != case[2]), None)
    if failed is None:
        return right("As many as fit, and not one more.", ("tried", f"{len(tried)} tiles"))
    arguments, value, truth = failed
    names = ("B_M", "B_N", "B_K", "b", "shared", "epilogue", "instances")
    facts = (*zip(names, arguments, strict=True), ("yours", value))
    for name, (made, message) in MISTAKES.items():
        if all(made(*given) == answer for given, answer, _ in tried):
            return wrong(message, *facts, mistake=name)
    return wrong("They do not fit." if value > truth else "More fit.", *facts)
