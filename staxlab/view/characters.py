"""Plots in characters, for a terminal: a grid over two logarithmic axes, a character for every series."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

WIDTH, HEIGHT = 64, 16


class Grid:
    """A grid of ``width`` by ``height`` characters over the ``extent`` (x from and to, y from and to, all above 0)."""

    def __init__(self, extent: tuple[float, float, float, float], width: int = WIDTH, height: int = HEIGHT):
        self.left, self.right, self.bottom, self.top = (math.log(value) for value in extent)
        self.width, self.height = width, height
        self.cells = [[" "] * width for _ in range(height)]

    def column(self, x: float) -> int:
        return round((math.log(x) - self.left) / (self.right - self.left) * (self.width - 1))

    def row(self, y: float) -> int:
        return round((self.top - math.log(y)) / (self.top - self.bottom) * (self.height - 1))

    def middle(self, column: int) -> float:
        """The x in the middle of a column."""
        return math.exp(self.left + (self.right - self.left) * column / (self.width - 1))

    def put(self, column: int, row: int, character: str, *, over: bool = True) -> None:
        """Write a character where the grid is; ``over`` what stands there, or only where nothing does."""
        if 0 <= row < self.height and 0 <= column < self.width and (over or self.cells[row][column] == " "):
            self.cells[row][column] = character

    def lines(
        self,
        units: tuple[str, str],
        across: Mapping[float, str],
        up: Mapping[float, str],
    ) -> list[str]:
        """The grid with its axes: ``units`` of x and y, and what stands at which values of both."""
        names = {self.row(value): words for value, words in up.items()}
        found = [units[1]]
        found += [f"{names.get(r, ''):>8} |{''.join(cells)}".rstrip() for r, cells in enumerate(self.cells)]
        found.append(" " * 9 + "+" + "-" * self.width)
        axis = [" "] * (self.width + 10)
        free = 0
        for value, words in sorted(across.items()):
            at = 10 + self.column(value)
            if at >= free and at + len(words) <= len(axis) + 6:
                axis[at : at + len(words)] = words
                free = at + len(words) + 1
        return [*found, "".join(axis).rstrip(), " " * 10 + units[0]]


def powers(low: float, high: float, base: int = 10) -> list[float]:
    """All powers of ``base`` from ``low`` to ``high``."""
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    return [float(base) ** e for e in range(first, last + 1)]


def named(values: Iterable[float], words: Callable[[float], str]) -> dict[float, str]:
    """Ticks with their words."""
    return {value: words(value) for value in values}


def letters(count: int) -> Sequence[str]:
    """A letter for each of ``count`` things, from A on."""
    return [chr(ord("A") + k % 26) for k in range(count)]
