"""Traffic of matrix products (Section 9.8), drawn: against the size of the tile, and what an epilogue saves against k.

Both pictures are log-log. The first has three lines: what square tiles read and write, what no order can do without
(Theorem 9.1), and every element once. Tiles that do not fit on the chip lie in the hatched range.
"""

from __future__ import annotations

from typing import Any

from ..measure.matrix_traffic import compulsory_elements, largest_tile
from .document import Pane, View
from .log_plots import log_plot
from .markup import Html, element, join
from .measures import table_markup
from .plots import Curve, Level, Mark


def view(record: Any, full: bool = False) -> View:
    """The picture of a TileTraffic or an EpilogueSaving, and its table."""
    is_epilogue = type(record).__name__ == "EpilogueSaving"
    content = record.table()
    drawn = epilogue_chart(record) if is_epilogue else traffic_chart(record)
    key = "epilogue-saving" if is_epilogue else "tile-traffic"
    body = join([drawn, table_markup(content)])
    return View(key, (Pane(key, content.caption, body, record.summary(), str(record)),))


def traffic_chart(record: Any) -> Html:
    """Elements moved against the side of a square tile."""
    curve = record.curve()
    widest, depth = curve[-1].tile[0], record.tile[2]
    room = record.capacity > 2 * depth  # for a tile of 1 x 1 and its slices
    fit = largest_tile(record.capacity, depth, power_of_two=False).choice if room else 0
    sides = (1.0, float(widest))
    once = compulsory_elements(record.m, record.n, record.k)
    lines = [Curve("tiles", tuple((float(one.tile[0]), float(one.elements)) for one in curve))]
    fits = f"tiles up to {fit} x {fit} fit on the chip" if fit else "no tile fits on the chip"
    said = f"{record.summary()}. With B_K = {depth}, {fits}."
    if record.bound > 0:
        lines.append(Curve("bound of Theorem 9.1", tuple((side, record.bound) for side in sides)))
        said += f" The bound of Theorem 9.1 is {record.bound:,.0f} elements."
    else:
        said += " Theorem 9.1 says nothing at this size."
    lines.append(Curve("every element once", tuple((side, float(once)) for side in sides)))
    marks = []
    if record.tile[0] == record.tile[1]:
        marks.append(Mark(f"{record.tile[0]} x {record.tile[1]}", float(record.tile[0]), float(record.elements)))
    levels = [Level(f"capacity: T = {fit}", x=float(fit))] if 0 < fit <= 2 * widest else []
    title = f"Traffic of {record.m} x {record.k} by {record.k} x {record.n} in tiles"
    labels = ("side T of a square tile (elements)", "elements moved (count)")
    return log_plot(title, said, labels, lines, marks, levels, base=2, beyond=float(max(fit, 1)))


def epilogue_chart(record: Any) -> Html:
    """What is saved, over the traffic of the product, against k."""
    curve = sorted({*record.curve, record}, key=lambda one: one.traffic.k)
    tiled = Curve("of the traffic in tiles", tuple((float(s.traffic.k), 100 * float(s.share)) for s in curve))
    once = Curve(
        "of every element once", tuple((float(s.traffic.k), 100 * float(s.share_at_least_traffic)) for s in curve)
    )
    t = record.traffic
    said = f"At k = {t.k:,}: {record.summary()}. The share falls as k grows: " + ", ".join(
        f"{float(s.share):.1%} at {s.traffic.k:,}" for s in curve
    )
    mark = Mark(f"k = {t.k:,}", float(t.k), 100 * float(record.share))
    title = f"Saved by fusing relu(A B + bias), {t.m} x k by k x {t.n}"
    labels = ("depth k of the product (elements)", "saved (% of the product's traffic)")
    return element(
        "div", log_plot(title, f"{said}.", labels, [tiled, once], [mark], [Level("100%", y=100.0)], base=2)
    )  # fmt: skip
