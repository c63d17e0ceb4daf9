"""Which block of a result a program instance computes (Section 9.8, Proposition 9.4), in Python and in kernel text.

Instances that run at the same time share the L2 cache, so it matters which blocks of the result consecutive numbers
stand for. In a grouped numbering they go down ``GROUP_M`` rows before they go one column to the right, so that a
window of consecutive numbers is nearly a square. The last group has as many rows as are left.

The templates carry this as text (:data:`GROUPED_LINES`), models compute with the function below, and a test holds one
against the other: in Python, and in a kernel that stores its coordinates.
"""

from __future__ import annotations

from ...errors import OptionError
from .templates.texts import NUMBERING

#: The lines of the templates. They need ``tile``, ``grid_m``, ``grid_n`` and the constant ``GROUP_M``, and leave
#: ``tile_m`` and ``tile_n``.
GROUPED_LINES = tuple(NUMBERING.splitlines())


def block_coordinates(pid: int, grid_m: int, grid_n: int, group: int) -> tuple[int, int]:
    """The row and the column of block ``pid`` among ``grid_m`` x ``grid_n``, in groups of ``group`` rows; O(1).

    ``group=1`` is row-major order. Raises OptionError unless all extents are positive and ``pid`` is one of the blocks.

    >>> [block_coordinates(pid, 3, 2, 2) for pid in range(6)]
    [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
    """
    if not all(isinstance(size, int) and size >= 1 for size in (grid_m, grid_n, group)):
        raise OptionError(
            f"no numbering of {grid_m} x {grid_n} blocks in groups of {group} rows",
            remedy="give at least one row, one column, and groups of at least one row",
        )
    if not 0 <= pid < grid_m * grid_n:
        raise OptionError(f"there is no block {pid} among {grid_m} x {grid_n}", remedy="number blocks from 0")
    number, within = divmod(pid, group * grid_n)
    first = number * group
    height = min(grid_m - first, group)
    return first + within % height, within // height
