"""How loops are shared among threads (Section 8.3, Algorithm 8.1), drawn.

Above, the loops from the outside in, the shared ones filled. Below, a bar for every thread: its iterations, and hatched
what it waits for the busiest one. On the right, how the imbalance ``ceil(q/P) / (q/P)`` depends on the number of
iterations: the reason why Algorithm 8.1 asks for ``2P``.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from ..codegen.cpp.sharing import Depth, imbalance
from .charts import CHARACTER, MUTED, RULE, TEXT, chart, text_at
from .document import Pane, View
from .markup import Html, element, join, table

WIDTH, LOOP, THREAD = 470, 30, 20
LEFT = 76
MOST_THREADS = 16
SAW_WIDTH, SAW_HEIGHT = 380, 200


def view(record: Any, full: bool = False) -> View:
    """Loops and threads, the curve, and the reason; of the algorithm alone, its steps."""
    if isinstance(record, Depth):
        head = ["loop", "extent", "product so far", "left per thread", "decision", "why"]
        steps = table("Loops in the order Algorithm 8.1 looks at them", head, record.rows())
        return View("depth", (Pane("depth", "Algorithm 8.1", steps, record.summary(), record.format()),))
    drawn = element("div", [threads_chart(record), imbalance_chart(record)], class_="sx-columns")
    parts = [drawn]
    if record.decision is not None:
        parts.append(element("p", f"The compiler, for this machine: {record.decision.reason}.", class_="sx-note"))
    rows = [[loop.name, loop.iterations, "among threads" if loop.shared else "no"] for loop in record.loops]
    loops = table("Loops from the outside in", ["loop", "iterations", "shared"], rows)
    parts.append(element("details", element("summary", "the loops as a table"), loops, class_="sx-more"))
    pane = Pane("sharing", f"Threads of {record.kernel}", join(parts), record.summary(), record.format())
    return View("sharing", (pane,))


def threads_chart(record: Any) -> Html:
    """The loops as boxes in one another, and the share of every thread."""
    loops, threads = record.loops, min(record.threads, MOST_THREADS)
    top = 34 + LOOP * len(loops) + (18 if record.members else 0) + 44
    height = top + THREAD * threads + 42
    title = f"Loops of {record.kernel} and {record.threads} thread{'' if record.threads == 1 else 's'}"
    said = f"{record.summary()}. Loops: " + "; ".join(
        f"{loop.name}, {loop.iterations:,} iterations, {'shared' if loop.shared else 'not shared'}" for loop in loops
    )
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 8, 18, "sx-count", TEXT, font_weight="600"),
        *_loops(record),
        *_threads(record, threads, top),
    ]
    return chart(drawn, title, f"{said}.", WIDTH + 20, height)


def _loops(record: Any) -> Iterator[Html]:
    y, product = 34.0, 1
    for depth, loop in enumerate(record.loops):
        x = 10 + 16 * depth
        style, fill = ("sx-cell-written", "#e2f5e7") if loop.shared else ("sx-cell-apart", "none")
        words = f"for {loop.name}: {loop.iterations:,} iteration{'' if loop.iterations == 1 else 's'}"
        product *= loop.iterations if loop.shared else 1
        enough = f", at least 2P = {2 * record.threads}" if product >= 2 * record.threads else ""
        words += f", shared: {product:,} so far{enough}" if loop.shared else ""
        yield element(
            "rect", element("title", words), x=x, y=f"{y:g}", width=WIDTH - x, height=LOOP - 6, rx=4, fill=fill,
            stroke=RULE, class_=f"sx-cell {style}", data_loop=loop.name, data_shared=int(loop.shared),
        )  # fmt: skip
        yield text_at(words, x + 9, y + 16, "sx-count" if loop.shared else "sx-label", TEXT if loop.shared else MUTED)
        y += LOOP
    if record.members:
        words = f"inside, one after the other: {', '.join(record.members)}"
        longest = int((WIDTH - 40) / CHARACTER)
        yield text_at(words if len(words) <= longest else words[: longest - 1] + "…", 28, y + 8, "sx-label", MUTED)


def _threads(record: Any, threads: int, top: float) -> Iterator[Html]:
    shares, busiest = record.shares, max(record.shares)
    room = WIDTH - LEFT - 70
    yield text_at("iterations of each thread, and (hatched) what it waits", 8, top - 12, "sx-label", MUTED)
    for thread in range(threads):
        y = top + THREAD * thread
        size = shares[thread] / busiest * room
        yield text_at(f"thread {thread}", LEFT - 8, y + 13, "sx-label", MUTED, text_anchor="end")
        said = f"thread {thread}: {shares[thread]:,} iterations"
        if size:
            yield element("rect", element("title", said), x=LEFT, y=y + 2, width=f"{size:.1f}", height=THREAD - 6, rx=2,
                          fill="#2f6fb5", class_="sx-read", data_share=shares[thread])  # fmt: skip
        if size < room - 0.5:
            yield element("rect", element("title", f"waits for {busiest - shares[thread]:,} iterations"),
                          x=f"{LEFT + size:.1f}", y=y + 2, width=f"{room - size:.1f}", height=THREAD - 6, rx=2,
                          fill="none", stroke=RULE, stroke_dasharray="3 3", class_="sx-cell sx-cell-apart",
                          data_idle=busiest - shares[thread])  # fmt: skip
        yield text_at(f"{shares[thread]:,}", LEFT + room + 8, y + 13, "sx-label", MUTED)
    y = top + THREAD * threads + 14
    if record.threads > threads:
        yield text_at(f"and {record.threads - threads} more threads", LEFT, y, "sx-label", MUTED)
        y += 14
    each = (
        f"{record.work / record.threads:,.0f} vector operations per thread; one is worth starting for {record.grain:,}"
    )
    yield text_at(each, 8, y + 4, "sx-label", MUTED)


def imbalance_chart(record: Any) -> Html:
    """The imbalance for every number of iterations up to a few times the threads; the kernel's own is marked."""
    threads, own = record.threads, record.iterations
    least, most = max(threads // 2, 1), max(4 * threads, min(own, 8 * threads)) if threads > 1 else 4
    left, top, right = 66, 50, 12
    base, width = top + SAW_HEIGHT, SAW_WIDTH + left + right
    values = [(q, imbalance(q, threads)) for q in range(least, most + 1)]
    highest = max([value for _, value in values] + [Fraction(2)])

    def x(q: float) -> float:
        return left + (q - least) / max(most - least, 1) * SAW_WIDTH

    def y(value: float) -> float:
        return base - (float(value) - 1) / max(float(highest) - 1, 1e-9) * (SAW_HEIGHT - 14)

    title = f"Imbalance for P = {threads}"
    beyond = [value for q, value in values if q >= 2 * threads]
    worst = max(beyond, default=Fraction(1))
    said = f"From q = 2P = {2 * threads} on it is at most {float(worst):.3g}"
    said += f"; here q = {own:,}: {float(record.imbalance):.3g}"
    path = "M" + "L".join(f"{x(q):.1f} {y(value):.1f}" for q, value in values)
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 8, 18, "sx-count", TEXT, font_weight="600"),
        element("path", d=f"M{left} {top}V{base}H{left + SAW_WIDTH}", class_="sx-chart-axis", fill="none", stroke=RULE),
        element("path", d=path, class_="sx-chart-line", fill="none", stroke="#0b57b0", stroke_width="2.2"),
    ]
    for q in dict.fromkeys(k * threads for k in range(1, most // threads + 1, max(most // threads // 4, 1))):
        name = "P" if q == threads else f"{q // threads}P"
        drawn.append(
            text_at(
                f"{name} = {q}" if threads > 1 else str(q), x(q), base + 16, "sx-label", MUTED, text_anchor="middle"
            )
        )
    for value in sorted({1.0, 1.5, round(float(highest), 2)}):
        if value <= float(highest):
            drawn.append(text_at(f"{value:g}", left - 7, y(value) + 4, "sx-label", MUTED, text_anchor="end"))
            drawn.append(element("path", d=f"M{left - 4} {y(value):.1f}H{left}", class_="sx-chart-axis", stroke=RULE))
    if most >= 2 * threads:
        limit = f"M{x(2 * threads):.1f} {y(1.5):.1f}H{left + SAW_WIDTH}"
        drawn.append(
            element("path", d=limit, class_="sx-chart-limit", fill="none", stroke="#8a4600", stroke_dasharray="7 4")
        )
        drawn.append(text_at("3/2 from 2P on", left + SAW_WIDTH, y(1.5) - 6, "sx-label", MUTED, text_anchor="end"))
    if record.parallel:
        words = f"here q = {own:,}: {float(record.imbalance):.3g}" + (", further right" if own > most else "")
        drawn.append(text_at(words, 8, 36, "sx-label", MUTED))
    if record.parallel and least <= own <= most:
        at = {"cx": f"{x(own):.1f}", "cy": f"{y(record.imbalance):.1f}", "r": 5, "data_q": own}
        drawn.append(element("circle", element("title", said), class_="sx-chart-point", fill="#0b57b0", **at))
    drawn.append(text_at("q: iterations that are shared (count)", left, base + 34, "sx-label", MUTED))
    axis = "busiest thread over average"
    drawn.append(
        text_at(
            axis,
            0,
            0,
            "sx-label",
            MUTED,
            text_anchor="middle",
            transform=f"translate(12 {(top + base) / 2:g}) rotate(-90)",
        )
    )
    return chart(drawn, title, f"{said}.", width, base + 44)
