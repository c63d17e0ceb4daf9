"""How the records of Section 13 show themselves: one small table, printed in a terminal or drawn in a notebook.

A measurement that cannot be read is not a measurement, so every record of this package derives from :class:`Tabular`
and says only what its :class:`Table` is. The text form is what ``print`` and a terminal show; the HTML form is fetched
lazily from ``staxlab.view`` and is only built where a notebook asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """A caption, column headings, rows of already formatted text, and notes printed underneath.

    ``numeric`` names the columns (by position) that are aligned to the right.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    numeric: frozenset[int] = frozenset()

    @staticmethod
    def build(
        caption: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        notes: Sequence[str] = (),
        text_columns: int = 1,
    ) -> Table:
        """Cells become text with ``str``; all but the first ``text_columns`` columns are numeric."""
        return Table(
            caption,
            tuple(columns),
            tuple(tuple(str(cell) for cell in row) for row in rows),
            tuple(note for note in notes if note),
            frozenset(range(text_columns, len(columns))),
        )

    def text(self) -> str:
        """The table in plain characters, for a terminal."""
        grid = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in grid) for i in range(len(self.columns))]

        def line(row: Sequence[str]) -> str:
            cells = (
                c.rjust(w) if i in self.numeric else c.ljust(w)
                for i, (c, w) in enumerate(zip(row, widths, strict=True))
            )
            return "  ".join(cells).rstrip()

        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        parts = [self.caption, line(self.columns), rule, *(line(row) for row in self.rows)]
        return "\n".join([*parts, *(f"note: {note}" for note in self.notes)])


class Tabular:
    """A record that shows itself as a table. Subclasses implement ``table()``."""

    def table(self) -> Table:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.table().text()

    __str__ = __repr__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ..view import mimebundle

        return mimebundle(self)


_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_COUNT_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def seconds_text(seconds: float) -> str:
    """A duration with four significant digits and its unit: ``0.0012345`` gives ``"1.234 ms"``."""
    if not math.isfinite(seconds):
        return "n/a" if math.isnan(seconds) else "inf"
    for scale, unit in _TIME_UNITS:
        if abs(seconds) >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"


def quantity_text(value: float, unit: str, digits: int = 3) -> str:
    """A count or rate with a decimal prefix: ``quantity_text(4.9e10, "B/s")`` gives ``"49 GB/s"``."""
    if not math.isfinite(value):
        return "n/a" if math.isnan(value) else f"inf {unit}"
    for scale, prefix in _COUNT_UNITS:
        if abs(value) >= scale:
            return f"{value / scale:.{digits}g} {prefix}{unit}"
    return f"{value:.{digits}g} {unit}"


def bytes_text(count: int) -> str:
    """A number of bytes with a binary prefix, exact below 1 KiB."""
    for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(count) >= scale:
            value = count / scale
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.2f} {unit}"
    return f"{count} B"
