"""What Exercise 25 counts: tiles that fit, and the traffic of tiled products, by running their loops."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from ...measure.epilogue_saving import EpilogueSaving, epilogue_saving
from ...measure.matrix_traffic import TileTraffic, count_tiles, tile_capacity, tile_traffic
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import Slip, call_failed, result_text, unexpected_result
from ..variants import generator

if TYPE_CHECKING:
    from .ex25 import Variant


def different(truth: Fraction, slips: Iterable[Slip]) -> tuple[Slip, ...]:
    """The slips that lead somewhere else than to the truth, each value under its first name."""
    found: dict[Fraction, Slip] = {}
    for slip in slips:
        if Fraction(slip.answer) != truth:
            found.setdefault(Fraction(slip.answer), slip)
    return tuple(found.values())


def traffic_of(variant: Variant) -> TileTraffic:
    """The product of the variant in its largest tile."""
    side, n = variant.side, variant.n
    tile = (side, side, variant.depth)
    return tile_traffic(n, n, n, tile=tile, itemsize=variant.itemsize, capacity=variant.capacity)


def saving_of(variant: Variant) -> EpilogueSaving:
    side, n = variant.side, variant.n
    tile = (side, side, variant.depth)
    return epilogue_saving(n, n, n, tile=tile, itemsize=variant.itemsize, capacity=variant.capacity)


def side_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other tiles one may arrive at."""
    capacity, depth, side = variant.capacity, variant.depth, variant.side
    alone = 1
    while 4 * alone * alone <= capacity:
        alone *= 2
    whole = side
    while tile_capacity((whole + 1, whole + 1, depth)) <= capacity:
        whole += 1
    return different(
        Fraction(side),
        (
            Slip("operands-forgotten", Fraction(alone), "The slices of A and B need room beside the accumulators."),
            Slip(
                "no-power-of-two", Fraction(whole), "It is the largest that fits, and no power of two.", Fraction(1, 2)
            ),
            Slip("too-large", Fraction(2 * side), "Its slices and accumulators do not fit."),
            Slip("too-small", Fraction(side, 2), "Twice that fits as well."),
        ),
    )


@lru_cache(maxsize=4096)
def reads(n: int, side: int) -> int:
    """Elements of A and B that the loops read for an ``n x n`` product in square tiles, counted."""
    ones = [[1] * n for _ in range(n)]
    counted = count_tiles(ones, ones, (side, side, 1))
    return counted.read_a + counted.read_b


def judge_largest_tile(callee: Callee, seed: int | None) -> Verdict:
    """The student's function against trying every power of two."""
    rng = generator(seed, "tiles")
    cases = [(3, 1), (7, 1), (8, 1), (24, 1), (48 * 1024, 32), (1 << 16, 1), (80, 1), (79, 1), (80, 3)]
    for _ in range(60):
        depth = rng.choice((1, 2, 3, 8, 16, 32, 64, 100))
        cases.append((2 * depth + 1 + int(2 ** rng.uniform(0, 18)), depth))
    tried = []
    for capacity, depth in cases:
        if 2 * depth + 1 > capacity:
            continue
        outcome = callee.call(capacity, depth)
        if outcome.failed:
            return call_failed(callee, (capacity, depth), outcome)
        value = outcome.value
        if isinstance(value, bool) or not isinstance(value, int):
            return unexpected_result(callee, (capacity, depth), f"{result_text(value)} is no whole number")
        truth = max(1 << e for e in range(20) if tile_capacity((1 << e, 1 << e, depth)) <= capacity)
        tried.append((capacity, depth, value, truth))
    wrongs = [case for case in tried if case[2] != case[3]]
    if not wrongs:
        return right("The largest power of two that fits, each time.", ("tried", f"{len(tried)} capacities"))
    capacity, depth, value, truth = wrongs[0]
    facts = (("S", capacity), ("B_K", depth), ("yours", value))
    powers = [1 << e for e in range(20)]
    if all(given == max(T for T in powers if T * T <= s) for s, _, given, _ in tried):
        return wrong("The slices of A and B need room, too.", *facts, mistake="operands-forgotten")
    if all(given == max(T for T in powers if T * T + T * d <= s) for s, d, given, _ in tried):
        return wrong("There are two slices, one of either operand.", *facts, mistake="one-slice")
    if value < 1 or value & (value - 1):
        return wrong("That is no power of two.", *facts, mistake="no-power-of-two")
    if value > truth:
        taken = ("elements it takes", f"{tile_capacity((value, value, depth)):,}")
        return wrong("It does not fit.", *facts, taken, mistake="too-large")
    return wrong("Twice that fits as well.", *facts, mistake="too-small")
