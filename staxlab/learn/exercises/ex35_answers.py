"""Answers to Exercise 35: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex35 import Variant


def blocks_read(W, G, g_m, g_n):
    rows, columns = set(), set()
    for number in range(W):
        group = number // (G * g_n)
        within = number % (G * g_n)
        height = min(G, g_m - group * G)
        rows.add(group * G + within % height)
        columns.add(within // height)
    return len(rows), len(columns)


WHY_W = """W is the number of program instances that are resident on all multiprocessors together: the number of
multiprocessors times the instances that fit on one. How many fit is decided by what runs out first: the registers
(registers of a thread times 32 times num_warps), the shared memory (num_stages times the slices of a step, so by the
block sizes and by the number of stages), or the warps and blocks a multiprocessor can hold at all. So it depends on the
configuration: larger tiles, more stages and more warps make an instance larger and W smaller. Block sizes also change
the grid and with it which G is best. It is never more than there are blocks. And since instances do not all end at the
same time, the running ones are only about consecutive."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex35_runs import best_height, read_by

    grid, window = variant.grid, variant.window
    low, high = (sum(read_by(grid, grid, group, window)) for group in variant.groups)
    return {
        "row_major_35": sum(read_by(grid, grid, 1, window)),
        "low_groups": low,
        "high_groups": high,
        "rows_read": "min(G, W)",
        "columns_read": "ceil(W/G)",
        "blocks_read": blocks_read,
        "best_height": best_height(grid, grid, window),
        "running_35": variant.running,
        "why_window": WHY_W,
    }


# Rows under other names, as many of them; and a group that is not full comes after one that has every column.
HARMLESS = {
    "blocks_read": (
        "rows.add(group * G + within % height) -> rows.add(group * G - within % height)",
        "rows.add(group * G + within % height) -> rows.add(group * W + within % height)",
        "rows.add(group * G + within % height) -> rows.add(group * g_m + within % height)",
        "rows.add(group * G + within % height) -> rows.add(group * G + number % height)",
        "columns.add(within // height) -> columns.add(within // G)",
    )
}


def first_group_only(W, G, g_m, g_n):
    height = min(G, g_m)
    return min(W, height), min(-(-W // height), g_n)


def whole_columns(W, G, g_m, g_n):
    full = W // (G * g_n)
    left = W - full * G * g_n
    height = min(G, g_m - full * G)
    if full or left == 0:
        return min(full * G + (min(left, height) if left else 0), g_m), g_n
    return min(left, height), max(left // height, 1)


def row_major(W, G, g_m, g_n):
    return -(-W // g_n), min(W, g_n)


def full_last_group(W, G, g_m, g_n):
    full = W // (G * g_n)
    left = W - full * G * g_n
    rows = full * G + min(left, G)
    return rows, g_n if full else -(-left // G)


def _exchanged(W, G, g_m, g_n):
    rows, columns = blocks_read(W, G, g_m, g_n)
    return columns, rows


def _total(W, G, g_m, g_n):
    return sum(blocks_read(W, G, g_m, g_n))


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex35 import height_slips, reads_slips, row_slips, running_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    low, high = variant.groups
    return (
        *(slip(s.name, row_major_35=s.answer) for s in row_slips(variant)),
        *(slip(s.name, low_groups=s.answer) for s in reads_slips(variant, low)),
        *(slip(s.name, high_groups=s.answer) for s in reads_slips(variant, high)),
        *(slip(s.name, best_height=s.answer) for s in height_slips(variant)),
        *(slip(s.name, running_35=s.answer) for s in running_slips(variant)),
        slip("small-window", rows_read="G"),
        slip("row-major", rows_read="1"),
        slip("not-whole", columns_read="W/G"),
        slip("begun-column", columns_read="floor(W/G)"),
        slip("begun-column", columns_read="max(floor(W/G), 1)"),
        slip("row-major", columns_read="W"),
        slip("first-group", blocks_read=first_group_only),
        slip("whole-columns", blocks_read=whole_columns),
        slip("row-major", blocks_read=row_major),
        slip("last-group", blocks_read=full_last_group),
        slip("exchanged", blocks_read=_exchanged),
        slip("wrong-form", blocks_read=_total),
    )
