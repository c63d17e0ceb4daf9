"""Translation validation, drawn (Section 6.9): for each kernel, how much of its error bound the worst element uses.

A bar from 0 to the share of the bound, against a line at 100 %, which no right kernel passes. Kernels that have to be
equal bit for bit have no bar but an equals sign; one that failed has a cross and says so. Text and shape carry it all;
colour adds nothing of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .charts import MUTED, RULE, TEXT, chart, text_at
from .document import Pane
from .markup import Html, element, join, table
from .provenance import TabStop

WIDTH, LEFT, RIGHT, TOP, ROW, BOTTOM = 720, 250, 96, 34, 22, 44
NAME = 32  # characters of a kernel's name beside its bar
MOST = 60  # kernels in the picture; the table has them all
TITLE = "Translation validation: share of the error bound used"
_BAR = "#2f6fb5"


def panes(record: Any) -> list[Pane]:
    """One pane: the bars, the table, and in words what failed."""
    content = record.table()
    stop = TabStop()
    rows, attributes = [], []
    for kernel, cells in zip(record.kernels, content.rows, strict=True):
        rows.append(list(cells))
        attributes.append(stop.attributes(kernel.origins, kernel.kernel))
    parts = [validation_chart(record)] if record.kernels else []
    parts.append(table(content.caption, content.columns, rows, row_attributes=attributes, class_="sx-table",
                       data_group=True))  # fmt: skip
    parts += [element("p", note, class_="sx-note") for note in content.notes]
    return [Pane("validation", "Translation validation", join(parts), content.caption, str(record))]


def said(kernel: Any) -> str:
    """What the picture says of one kernel."""
    if kernel.mismatch is not None or not kernel.compared:
        return kernel.verdict
    if not kernel.bound:
        return "equal bit for bit" if kernel.exact == kernel.compared else "equal to the reference"
    return f"{100 * kernel.share:.3g} % of its bound"


def validation_chart(record: Any) -> Html:
    """A row for each kernel; the horizontal axis is the share of the bound in per cent."""
    shown = record.kernels[:MOST]
    base = TOP + ROW * len(shown)
    height = base + BOTTOM
    words = "; ".join(f"{kernel.kernel}: {said(kernel)}" for kernel in shown)
    if len(record.kernels) > MOST:
        words += f"; and {len(record.kernels) - MOST} more"
    drawn = [
        element("title", TITLE),
        element("desc", words),
        text_at(TITLE, 12, 18, "sx-count", TEXT, font_weight="600"),
    ]
    drawn += _axis(base)
    for place, kernel in enumerate(shown):
        drawn += _row(kernel, TOP + ROW * place)
    return chart(drawn, TITLE, words, WIDTH, height)


def _across(share: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * min(share, 1.0)


def _axis(base: int) -> Iterator[Html]:
    limit = _across(1)
    yield element("path", d=f"M{LEFT} {TOP - 4}V{base}H{limit:g}", class_="sx-chart-axis", fill="none", stroke=RULE)
    yield element("path", d=f"M{limit:g} {TOP - 4}V{base}", class_="sx-chart-limit", fill="none", stroke="#8a4600",
                  stroke_width="1.6", stroke_dasharray="7 4")  # fmt: skip
    for per_cent in (0, 25, 50, 75, 100):
        x = _across(per_cent / 100)
        yield element("path", d=f"M{x:g} {base}v4", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{per_cent}", x, base + 17, "sx-label", MUTED, text_anchor="middle")
    yield text_at("largest deviation (% of the error bound)", (LEFT + limit) / 2, base + 36, "sx-label", MUTED,
                  text_anchor="middle")  # fmt: skip


def _row(kernel: Any, top: int) -> Iterator[Html]:
    name = kernel.kernel if len(kernel.kernel) <= NAME else f"{kernel.kernel[: NAME - 1]}…"
    middle = top + ROW // 2
    yield text_at(name, LEFT - 8, middle + 4, "sx-label", TEXT, text_anchor="end")
    label = element("title", f"{kernel.kernel}: {said(kernel)}")
    if kernel.mismatch is not None:
        yield element("path", label, d=f"M{LEFT + 4} {middle - 4}l8 8m0 -8l-8 8", class_="sx-chart-line", fill="none",
                      stroke=_BAR, stroke_width="2.2", data_kernel=kernel.kernel)  # fmt: skip
        yield text_at("FAILED", LEFT + 20, middle + 4, "sx-label", TEXT, font_weight="600")
    elif kernel.bound:
        yield element("rect", label, x=LEFT, y=middle - 6, width=f"{max(_across(kernel.share) - LEFT, 1.5):.1f}",
                      height=12, class_="sx-read", fill=_BAR, data_kernel=kernel.kernel)  # fmt: skip
        yield text_at(f"{100 * kernel.share:.3g} %", WIDTH - RIGHT + 8, middle + 4, "sx-label", MUTED)
    else:
        yield element("path", label, d=f"M{LEFT + 4} {middle - 2}h8m-8 4h8", class_="sx-chart-line", fill="none",
                      stroke=_BAR, stroke_width="1.6", data_kernel=kernel.kernel)  # fmt: skip
        yield text_at(said(kernel), LEFT + 20, middle + 4, "sx-label", MUTED)
