"""What Exercise 47 runs: the student's schedule as a game with pebbles, and the numbers of the proof."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from ...measure.matrix_traffic import TileTraffic, largest_tile, tile_traffic, transfer_bound
from ...measure.pebbles import PebbleError, PebbleRun, replay
from ..answers import Callee
from ..feedback import Verdict, nearly, right, wrong
from ..judges import Slip, call_failed

if TYPE_CHECKING:
    from .ex47 import Variant

#: (m, n, k, S) of the games, small ones first; in some one word is missing for the next larger tile.
GAMES = (
    (1, 1, 1, 3),
    (2, 2, 2, 3),
    (2, 2, 2, 7),
    (2, 3, 4, 8),
    (3, 3, 3, 14),
    (4, 4, 4, 9),
    (4, 4, 2, 23),
    (6, 6, 3, 16),
    (5, 5, 2, 34),
    (5, 7, 4, 15),
    (7, 5, 6, 25),
    (8, 8, 8, 24),
)
MOST_MOVES = 20_000


def traffic_of(variant: Variant) -> TileTraffic:
    """The tiled product of Exercise 25 with the values of this one."""
    side = largest_tile(variant.capacity, variant.depth).choice
    n = variant.n
    return tile_traffic(n, n, n, tile=(side, side, variant.depth), itemsize=4, capacity=variant.capacity)


def gap_factors(variant: Variant) -> tuple[float, float, float]:
    """The largest tile over the power of two, sqrt(S) over the largest tile, and 4 sqrt(3), which the proof loses."""
    side = largest_tile(variant.capacity, variant.depth).choice
    whole = largest_tile(variant.capacity, variant.depth, power_of_two=False).choice
    return whole / side, math.sqrt(variant.capacity) / whole, 4 * math.sqrt(3)


def bound_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other bounds one may arrive at."""
    n, capacity = variant.n, variant.capacity
    truth = transfer_bound(n, n, n, capacity)
    found = (
        Slip("last-segment", truth + capacity, "The last segment may be a short one: S is taken off.", Fraction(1, 2)),
        Slip("thousands", transfer_bound(n, n, n, variant.room * 1000), "S is in units of 1024 elements."),
        Slip("without-constant", n**3 / math.sqrt(capacity) - capacity, "The constant is part of the theorem."),
        Slip("root-of-three", n**3 / (2 * math.sqrt(capacity)) - capacity, "A factor of the constant is missing."),
    )
    return tuple(slip for slip in found if not math.isclose(slip.answer, truth, rel_tol=1e-8))


@lru_cache(maxsize=64)
def allowed_transfers(m: int, n: int, k: int, capacity: int) -> int:
    """What tiles of the largest side with ``T^2 + 2T <= S`` move."""
    side = largest_tile(capacity, 1, power_of_two=False).choice
    return tile_traffic(m, n, k, tile=(side, side, 1), capacity=capacity).elements


def examine_game(callee: Callee, game: tuple[int, ...]) -> Verdict | None:
    """Play the student's schedule; None if it is legal and moves little enough."""
    m, n, k, capacity = game
    facts = (("m, n, k", f"{m}, {n}, {k}"), ("S", capacity))
    outcome = callee.collect(m, n, k, capacity, limit=MOST_MOVES)
    if outcome.failed:
        return call_failed(callee, game, outcome)
    moves = outcome.value
    if len(moves) > MOST_MOVES:
        return wrong(f"More than {MOST_MOVES:,} moves.", *facts, mistake="too-many-moves")
    try:
        run: PebbleRun = replay(m, n, k, capacity, moves)
    except PebbleError as error:
        name = "unfinished" if error.move == "end" else "against-the-rules"
        return wrong("The game stops.", *facts, ("because", error.what), mistake=name)
    except Exception as error:  # a move that is no tuple of the right kind
        return wrong("The game stops.", *facts, ("because", f"{type(error).__name__}: {error}"), mistake="no-move")
    most = allowed_transfers(m, n, k, capacity)
    facts += (("transfers", run.transfers), ("at most", most))
    if run.transfers > most:
        return nearly("Legal, but it moves more than tiles would.", *facts, mistake="too-many-transfers")
    return None


def schedule_verdict(callee: Callee) -> Verdict:
    """All games, smallest first."""
    for game in GAMES:
        verdict = examine_game(callee, game)
        if verdict is not None:
            return verdict
    return right("Legal in every game, with as few transfers as tiles make.", ("played", f"{len(GAMES)} games"))
