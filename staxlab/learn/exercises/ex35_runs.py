"""What Exercise 35 counts: the block rows and columns that a window of numbered blocks reads."""

from __future__ import annotations

import random
from functools import lru_cache

from ...measure.grouped_numbering import numbering
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import call_failed, result_text, unexpected_result
from ..variants import generator
from . import ex35_answers


@lru_cache(maxsize=8192)
def read_by(grid_m: int, grid_n: int, group: int, window: int) -> tuple[int, int]:
    """Block rows of A and block columns of B that the first ``window`` blocks read, by going through them."""
    found = numbering(grid_m, grid_n, group, window).reads()
    return len(found.rows), len(found.columns)


def best_height(grid_m: int, grid_n: int, window: int) -> int:
    """The smallest height of groups that reads fewest blocks, by trying all."""
    return min(range(1, grid_m + 1), key=lambda group: (sum(read_by(grid_m, grid_n, group, window)), group))


def grids(seed: int | None) -> list[tuple[int, int, int, int]]:
    """(W, G, g_m, g_n): small ones first; windows of one block, of several groups, and of the last, smaller one."""
    rng: random.Random = generator(seed, "grids")
    found = [(1, 1, 1, 1), (2, 2, 2, 2), (3, 2, 3, 2), (6, 2, 3, 2), (5, 2, 3, 2), (7, 3, 4, 3), (8, 2, 6, 6)]
    found += [(9, 4, 6, 2), (24, 4, 16, 16), (24, 8, 16, 16), (24, 5, 16, 16), (3, 8, 16, 16), (10, 3, 5, 2)]
    for _ in range(60):
        grid_m, grid_n = rng.randint(1, 12), rng.randint(1, 12)
        found.append((rng.randint(1, grid_m * grid_n), rng.randint(1, grid_m), grid_m, grid_n))
    return found


#: name of a mistake: the function that makes it, and what to say.
MISTAKES = {
    "first-group": (ex35_answers.first_group_only, "When the first group is full, the next one begins."),
    "whole-columns": (ex35_answers.whole_columns, "A column that is begun is read, too."),
    "row-major": (ex35_answers.row_major, "That is row by row, whatever G is."),
    "last-group": (ex35_answers.full_last_group, "The last group has only as many rows as are left."),
}


def judge_blocks_read(callee: Callee, seed: int | None) -> Verdict:
    """The student's function against going through the blocks."""
    tried = []
    for window, group, grid_m, grid_n in grids(seed):
        arguments = (window, group, grid_m, grid_n)
        outcome = callee.call(*arguments)
        if outcome.failed:
            return call_failed(callee, arguments, outcome)
        value = outcome.value
        if not isinstance(value, tuple | list) or len(value) != 2 or not all(isinstance(v, int) for v in value):
            return unexpected_result(callee, arguments, f"{result_text(value)} is no pair of whole numbers")
        tried.append((arguments, tuple(value), read_by(grid_m, grid_n, group, window)))
    failed = next((case for case in tried if case[1] != case[2]), None)
    if failed is None:
        return right("The same as going through the blocks, for every grid.", ("tried", f"{len(tried)} grids"))
    (window, group, grid_m, grid_n), value, truth = failed
    facts = (("W", window), ("G", group), ("grid", f"{grid_m} x {grid_n}"), ("yours", value))
    for name, (made, message) in MISTAKES.items():
        if all(tuple(made(*arguments)) == given for arguments, given, _ in tried):
            return wrong(message, *facts, mistake=name)
    if value == truth[::-1]:
        return wrong("Rows of A first, then columns of B.", *facts, mistake="exchanged")
    which = "rows of A" if value[0] != truth[0] else "columns of B"
    return wrong(f"Not as many {which}.", *facts)
