"""Errors of sums (Section 13.3), drawn: over the length of a row with theory as lines, and over condition numbers."""

from __future__ import annotations

import math
from typing import Any

from .document import Pane
from .log_plots import Dots, log_plot
from .markup import Html, join
from .measures import table_markup
from .plots import Curve


def panes(record: Any) -> list[Pane]:
    pictures = [errors_picture(each) for each in record.examples]
    if record.conditions is not None:
        pictures.append(conditions_picture(record.conditions))
    table = record.table()
    return [Pane("rounding-study", table.caption, join([*pictures, table_markup(table)]), record.summary(),
                 table.text())]  # fmt: skip


def errors_picture(each: Any) -> Html:
    """Deviation of the error over the length of a row: the model's lines, a worst case, and what was measured."""
    chosen = [way for way in each.ways if each.at(way, each.sizes[0]).predicted is not None and way != "compiled"]
    lines = [Curve(way, _over_sizes(each, way, "predicted")) for way in chosen]
    worst = next((way for way in chosen if way.endswith("ways")), chosen[-1])
    lines.append(Curve(f"{worst}, worst case", _over_sizes(each, worst, "bound")))
    simulated = tuple(point for way in chosen for point in _over_sizes(each, way, "deviation"))
    dots = [Dots("simulated", simulated)]
    dots += [Dots(way, _over_sizes(each, way, "deviation")) for way in ("eager", "compiled") if way in each.ways]
    last = each.sizes[-1]
    said = "; ".join(
        f"{way} at n = {last:,}: {each.at(way, last).deviation:.2g}"
        + (f", predicted {each.at(way, last).predicted:.2g}" if each.at(way, last).predicted else "")
        for way in each.ways
    )
    return log_plot(
        f"Errors of row sums, {each.example.name}: predicted (lines) and measured (dots)",
        f"Both axes logarithmic. {said}.",
        ("numbers n in a row", "root mean square error (absolute)"),
        lines, base=2, dots=dots,
    )  # fmt: skip


def _over_sizes(each: Any, way: str, name: str) -> tuple[tuple[float, float], ...]:
    found = ((float(n), getattr(each.at(way, n), name)) for n in each.sizes)
    return tuple((n, value) for n, value in found if value)


def conditions_picture(record: Any) -> Html:
    """Relative error over condition number, with one deviation of the model and the worst case as lines."""
    least, most = (pick(row.condition for row in record.rows) for pick in (min, max))
    ends = [least * (most / least) ** (k / 8) for k in range(9)] if math.isfinite(most) else [least, 10 * least]
    size = sum(row.condition * abs(row.row_sum) for row in record.rows) / len(record.rows)  # sum(|x|), alike in all
    lines = [Curve("one deviation of the model", tuple((k, record.deviation * k / size) for k in ends))]
    worst = tuple((k, record.bound(k)) for k in ends if record.bound(k) < 1)
    lines += [Curve("worst case, where it leaves a digit", worst)] if worst else []
    dots = [
        Dots(f"{record.of}, from exact values", tuple((row.condition, row.error) for row in record.rows)),
        Dots("from eager's", tuple((row.condition, row.difference) for row in record.rows)),
    ]
    row = record.smallest
    said = (
        f"Both axes logarithmic. {len(record.rows)} rows of {record.n:,} numbers. The smallest sum, {row.row_sum:.3g}: "
        f"condition {row.condition:.3g}, relative error {row.error:.2g}, predicted {record.predicted(row.row_sum):.2g}."
    )
    axes = ("condition number of the row", "relative error of the row")
    return log_plot("Relative errors of x / x.sum(), Example 7.1", said, axes, lines, dots=dots)
