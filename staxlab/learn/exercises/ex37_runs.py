"""What Exercise 37 counts: the classes of blocks, by a block mask whose function is evaluated at every position."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import lru_cache

from ...attention.block_mask import BlockCounts, create_block_mask
from ...attention.masks import causal, sliding_window
from ...measure.block_counts import visited_blocks
from ..answers import Callee
from ..feedback import Verdict, nearly, right, wrong
from ..judges import call_failed, result_text, unexpected_result
from ..variants import generator
from . import ex37_answers

HALF = Fraction(1, 2)


@lru_cache(maxsize=4096)
def window(length: int, block: int, width: int) -> BlockCounts:
    """Blocks of a sliding window, by evaluating it."""
    return create_block_mask(sliding_window(width), None, None, length, length, BLOCK_SIZE=block).totals()


@lru_cache(maxsize=1024)
def causal_mask(length: int, block: int) -> BlockCounts:
    """Blocks of a causal mask, by evaluating it."""
    return create_block_mask(causal, None, None, length, length, BLOCK_SIZE=block).totals()


def multiple(n: int, k: int) -> BlockCounts:
    """n blocks a side, a window of k whole blocks; of four positions each, which is as good as any other number."""
    return window(4 * n, 4, 4 * k)


def saved(length: int, block: int, width: int) -> Fraction:
    """The share of a causal mask's visited blocks that a window does not visit."""
    visited = visited_blocks(window(length, block, width))
    return 1 - Fraction(visited, visited_blocks(causal_mask(length, block)))


def sizes(seed: int | None) -> list[tuple[int, int, int]]:
    """(N, B, w): small ones first; widths of nothing, of whole blocks, one less and one more, and beyond the end."""
    rng: random.Random = generator(seed, "windows")
    found = [
        (4, 4, 0),
        (8, 4, 0),
        (8, 4, 4),
        (12, 4, 5),
        (16, 4, 2),
        (16, 4, 3),
        (16, 4, 7),
        (20, 4, 6),
        (16, 4, 16),
        (12, 4, 40),
    ]
    found += [(12, 4, 11), (6, 1, 0), (6, 1, 2), (10, 2, 1), (12, 2, 3), (64, 8, 20)]
    for _ in range(40):
        n, block = rng.randint(1, 10), rng.randint(1, 9)
        found.append((n * block, block, rng.randint(0, n * block + block)))
    return found


#: name of a mistake: the function that makes it, and what to say.
MISTAKES = {
    "whole-blocks-only": (
        ex37_answers.whole_blocks_only,
        "Right where B divides w. What does a block see that is only touched by the window?",
    ),
    "rounded-up": (
        ex37_answers.rounded_up,
        "A window that is rounded up to whole blocks makes blocks full that are not.",
    ),
    "window-ends-with-a-block": (
        ex37_answers.always_two,
        "With a remainder of B - 1 the window ends exactly with a block: is the last diagonal but one partial?",
    ),
    "one-sided": (ex37_answers.one_sided, "The window reaches to both sides: |q - k| is at most w."),
}


def judge_window_counts(callee: Callee, seed: int | None) -> Verdict:
    """The student's function against the block mask's own counts."""
    tried = []
    for length, block, width in sizes(seed):
        arguments = (length, block, width)
        outcome = callee.call(*arguments)
        if outcome.failed:
            return call_failed(callee, arguments, outcome)
        value = outcome.value
        whole = isinstance(value, tuple | list) and len(value) == 3
        if not whole or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            return unexpected_result(callee, arguments, f"{result_text(value)} is not three whole numbers")
        counts = window(*arguments)
        tried.append((arguments, tuple(value), (counts.full, counts.partial, counts.empty)))
    failed = next((case for case in tried if case[1] != case[2]), None)
    if failed is None:
        return right("The counts of the block mask, for every window.", ("tried", f"{len(tried)} windows"))
    (length, block, width), value, truth = failed
    facts = (("N", length), ("B", block), ("w", width), ("yours", value))
    for name, (made, message) in MISTAKES.items():
        if all(tuple(made(*arguments)) == given for arguments, given, _ in tried):
            if name == "window-ends-with-a-block":
                return nearly(message, *facts, credit=HALF, mistake=name)
            return wrong(message, *facts, mistake=name)
    if value == (truth[1], truth[0], truth[2]):
        return wrong("Full blocks first, then partial ones, then empty ones.", *facts, mistake="exchanged")
    if sum(value) != (length // block) ** 2:
        total = (("blocks in all", (length // block) ** 2),)
        return wrong("Every block is in one of the three classes.", *facts, *total, mistake="not-all-blocks")
    which = next(name for name, a, b in zip(("full", "partial", "empty"), value, truth, strict=True) if a != b)
    return wrong(f"Not as many {which} blocks.", *facts)
